#!/usr/bin/env bash
# A Docker engine that answers, or the reason why there is none.
#
#   docker/ensure-engine.sh         does nothing if an engine answers; else installs one (root, Debian) and starts it
#   docker/ensure-engine.sh stop    stops the engine that this script started, and no other
set -uo pipefail

STATE=${STREAM_DPPCA_ENGINE_STATE:-/var/run/stream-dppca-engine}
LOG=$STATE/dockerd.log
PID=$STATE/dockerd.pid
WAIT=${STREAM_DPPCA_ENGINE_WAIT:-30}

say() { echo "ensure-engine: $*" >&2; }
die() { say "no Docker engine: $*"; exit 1; }
answers() { command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
ours() { [ -s "$PID" ] && kill -0 "$(cat "$PID")" 2>/dev/null && [ "$(cat "/proc/$(cat "$PID")/comm")" = dockerd ]; }

stop() {
    ours || return 0
    kill "$(cat "$PID")"
    for _ in $(seq 150); do ours || break; sleep 0.2; done
    ours && kill -9 "$(cat "$PID")"
    rm -f "$PID"
}

install() {
    [ "$(id -u)" = 0 ] || die "dockerd is not installed, and only root can install it"
    command -v apt-get >/dev/null || die "dockerd is not installed, and this is not a Debian system"
    say "installing docker.io"
    # --no-install-recommends leaves out what a test engine does not need, iptables among it: ask for that.
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qy --no-install-recommends \
        docker.io iptables; } >"$STATE/apt.log" 2>&1 || { tail -n 20 "$STATE/apt.log" >&2; die "apt-get failed (above)"; }
    answers && return  # the package's own service may have started it
    command -v dockerd >/dev/null || die "docker.io is installed, but has no dockerd"
}

# Starts dockerd with the given flags; true once it answers.
start() {
    say "starting dockerd $*"
    setsid dockerd --pidfile "$STATE/docker.pid" "$@" >"$LOG" 2>&1 </dev/null &
    echo $! >"$PID"
    for _ in $(seq $((WAIT * 5))); do
        answers && return 0
        kill -0 "$(cat "$PID")" 2>/dev/null || return 1
        sleep 0.2
    done
    stop
    return 1
}

case ${1:-start} in
    stop) stop; exit ;;
    start) ;;
    *) die "unknown word '$1'" ;;
esac

answers && exit
mkdir -p "$STATE" || die "cannot write $STATE"
exec 9>"$STATE/lock" && flock 9 || die "cannot lock $STATE"  # two at once: the second finds the first one's engine
answers && exit
case ${DOCKER_HOST:-} in '' | unix:*) ;; *) die "DOCKER_HOST=$DOCKER_HOST does not answer, and is not ours to start" ;; esac
command -v dockerd >/dev/null && command -v docker >/dev/null || install
answers && exit
[ "$(id -u)" = 0 ] || die "dockerd is installed but not running, and only root can start it"

# Least change first: each line gives up one thing more that some machines do not have.
start 9>&- && exit
start --storage-driver=vfs 9>&- && exit
start --storage-driver=vfs --iptables=false --ip6tables=false 9>&- && exit
start --storage-driver=vfs --iptables=false --ip6tables=false --bridge=none 9>&- && exit
tail -n 20 "$LOG" >&2
die "dockerd does not start (its last words above, all of them in $LOG)"

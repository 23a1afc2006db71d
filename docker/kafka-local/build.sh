#!/usr/bin/env bash
# A Kafka image where none can be pulled: FROM scratch, with a Debian JRE and Kafka's jars; nothing but the packages
# of this machine's apt and of Maven Central. Takes the KAFKA_* variables that apache/kafka takes.
#
#   docker/kafka-local/build.sh     makes it unless it is there; its name is the last line on stdout
set -euo pipefail
cd "$(dirname "$0")/../.."
HERE=docker/kafka-local
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}

say() { echo "kafka-local: $*" >&2; }
die() { say "no image: $*"; exit 1; }

JARS=$("$PYTHON" -m demo.broker jars) || die "no jars of Kafka"
IMAGE=stream-dppca/kafka-local:${JARS##*/kafka-}
RECIPE=$(cat "$HERE"/{build.sh,entrypoint.sh,log4j2.properties} | sha256sum | cut -c1-16)
if [ "$(docker image inspect --format '{{index .Config.Labels "recipe"}}' "$IMAGE" 2>/dev/null)" = "$RECIPE" ]; then
    echo "$IMAGE"
    exit
fi
docker version >/dev/null 2>&1 || die "no Docker engine answers (docker/ensure-engine.sh starts one)"
if ! command -v mmdebstrap >/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || die "mmdebstrap is not installed (package mmdebstrap)"
    say "installing mmdebstrap"
    LOG=$(mktemp)
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends mmdebstrap; } \
        >"$LOG" 2>&1 || { tail -n 20 "$LOG" >&2; die "apt-get failed (above)"; }
    rm -f "$LOG"
fi

# Debian's own sources of this machine, as apt has them, and no others.
SUITE=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mapfile -t SOURCES < <(apt-get indextargets --format '$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' | sed -nE "s/^(Debian|Ubuntu)\|(deb [^ ]+ $SUITE[^ ]* .*)$/\2/p" | sort -u)
[ -n "$SUITE" ] && [ ${#SOURCES[@]} -gt 0 ] || die "apt has no lists of $SUITE: run 'apt-get update'"

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
mkdir -p "$WORK"/kafka/{libs,config}
cp "$JARS"/*.jar "$WORK/kafka/libs/"
cp "$HERE"/{entrypoint.sh,log4j2.properties} "$WORK/kafka/"
chown -R 1000:1000 "$WORK/kafka/config" 2>/dev/null || chmod 0777 "$WORK/kafka/config"
export WORK

# Unpacked only: Java and its libraries need no maintainer script, and so no shell tools, perl or dpkg.
say "putting $IMAGE together (half a minute)"
mmdebstrap --quiet --variant=extract --include=dash,openjdk-17-jre-headless \
    --extract-hook='rm -rf "$1"/usr/share/doc "$1"/usr/share/man "$1"/usr/share/locale "$1"/usr/share/gdb' \
    --extract-hook='ln -s "../lib/jvm/$(ls "$1/usr/lib/jvm" | grep -m1 "^java-17-openjdk-")/bin/java" "$1/usr/bin/java"' \
    --extract-hook='mkdir -p "$1/etc/kafka/docker" "$1/opt" && cp -a "$WORK/kafka" "$1/opt/kafka"' \
    "$SUITE" "$WORK/root.tar" "${SOURCES[@]}" >&2 || die "mmdebstrap failed (above)"
OLD=$(docker image inspect --format '{{.Id}}' "$IMAGE" 2>/dev/null || true)
docker import \
    --change 'ENTRYPOINT ["/bin/dash", "/opt/kafka/entrypoint.sh"]' \
    --change 'USER 1000:1000' \
    --change "LABEL recipe=$RECIPE" \
    "$WORK/root.tar" "$IMAGE" >/dev/null
[ -z "$OLD" ] || docker rmi "$OLD" >/dev/null 2>&1 || true
echo "$IMAGE"

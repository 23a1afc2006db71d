#!/usr/bin/env bash
# A stand-in for python:3.11-slim-bookworm where no image can be pulled: FROM scratch, with Debian's own Python 3.11 and pip
# from the packages that this machine's apt reaches. docker/Dockerfile builds and runs on it as on the real one; it is for
# rehearsals, not for deployment.
#
#   docker/python-local/build.sh    makes it unless it is there; its name is the last line on stdout
set -euo pipefail
cd "$(dirname "$0")/../.."
IMAGE=stream-dppca/python-local:3.11

say() { echo "python-local: $*" >&2; }
die() { say "no image: $*"; exit 1; }

RECIPE=$(sha256sum docker/python-local/build.sh | cut -c1-16)
if [ "$(docker image inspect --format '{{index .Config.Labels "recipe"}}' "$IMAGE" 2>/dev/null)" = "$RECIPE" ]; then
    echo "$IMAGE"
    exit
fi
docker version >/dev/null 2>&1 || die "no Docker engine answers (docker/ensure-engine.sh starts one)"
command -v mmdebstrap >/dev/null || die "mmdebstrap is not installed (package mmdebstrap)"
SUITE=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ "$SUITE" = bookworm ] || die "this is $SUITE, and only bookworm has Python 3.11"
mapfile -t SOURCES < <(apt-get indextargets --format '$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' | sed -nE "s/^Debian\|(deb [^ ]+ $SUITE[^ ]* .*)$/\1/p" | sort -u)
[ ${#SOURCES[@]} -gt 0 ] || die "apt has no lists of $SUITE: run 'apt-get update'"

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
# Unpacked only, without maintainer scripts, so what they would have set up is set up here: the names sh and python, and
# the certificates of this machine, with which pip reaches its index. (Wheels need libstdc++, which the real image has.)
say "putting $IMAGE together (half a minute)"
mmdebstrap --quiet --variant=extract --include=dash,coreutils,libc-bin,libstdc++6,python3-pip,python3-venv,python-is-python3 \
    --extract-hook='ln -sf dash "$1/bin/sh"' \
    --extract-hook='ln -sf python3.11 "$1/usr/bin/python3"; ln -sf python3 "$1/usr/bin/python"' \
    --extract-hook='mkdir -p "$1/etc/ssl/certs" "$1/tmp" "$1/root" && chmod 1777 "$1/tmp"' \
    --extract-hook='cp -L /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"' \
    --extract-hook='printf "root:x:0:0:root:/root:/bin/sh\n" > "$1/etc/passwd"; printf "root:x:0:\n" > "$1/etc/group"' \
    --extract-hook='rm -rf "$1"/usr/share/doc "$1"/usr/share/man "$1"/usr/share/locale' \
    "$SUITE" "$WORK/root.tar" "${SOURCES[@]}" >&2 || die "mmdebstrap failed (above)"
OLD=$(docker image inspect --format '{{.Id}}' "$IMAGE" 2>/dev/null || true)
docker import --change 'CMD ["python3"]' --change "LABEL recipe=$RECIPE" "$WORK/root.tar" "$IMAGE" >/dev/null
[ -z "$OLD" ] || docker rmi "$OLD" >/dev/null 2>&1 || true
echo "$IMAGE"

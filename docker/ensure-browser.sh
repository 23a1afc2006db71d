#!/usr/bin/env bash
# Chromium with its driver, and Prometheus's promtool, for the tests that need them; or the reason why not.
#
#   docker/ensure-browser.sh    does nothing if all are there; else installs what is missing (root, Debian)
set -uo pipefail

say() { echo "ensure-browser: $*" >&2; }
die() { say "$*"; exit 1; }

wanted=()
command -v chromium >/dev/null && command -v chromedriver >/dev/null || wanted+=(chromium chromium-driver)
command -v promtool >/dev/null || wanted+=(prometheus)
[ ${#wanted[@]} = 0 ] && exit
[ "$(id -u)" = 0 ] || die "${wanted[*]} must be installed, and only root can do that"
command -v apt-get >/dev/null || die "${wanted[*]} must be installed, and this is not a Debian system"
say "installing ${wanted[*]}"
LOG=$(mktemp) || die "cannot write a log"
# Only the programs are wanted: RUNLEVEL=1 keeps the packages from starting services.
{ apt-get update -q && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qy --no-install-recommends \
    "${wanted[@]}"; } >"$LOG" 2>&1 || { tail -n 20 "$LOG" >&2; die "apt-get failed (above)"; }
rm -f "$LOG"
for program in chromium chromedriver promtool; do
    command -v "$program" >/dev/null || die "$program is missing after the installation"
done

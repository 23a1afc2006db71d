#!/usr/bin/env bash
# Prints the path of Helm, which is built from Go modules once (two to five minutes) and kept in the cache; or the reason why not.
#
#   docker/ensure-helm.sh --built    does not build it
#   $(docker/ensure-helm.sh) template stream-dppca docker/helm --values docker/helm/example.yaml --kube-version 1.25
set -euo pipefail
VERSION=3.19.5
FOLDER=${XDG_CACHE_HOME:-$HOME/.cache}/stream-dppca/helm-$VERSION
if [ ! -x "$FOLDER/helm" ]; then
    [ "${1:-}" != --built ] || { echo "ensure-helm: Helm has not been built yet" >&2; exit 1; }
    command -v go >/dev/null || { echo "ensure-helm: there is no go command to build Helm with" >&2; exit 1; }
    echo "ensure-helm: building Helm $VERSION, once" >&2
    PART=$(mktemp -d)
    trap 'rm -rf "$PART"' EXIT
    GOBIN=$PART GOFLAGS=-buildvcs=false go install "helm.sh/helm/v3/cmd/helm@v$VERSION" >"$PART/log" 2>&1 \
        || { tail -n 5 "$PART/log" >&2; exit 1; }
    mkdir -p "$FOLDER"
    mv "$PART/helm" "$FOLDER/helm"
fi
echo "$FOLDER/helm"

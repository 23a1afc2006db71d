#!/usr/bin/env bash
# Writes docker/kubernetes.yaml and docker/kubernetes-check.yaml: what the chart makes of docker/helm/example.yaml.
#
#   docker/manifests.sh [folder]
set -euo pipefail
TARGET=$(realpath "${1:-$(dirname "$0")}")
cd "$(dirname "$0")/.."
HELM=$(docker/ensure-helm.sh)
render() { "$HELM" template stream-dppca docker/helm --values docker/helm/example.yaml --kube-version 1.25 "$@" 2>/dev/null; }

{
    cat <<'HEADER'
# An owner, a standby and a scorer (leave it out if nobody may see scores), on any Kubernetes; docs/kubernetes.md explains it. This is what the chart (docker/helm) makes of the
# values in docker/helm/example.yaml: docker/manifests.sh writes it. Before you apply it, change the brokers, the topic, the
# features, the budget, the image, the password and the token.
#
#   kubectl apply --filename docker/kubernetes.yaml
HEADER
    render --skip-tests
} >"$TARGET/kubernetes.yaml"
{
    cat <<'HEADER'
# docker/manifests.sh writes this, too. Change the same things in both files.
#
#   kubectl apply --filename docker/kubernetes-check.yaml
#   kubectl wait --for=condition=complete --timeout=60s job/stream-dppca-check
#   kubectl logs job/stream-dppca-check
HEADER
    render --show-only templates/check.yaml
} >"$TARGET/kubernetes-check.yaml"

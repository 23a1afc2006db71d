#!/usr/bin/env bash
# Builds docker/Dockerfile and runs the image as docs/kubernetes.md does, without a broker: entry point, labels, user, a root
# that cannot be written. Where no image can be pulled, on the stand-in of docker/python-local.
#
#   docker/rehearse.sh [base image]    a few minutes; leaves the image stream-dppca:rehearsal behind, and no container
set -euo pipefail
cd "$(dirname "$0")/.."
IMAGE=stream-dppca:rehearsal
VERSION=$(sed -nE 's/^__version__ = "(.*)"$/\1/p' stream_dppca/__init__.py)
REVISION=$(git rev-parse HEAD)
BASE=${1:-$(docker/python-local/build.sh | tail -n 1)}

docker build --network host --file docker/Dockerfile --tag "$IMAGE" \
    --build-arg "BASE=$BASE" --build-arg "VERSION=$VERSION" --build-arg "REVISION=$REVISION" .
run() { docker run --rm --network none --read-only --cap-drop ALL --security-opt no-new-privileges:true "$@"; }
label() { docker image inspect --format "{{index .Config.Labels \"org.opencontainers.image.$1\"}}" "$IMAGE"; }

[ "$(run "$IMAGE" --version)" = "stream-dppca $VERSION" ]
[ "$(label version)" = "$VERSION" ] && [ "$(label revision)" = "$REVISION" ]
[ "$(run --entrypoint python "$IMAGE" -c 'import os; print(os.getuid())')" = 10001 ]
run --entrypoint python "$IMAGE" -c 'import confluent_kafka, google.protobuf, kafka, lz4, snappy, zstandard'
run --env DPPCA_INPUT_TOPIC=t --env DPPCA_FEATURES=a,b --env DPPCA_EPSILON=1 --env DPPCA_DELTA=1e-6 --env DPPCA_BATCH_SIZE=2000 \
    "$IMAGE" check-config --offline
echo "the image of version $VERSION on $BASE works"

# The start of the local image, in the manner of apache/kafka: Kafka's own wrapper turns the KAFKA_*
# variables into server.properties and formats the storage; then Kafka runs in our place.
# Only what the shell has built in: the image has no other commands.
set -eu
export CLUSTER_ID="${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}"

java() {
    "$@" /usr/bin/java ${KAFKA_HEAP_OPTS:-} ${KAFKA_OPTS:-} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
        -XX:+ExitOnOutOfMemoryError -Dlog4j2.configurationFile=/opt/kafka/log4j2.properties \
        -cp '/opt/kafka/libs/*' $main
}
main='kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker
    --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config'
if ! said=$(java command 2>&1); then
    case $said in
        *'already formatted'*) ;; # the container was here before
        *) echo "$said" >&2 && exit 1 ;;
    esac
fi
main='kafka.Kafka /opt/kafka/config/server.properties'
java exec

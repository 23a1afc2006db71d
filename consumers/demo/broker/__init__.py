"""A real Kafka broker for development and tests, by whichever way this machine has.

`provide_broker` tries, in this order:

1. the address in `KAFKA_BOOTSTRAP_SERVERS`, if set (then nothing else is tried);
2. Docker, if an engine answers and an image is there or can be pulled;
3. Apache Kafka on the local JVM, its jars from Maven (once, then cached).

What is started here is one KRaft node that listens on loopback only, without authentication, and
that ends with the process that started it, however that ends. It is no place for data that must
last or stay secret.

    python -m consumers.demo.broker         # start one, say its address, stop it on Ctrl-C
    python -m consumers.demo.broker jars    # fill the cache of jars, say where it is

No Kafka client is imported: whether a broker is ready is asked in Kafka's own protocol, on a plain
socket. Nothing here is used by the service itself.
"""

from .common import (
    ADDRESS_VARIABLE,
    KAFKA_VERSION,
    LOCAL_IMAGE,
    LOOPBACK,
    START_SECONDS,
    BrokerError,
    BrokerFailed,
    BrokerUnavailable,
)
from .docker import find_docker, find_image, has_bridge
from .jars import ensure_jars
from .node import (
    broker_settings,
    container_environment,
    free_port,
    is_ready,
    metadata_brokers,
)
from .ways import (
    SUPERVISOR,
    Broker,
    DockerBroker,
    ExternalBroker,
    LocalBroker,
    provide_broker,
)

__all__ = [
    "ADDRESS_VARIABLE",
    "KAFKA_VERSION",
    "LOCAL_IMAGE",
    "LOOPBACK",
    "START_SECONDS",
    "SUPERVISOR",
    "Broker",
    "BrokerError",
    "BrokerFailed",
    "BrokerUnavailable",
    "DockerBroker",
    "ExternalBroker",
    "LocalBroker",
    "broker_settings",
    "container_environment",
    "ensure_jars",
    "find_docker",
    "find_image",
    "free_port",
    "has_bridge",
    "is_ready",
    "metadata_brokers",
    "provide_broker",
]

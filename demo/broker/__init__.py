"""A real Kafka broker for development and tests, of whatever kind this machine can have.

`provide_broker` tries, in this order:

1. the address in `KAFKA_BOOTSTRAP_SERVERS`, if set (then nothing else is tried);
2. Docker, if an engine answers and an image is there or can be pulled;
3. Apache Kafka on the local JVM, its jars from Maven (once, then cached).

A broker that is started here is one KRaft node. It listens on loopback only, without
authentication, and ends with the process that started it, however that process ends. Data that must
last or stay secret does not belong there.

    python -m demo.broker         # start one, print its address, stop it on Ctrl-C
    python -m demo.broker jars    # fill the cache of jars, print where it is

No Kafka client is imported: a plain socket asks in Kafka's own protocol whether a broker is ready.
The service itself uses nothing of this.
"""

from .base import Broker, ExternalBroker
from .common import (
    ADDRESS_VARIABLE,
    KAFKA_VERSION,
    LOCAL_IMAGE,
    LOOPBACK,
    START_SECONDS,
    BrokerError,
    BrokerFailed,
    BrokerUnavailable,
    kill_supervised,
    start_supervised,
)
from .docker import DockerBroker, find_docker, find_image, has_bridge
from .jars import ensure_jars
from .local import LocalBroker
from .node import (
    broker_settings,
    container_environment,
    free_port,
    is_ready,
    metadata_brokers,
)
from .provide import provide_broker

__all__ = [
    "ADDRESS_VARIABLE",
    "KAFKA_VERSION",
    "LOCAL_IMAGE",
    "LOOPBACK",
    "START_SECONDS",
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
    "kill_supervised",
    "metadata_brokers",
    "provide_broker",
    "start_supervised",
]

"""The settings and ports of a node, a check that it is ready, and a topic for it."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from .base import LOOPBACK, BrokerFailed, BrokerUnavailable


def broker_settings(port: int, controller_port: int, bind: str = LOOPBACK) -> dict[str, str]:
    """Return the settings of a one-node broker that clients on this machine reach at `port`.

    Inside a container the port is the same as outside: a broker also calls itself at the address
    that it advertises (the markers of transactions go that way).
    """
    fixed = Path(__file__).with_name("server.properties").read_text(encoding="ascii").splitlines()
    return dict(line.split("=") for line in fixed if line[:1] not in ("", "#")) | {
        "listeners": f"PLAINTEXT://{bind}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
    }


def free_port() -> int:
    """Find a free TCP port on loopback, below the range of ports for outgoing connections.

    A client that keeps calling a stopped broker on a port of that range may end up connected to
    itself, and then the broker cannot have its port back.
    """
    ceiling = 32768
    with contextlib.suppress(OSError, ValueError):
        ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        ceiling = int(ephemeral.split()[0])
    candidates = range(10240, ceiling) if ceiling > 12288 else range(20000, 32768)
    for port in random.SystemRandom().sample(candidates, k=200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return port
    raise BrokerUnavailable(f"no free TCP port on {LOOPBACK}")


def listed_brokers(port: int) -> list[tuple[str, int]]:
    """Return the brokers in service, as the one at this port of loopback lists them.

    A broker accepts connections before the controller lets it serve; it lists itself once it may.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}", "log_level": 0})
    try:
        found = client.list_topics(timeout=1.0).brokers.values()
        return [(str(broker.host), int(broker.port)) for broker in found]
    except KafkaException:  # nobody answers
        return []


def is_ready(port: int) -> bool:
    """Tell whether a broker serves clients at this port of loopback."""
    return (LOOPBACK, port) in listed_brokers(port)


def create_topic(port: int, name: str) -> None:
    """Create a topic of one partition at the broker at this port of loopback."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    client = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}"})
    try:
        client.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[
            name
        ].result()
    except KafkaException as error:
        raise BrokerFailed(f"topic {name!r} cannot be created: {error}") from None

"""Parts that all kinds of brokers share, and the broker that somebody else runs."""

from __future__ import annotations

import abc
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

KAFKA_VERSION = "4.3.1"  # of the local JVM and of both images
LOG4J_VERSION = "2.25.4"  # as this Kafka has it; the slf4j bridge to add must be of this version
JAVA_VERSION = 17  # the least that this Kafka runs on
OFFICIAL_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
LOCAL_IMAGE = f"stream-dppca/kafka-local:{KAFKA_VERSION}"  # made by docker/kafka-local/build.sh

ADDRESS_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
IMAGE_VARIABLE = "STREAM_DPPCA_KAFKA_IMAGE"

LOOPBACK = "127.0.0.1"
HEAP = "-Xmx512m"
START_SECONDS = 300.0  #: a start takes seconds on an idle machine, minutes on a busy one
STOP_SECONDS = 30.0
DOWNLOAD_SECONDS = 900.0
PULL_SECONDS = 240.0
PORT_TRIES = 3

Progress = Callable[[str], None]


class BrokerError(RuntimeError):
    """Base class of all errors about brokers."""


class BrokerUnavailable(BrokerError):
    """This machine cannot have a broker of this kind; the message says what is missing."""


class BrokerFailed(BrokerError):
    """A broker did not start, or died; the message ends with the end of its log."""


def run(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `stdout` holds both of its streams; a timeout is a failure."""
    try:
        return subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = f"{Path(command[0]).name} did not end within {timeout:.0f} s"
        return subprocess.CompletedProcess(command, 1, said, None)


class Broker(abc.ABC):
    """A Kafka broker. Used as a context manager, it is started on entry and closed on exit."""

    kind: ClassVar[str]  #: env, docker or local

    @property
    @abc.abstractmethod
    def bootstrap_servers(self) -> str:
        """The address as `host:port`, or several of them separated by commas."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start the broker; return once it serves."""

    @abc.abstractmethod
    def close(self) -> None:
        """End a broker that was started here, and remove what it leaves."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ExternalBroker(Broker):
    """A broker that somebody else runs, at `KAFKA_BOOTSTRAP_SERVERS`."""

    kind = "env"

    def __init__(self, bootstrap_servers: str | None = None) -> None:
        self._servers = bootstrap_servers or os.environ.get(ADDRESS_VARIABLE, "")

    @property
    def bootstrap_servers(self) -> str:
        return self._servers

    def start(self) -> None:
        """Check that somebody answers. More than that may need TLS and a password."""
        servers = [server.strip() for server in self._servers.split(",") if server.strip()]
        if not servers:
            raise BrokerUnavailable(f"{ADDRESS_VARIABLE} is not set")
        reasons = []
        for server in servers:
            host, _, port = server.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), 10.0).close()
            except (OSError, ValueError) as error:
                reasons.append(f"{server}: {error}")
            else:
                return
        raise BrokerUnavailable(f"{ADDRESS_VARIABLE} does not answer ({'; '.join(reasons)})")

    def close(self) -> None:
        pass

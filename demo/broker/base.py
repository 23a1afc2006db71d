"""The interface of a broker, and the broker that somebody else runs."""

from __future__ import annotations

import abc
import os
import socket
from types import TracebackType
from typing import ClassVar, Self

from .common import ADDRESS_VARIABLE, BrokerUnavailable


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

"""Apache Kafka as a testcontainer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar, Self

from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from demo.broker.base import LOOPBACK, START_SECONDS, BrokerFailed, BrokerUnavailable
from demo.broker.docker import find_docker, find_image, has_bridge
from demo.broker.node import broker_settings, container_environment, free_port, is_ready


class KafkaContainer(DockerContainer):
    """One KRaft node of an `apache/kafka` image, reached on loopback.

    The address that a broker advertises must be known before it starts, so its port is chosen here
    and published under the same number; an engine without a bridge gets the host's network.
    """

    kind: ClassVar[str] = "container"

    def __init__(self, image: str | None = None, settings: Mapping[str, str] | None = None) -> None:
        docker = find_docker()
        image = find_image(docker, image)
        disable_ryuk_unless_here(docker)
        super().__init__(image)
        self.port = free_port()
        bind = LOOPBACK
        if has_bridge(docker):
            bind = "0.0.0.0"  # noqa: S104  (of the container: it is published on loopback)
            self.ports[f"{self.port}/tcp"] = (LOOPBACK, self.port)  # type: ignore[assignment]
        else:
            self.with_kwargs(network_mode="host")
        all_settings = broker_settings(self.port, free_port(), bind) | dict(settings or {})
        self.with_envs(**container_environment(all_settings))

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> Self:
        super().start()
        self.wait_until_ready()
        return self

    def restart(self) -> None:
        """Stop in order, if it runs, and start again: same data, same port."""
        self.get_wrapped_container().restart(timeout=30)
        self.wait_until_ready()

    def kill(self) -> None:
        """End as a crash does; `restart` brings it back."""
        self.get_wrapped_container().kill()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(self.port):
            self.reload()
            if self.status == "exited" or time.monotonic() > deadline:
                logs = self.get_wrapped_container().logs(tail=30).decode(errors="replace")
                raise BrokerFailed(f"the container is {self.status}; the end of its log:\n{logs}")
            time.sleep(0.05)

    def close(self) -> None:
        self.stop()


def disable_ryuk_unless_here(docker: str) -> None:
    """Do without the reaper of testcontainers where its image is not here and cannot be pulled.

    The containers are then removed by the fixture, and left behind if pytest is killed.
    """
    if not testcontainers_config.ryuk_disabled:
        try:
            find_image(docker, testcontainers_config.ryuk_image)
        except BrokerUnavailable:
            testcontainers_config.ryuk_disabled = True

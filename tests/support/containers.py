"""Apache Kafka as a testcontainer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar, Self

import docker
from docker.errors import DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from demo.broker.base import (
    HEAP,
    KAFKA_VERSION,
    LOOPBACK,
    START_SECONDS,
    BrokerFailed,
    BrokerUnavailable,
)
from demo.broker.node import broker_settings, free_port, is_ready

IMAGE_VARIABLE = "STREAM_DPPCA_KAFKA_IMAGE"
OFFICIAL_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
LOCAL_IMAGE = f"stream-dppca/kafka-local:{KAFKA_VERSION}"  # made by docker/kafka-local/build.sh


@contextmanager
def docker_engine() -> Iterator[docker.DockerClient]:
    """Yield a client of the Docker engine of this machine, if one answers."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix:"):
        raise BrokerUnavailable(f"the Docker engine at {host} is not on this machine")
    if not Path(host.removeprefix("unix://")).is_socket():  # the client would leave a socket open
        raise BrokerUnavailable(f"there is no Docker engine at {host}")
    try:
        engine = docker.from_env()
    except DockerException as error:
        raise BrokerUnavailable(f"no Docker engine answers ({error})") from error
    with closing(engine):
        yield engine


def find_image(engine: docker.DockerClient, *images: str) -> str:
    """Return the first of these images that the engine has, or pull the first."""
    for image in images:
        try:
            engine.images.get(image)
        except ImageNotFound:
            continue
        return image
    try:
        engine.images.pull(images[0])
    except DockerException as error:
        problem = f"the image {images[0]} is not here and cannot be pulled: {error}"
        raise BrokerUnavailable(problem) from error
    return images[0]


def container_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings as the variables from which `apache/kafka` images make server.properties.

    >>> container_environment({"node.id": "1"})["KAFKA_NODE_ID"]
    '1'
    """
    variables = {"KAFKA_" + key.replace(".", "_").upper(): settings[key] for key in settings}
    return variables | {"KAFKA_HEAP_OPTS": HEAP}


class KafkaContainer(DockerContainer):
    """One KRaft node of an `apache/kafka` image, reached on loopback.

    The address that a broker advertises must be known before it starts, so its port is chosen here
    and published under the same number (a broker also calls itself at the address that it
    advertises: the markers of transactions go that way). An engine without a bridge gets the
    host's network.

    The image is that of `STREAM_DPPCA_KAFKA_IMAGE`, or else Apache's, or else the one that
    docker/kafka-local/build.sh makes.
    """

    kind: ClassVar[str] = "container"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        wanted = os.environ.get(IMAGE_VARIABLE)
        with docker_engine() as engine:
            image = find_image(engine, *([wanted] if wanted else [OFFICIAL_IMAGE, LOCAL_IMAGE]))
            disable_ryuk_unless_here(engine)
            bridge = any(network.name == "bridge" for network in engine.networks.list())
        super().__init__(image)
        self.port = free_port()
        bind = LOOPBACK
        if bridge:
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
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(self.port):
            self.reload()
            if self.status == "exited" or time.monotonic() > deadline:
                logs = self.get_wrapped_container().logs(tail=30).decode(errors="replace")
                raise BrokerFailed(f"the container is {self.status}; the end of its log:\n{logs}")
            time.sleep(0.05)
        return self

    def close(self) -> None:
        self.stop()


def disable_ryuk_unless_here(engine: docker.DockerClient) -> None:
    """Do without the reaper of testcontainers where its image is not here and cannot be pulled.

    The containers are then removed by the fixture, and left behind if pytest is killed.
    """
    if not testcontainers_config.ryuk_disabled:
        try:
            find_image(engine, testcontainers_config.ryuk_image)
        except BrokerUnavailable:
            testcontainers_config.ryuk_disabled = True

"""A broker in a Docker container: its engine, its image, its network."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping

from . import base
from .base import BrokerFailed, BrokerUnavailable, Progress
from .managed import ManagedBroker
from .node import broker_settings, container_environment


def find_docker() -> str:
    """Return the `docker` command, if an engine on this machine answers."""
    docker = shutil.which("docker")
    if not docker:
        raise BrokerUnavailable("no docker command")
    host = os.environ.get("DOCKER_HOST", "")
    if host and not host.startswith("unix:"):
        raise BrokerUnavailable(f"the Docker engine at {host} is not on this machine")
    done = base.run([docker, "version", "--format", "{{.Server.Version}}"], 20.0)
    if done.returncode:
        raise BrokerUnavailable(f"no Docker engine answers ({done.stdout.strip()})")
    return docker


def find_image(docker: str, wanted: str | None = None, progress: Progress | None = None) -> str:
    """Return an image that the engine has, or pull one.

    This is `wanted`, or the image named by `STREAM_DPPCA_KAFKA_IMAGE`, or else Apache's, or else
    the one that docker/kafka-local/build.sh makes.
    """
    wanted = wanted or os.environ.get(base.IMAGE_VARIABLE)
    for image in [wanted] if wanted else [base.OFFICIAL_IMAGE, base.LOCAL_IMAGE]:
        if not base.run([docker, "image", "inspect", image], 20.0).returncode:
            return image
    image = wanted or base.OFFICIAL_IMAGE
    if progress:
        progress(f"pulling {image}")
    done = base.run([docker, "pull", "--quiet", image], base.PULL_SECONDS)
    if done.returncode:
        said = done.stdout.strip().splitlines()[-1:]
        raise BrokerUnavailable(f"the image {image} is not here and cannot be pulled: {said}")
    return image


def has_bridge(docker: str) -> bool:
    """Tell whether the engine has a bridge network; without one, no port can be published."""
    return not base.run([docker, "network", "inspect", "bridge"], 20.0).returncode


def container_network(port: int, bridge: bool) -> tuple[list[str], str]:
    """Return the flags that make a port reachable on loopback, and the address to bind."""
    if bridge:
        return [f"--publish={base.LOOPBACK}:{port}:{port}"], "0.0.0.0"  # noqa: S104
    return ["--network=host"], base.LOOPBACK


class DockerBroker(ManagedBroker):
    """Apache Kafka in a container, base.run by the `docker` command."""

    kind = "docker"

    def __init__(
        self,
        *,
        image: str | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(port=port, settings=settings, progress=progress)
        self._wanted_image = image

    def _check(self) -> None:
        self._docker = find_docker()
        self._image = find_image(self._docker, self._wanted_image, self._tell)

    def _prepare(self) -> None:
        self._name = f"stream-dppca-kafka-{uuid.uuid4().hex[:12]}"
        network, bind = container_network(self.port, has_bridge(self._docker))
        settings = broker_settings(self.port, self.controller_port, bind) | self._extra
        variables = container_environment(settings)
        flags = [f"--env={name}={variables[name]}" for name in variables]
        create = [self._docker, "create", "--name", self._name, *network, *flags, self._image]
        done = base.run(create, base.START_SECONDS)
        if done.returncode:
            raise BrokerFailed(f"docker create failed: {done.stdout.strip()}")

    def _command(self) -> list[str]:
        return [self._docker, "start", "--attach", self._name]

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        base.run(
            [self._docker, "stop", "--time", f"{base.STOP_SECONDS:.0f}", self._name],
            2 * base.STOP_SECONDS,
        )

    def _kill(self) -> None:
        base.run([self._docker, "kill", self._name], base.STOP_SECONDS)

    def _clean(self) -> None:
        if command := self._cleanup_command():
            base.run(command, base.STOP_SECONDS)

    def _cleanup_command(self) -> list[str]:
        name = getattr(self, "_name", None)
        return [self._docker, "rm", "--force", "--volumes", name] if name else []

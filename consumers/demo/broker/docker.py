"""Apache Kafka in a container: which engine, which image, which network."""

from __future__ import annotations

import os
import shutil

from .common import (
    IMAGE_VARIABLE,
    LOCAL_IMAGE,
    LOOPBACK,
    OFFICIAL_IMAGE,
    PULL_SECONDS,
    BrokerUnavailable,
    Progress,
    run,
)


def find_docker() -> str:
    """The `docker` command, with an engine on this machine that answers."""
    docker = shutil.which("docker")
    if not docker:
        raise BrokerUnavailable("no docker command")
    host = os.environ.get("DOCKER_HOST", "")
    if host and not host.startswith("unix:"):
        raise BrokerUnavailable(f"the Docker engine at {host} is not on this machine")
    done = run([docker, "version", "--format", "{{.Server.Version}}"], 20.0)
    if done.returncode:
        raise BrokerUnavailable(f"no Docker engine answers ({done.stdout.strip()})")
    return docker


def find_image(docker: str, wanted: str | None = None, progress: Progress | None = None) -> str:
    """An image that is there, or has been pulled now.

    The one asked for, here or in `STREAM_DPPCA_KAFKA_IMAGE`, or else Apache's, or else ours.
    """
    wanted = wanted or os.environ.get(IMAGE_VARIABLE)
    for image in [wanted] if wanted else [OFFICIAL_IMAGE, LOCAL_IMAGE]:
        if not run([docker, "image", "inspect", image], 20.0).returncode:
            return image
    image = wanted or OFFICIAL_IMAGE
    if progress:
        progress(f"pulling {image}")
    done = run([docker, "pull", "--quiet", image], PULL_SECONDS)
    if done.returncode:
        said = done.stdout.strip().splitlines()[-1:]
        raise BrokerUnavailable(f"the image {image} is not here and cannot be pulled: {said}")
    return image


def has_bridge(docker: str) -> bool:
    """Whether the engine has its bridge network, without which no port can be published."""
    return not run([docker, "network", "inspect", "bridge"], 20.0).returncode


def container_network(port: int, bridge: bool) -> tuple[list[str], str]:
    """The flags that make a container's port reachable on loopback, and the address to bind."""
    if bridge:
        return [f"--publish={LOOPBACK}:{port}:{port}"], "0.0.0.0"  # noqa: S104
    return ["--network=host"], LOOPBACK

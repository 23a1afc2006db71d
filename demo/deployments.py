"""The processes of the demonstration, beside the broker: `serve`, `score`, and a sender."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from consumers.cli.brokers import ask_once
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.protocols import Cluster
from consumers.settings import load_settings

from .broker.base import LOOPBACK
from .broker.node import free_port
from .generator import ensure_topic
from .supervised import kill_supervised, start_supervised

#: Time that the processes have to end after Ctrl-C, before they are killed.
LEAVE_SECONDS: Final = 4.0


class Deployment:
    """Runs everything as in production: service, scorer and sender are processes of their own.

    Parameters
    ----------
    flags
        Settings of the service.
    sender
        The command that sends records.
    environment
        More variables of the environment of the service.
    """

    def __init__(
        self, flags: Mapping[str, Any], sender: Sequence[str], environment: Mapping[str, str] = {}
    ) -> None:
        self.flags, self.settings = flags, load_settings(flags)
        self.ports = {name: free_port() for name in ("service", "scorer")}  #: of their pages
        self._folder = Path(tempfile.mkdtemp(prefix="stream-dppca-demo-"))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        try:
            with ask_once(self.settings) as cluster:
                ensure_topic(cluster, self.settings.input_topic, broker_time=self.by_device)
            self._start("service", self._command("serve", "service"), environment)
            self._start("scorer", self._command("score", "scorer"))
            self._start("sender", sender)
        except BaseException:
            self.close()
            raise

    @property
    def by_device(self) -> bool:
        """True if a device is protected, not a record."""
        return "subject" in self.flags

    def _start(self, name: str, command: Sequence[str], more: Mapping[str, str] = {}) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **more}
        self._children[name] = start_supervised(command, self._log(name), self._folder, environment)

    def _command(self, name: str, part: str) -> list[str]:
        return [*command(name), *as_flags({**self.flags, "http_port": self.ports[part]})]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def cluster(self) -> Cluster:
        return KafkaCluster(kafka_config(self.settings))

    def get(self, part: str, path: str) -> str:
        """Return a page of the service, or of the scorer; empty if it does not answer."""
        try:
            address = self.address(part) + path
            with urllib.request.urlopen(address, timeout=1.0) as answer:  # noqa: S310
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        except (OSError, ValueError):
            return ""

    def address(self, part: str) -> str:
        """Return the address of the pages of the service, or of the scorer."""
        return f"http://{LOOPBACK}:{self.ports[part]}"

    def failed(self) -> str | None:
        """Return the reason why a part of the deployment has failed, or None while all is well."""
        for name, child in self._children.items():
            if (code := child.poll()) is not None:
                lines = self._log(name).read_text(errors="replace").splitlines()
                said = f"the {name} ended with {code}; the end of its log:"
                return "\n".join([said, *lines[-8:]])
        return None

    def close(self) -> None:
        for child in self._children.values():
            child.terminate()
        deadline = time.monotonic() + LEAVE_SECONDS
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            kill_supervised(child)
        shutil.rmtree(self._folder, ignore_errors=True)


def command(name: str) -> list[str]:
    """Return a command of `stream-dppca` of this environment."""
    return [sys.executable, "-m", "consumers.cli", name]


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as flags of a command.

    Examples
    --------
    >>> as_flags({"batch_size": 100, "features": ("cpu", "memory")})
    ['--batch-size', '100', '--features', 'cpu,memory']
    """
    words = []
    for name, value in settings.items():
        words += ["--" + name.replace("_", "-")]
        words += [",".join(value) if isinstance(value, tuple) else str(value)]
    return words

"""The parts of the demonstration, running: a broker, a service that learns, and a generator."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.protocols import Cluster
from consumers.settings import Settings, load_settings

from .broker.base import KAFKA_VERSION, Broker
from .generator import MACHINES, Format, ensure_topic
from .standalone import StandaloneCluster
from .supervised import kill_supervised, start_supervised

#: Time that service and generator have to end after Ctrl-C, before they are killed.
LEAVE_SECONDS: Final = 4.0
KINDS: Final = {
    "env": "your cluster",
    "docker": f"Apache Kafka {KAFKA_VERSION} in Docker",
    "local": f"Apache Kafka {KAFKA_VERSION} on the local JVM",
}


@dataclass(frozen=True)
class DemoConfig:
    """The parts of the demonstration, and how they are set."""

    flags: Mapping[str, Any]  #: settings of the service
    rate: float = 0.0  #: records per second
    change_after: int | None = None  #: records after which the fleet changes; None: it never does
    fault_after: int | None = None  #: records after which a machine fails for a while
    machines: int = MACHINES  #: of the fleet
    format: Format = "packed"  #: of the generator
    generator: Sequence[str] = ()  #: another command that sends records

    def settings(self) -> Settings:
        return load_settings(self.flags)

    @property
    def by_device(self) -> bool:
        """True if a device is protected, not a record."""
        return "subject" in self.flags

    def generator_command(self) -> list[str]:
        """Return the command that sends records."""
        if self.generator:
            return list(self.generator)
        settings = self.settings()
        options: dict[str, Any] = {
            "format": self.format,
            "rows": settings.rows_per_message,
            "rate": self.rate,
            "bootstrap_servers": settings.bootstrap_servers,
            "topic": settings.input_topic,
            "machines": self.machines,
        }
        for name in ("change_after", "fault_after"):
            if (after := getattr(self, name)) is not None:
                options[name] = after
        return [sys.executable, "-m", "demo.generator", *as_flags(options)]


class Deployment:
    """Runs everything as in production: `serve`, `score` and the generator are processes.

    The broker, and the Spark cluster if there is one, are closed with it.
    """

    def __init__(
        self, config: DemoConfig, broker: Broker, spark: StandaloneCluster | None = None
    ) -> None:
        self.config = config
        self._broker, self._spark = broker, spark
        self.broker = f"{KINDS[broker.kind]} at {broker.bootstrap_servers}"  #: in words
        self.engine: str | None = None  #: in words; None if the service adds up records itself
        if spark is not None:
            self.engine = f"Apache Spark, {spark.workers} workers, master at {spark.master}"
        self._folder = Path(tempfile.mkdtemp(prefix="stream-dppca-demo-"))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        try:
            topic = config.settings().input_topic
            ensure_topic(self.cluster(), topic, broker_time=config.by_device)
            flags = as_flags(config.flags)
            self._start(
                "service", [*command("serve"), *flags], spark.environment() if spark else {}
            )
            self._start("scorer", [*command("score"), *flags], {})
            self._start("generator", config.generator_command(), {})
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, command: list[str], more: Mapping[str, str]) -> None:
        """Start a child that ends with this process in any case."""
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **more}
        self._children[name] = start_supervised(
            command, self._log(name), self._folder, environment=environment
        )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def cluster(self) -> Cluster:
        return KafkaCluster(kafka_config(self.config.settings()))

    def port(self, name: str = "service") -> int | None:
        """Return the port at which the service, or the scorer, shows its pages, once it does."""
        return announced_port(self._log(name))

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
        if self._spark is not None:
            self._spark.close()
        self._broker.close()


def command(name: str) -> list[str]:
    """Return a command of `stream-dppca` of this environment."""
    script = Path(sys.executable).with_name("stream-dppca")
    found = [str(script)] if script.exists() else [sys.executable, "-m", "consumers.cli"]
    return [*found, name]


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


def announced_port(log: Path) -> int | None:
    """Return the port that a service announces at the top of its log."""
    if log.exists():
        with log.open("rb") as lines:
            head = lines.read(32 << 10).decode(errors="replace")
        for line in head.splitlines():
            if '"listening"' in line:
                with contextlib.suppress(ValueError, KeyError):
                    return int(json.loads(line)["port"])
    return None

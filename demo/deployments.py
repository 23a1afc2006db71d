"""The parts of the demonstration, running: a broker, a service that learns, and a generator.

`ProcessDeployment` runs them as in production; `ThreadDeployment` needs no broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from consumers.events import set_up_logs
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.protocols import Cluster, Message
from consumers.service.loop import Service
from consumers.settings import Settings, load_settings
from tests.support.memory import MemoryBroker, MemoryCluster

from . import broker as brokers
from .generator import MACHINES, Format, ensure_topic, messages, produce
from .standalone import StandaloneCluster

#: Time that service and generator have to end after Ctrl-C, before they are killed.
LEAVE_SECONDS: Final = 4.0


@dataclass(frozen=True)
class DemoConfig:
    """The options of the demonstration."""

    flags: Mapping[str, Any]  #: settings of the service
    rate: float  #: records per second
    change_after: int | None  #: records after which the fleet changes; None if it never does
    machines: int = MACHINES  #: of the fleet
    format: Format = "packed"  #: of the generator
    generator: Sequence[str] = ()  #: another command that sends records

    def settings(self) -> Settings:
        return load_settings(self.flags)

    @property
    def by_device(self) -> bool:
        """True if a device is protected, not a record."""
        return "subject" in self.flags


class Deployment(Protocol):
    """A running broker, service and generator, with access for a viewer."""

    broker: str  #: in words
    engine: str | None  #: in words; None if the service adds up records itself

    def cluster(self) -> Cluster: ...

    def port(self) -> int | None:
        """Return the port at which the service shows its pages, once it does."""
        ...

    def failed(self) -> str | None:
        """Return the reason why a part of the deployment has failed, or None while all is well."""
        ...

    def tidy(self) -> None:
        """Free memory that is not needed any more; called now and then."""
        ...

    def close(self) -> None: ...


class ProcessDeployment:
    """Runs everything as in production: `stream-dppca serve` and the generator are processes."""

    KINDS: Final = {
        "env": "your cluster",
        "docker": f"Apache Kafka {brokers.KAFKA_VERSION} in Docker",
        "local": f"Apache Kafka {brokers.KAFKA_VERSION} on the local JVM",
    }

    def __init__(
        self, config: DemoConfig, broker: brokers.Broker, spark: StandaloneCluster | None = None
    ) -> None:
        self._broker, self._spark = broker, spark
        self.broker = f"{self.KINDS[broker.kind]} at {broker.bootstrap_servers}"
        self.engine: str | None = None
        if spark is not None:
            self.engine = f"Apache Spark, {spark.workers} workers, master at {spark.master}"
        self._settings = settings = config.settings()
        self._folder = Path(tempfile.mkdtemp(prefix="stream-dppca-demo-"))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        try:
            ensure_topic(self.cluster(), settings.input_topic, broker_time=config.by_device)
            command = [*service_command(), *as_flags(config.flags)]
            self._start("service", command, spark.environment() if spark else {})
            self._start("generator", list(config.generator) or [
                sys.executable, "-m", "demo.generator", "--format", config.format,
                "--rows", str(settings.rows_per_message), "--rate", f"{config.rate}",
                "--bootstrap-servers", broker.bootstrap_servers,
                "--topic", settings.input_topic, "--machines", str(config.machines),
                *([] if config.change_after is None
                  else ["--change-after", str(config.change_after)]),
            ])  # fmt: skip
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, command: list[str], more: Mapping[str, str] | None = None) -> None:
        """Start a child that ends with this process in any case."""
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(more or {})}
        self._children[name] = brokers.start_supervised(
            command, self._folder / f"{name}.log", self._folder, environment=environment
        )

    def cluster(self) -> Cluster:
        return KafkaCluster(kafka_config(self._settings))

    def port(self) -> int | None:
        return _port(self._folder / "service.log")

    def failed(self) -> str | None:
        for name, child in self._children.items():
            if (code := child.poll()) is not None:
                lines = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()
                return "\n".join(
                    [f"the {name} ended with {code}; the end of its log:", *lines[-8:]]
                )
        return None

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        for child in self._children.values():
            child.terminate()
        deadline = time.monotonic() + LEAVE_SECONDS
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            brokers.kill_supervised(child)
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._spark is not None:
            self._spark.close()
        self._broker.close()


class ThreadDeployment:
    """Runs the same parts as threads, on an in-memory broker."""

    engine: str | None = None

    def __init__(self, config: DemoConfig) -> None:
        self.broker = "none: an in-memory broker inside this process"
        self._settings = settings = config.settings()
        self._memory = MemoryBroker()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._folder = Path(tempfile.mkdtemp(prefix="stream-dppca-demo-"))
        self._out = (self._folder / "service.log").open("w", encoding="utf-8")
        set_up_logs(self._out, model=settings.model)
        ensure_topic(self.cluster(), settings.input_topic, broker_time=config.by_device)
        partitions = len(self._memory.topics[settings.input_topic].partitions)
        rows = settings.rows_per_message

        def send(sent: Sequence[Message]) -> None:
            for message in sent:
                at = zlib.crc32(message.key) % partitions
                self._memory.produce(settings.input_topic, message.value, at, message.key)

        def generate() -> None:
            records = messages(
                config.format, rows, change_after=config.change_after, machines=config.machines
            )
            produce(send, records, rows=rows, rate=config.rate, stop=self._stop)

        def serve() -> None:
            Service(settings, self.cluster(), stop=self._stop, watched=False).run()

        self._threads = [
            threading.Thread(target=self._guarded, args=(run,)) for run in (serve, generate)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._errors.append(error)

    def cluster(self) -> Cluster:
        settings = self._settings
        return MemoryCluster(
            self._memory, group=settings.group, state_topic=settings.state_topic,
            input_topic=settings.input_topic, output_topic=settings.output_topic,
        )  # fmt: skip

    def port(self) -> int | None:
        return _port(self._folder / "service.log")

    def failed(self) -> str | None:
        return f"{type(self._errors[0]).__name__}: {self._errors[0]}" if self._errors else None

    def tidy(self) -> None:
        """Delete messages that have been used: they are all in memory."""
        with self._memory.changed:
            group = self._memory.groups.get(self._settings.group)
            for (topic, p), at in (group.offsets if group else {}).items():
                partition = self._memory.topics[topic].partitions[p]
                for entry in partition.entries[partition.first : at]:
                    entry.value = None
                self._memory.trim(topic, p, max(at, partition.first))

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LEAVE_SECONDS)
        self._out.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def service_command() -> list[str]:
    """Return the command `stream-dppca serve` of this environment."""
    script = Path(sys.executable).with_name("stream-dppca")
    found = [str(script)] if script.exists() else [sys.executable, "-m", "consumers.cli"]
    return [*found, "serve"]


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


def _port(log: Path) -> int | None:
    """Return the port that a service announces at the top of its log."""
    if log.exists():
        with log.open("rb") as lines:
            head = lines.read(32 << 10).decode(errors="replace")
        for line in head.splitlines():
            if '"listening"' in line:
                with contextlib.suppress(ValueError, KeyError):
                    return int(json.loads(line)["port"])
    return None

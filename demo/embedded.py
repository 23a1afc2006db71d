"""The demonstration on a machine without Docker and Java: threads, and a broker in memory."""

from __future__ import annotations

import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from consumers.events import set_up_logs
from consumers.protocols import Cluster, Message
from consumers.service.loop import Service

from .deployments import DemoConfig, announced_port
from .generator import ensure_topic, messages, produce
from .memory import MemoryBroker, MemoryCluster

BROKER = "none: an in-memory broker inside this process"
LEAVE_SECONDS = 30.0


class EmbeddedDeployment:
    """A `demo.deployments.Deployment` of threads."""

    engine = None
    broker = BROKER

    def __init__(self, config: DemoConfig) -> None:
        self.config, self._settings = config, config.settings()
        settings = self._settings
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
            self._trim()
            for message in sent:
                at = zlib.crc32(message.key) % partitions
                self._memory.produce(settings.input_topic, message.value, at, message.key)

        def generate() -> None:
            records = messages(
                config.format, rows, None, config.change_after, config.machines, config.fault_after
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

    def _trim(self) -> None:
        """Delete messages that have been used: they are all in memory."""
        with self._memory.changed:
            group = self._memory.groups.get(self._settings.group)
            for (topic, p), at in (group.offsets if group else {}).items():
                partition = self._memory.topics[topic].partitions[p]
                for entry in partition.entries[partition.first : at]:
                    entry.value = None
                self._memory.trim(topic, p, max(at, partition.first))

    def cluster(self) -> Cluster:
        settings = self._settings
        return MemoryCluster(
            self._memory,
            group=settings.group,
            state_topic=settings.state_topic,
            input_topic=settings.input_topic,
            output_topic=settings.output_topic,
        )

    def port(self, name: str = "service") -> int | None:
        return announced_port(self._folder / f"{name}.log")  # there is no scorer

    def failed(self) -> str | None:
        return f"{type(self._errors[0]).__name__}: {self._errors[0]}" if self._errors else None

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LEAVE_SECONDS)
        self._out.close()
        shutil.rmtree(self._folder, ignore_errors=True)

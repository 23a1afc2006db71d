"""The service against bare poll loops of both clients, on the same topic of a real broker.

The service and the loop run in processes of their own, in turn, each on one core, and the broker on
all of them. The comparison is of processor time per row, the best of several runs each, because
other work on the machine affects the time on the wall clock. The detail has the ratio on the wall
clock.

The time of the service is that between two releases, over the slots that it has taken in between:
releases come in groups, when later batches have been learned already. The first and the last fifth
of the batches are left out, with the first step and with the end, where the service has less to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kafka import KafkaProducer

from benchmarks.speed import Row
from consumers import crashpoints
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.protocols import TopicInfo
from consumers.service.loop import Service
from consumers.settings import Settings
from demo.broker.local import LocalBroker

D = 128
FEATURES = tuple(f"f{i}" for i in range(D))
BATCH = 10_000
ROWS_PER_MESSAGE = 50
#: Releases whose latency is not measured: the first step, and the first batches after it.
SKIPPED = 4
#: Records that are taken as they are; the defaults learn centre and scales.
AS_THEY_ARE = {"center": "none", "scales": "none"}
DEFAULTS: dict[str, str] = {}
#: By default the ends of partitions are read every 50 ms.
PROMPT = {"plan_interval_ms": "10"}


@dataclass(frozen=True)
class Case:
    """One comparison."""

    format: str
    batch: int
    batches: int
    target: float | None
    changes: dict[str, str]
    peer: str = "kafka-python"  #: client of the bare loop
    reader: str = "confluent"  #: of the service

    @property
    def what(self) -> str:
        kind = "packed float32" if self.format == "float32" else "JSON"
        reader = "" if self.reader == "confluent" else f"; reader={self.reader}"
        return f"service, {kind}, B = {self.batch}, d = {D}{_how(self.changes)}{reader}"

    @property
    def against(self) -> str:
        plus = " plus msgspec" if self.format == "json" else ""
        return f"bare {self.peer} poll loop{plus}"


CASES = (
    Case("float32", BATCH, 100, 1.0, DEFAULTS),
    Case("float32", BATCH, 100, 0.2, DEFAULTS, "confluent"),
    Case("float32", BATCH, 100, None, DEFAULTS, reader="kafka-python"),
    Case("float32", 10 * BATCH, 10, None, DEFAULTS),
    Case("float32", BATCH, 100, 0.85, AS_THEY_ARE),
    Case("float32", BATCH, 100, 0.7, AS_THEY_ARE, "confluent"),
    Case("float32", BATCH // 10, 200, 0.5, AS_THEY_ARE),
    Case("json", BATCH, 20, 0.9, AS_THEY_ARE),
)


def _how(changes: dict[str, str]) -> str:
    if not changes:
        return "; learned centre and scales (the default)"
    return "".join(f"; {k}={v}" for k, v in changes.items() if k not in AS_THEY_ARE)


class Seconds(NamedTuple):
    """Seconds per row; the best of several runs is the least of each."""

    wall: float
    processor: float

    def best(self, other: Seconds) -> Seconds:
        return Seconds(min(self.wall, other.wall), min(self.processor, other.processor))


NEVER = Seconds(float("inf"), float("inf"))


def service(quick: bool) -> Iterator[Row]:
    """Throughput of packed and JSON messages, and the latency of one batch."""
    with LocalBroker() as broker:
        servers = broker.bootstrap_servers
        topics: dict[str, tuple[str, int, int]] = {}
        for case in CASES:
            if case.format not in topics:
                most = max(c.batch * c.batches for c in CASES if c.format == case.format)
                topics[case.format] = filled(servers, case.format, most)
            yield compared(servers, case, *topics[case.format], repeats=1 if quick else 4)
        for changes, target in (
            (AS_THEY_ARE | PROMPT, 25.0),
            (AS_THEY_ARE, None),
            (DEFAULTS, None),
        ):
            yield latency(servers, 20 if quick else 100, changes, target)


def filled(servers: str, format: str, rows: int) -> tuple[str, int, int]:
    """A topic with this many rows, and the numbers of its messages and rows."""
    topic = f"speed-{format}-{uuid.uuid4().hex[:8]}"
    return topic, produce(make_settings(servers, topic, format), rows, format), rows


def compared(servers: str, case: Case, topic: str, messages: int, rows: int, repeats: int) -> Row:
    settings = make_settings(servers, topic, case.format, batch_size=case.batch, **case.changes)
    batches = min(rows // case.batch, case.batches)
    theirs = ours = nothing = NEVER
    for repeat in range(repeats):
        loop = poll_loop(case.peer, servers, topic, messages, case.format)
        theirs = theirs.best(Seconds(*(s * messages / rows for s in loop)))
        ours = ours.best(serve(settings, batches, reader=case.reader))
        if case.target is not None and repeat % 2 == 0:
            idle = serve(settings, batches, "benchmarks.serve_nothing", reader=case.reader)
            nothing = nothing.best(idle)
    ms = case.batch * 1e3
    limit = (
        f"reading takes {theirs.processor * ms:.3g} ms of processor time per batch in the bare "
        f"loop, the service without learning {nothing.processor * ms:.3g} ms (which would be "
        f"{theirs.processor / nothing.processor:.2g} x), and with it {ours.processor * ms:.3g} ms."
    )
    return Row(
        case.what,
        case.against,
        theirs.processor / ours.processor,
        case.target,
        detail={
            "rows per second of processor time": 1 / ours.processor,
            "of the peer": 1 / theirs.processor,
            "ratio by the wall clock": theirs.wall / ours.wall,
        },
        limit=limit if case.target is not None else "",
    )


def make_settings(servers: str, topic: str, format: str, **changes: Any) -> Settings:
    rows = ROWS_PER_MESSAGE if format == "float32" else 1
    return Settings(
        **{
            "bootstrap_servers": servers,
            "input_topic": topic,
            "features": FEATURES,
            "format": format,
            "rows_per_message": rows,
            "epsilon": 1.0,
            "delta": 1e-6,
            "batch_size": BATCH,
            "http_port": 0,
            **changes,
        }
    )


def payloads(rows: int, format: str) -> Iterator[bytes]:
    X = np.random.default_rng(0).standard_normal((BATCH, D)).astype(np.float32)
    for start in range(0, rows, BATCH):
        block = X[: min(BATCH, rows - start)]
        if format == "float32":
            for i in range(0, len(block), ROWS_PER_MESSAGE):
                yield block[i : i + ROWS_PER_MESSAGE].tobytes()
        else:
            for row in block.tolist():
                yield json.dumps(dict(zip(FEATURES, row, strict=True))).encode()


def produce(settings: Settings, rows: int, format: str) -> int:
    """Fill the topic; return the number of messages."""
    KafkaCluster(kafka_config(settings)).create_topic(settings.input_topic, TopicInfo(1, {}), 1)
    producer = KafkaProducer(
        bootstrap_servers=settings.bootstrap_servers, linger_ms=20, batch_size=1 << 20
    )
    count = 0
    for value in payloads(rows, format):
        producer.send(settings.input_topic, value, partition=0)
        count += 1
    producer.flush()
    producer.close()
    return count


def poll_loop(client: str, servers: str, topic: str, messages: int, format: str) -> Seconds:
    """Seconds per message of the bare loop, in a process of its own."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.poll_loop",
            client,
            servers,
            topic,
            str(messages),
            format,
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=one_core,
    )
    wall, processor = (float(number) for number in done.stdout.split())
    return Seconds(wall, processor)


def one_core() -> None:
    """Run this process on one core, like everything that is compared; the broker has all cores."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def processor_seconds(pid: int) -> float:
    """Time that all threads of a process have had on the processor (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def named(model: str) -> dict[str, str]:
    """Settings of a model that shares nothing with any other."""
    return {
        "model": model,
        "group": model,
        "state_topic": f"{model}.s",
        "output_topic": f"{model}.o",
    }


def serve(
    settings: Settings, batches: int, module: str = "consumers.cli", **changes: str
) -> Seconds:
    """Seconds per row of `stream-dppca serve`, when there are so many batches to read."""
    model = f"{settings.input_topic}-{uuid.uuid4().hex[:8]}"
    own = named(model) | changes
    environment = {
        f"DPPCA_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in (settings.model_dump(mode="json", exclude_unset=True) | own).items()
    }
    process = subprocess.Popen(
        [sys.executable, "-m", module, "serve"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=one_core,
    )
    released, page, marks = 0, "", list[tuple[float, float, float]]()
    for line in process.stdout or ():
        event = json.loads(line)
        page = event.get("page", page)
        if event["event"] == "released":
            released += 1
            if released in (batches // 5, batches * 4 // 5):
                taken = slots_taken(page)
                marks.append((taken, time.monotonic(), processor_seconds(process.pid)))
                if len(marks) == 2:
                    break
    process.terminate()
    process.communicate()
    rows, wall, processor = np.diff(marks, axis=0)[0].tolist()
    return Seconds(wall / rows, processor / rows)


def slots_taken(page: str) -> float:
    """Slots that a service has filled, and learned from except for the last batch at most."""
    with urllib.request.urlopen(f"{page}metrics") as answer:  # noqa: S310 - our own process
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("dppca_slots_total")).split()[1])


class Running:
    """A service in a thread, and the times at which it reached each point."""

    def __init__(self, settings: Settings) -> None:
        self.reached: list[tuple[str, float]] = []
        self._published = threading.Semaphore(0)
        crashpoints.on_reach.append(self._reach)
        self.stop = threading.Event()
        made = Service(
            settings, KafkaCluster(kafka_config(settings)), stop=self.stop, watched=False
        )
        self.thread = threading.Thread(target=made.run, daemon=True)
        self.thread.start()

    def _reach(self, point: str) -> None:
        self.reached.append((point, time.perf_counter()))
        if point == "after_publish":
            self._published.release()

    def times(self, point: str) -> list[float]:
        return [at for name, at in list(self.reached) if name == point]

    def wait(self) -> None:
        """Wait for one more release."""
        if not self._published.acquire(timeout=60):
            raise RuntimeError("no release within a minute")

    def close(self) -> None:
        self.stop.set()
        self.thread.join(10)
        crashpoints.on_reach.clear()


def latency(servers: str, batches: int, changes: dict[str, str], target: float | None) -> Row:
    """Time from the last record of a batch, acknowledged, to the release on the topic.

    The next batch is sent only when the release is published, so that nothing ever waits.
    """
    topic = f"latency-{uuid.uuid4().hex[:8]}"
    settings = make_settings(servers, topic, "float32", fetch_max_wait_ms=50, **changes)
    produce(settings, 0, "float32")
    running = Running(settings)
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=0)
    block = list(payloads(BATCH, "float32"))
    sent = []
    for _ in range(SKIPPED + batches):
        for value in block:
            last = producer.send(topic, value, partition=0)
        last.get(30)
        sent.append(time.perf_counter())
        running.wait()
    producer.close()
    running.close()
    at = slice(SKIPPED, SKIPPED + batches)
    asked = np.array(sent)[at]
    full, committed, published = (
        np.array(running.times(point)[at])
        for point in ("batch_full", "after_commit", "after_publish")
    )
    parts = {
        "p99": np.quantile(published - asked, 0.99),
        "read and learn": np.median(full - asked),
        "commit and confirm": np.median(committed - full),
        "publish": np.median(published - committed),
    }
    return Row(
        f"release out after the last record, median of {batches}, B = {BATCH}, d = {D}"
        f"{_how(changes)}",
        "25 ms" if target else "nothing",
        float(np.median(published - asked)) * 1e3,
        target,
        True,
        unit="ms",
        detail={name: float(value) * 1e3 for name, value in parts.items()},
        limit="two transactions and a confirmation are about ten round trips to the broker, one "
        "after the other; the ends of partitions are looked at on a fixed clock.",
    )

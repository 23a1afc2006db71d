"""The service against the bare poll loop of the same client, on the same topic of a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
from kafka import KafkaProducer

from benchmarks.speed import Row
from consumers import crashpoints
from consumers.demo.broker import LocalBroker
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.protocols import TopicInfo
from consumers.service.loop import Service
from consumers.settings import Settings

D = 128
FEATURES = tuple(f"f{i}" for i in range(D))
BATCH = 10_000
ROWS_PER_MESSAGE = 50


def service(quick: bool) -> Iterator[Row]:
    """Throughput of packed and JSON messages, and the latency of one batch."""
    with LocalBroker() as broker:
        servers = broker.bootstrap_servers
        for format, batch, batches in (
            ("float32", BATCH, 100),
            ("float32", 10 * BATCH, 20),
            ("json", BATCH, 20),
        ):
            rows = batch * (batches // 4 if quick else batches)
            topic = f"speed-{format}-{uuid.uuid4().hex[:8]}"
            settings = make_settings(servers, topic, format, batch_size=batch)
            messages = produce(settings, rows, format)
            ours = theirs = faster = 0.0
            for _ in range(2 if quick else 4):
                theirs = max(theirs, poll_loop(servers, topic, messages, format) * rows / messages)
                ours = max(ours, serve(settings, rows))
                faster = max(faster, serve(settings, rows, reader="confluent"))
            packed = format == "float32"
            yield Row(
                f"service, {'packed float32' if packed else 'JSON'}, B = {batch}, d = {D}",
                "bare kafka-python poll loop" + ("" if packed else " plus msgspec"),
                ours / theirs,
                0.85,
                detail={"rows/s": ours, "peer rows/s": theirs, "with `reader=confluent`": faster},
                limit="two transactions, a confirmation, the noise and the state of every batch, "
                f"in one Python process on a core: {(1 / ours - 1 / theirs) * batch * 1e3:.0f} ms "
                f"more than reading a batch, which takes {batch / theirs * 1e3:.0f} ms.",
            )
        yield from latency(servers, 20 if quick else 100)


def make_settings(servers: str, topic: str, format: str, **changes: Any) -> Settings:
    rows = ROWS_PER_MESSAGE if format == "float32" else 1
    return Settings(**{
        "bootstrap_servers": servers, "input_topic": topic, "features": FEATURES, "format": format,
        "rows_per_message": rows,
        "epsilon": 1.0, "delta": 1e-6, "batch_size": BATCH, "http_port": 0, **changes,
    })  # fmt: skip


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
    """Fill the topic; returns how many messages."""
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


def poll_loop(servers: str, topic: str, messages: int, format: str) -> float:
    """Messages a second of the bare loop, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.poll_loop", servers, topic, str(messages), format],
        stdout=subprocess.PIPE, text=True, check=True, preexec_fn=one_core,
    )  # fmt: skip
    return float(done.stdout)


def one_core() -> None:
    """What is compared runs on one core; the broker has all of them."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def serve(settings: Settings, rows: int, **changes: str) -> float:
    """Rows a second of `stream-dppca serve`, between the first release and the last."""
    model = f"{settings.input_topic}-{uuid.uuid4().hex[:8]}"
    own = {
        "model": model,
        "group": model,
        "state_topic": f"{model}.s",
        "output_topic": f"{model}.o",
    }
    own |= changes
    environment = {
        f"DPPCA_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in (settings.model_dump(mode="json", exclude_unset=True) | own).items()
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "consumers.cli", "serve"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, **environment}, preexec_fn=one_core,
    )  # fmt: skip
    released: list[float] = []
    for line in process.stdout or ():
        event = json.loads(line)
        if event["event"] == "released":
            released.append(time.monotonic())
            if len(released) == rows // settings.batch_size:
                break
    process.terminate()
    process.communicate()
    seconds = released[-1] - released[0]
    return (len(released) - 1) * settings.batch_size / seconds


class Running:
    """A service in a thread, and when it reached which point."""

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
        """For one more release."""
        if not self._published.acquire(timeout=60):
            raise RuntimeError("no release within a minute")

    def close(self) -> None:
        self.stop.set()
        self.thread.join(10)
        crashpoints.on_reach.clear()


def latency(servers: str, batches: int) -> Iterator[Row]:
    """From the last record of a batch, acknowledged, to the release on the topic."""
    topic = f"latency-{uuid.uuid4().hex[:8]}"
    settings = make_settings(servers, topic, "float32", fetch_max_wait_ms=50)
    produce(settings, 0, "float32")
    running = Running(settings)
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=0)
    block = list(payloads(BATCH, "float32"))
    sent = []
    for _ in range(batches):
        for value in block:
            last = producer.send(topic, value, partition=0)
        last.get(30)
        sent.append(time.perf_counter())
        running.wait()
    producer.close()
    running.close()
    published = np.array(running.times("after_publish")[:batches])
    full = np.array(running.times("batch_full")[:batches])
    committed = np.array(running.times("after_commit")[:batches])
    whole = (published - np.array(sent)) * 1e3
    parts = {
        "median": np.median(whole),
        "read and learn": np.median(full - np.array(sent)) * 1e3,
        "commit and confirm": np.median(committed - full) * 1e3,
        "publish": np.median(published - committed) * 1e3,
    }
    yield Row(
        f"latency of one batch, p99 of {batches}, B = {BATCH}, d = {D}", "in the report",
        float(np.quantile(whole, 0.99)), 1000.0, True, unit="ms",
        detail={name: float(value) for name, value in parts.items()},
    )  # fmt: skip

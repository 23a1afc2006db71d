"""The service against the bare poll loop of the same client, on the same topic of a real broker."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from benchmarks.speed import Row
from consumers import testhooks
from consumers.broker import LocalBroker
from consumers.cli import _kafka
from consumers.log import TopicInfo
from consumers.service import Service
from consumers.settings import Settings

D = 128
FEATURES = tuple(f"f{i}" for i in range(D))
BATCH = 10_000
ROWS_A_MESSAGE = 64


def service(quick: bool) -> Iterator[Row]:
    """Throughput of packed and JSON messages, and the latency of one batch."""
    batches = 10 if quick else 40
    with LocalBroker() as broker:
        servers = broker.bootstrap_servers
        for format in ("float32", "json"):
            rows = BATCH * (batches if format == "float32" else max(batches // 4, 4))
            topic = f"speed-{format}-{uuid.uuid4().hex[:8]}"
            settings = make_settings(servers, topic, format)
            messages = produce(settings, rows, format)
            repeats = 2 if quick else 3
            theirs = max(poll_loop(servers, topic, messages, format) for _ in range(repeats))
            ours = max(serve(settings, rows, fresh) for fresh in range(repeats))
            yield Row(
                f"service, {'packed float32' if format == 'float32' else 'JSON'}, d = {D}",
                "bare kafka-python poll loop" + ("" if format == "float32" else " plus msgspec"),
                ours / (theirs * rows / messages),
                0.85,
                detail={"rows/s": ours, "peer rows/s": theirs * rows / messages},
            )
        yield from latency(servers, 20 if quick else 100)


def make_settings(servers: str, topic: str, format: str, **changes: Any) -> Settings:
    return Settings(
        bootstrap_servers=servers, input_topic=topic, features=FEATURES, epsilon=1.0, delta=1e-6,
        batch_size=BATCH, format=format, http_port=0, partition_refresh_s=60.0, **changes,
    )  # fmt: skip


def payloads(rows: int, format: str) -> Iterator[bytes]:
    X = np.random.default_rng(0).standard_normal((BATCH, D)).astype(np.float32)
    for start in range(0, rows, BATCH):
        block = X[: min(BATCH, rows - start)]
        if format == "float32":
            for i in range(0, len(block), ROWS_A_MESSAGE):
                yield block[i : i + ROWS_A_MESSAGE].tobytes()
        else:
            for row in block.tolist():
                yield json.dumps(dict(zip(FEATURES, row, strict=True))).encode()


def produce(settings: Settings, rows: int, format: str) -> int:
    """Fill the topic; returns how many messages."""
    _kafka(settings).create_topic(settings.input_topic, TopicInfo(1, {}), 1)
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
    """Messages a second, from the first that arrives; decoded if they are JSON."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed", max_partition_fetch_bytes=4 << 20, metrics_enabled=False,
        max_poll_records=5000,
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    shape = msgspec.defstruct("Shape", [(name, float) for name in FEATURES], gc=False)
    decode = msgspec.json.Decoder(shape).decode
    seen, first, start = 0, 0, 0.0
    while seen < messages:
        for records in consumer.poll(timeout_ms=1000).values():
            if not start:
                start, first = time.perf_counter(), len(records)
            seen += len(records)
            if format == "json":
                for record in records:
                    decode(record.value)
    elapsed = time.perf_counter() - start
    consumer.close()
    return (seen - first) / elapsed


class Running:
    """A service in a thread, and when it reached which point."""

    def __init__(self, settings: Settings) -> None:
        self.reached: list[tuple[str, float]] = []
        testhooks.on_reach.append(lambda point: self.reached.append((point, time.perf_counter())))
        self.stop = threading.Event()
        made = Service(settings, _kafka(settings), stop=self.stop, watched=False)
        self.thread = threading.Thread(target=made.run, daemon=True)
        self.thread.start()

    def times(self, point: str) -> list[float]:
        return [at for name, at in list(self.reached) if name == point]

    def wait_for(self, batches: int) -> None:
        while len(self.times("after_publish")) < batches and self.thread.is_alive():
            time.sleep(0.002)

    def close(self) -> None:
        self.stop.set()
        self.thread.join(10)
        testhooks.on_reach.clear()


def serve(settings: Settings, rows: int, run: int) -> float:
    """Rows a second between the first release and the last."""
    name = f"{settings.input_topic}-{run}"
    running = Running(
        make_settings(settings.bootstrap_servers, settings.input_topic, settings.format, model=name)
    )
    running.wait_for(rows // BATCH)
    running.close()
    done = running.times("after_publish")
    return (len(done) - 1) * BATCH / (done[-1] - done[0])


def latency(servers: str, batches: int) -> Iterator[Row]:
    """From the last record of a batch, acknowledged, to the release on the topic."""
    topic = f"latency-{uuid.uuid4().hex[:8]}"
    settings = make_settings(servers, topic, "float32", fetch_max_wait_ms=50)
    produce(settings, 0, "float32")
    running = Running(settings)
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=0)
    block = list(payloads(BATCH, "float32"))
    sent = []
    for t in range(batches):
        for value in block:
            last = producer.send(topic, value, partition=0)
        last.get(30)
        sent.append(time.perf_counter())
        running.wait_for(t + 1)
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

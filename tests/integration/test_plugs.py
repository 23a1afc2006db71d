"""On a real Kafka: compressed batches, Avro with a registry, and scores of its records."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import uuid
from collections import Counter
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer, codec
from kafka.record import default_records

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.config import KafkaConfig
from consumers.kafka.configure import task_connection
from consumers.kafka.task_readers import reader_of
from consumers.model.uncertainty import angle
from consumers.protocols import Reader, TopicInfo
from consumers.ranges import Range, read_ranges
from consumers.settings import ClusterSettings

from ..support.harness import READERS, Model, close_readers, model, read_topic
from ..support.processes import PATIENCE_SECONDS, PATIENT_LEAVING, ROOT, wait_for
from ..support.registry import registry
from .conftest import RunningBroker
from .test_service import SESSION, loadings

CODECS = ("gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def compressed(broker: RunningBroker) -> tuple[str, list[bytes]]:
    """A topic with batches of every compression, by two producers, and their content."""
    topic = f"compressed-{uuid.uuid4().hex[:12]}"
    servers = broker.bootstrap_servers
    KafkaCluster(config(servers, READERS[0])).create_topic(topic, TopicInfo(1, {}), 1)
    sent = []
    for name, kind in product(CODECS, ("python", "librdkafka")):
        # More than one block of any compression, and well compressed.
        values = [f"{name} {kind} {i} ".encode() * 3000 for i in range(20)]
        sent += values
        if kind == "python":
            producer = KafkaProducer(bootstrap_servers=servers, compression_type=name, linger_ms=50)
            for value in values:
                producer.send(topic, value, partition=0)
            producer.flush()
            producer.close()
        else:
            fast = Producer(
                {"bootstrap.servers": servers, "compression.type": name, "linger.ms": 50}
            )
            for value in values:
                fast.produce(topic, value, partition=0)
            assert fast.flush(PATIENCE_SECONDS) == 0
    return topic, sent


def config(servers: str, reader: str) -> KafkaConfig:
    fast = {"bootstrap.servers": servers} if reader == "confluent" else None
    return KafkaConfig(
        connection={"bootstrap_servers": servers},
        group="g",
        input_topic="",
        state_topic="",
        output_topic="",
        librdkafka=fast,
    )


def read_all(reader: Reader, count: int) -> list[bytes | None]:
    reader.assign({0: 0})
    found: list[bytes | None] = []

    def enough() -> bool:
        for chunk in reader.read(0.2):
            found.extend(chunk.values)
        return len(found) >= count

    wait_for(f"{count} messages", enough)
    return found


@pytest.mark.parametrize("reader", READERS)
def test_compressed_topics(
    broker: RunningBroker, compressed: tuple[str, list[bytes]], reader: str
) -> None:
    topic, sent = compressed
    opened = KafkaCluster(config(broker.bootstrap_servers, reader)).reader(topic)
    try:
        assert Counter(read_all(opened, len(sent))) == Counter(sent)
    finally:
        opened.close()


@pytest.mark.parametrize("reader", READERS)
def test_bytes_after_a_compressed_batch(
    broker: RunningBroker, fresh_name: Any, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers accept them after gzip and lz4, and refuse all other damage that we know of. Without
    special care they stop kafka-python at gzip, and librdkafka at lz4, for good."""
    topic, servers = fresh_name("tail"), broker.bootstrap_servers
    on = KafkaCluster(config(servers, reader))
    sent = send_tails(on, servers, topic, monkeypatch)
    opened = on.reader(topic)
    try:
        assert read_all(opened, len(sent)) == sent
        assert opened.positions() == {0: len(sent)}
    finally:
        opened.close()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("stamped", [False, True])
def test_tasks_of_an_engine_get_past_them_too(
    broker: RunningBroker,
    fresh_name: Any,
    stamped: bool,
    reader: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, servers = fresh_name("tail"), broker.bootstrap_servers
    on = KafkaCluster(config(servers, "kafka-python"))
    sent = send_tails(on, servers, topic, monkeypatch)
    given = ClusterSettings(bootstrap_servers=servers, input_topic=topic, reader=reader)
    reached = pickle.loads(pickle.dumps(task_connection(given)))
    found: list[tuple[int, Any]] = []
    try:
        opened = reader_of(reached, topic, stamped=stamped)
        ranges = [Range(0, 3, len(sent) - 2)]
        for chunk in chain.from_iterable(read_ranges(opened, topic, ranges, 240.0)):
            found += zip(chunk.offsets, chunk.values, strict=True)
            lengths = {len(chunk.times), len(chunk.keys)}
            assert lengths == {len(chunk.values) if stamped else 0}
    finally:
        close_readers()
    assert found == list(enumerate(sent))[3:-2]


def send_tails(
    on: KafkaCluster, servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> list[bytes]:
    """Fill a topic with compressed batches, every other of which has bytes after its end."""
    on.create_topic(topic, TopicInfo(1, {}), 1)
    sent = []
    for name, tail in product(("gzip", "lz4"), (b"tail", b"")):
        encode = getattr(codec, f"{name}_encode")
        with monkeypatch.context() as patched:
            with_tail = lambda *data, encode=encode, tail=tail: encode(*data) + tail  # noqa: E731
            patched.setattr(default_records, f"{name}_encode", with_tail)
            producer = KafkaProducer(bootstrap_servers=servers, compression_type=name, linger_ms=50)
            values = [b"%s %s %d" % (name.encode(), tail, i) * 9 for i in range(10)]
            futures = [producer.send(topic, value, partition=0) for value in values]
            for future in futures:
                future.get(PATIENCE_SECONDS)
            producer.close()
            sent += values
    return sent


def test_avro_from_the_registry_to_the_scores(broker: RunningBroker, fresh_name: Any) -> None:
    """The task waits for a registry that is away and skips nothing; an unknown schema makes one
    null; scores resume where they ended."""
    schema = {
        "type": "record",
        "name": "T",
        "fields": [
            {"name": "device", "type": "string"},
            {"name": "cpu", "type": "double"},
            {"name": "memory", "type": ["null", "double"]},
            {
                "name": "disk",
                "type": {
                    "type": "record",
                    "name": "D",
                    "fields": [{"name": "read", "type": "float"}],
                },
            },
        ],
    }
    with registry() as served:
        settings = {"format": "avro", "schema_registry_url": served.url}
        number = served.register("t-value", schema)
        with model(
            broker.bootstrap_servers,
            fresh_name("avro"),
            batch=200,
            partitions=2,
            **settings,
            **SESSION,
        ) as m:
            for i, (cpu, memory, read) in enumerate(m.rows(600).tolist()):
                frame = b"\0" + (number if i != 7 else number + 1).to_bytes(4)
                m.send(frame + b"\x04ab" + struct.pack("<dBdf", cpu, 2, memory, read))
            m.producer.flush()
            served.status = 503
            instance = m.start(**PATIENT_LEAVING)
            text = "the schema registry answers with status 503"
            instance.wait_for("waiting_for_registry", message=text)
            assert m.outputs() == []
            served.status = None
            m.finish(instance)
            assert m.check() == 3
            # The standard deviations are 3, 1 and 0.3.
            assert angle(loadings(m.releases()[3]), np.array([1.0, 0.0, 0.0])) < 10
            dropped = [line for line in instance.text.splitlines() if "task_dropped" in line]
            assert not any("schema registry" in line for line in dropped)
            assert str(number) not in instance.text and str(number + 1) not in instance.text
            assert instance.leave() == 0
            # Scores of all records, and then of those that are new.
            for more in (0, 5):
                for _ in range(more):
                    m.send(b"\0" + number.to_bytes(4) + b"\x04ab" + bytes(8) + b"\0" + bytes(4))
                m.producer.flush()
                shown = score(m)
                assert "scores are NOT PRIVATE" in shown
                assert str(number) not in shown
            found = [json.loads(s.value) for s in read_topic(m.servers, f"{m.name}.scores")]
            places = [(one["partition"], one["offset"]) for one in found]
            assert sorted(places) == [(p, o) for p in (0, 1) for o in range(m.sent[p])]
            assert [one["scores"] for one in found].count(None) == 1  # of the unknown schema
            assert {one["batch"] for one in found} == {3}


def score(m: Model) -> str:
    """Run `stream-dppca score` until all records are scored; return its output."""
    command = [sys.executable, "-m", "consumers.cli", "score", "--once"]
    done = subprocess.run(
        command,
        env={**os.environ, **m.environment},
        text=True,
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr

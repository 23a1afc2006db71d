"""Long topics, and topics that were made to fill the memory, read from a real Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from functools import cache
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer, codec
from kafka.record import default_records

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.messages.recipe import MessageRecipe
from consumers.monitoring.metrics import Metrics
from consumers.planning.plan import split_batch, whole_batches
from consumers.protocols import TopicInfo
from consumers.reading.batch_reader import BatchReader
from consumers.settings import ClusterSettings

from ..support.harness import READERS
from ..support.processes import PATIENCE_SECONDS, ROOT
from .conftest import RunningBroker

FEATURES = tuple(f"f{i}" for i in range(20))
MESSAGES, BATCH, PARTITIONS = 500_000, 10_000, 3

#: Bombs: batches, messages of each, and the most that reading them may take.
BOMBS, PER_BOMB, MOST_MEGABYTES = 8, 64, 300


def opened(broker: RunningBroker, topic: str, reader: str) -> KafkaCluster:
    given = ClusterSettings(
        bootstrap_servers=broker.bootstrap_servers, input_topic=topic, reader=reader
    )
    return KafkaCluster(kafka_config(given))


@pytest.fixture(scope="module")
def long_topic(broker: RunningBroker) -> str:
    """JSON of twenty features, about 310 bytes each, in turn on three partitions."""
    topic = f"long-{uuid.uuid4().hex[:12]}"
    opened(broker, topic, READERS[0]).create_topic(topic, TopicInfo(PARTITIONS, {}), 1)
    rng = np.random.default_rng(0)
    values = [
        json.dumps({name: round(x, 6) for name, x in zip(FEATURES, row, strict=True)}).encode()
        for row in rng.normal(size=(1000, len(FEATURES))).tolist()
    ]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20})
    for i in range(MESSAGES):
        while True:
            try:
                producer.produce(topic, values[i % len(values)], partition=i % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return topic


@pytest.mark.parametrize("name", READERS)
def test_a_long_topic_is_read_to_its_end(broker: RunningBroker, long_topic: str, name: str) -> None:
    """Partitions are paused and resumed on the way, and none of them stands still."""
    reader = opened(broker, long_topic, name).reader(long_topic)
    codec = MessageRecipe("json", FEATURES, 1 << 20).codec()
    ranges = BatchReader(
        reader, long_topic, codec, Metrics(), width=len(FEATURES), size=BATCH, stall_s=60.0
    )
    try:
        first = dict.fromkeys(range(PARTITIONS), 0)
        ranges.begin(first)
        left = whole_batches(first, reader.ends(range(PARTITIONS)), BATCH)
        for _ in range(MESSAGES // BATCH):
            batch, left = split_batch(left, BATCH)
            ranges.start(batch)
            while not ranges.complete:
                ranges.read(0.2)
            assert np.isfinite(ranges.take()).all()
    finally:
        ranges.close()


#: Reads a topic to its end; prints the messages and the peak of resident memory, in megabytes.
READ = """
import re, sys
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.settings import ClusterSettings
servers, topic = sys.argv[1:]
given = ClusterSettings(bootstrap_servers=servers, input_topic=topic, reader="kafka-python")
reader = KafkaCluster(kafka_config(given)).reader(topic)
end, n = reader.ends([0])[0], 0
reader.assign({0: 0})
while n < end:
    n += sum(len(value) == 2**20 - 1 for chunk in reader.read(0.2) for value in chunk.values)
reader.close()
print(n, int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_bombs_take_bounded_memory_with_kafka_python(
    broker: RunningBroker, fresh_name: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages just as large as is allowed, hundreds of which fit into one fetch."""
    topic, servers = fresh_name("bombs"), broker.bootstrap_servers
    opened(broker, topic, "kafka-python").create_topic(
        topic,
        # Records of long ago, which retention would remove whenever the broker looks.
        TopicInfo(1, {"max.message.bytes": str(32 << 20), "retention.ms": "-1"}),
        1,
    )
    encode = cache(lambda data: getattr(codec, f"{name}_encode")(data))
    monkeypatch.setattr(default_records, f"{name}_encode", lambda data: encode(bytes(data)))
    patience_ms = int(PATIENCE_SECONDS * 1000)
    producer = KafkaProducer(
        bootstrap_servers=servers,
        compression_type=name,
        linger_ms=60_000,
        batch_size=1 << 30,
        max_request_size=1 << 30,
        request_timeout_ms=patience_ms,
        delivery_timeout_ms=2 * patience_ms,
    )
    for _ in range(BOMBS):
        sent = [
            producer.send(topic, bytes((1 << 20) - 1), partition=0, timestamp_ms=10**12)
            for _ in range(PER_BOMB)
        ]
        producer.flush()
        for future in sent:
            future.get(PATIENCE_SECONDS)
    producer.close()
    done = subprocess.run(
        [sys.executable, "-c", READ, servers, topic],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    messages, megabytes = map(int, done.stdout.split())
    assert messages == BOMBS * PER_BOMB
    assert megabytes < MOST_MEGABYTES, megabytes

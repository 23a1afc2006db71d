"""Readers and the answers of brokers and clients, without a broker."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kafka import errors as kafka_errors

from consumers.errors import ClusterError, RegistryAway
from consumers.kafka.config import KafkaConfig
from consumers.kafka.reader import KafkaOffsets
from consumers.monitoring.metrics import Metrics
from consumers.protocols import Chunk, RegisteredSchema
from consumers.ranges import Range
from consumers.reading.batch_reader import BatchReader

from .helpers import FEATURES, INPUT, as_json, cluster, make_codec, memory_log, rows


class Admin:
    """Describes a topic with an error."""

    def __init__(self, error: type[Any]) -> None:
        self.error = error

    def describe_topics(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        there = [{"partition_index": 0}, {"partition_index": 1}]
        return [{"error_code": self.error.errno, "name": topics[0], "partitions": there}]

    def close(self) -> None:
        pass


def test_partitions_that_come_with_an_error_are_not_believed() -> None:
    """A truncated or empty list would be taken for the list of all partitions."""
    config = KafkaConfig({}, *["x"] * 4)
    offsets = KafkaOffsets(config, INPUT)
    offsets._admin = Admin(kafka_errors.NoError)
    assert offsets.partitions() == {0, 1}
    for error, said in (
        (kafka_errors.LeaderNotAvailableError, ": LeaderNotAvailableError"),
        (kafka_errors.TopicAuthorizationFailedError, ": TopicAuthorizationFailedError"),
        (kafka_errors.UnknownTopicOrPartitionError, " does not exist"),
    ):
        offsets._admin = Admin(error)
        with pytest.raises(ClusterError, match=f"topic '{INPUT}'{said}"):
            offsets.partitions()
    offsets.close()


def test_messages_that_come_again_do_not_set_it_back() -> None:
    """A reader that was assigned again may return old messages. A batch that went back to them
    would wait for messages that it has, and take the next ones for new."""
    X = rows(12)
    messages = [as_json(row) for row in X]
    reader = memory_log(cluster()).reader(INPUT)
    codec = make_codec("json", FEATURES, 1 << 20)
    ranges = BatchReader(reader, INPUT, codec, Metrics(), width=3, size=6, stall_s=60.0)
    brought = [range(8), range(2, 5), range(5, 8), range(12)]
    reader.read = lambda timeout_s: [  # type: ignore[method-assign]
        Chunk(0, list(offsets), [messages[o] for o in offsets]) for offsets in [brought.pop(0)]
    ]
    reader.positions = lambda: {0: 0}  # type: ignore[method-assign]
    ranges.begin({0: 0})
    ranges.start([Range(0, 0, 6)])
    for _ in range(3):
        ranges.read(0.0)
        assert ranges._reached == {0: 8} and ranges._n_ahead == 2
    assert ranges.complete
    np.testing.assert_array_equal(ranges.take(), X[:6])
    ranges.start([Range(0, 6, 12)])
    assert not ranges.complete
    ranges.read(0.0)
    np.testing.assert_array_equal(ranges.take(), X[6:])
    assert ranges._n_ahead == 0


SCHEMA = '{"type": "record", "name": "T", "fields": [{"name": "x", "type": "double"}]}'


class Source:
    """A registry that is away for some requests."""

    def __init__(self, away: int) -> None:
        self.away = away

    def schema(self, number: int) -> RegisteredSchema | None:
        self.away -= 1
        if self.away >= 0:
            raise RegistryAway("the schema registry answers with status 503")
        return RegisteredSchema("avro", SCHEMA) if number == 1 else None


def test_messages_wait_for_their_schemas_and_keep_their_slots() -> None:
    """Nothing more is read meanwhile, and the position of the reader is not taken for the last
    decoded offset. A partition that waits for the registry has not stalled."""
    reader = memory_log(cluster()).reader(INPUT)
    codec = make_codec("avro", ("x",), 1000, registry=Source(away=3))
    X = np.arange(4.0)
    schema = [1, 2, 1, 1]  # the second is unknown
    values = [
        b"\0" + number.to_bytes(4) + struct.pack("<d", x)
        for number, x in zip(schema, X, strict=True)
    ]
    chunks = [Chunk(0, [0, 1, 2, 3], values)]
    reader.read = lambda timeout_s: [chunks.pop(0)]  # type: ignore[method-assign]
    reader.positions = lambda: {0: 4}  # type: ignore[method-assign]
    metrics = Metrics()
    ranges = BatchReader(reader, INPUT, codec, metrics, width=1, size=4, stall_s=0.0)
    ranges.begin({0: 0})
    ranges.start([Range(0, 0, 4)])
    for _ in range(3):
        assert not ranges.read(0.001) and not ranges.complete
        assert len(metrics.registry_away) == 1 and chunks == []
    assert ranges.read(0.001) and ranges.complete and not metrics.registry_away
    np.testing.assert_array_equal(ranges.take()[:, 0], [0.0, np.nan, 2.0, 3.0])
    ranges.close()


def test_a_batch_has_nothing_of_the_one_before() -> None:
    """Batches use the same memory, one after the other; a missing message is a null."""
    X = rows(8)
    reader = memory_log(cluster()).reader(INPUT)
    chunks = [
        Chunk(0, [0, 1, 2, 3], [as_json(row) for row in X[:4]]),
        Chunk(0, [4, 7], [as_json(X[4]), as_json(X[7])]),  # compaction removed two
    ]
    reader.read = lambda timeout_s: [chunks.pop(0)]  # type: ignore[method-assign]
    codec = make_codec("json", FEATURES, 1000)
    ranges = BatchReader(reader, INPUT, codec, Metrics(), width=len(FEATURES), size=4, stall_s=60.0)
    ranges.begin({0: 0})
    for start in (0, 4):
        ranges.start([Range(0, start, start + 4)])
        ranges.read(0.0)
        batch = ranges.take()
        wanted = X[start : start + 4].copy()
        if start:
            wanted[1:3] = np.nan
        np.testing.assert_array_equal(batch, wanted)
    ranges.close()

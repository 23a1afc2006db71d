"""Reads planned ranges of a topic in a task of an engine, with librdkafka.

A task reads one part of a batch, but its process runs many tasks, so consumers are kept and
assigned again. They join no consumer group and commit nothing.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from ..errors import ClusterError
from ..protocols import Chunk
from .config import LIBRDKAFKA_READER, TaskConnection
from .damaged import DAMAGED, DamagedBatches

__all__ = ["close_consumers", "read_ranges"]

#: Messages that are taken at once.
MOST: Final = 10_000
POLL_SECONDS: Final = 0.2
#: Most that is fetched ahead.
QUEUED_BYTES: Final = 4 << 20

#: Offsets, values, times and keys, as in `Chunk`.
_Found = tuple[list[int], list[bytes | None], list[int | None], list[bytes | None]]

_consumers: dict[tuple[tuple[str, str], ...], Consumer] = {}


def read_ranges(
    connection: TaskConnection,
    topic: str,
    ranges: Sequence[tuple[int, int, int]],
    stall_s: float,
    *,
    stamped: bool = False,
) -> Iterator[Chunk]:
    """Yield all committed messages of these ranges.

    Offsets at which nothing can be read are skipped: control records, aborted transactions,
    messages that compaction or retention removed.

    Parameters
    ----------
    connection
        Address of the cluster.
    topic
        The topic.
    ranges
        Partition, first offset, and one past the last: each partition once. The ranges lie below
        the last stable offsets.
    stall_s
        Longest time without any message, after which reading fails.
    stamped
        True if chunks are to have the times and keys of messages.
    """
    consumer = _consumer(connection.librdkafka)
    careful: DamagedBatches | None = None
    ends = {p: end for p, start, end in ranges if end > start}
    reached = {p: start for p, start, end in ranges if end > start}
    try:
        consumer.assign([TopicPartition(topic, p, at) for p, at in reached.items()])
        waited = time.monotonic()
        while reached:
            found: dict[int, _Found] = {}
            damaged: set[int] = set()
            before = dict(reached)
            # A call that asks for many messages would wait for all of them, or until its timeout.
            messages = consumer.consume(1, POLL_SECONDS)
            for message in messages + consumer.consume(MOST, 0):
                _take(consumer, topic, message, ends, reached, found, damaged, stamped)
            past: list[Chunk] = []
            for p in damaged & reached.keys():
                careful = careful or DamagedBatches(connection.careful(), topic, stamped=stamped)
                chunks, at = careful.pass_one(p, reached[p])
                past += [cut for chunk in chunks if (cut := _cut(chunk, reached[p], ends[p]))]
                reached[p] = at
                consumer.seek(TopicPartition(topic, p, at))
            for p in [p for p, at in reached.items() if at >= ends[p]]:
                del reached[p]
                consumer.incremental_unassign([TopicPartition(topic, p)])
            if reached != before:
                waited = time.monotonic()
            elif time.monotonic() - waited > stall_s:
                p, at = min(reached.items())
                raise ClusterError(f"partition {p} of {topic!r} stands still at offset {at}")
            yield from (Chunk(p, *parts) for p, parts in found.items())
            yield from past
    except KafkaException as error:
        raise ClusterError(f"librdkafka: {error.args[0].name()}") from None
    finally:
        consumer.unassign()
        if careful is not None:
            careful.close()


def _take(
    consumer: Consumer,
    topic: str,
    message: Any,  # its types do not know that a message that was read has an offset
    ends: Mapping[int, int],
    reached: dict[int, int],
    found: dict[int, _Found],
    damaged: set[int],
    stamped: bool,
) -> None:
    """Take a message, or handle the error that came instead of one."""
    p, error = message.partition(), message.error()
    if p not in reached:
        return
    if error is None:
        offset = message.offset()
        if reached[p] <= offset < ends[p]:
            offsets, values, times, keys = found.setdefault(p, ([], [], [], []))
            offsets.append(offset)
            values.append(message.value())
            if stamped:
                kind, time_ms = message.timestamp()
                times.append(time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None)
                keys.append(message.key())
        reached[p] = max(reached[p], offset + 1)
    elif error.code() == KafkaError._PARTITION_EOF:
        reached[p] = max(reached[p], message.offset())
    elif error.code() in DAMAGED:
        damaged.add(p)
    elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)
        if reached[p] >= first:
            raise ClusterError(f"partition {p} of {topic!r} ends at {end}, before planned offsets")
        reached[p] = first  # retention removed what was between: nulls
        if first < ends[p]:
            consumer.incremental_unassign([TopicPartition(topic, p)])
            consumer.incremental_assign([TopicPartition(topic, p, first)])
    elif error.fatal() or not error.retriable():
        raise ClusterError(f"librdkafka: {error.name()}")


def _cut(chunk: Chunk, start: int, end: int) -> Chunk | None:
    """The messages of a chunk from one offset up to another; None if there are none."""
    a, b = bisect_left(chunk.offsets, start), bisect_left(chunk.offsets, end)
    if a == b:
        return None
    p, offsets, values, times, keys = chunk
    return Chunk(p, offsets[a:b], values[a:b], times[a:b], keys[a:b])


def close_consumers() -> None:
    """Close the consumers of this process; new ones are made when they are needed."""
    while _consumers:
        _consumers.popitem()[1].close()


def _consumer(connection: Mapping[str, str]) -> Consumer:
    key = tuple(sorted(connection.items()))
    if key not in _consumers:
        _consumers[key] = Consumer(
            {
                **connection,
                **LIBRDKAFKA_READER,
                "group.id": "stream-dppca.executor",  # required, but nothing joins the group
                # Messages beyond the ranges of a task are fetched for nothing.
                "queued.max.messages.kbytes": QUEUED_BYTES >> 10,
                "fetch.max.bytes": QUEUED_BYTES,
                # A fetch that waits for new messages at the end of a log delays the next task.
                "fetch.wait.max.ms": 10,
            },
            logger=logging.getLogger("kafka.librdkafka"),
        )
    return _consumers[key]

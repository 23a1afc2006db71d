"""Reads planned ranges of a topic in a task of an engine.

A task reads one part of a batch, but its process runs many tasks, so readers are kept and assigned
again. They join no consumer group and commit nothing.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from ..errors import ClusterError, OffsetsGone
from ..protocols import Chunk, Reader
from .cluster import KafkaCluster
from .config import TaskConnection

POLL_SECONDS: Final = 0.2

_readers: dict[tuple[str, str, bool], Reader] = {}


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
    reader = _reader(connection, topic, stamped)
    ends = {p: end for p, start, end in ranges if end > start}
    reached = {p: start for p, start, end in ranges if end > start}
    try:
        reader.assign(reached)
        waited = time.monotonic()
        while reached:
            before = dict(reached)
            try:
                chunks = reader.read(POLL_SECONDS)
            except OffsetsGone:
                chunks = []
                _pass_removed(reader, topic, reached)
                reader.assign(reached)
            wanted = [(c, c.partition) for c in chunks if c.partition in reached]
            found = [cut for c, p in wanted if (cut := _cut(c, before[p], ends[p]))]
            for p, at in reader.positions().items():
                if p in reached:
                    reached[p] = max(reached[p], at)
            for p in [p for p, at in reached.items() if at >= ends[p]]:
                del reached[p]
            if reached.keys() != before.keys():
                reader.pause(ends.keys() - reached.keys())
            if reached != before:
                waited = time.monotonic()
            elif time.monotonic() - waited > stall_s:
                p, at = min(reached.items())
                raise ClusterError(f"partition {p} of {topic!r} stands still at offset {at}")
            yield from found
    finally:
        reader.assign({})


def _pass_removed(reader: Reader, topic: str, reached: dict[int, int]) -> None:
    """Resume at the first offsets that exist: retention removed what was before."""
    for p, (first, end) in reader.bounds(sorted(reached)).items():
        if reached[p] > end:
            raise ClusterError(f"partition {p} of {topic!r} ends at {end}, before planned offsets")
        reached[p] = max(reached[p], first)


def _cut(chunk: Chunk, start: int, end: int) -> Chunk | None:
    """The messages of a chunk from one offset up to another; None if there are none."""
    a, b = bisect_left(chunk.offsets, start), bisect_left(chunk.offsets, end)
    if a == b:
        return None
    p, offsets, values, times, keys = chunk
    return Chunk(p, offsets[a:b], values[a:b], times[a:b], keys[a:b])


def _reader(connection: TaskConnection, topic: str, stamped: bool) -> Reader:
    key = connection.name, topic, stamped
    if key not in _readers:
        _readers[key] = KafkaCluster(connection.config()).reader(topic, stamped=stamped)
    return _readers[key]


def close_readers() -> None:
    """Close the readers of this process; new ones are made when they are needed."""
    while _readers:
        _readers.popitem()[1].close()

"""Ranges of offsets, and reading them to their ends, in this process or in a task of an engine."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from .errors import ClusterError, OffsetsGone
from .protocols import Bounds, Chunk, Reader

POLL_SECONDS: Final = 0.2
#: Time between requests for the positions of the reader, while messages come.
ASK_SECONDS: Final = 0.05


class Range(NamedTuple):
    """The offsets of a partition from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int


def first_left(wanted: Range, found: Bounds) -> int:
    """The first offset of a range that retention has left."""
    if wanted.start > found.end:
        raise ClusterError(f"partition {wanted.partition} ends before planned offsets")
    return max(wanted.start, found.first)


def read_ranges(
    reader: Reader,
    topic: str,
    ranges: Sequence[Range],
    stall_s: float,
    *,
    resume: Callable[[Range, Bounds], int] = first_left,
    moved: Callable[[], None] = lambda: None,
) -> Iterator[list[Chunk]]:
    """Yield all committed messages of these ranges, those of one read at a time.

    Offsets at which nothing can be read are skipped: control records, aborted transactions,
    messages that compaction or retention removed.

    Parameters
    ----------
    ranges
        Each partition once. The ranges lie below the last stable offsets.
    stall_s
        Longest time of reading without any progress: planned messages exist, so the reader is
        broken.
    resume
        Returns the offset at which to resume in a range of which retention has removed the start.
    moved
        Called after each read that got further.
    """
    ends = {p: end for p, start, end in ranges if end > start}
    reached = {p: start for p, start, end in ranges if end > start}
    waited_s = ask_at = 0.0
    try:
        reader.assign(reached)
        while reached:
            began, before = time.monotonic(), dict(reached)
            try:
                chunks = reader.read(POLL_SECONDS)
            except OffsetsGone:
                chunks = []
                for p, bounds in reader.bounds(sorted(reached)).items():
                    reached[p] = resume(Range(p, reached[p], ends[p]), bounds)
                reader.assign(reached)
            found = [part for chunk in chunks for part in _take(chunk, reached, ends)]
            # A range may end with offsets that can never be read. A request for positions takes
            # time, so it is not made after each read.
            if not chunks or began >= ask_at:
                ask_at = began + ASK_SECONDS
                for p, at in reader.positions().items():
                    reached[p] = max(reached.get(p, at), at)
            reached = {p: at for p, at in reached.items() if p in before and at < ends[p]}
            if reached.keys() != before.keys():
                reader.pause(ends.keys() - reached.keys())
            if reached != before:
                waited_s = 0.0
                moved()
            else:
                waited_s += time.monotonic() - began
            if waited_s > stall_s:
                raise ClusterError(f"partition {min(reached)} of {topic!r} stands still")
            yield found
    finally:
        reader.assign({})


def _take(chunk: Chunk, reached: dict[int, int], ends: Mapping[int, int]) -> list[Chunk]:
    """Take the messages of a chunk that belong to its range, if there are any."""
    p, offsets, values, times, keys = chunk
    if p not in reached:  # a late fetch of another one
        return []
    a, b = bisect_left(offsets, reached[p]), bisect_left(offsets, ends[p])
    reached[p] = max(reached[p], offsets[-1] + 1)
    return [Chunk(p, offsets[a:b], values[a:b], times[a:b], keys[a:b])] if a < b else []

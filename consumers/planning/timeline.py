"""Finds batches in the order of the broker's time, so that the log alone decides them.

Where the brokers stamp messages (`message.timestamp.type=LogAppendTime`), the offsets of a topic
have an order: by time, then by partition, then by offset. A batch is the next `size` offsets in
that order. It does not matter when anybody looks, how long a message takes to read, or how often a
task starts again.

The *cut* of a partition at time t is its first offset with a time of t or later; brokers find it.
Times step back when a broker with a slower clock takes a partition over. Cuts move forward all the
same, as if no message were older than the one before it. Offsets that retention has removed have
lost their times, and come first.

A batch ends in the first millisecond by whose end enough offsets are there. A cut at t is *final*,
so that nothing can come before it any more, if

- the partition has a message of time t or later, or
- the local clock has passed t by the slack, which is more than clocks differ by.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from ..protocols import Bounds, Cluster, Positions, Reader, TopicOffsets
from ..ranges import Range, read_ranges

LOG_APPEND_TIME: Final = "LogAppendTime"
#: Longest wait for a message.
PROBE_SECONDS: Final = 30.0


@dataclass(frozen=True)
class BrokerTime:
    """What is needed to follow the time of the brokers, where they stamp messages."""

    cluster: Cluster
    topic: str
    slack_ms: int = 10_000  #: largest difference between clocks
    clock: Callable[[], float] = time.time  #: the local clock, in seconds since 1970

    def timestamp_type(self) -> str | None:
        """The source of the times of messages."""
        return self.cluster.timestamp_type(self.topic)

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    def in_order(self, positions: Positions, bounds: Mapping[int, Bounds]) -> bool:
        """Tell whether brokers have stamped the messages from these positions on, in order.

        A topic that was switched to this setting has older messages with times of their senders.
        The first message of each partition must be the broker's. No message before it may have a
        later time, and no message at all may be from the future: it would hold up its partition.

        Parameters
        ----------
        bounds
            Of the same partitions, requested before.
        """
        with closing(self.cluster.reader(self.topic, stamped=True)) as reader:
            now_ms = self.now_ms()
            times = self._first_times(reader, positions, bounds)
            if None in times.values() or self.beyond(reader, bounds):
                return False
            for p, at in positions.items():
                since_ms = times.get(p) or now_ms
                later = reader.first_at([p], since_ms + self.slack_ms + 1)[p]
                if later is not None and later < at:
                    return False
            return True

    def _first_times(
        self, reader: Reader, positions: Positions, bounds: Mapping[int, Bounds]
    ) -> dict[int, int | None]:
        """The times of the first messages; None for a time that a sender has set."""
        starts = {p: max(at, bounds[p].first) for p, at in positions.items()}
        ranges = [Range(p, at, bounds[p].end) for p, at in starts.items() if at < bounds[p].end]
        times: dict[int, int | None] = {}
        for chunks in read_ranges(reader, self.topic, ranges, PROBE_SECONDS):
            for chunk in chunks:
                times.setdefault(chunk.partition, chunk.times[0])
            if len(times) == len(ranges):
                break
        return times

    def beyond(self, offsets: TopicOffsets, bounds: Mapping[int, Bounds]) -> list[int]:
        """The partitions with a message from the future, which no broker has stamped.

        The bounds were requested before, so messages within them are from before now, however long
        that request took.
        """
        later = offsets.first_at(sorted(bounds), self.now_ms() + 2 * self.slack_ms)
        return [p for p, at in later.items() if at is not None and at < bounds[p].end]


class Timeline:
    """The order of the offsets of a topic by the broker's time.

    Parameters
    ----------
    offsets
        Tells the cuts and the ends of partitions.
    size
        Offsets per batch.
    slack_ms
        Largest difference between clocks.
    clock
        The local clock, in seconds since 1970.
    """

    def __init__(
        self, offsets: TopicOffsets, size: int, slack_ms: int, clock: Callable[[], float]
    ) -> None:
        self._offsets, self._size, self._slack_ms, self._clock = offsets, size, slack_ms, clock
        self.ended_ms = -1  #: the millisecond in which the last batch ended
        self._guess_ms = 0  # length of the last batch
        self._found: dict[int, int] | None = None  # the next batch, until all of it is stable

    def next_positions(self, positions: Positions) -> dict[int, int] | None:
        """The positions after the next batch; None while it is not final, or not stable.

        Parameters
        ----------
        positions
            Those after the batch before it, for every partition.
        """
        found = self._found = self._found or self._find(positions)
        if found is None:
            return None
        if any(end < found[p] for p, end in self._offsets.ends(sorted(found)).items()):
            return None  # a transaction is open
        self._found = None
        return found

    def _find(self, positions: Positions) -> dict[int, int] | None:
        """The positions after the next batch; None while it is not final."""
        log_ends = self._offsets.log_ends(sorted(positions))
        if self._count(positions, log_ends) < self._size:
            return None
        end_ms = self._search(positions, log_ends)
        if end_ms is None:
            return None
        # The search may have seen a log that grew. So ask again, in an order that proves the
        # answer: first that everything before the end is there, then what that is.
        passed = self._clock() * 1000 >= end_ms + self._slack_ms
        log_ends = self._offsets.log_ends(sorted(positions))
        after = self._offsets.first_at(sorted(positions), end_ms)
        if None in after.values() and not passed:
            return None
        found = dict(positions)
        if end_ms > 0:
            before = self._offsets.first_at(sorted(positions), end_ms - 1)
            found = _cuts(positions, before, log_ends)
        last = _cuts(positions, after, log_ends)
        missing = self._size - self._count(positions, found)
        if missing <= 0:  # retention has removed messages that come first now
            self.ended_ms = -1
            return None
        if self._count(positions, last) < self._size:
            return None
        for p in sorted(positions):
            more = min(missing, last[p] - found[p])
            found[p] += more
            missing -= more
        if self.ended_ms >= 0:
            self._guess_ms = end_ms - 1 - self.ended_ms
        self.ended_ms = end_ms - 1
        return found

    def _search(self, positions: Positions, log_ends: Mapping[int, int]) -> int | None:
        """The first time at whose cuts a batch is full, in the log as it is now."""

        def full(time_ms: int) -> bool:
            found = self._offsets.first_at(sorted(positions), time_ms)
            return self._count(positions, _cuts(positions, found, log_ends)) >= self._size

        # Full at `high`, not at `low`. The last batch says how far to look at first.
        low, high = self.ended_ms, int(self._clock() * 1000) + 2 * self._slack_ms
        if not full(high):
            return None
        step = self._guess_ms + 1
        while low + step < high and not full(low + step):
            low, step = low + step, 2 * step
        times = range(low + 1, min(low + step, high))
        return times.start + bisect_left(times, True, key=full)

    def _count(self, positions: Positions, ends: Mapping[int, int]) -> int:
        return sum(ends[p] - at for p, at in positions.items())


def _cuts(
    positions: Positions, found: Mapping[int, int | None], log_ends: Mapping[int, int]
) -> dict[int, int]:
    """The cuts behind the positions; without a later message, the end from before the request."""
    return {
        p: max(position, log_ends[p] if (cut := found[p]) is None else cut)
        for p, position in positions.items()
    }


def cuts(offsets: TopicOffsets, partitions: Sequence[int], time_ms: int) -> dict[int, int]:
    """The cut of each partition at a time, in the log as it is now.

    Without a message of this time or later, it is the end of the log from *before* the request, so
    that a message that comes in between lies after the cut.
    """
    log_ends = offsets.log_ends(partitions)
    return _cuts(dict.fromkeys(partitions, 0), offsets.first_at(partitions, time_ms), log_ends)

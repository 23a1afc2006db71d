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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import Unavailable
from ..protocols import Bounds, Positions, Reader, TopicOffsets

LOG_APPEND_TIME: Final = "LogAppendTime"
#: Longest wait for the first message of each partition.
PROBE_SECONDS: Final = 30.0


@dataclass(frozen=True)
class BrokerTime:
    """What is needed to follow the time of the brokers, where they stamp messages."""

    timestamp_type: Callable[[], str | None]  #: returns the source of the times of messages
    reader: Callable[[], Reader]  #: opens a reader of stamped messages
    slack_ms: int = 10_000  #: largest difference between clocks
    clock: Callable[[], float] = time.time  #: the local clock, in seconds since 1970

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
        reader = self.reader()
        try:
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
        finally:
            reader.close()

    def _first_times(
        self, reader: Reader, positions: Positions, bounds: Mapping[int, Bounds]
    ) -> dict[int, int | None]:
        """The times of the first messages; None for a time that a sender has set."""
        starts = {p: max(at, bounds[p].first) for p, at in positions.items()}
        missing = {p: at for p, at in starts.items() if at < bounds[p].end}
        times: dict[int, int | None] = {}
        until = time.monotonic() + PROBE_SECONDS
        if missing:
            reader.assign(missing)
        while missing:
            for chunk in reader.read(0.2):
                times.setdefault(chunk.partition, chunk.times[0])
            reached = reader.positions()
            for p in list(missing):
                if p in times or reached[p] >= bounds[p].end:
                    del missing[p]
            if time.monotonic() > until:
                raise Unavailable("the first messages of the input could not be read in time")
        return times

    def beyond(self, offsets: TopicOffsets, bounds: Mapping[int, Bounds]) -> bool:
        """Tell whether a message is from the future, so that no broker has stamped it.

        The bounds were requested before, so messages within them are from before now.
        """
        later = offsets.first_at(sorted(bounds), self.now_ms() + 2 * self.slack_ms)
        return any(at is not None and at < bounds[p].end for p, at in later.items())


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
        self._ended_ms = -1
        self._guess_ms = 0  # length of the last batch

    @property
    def ended_ms(self) -> int:
        """The millisecond in which the last batch ended."""
        return self._ended_ms

    def next_positions(self, positions: Positions) -> dict[int, int] | None:
        """The positions after the next batch; None while it is not final.

        Parameters
        ----------
        positions
            Those after the batch before it, for every partition.
        """
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
            self._ended_ms = -1
            return None
        if self._count(positions, last) < self._size:
            return None
        for p in sorted(positions):
            more = min(missing, last[p] - found[p])
            found[p] += more
            missing -= more
        if self._ended_ms >= 0:
            self._guess_ms = end_ms - 1 - self._ended_ms
        self._ended_ms = end_ms - 1
        return found

    def _search(self, positions: Positions, log_ends: Mapping[int, int]) -> int | None:
        """The first time at whose cuts a batch is full, in the log as it is now."""

        def full(time_ms: int) -> bool:
            found = self._offsets.first_at(sorted(positions), time_ms)
            return self._count(positions, _cuts(positions, found, log_ends)) >= self._size

        # Full at `high`, not at `low`.
        low, high = self._ended_ms, int(self._clock() * 1000) + 2 * self._slack_ms
        if not full(high):
            return None
        step = 1
        at = low + 1 + self._guess_ms
        rising: bool | None = None
        while low < at < high:
            if full(at):
                high = at
                if rising:
                    break
                rising, at = False, at - step
            else:
                low = at
                if rising is False:
                    break
                rising, at = True, at + step
            step *= 4
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if full(middle) else (middle, high)
        return high

    def _count(self, positions: Positions, cuts: Mapping[int, int]) -> int:
        return sum(cuts[p] - at for p, at in positions.items())


def _cuts(
    positions: Positions, found: Mapping[int, int | None], log_ends: Mapping[int, int]
) -> dict[int, int]:
    """The cuts behind the positions; without a later message, the end from before the request."""
    cuts = {}
    for p, position in positions.items():
        cut = found[p]
        cuts[p] = max(position, log_ends[p] if cut is None else cut)
    return cuts


def cuts(offsets: TopicOffsets, partitions: Sequence[int], time_ms: int) -> dict[int, int]:
    """The cut of each partition at a time, in the log as it is now.

    Without a message of this time or later, it is the end of the log from *before* the request, so
    that a message that comes in between lies after the cut.
    """
    log_ends = offsets.log_ends(partitions)
    return _cuts(dict.fromkeys(partitions, 0), offsets.first_at(partitions, time_ms), log_ends)

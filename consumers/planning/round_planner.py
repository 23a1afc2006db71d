"""Plans rounds: the offsets that may hold the records of one stretch of the broker's time.

With privacy per subject a batch is a *round*, and round r holds the records that the broker
appended from r T to (r + 1) T, whatever they are and however many. A record belongs to a round by
its own timestamp, and by nothing else, so no subject can move the records of others to another
round. That is why the broker must set the timestamps (LogAppendTime): with CreateTime a device
could close a round for all.

The offsets of a round only bound the search. For the boundary b at its end,

- the round is planned once the local clock has passed b by the slack. Clocks differ by less than
  that, so whatever is appended later has a time of a later round;
- reading ends at the first offset with a time of b + slack or later. LogAppendTime steps back when
  a broker with a slower clock takes a partition over; it steps back by less than the slack, so all
  of the round lies before;
- the next round is read from the first offset with a time of b or later. Records between the two
  are read twice and used once;
- nothing is read before the last stable offset of every partition has passed the end of reading.
  With a cut at the last stable offset itself, one open transaction could move a whole partition.

Every round is planned, in order, also one without any record: that a round is empty is not public.
Partitions are read one after another, beginning with another one in each round. So the records of
all other subjects come in the same order, whatever one subject sends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..events import log_event
from ..monitoring.metrics import Metrics
from ..protocols import Bounds, Positions, TopicOffsets
from ..ranges import Range
from ..settings import RoundRule
from .guard import TopicGuard
from .timeline import LOG_APPEND_TIME, BrokerTime, cuts


@dataclass(frozen=True)
class PlannedRound:
    """The offsets among which the records of a round lie."""

    number: int
    ranges: tuple[Range, ...]  #: in the order in which they are to be read
    positions: Positions  #: offset from which the next round is read, in every partition


def reading_order(partitions: Sequence[int], round: int) -> list[int]:
    """Partitions in the order of reading: sorted, beginning with another one in each round.

    If there are more subjects than places, the first subjects get them. No partition should always
    be the last one.

    >>> reading_order([0, 1, 2], 3), reading_order([0, 1, 2], 4)
    ([0, 1, 2], [1, 2, 0])
    """
    first = round % len(partitions)
    return [*partitions[first:], *partitions[:first]]


class RoundPlanner:
    """Plans the rounds of a model."""

    def __init__(
        self,
        offsets: TopicOffsets,
        topic: str,
        rule: RoundRule,
        metrics: Metrics,
        *,
        interval_s: float,
        refresh_s: float,
        times: BrokerTime,
    ) -> None:
        """
        Parameters
        ----------
        interval_s
            Time between two checks of a round that is not stable yet.
        refresh_s
            Time between checks of the settings of the topic.
        times
            The time of the brokers.
        """
        self._offsets, self._topic, self._rule, self._metrics = offsets, topic, rule, metrics
        self._times, self._interval_s, self._refresh_s = times, interval_s, refresh_s
        self._guard = TopicGuard(topic, metrics, secret=True)
        self._positions: dict[int, int] = {}
        self._next = 0
        self._left: int | None = None  # rounds until the horizon
        self._ask_at = self._refresh_at = 0.0
        self._closing = threading.Event()

    def partitions(self) -> list[int]:
        """The partitions that exist now."""
        return sorted(self._offsets.partitions())

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        """Return the current first offsets and ends of partitions."""
        return self._offsets.bounds(partitions)

    def begin(self, positions: Positions, next_round: int, done: int) -> None:
        """Resume with a round; `done` rounds have been released before.

        Refuses a topic that was truncated or recreated.
        """
        bounds = self.bounds(self.partitions())
        self._guard.check_positions(positions, bounds)
        self._metrics.partitions.set(len(bounds))  # the lag is measured at the end of a round
        self._positions = dict(positions)
        self._next = next_round
        if self._rule.horizon is not None:
            self._left = self._rule.horizon - done
            self._note_horizon()

    def next_round(self) -> PlannedRound | None:
        """The next round, if it is over and everything of it is stable."""
        number, end_ms = self._next, self._rule.end_ms(self._next)
        if self._left == 0 or self._times.now_ms() < end_ms + self._times.slack_ms:
            return None
        if time.monotonic() < self._ask_at:
            return None
        self._check_topic()
        partitions = self.partitions()
        # The order matters: an end that is taken as a cut must not lie before an earlier cut.
        resume = cuts(self._offsets, partitions, end_ms)
        stop = cuts(self._offsets, partitions, end_ms + self._times.slack_ms)
        bounds = self.bounds(partitions)
        # A message from the future would end every round at its place.
        for p in self._times.beyond(self._offsets, bounds):
            self._refuse_times(p)
        self._metrics.show_lag(self._positions, bounds)
        if any(bounds[p].end < stop[p] for p in partitions):
            self._ask_at = time.monotonic() + self._interval_s
            return None
        for p in partitions:
            if resume[p] < self._positions.get(p, 0):
                self._refuse_times(p)
        start = self._starts(stop, bounds)
        ranges = [
            Range(p, start[p], stop[p])
            for p in reading_order(partitions, number)
            if start[p] < stop[p]
        ]
        self._positions = resume
        self._next += 1
        if self._left is not None:
            self._left -= 1
            self._note_horizon()
        return PlannedRound(number, tuple(ranges), dict(resume))

    def _starts(self, stop: dict[int, int], bounds: dict[int, Bounds]) -> dict[int, int]:
        """The offset from which to read each partition, given where to stop."""
        start = dict(self._positions)
        new = [p for p in stop if p not in start]
        if new and start:
            log_event("partitions_added", partitions=new)
        start |= cuts(self._offsets, new, self._rule.start_ms(self._next))
        return {p: self._guard.skip_lost(Range(p, start[p], stop[p]), bounds[p]) for p in stop}

    def _check_topic(self) -> None:
        """Check the settings of the topic, which may have changed in the meantime."""
        if time.monotonic() < self._refresh_at:
            return
        self._refresh_at = time.monotonic() + self._refresh_s
        found = self._times.timestamp_type()
        if found != LOG_APPEND_TIME:
            raise ConfigurationError(
                f"{self._topic!r} must have message.timestamp.type={LOG_APPEND_TIME} with "
                f"unit=subject. Found {found}."
            )

    def _refuse_times(self, partition: int) -> None:
        raise ConfigurationError(
            f"partition {partition} of {self._topic!r} holds messages whose times are not in order:"
            " clocks of brokers are further apart than `clock_slack`, or these are older than "
            f"message.timestamp.type={LOG_APPEND_TIME}: wait until retention has removed them."
        )

    def _note_horizon(self) -> None:
        if self._left is not None and self._left <= 0:
            self._left = 0
            log_event("horizon_reached", level="warning")

    def wait(self, timeout_s: float) -> None:
        """Wait until time is up, or until the planner is closed."""
        self._closing.wait(timeout_s)

    def close(self) -> None:
        self._closing.set()
        self._offsets.close()

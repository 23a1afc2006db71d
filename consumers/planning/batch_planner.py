"""Plans batches in a thread of its own, and hands them out.

With one partition, batches are consecutive runs of offsets, whenever anybody looks. With several,

- if the brokers stamp messages (LogAppendTime), batches follow the order of these times
  (`timeline`), and the log alone decides them;
- otherwise the ends of the partitions are sampled on a fixed clock, because times that producers
  set are not to be trusted.

A plan by samples uses them in the order in which they were taken. A process of its own takes them,
and they are committed at once, before they are used (`kept_plan`). A sample is taken at every tick
of a clock, whether or not the task is ready for more, and is kept if it allows at least one more
whole batch beyond all that is planned already, which depends on offsets alone. Taking the *latest*
sample when the task is free would be simpler, and wrong: the time that the task is busy depends on
the sizes and the content of its records, so these would decide which records share a batch. Since
every sample that is kept stands for a batch or more, the lag in batches bounds the queue.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from ..errors import ClusterError, Unavailable
from ..events import log_event
from ..monitoring.metrics import Metrics
from ..protocols import PLAN_STATES, Bounds, Positions, Sampler, TopicOffsets
from ..ranges import Range
from .guard import TopicGuard
from .kept_plan import KeptPlans, PlannedSample, SamplePlan, planned_sample
from .plan import skip_removed, split_batch
from .timeline import LOG_APPEND_TIME, BrokerTime, Timeline

CLOSE_SECONDS: Final = 0.3
#: Longest wait for a sample at once.
WAIT_SECONDS: Final = 0.1
#: Time between requests for the end of a single partition while it has batches to hand out.
END_SECONDS: Final = 1.0
#: Batches that are planned ahead in the order of the broker's time.
AHEAD: Final = 64
#: Most batches after which a plan is kept again: states follow a plan at most as fast.
AGAIN: Final = PLAN_STATES // 2
#: Stretches that wait, from which on samples are committed together, and how often.
MANY: Final = 64
MANY_SECONDS: Final = 1.0
#: Most offsets in a plan. They take less than a megabyte, the limit of topics. Later samples wait.
PLAN_NUMBERS: Final = 1 << 15


class PlanOver(ClusterError):
    """The topic is not what the plan took it for: another task has to begin."""


@dataclass(frozen=True)
class PlannedBatch:
    """The offsets of one batch."""

    ranges: tuple[Range, ...]
    positions: Positions  #: after the batch, for every known partition


@dataclass
class _Stretch:
    """Whole batches, which are added to the plan together."""

    before: dict[int, int]  #: positions, after batches of which nothing is left
    ranges: list[Range]


class BatchPlanner:
    """Plans the batches of a model."""

    def __init__(
        self,
        offsets: TopicOffsets,
        topic: str,
        metrics: Metrics,
        *,
        size: int,
        interval_s: float,
        refresh_s: float,
        patience_s: float,
        times: BrokerTime,
        plans: KeptPlans,
        sampler: Callable[[], Sampler | None],
    ) -> None:
        """
        Parameters
        ----------
        size
            Offsets per batch.
        interval_s
            Time between samples.
        refresh_s
            Time between looks for new partitions.
        patience_s
            Time during which samples may fail before `next_batch` raises the reason.
        times
            The time of the brokers.
        plans
            Keeps plans by samples.
        sampler
            Starts a process that samples; without one, the planner's thread does it.
        """
        self._offsets, self._topic, self._metrics = offsets, topic, metrics
        self._size = size
        self._interval_s, self._refresh_s, self._patience_s = interval_s, refresh_s, patience_s
        self._times, self._plans, self._start_sampler = times, plans, sampler
        self._sampler: Sampler | None = None
        self._new = ""  # where a new model begins
        self._kept: deque[PlannedSample] = deque()  # samples that the states do not contain yet
        self._waiting: deque[PlannedSample] = deque()  # later ones, which are not kept yet
        self._keep_until = math.inf  # for the commit that is under way
        self._kept_at = -math.inf  # when a plan was last committed
        self._since_kept = 0  # batches that were handed out
        self._kind: str | None = None  # of the times of messages; None while that does not matter
        self._timeline: Timeline | None = None  # if the plan follows the broker's time
        self._listed_ms = 0  # when partitions were last listed
        self._changed = threading.Condition()
        self._first: dict[int, int] = {}  # of each partition, as of the last refresh
        self._planned: dict[int, int] = {}  # the end of the plan of all samples so far
        self._stretches: deque[_Stretch] = deque()
        self._positions: dict[int, int] = {}  # after the last batch that was handed out
        self._refresh_at = self._ask_at = 0.0
        self._failing: tuple[float, Exception] | None = None
        self._over: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)

    # Begin

    def partitions(self) -> list[int]:
        """The partitions that exist now."""
        return sorted(self._offsets.partitions())

    def begin(self, positions: Positions, new: Literal["earliest", "latest"]) -> dict[int, int]:
        """Resume at these positions; without any, all partitions begin at `new`.

        A partition that is not among the positions of a model was added since, and nothing of it
        has been used: it begins at offset 0, whatever retention has left of it.

        Continues with the plan that was kept, and refuses a topic that was truncated or recreated.
        Returns the offset at which to read each partition.
        """
        self._listed_ms = self._times.now_ms()
        bounds = self._offsets.bounds(self.partitions())
        TopicGuard(self._topic, self._metrics).check_positions(positions, bounds)
        self._planned = dict(positions)
        for p, (first, end) in bounds.items():
            if p not in positions:
                self._planned[p] = 0 if positions else end if new == "latest" else first
        self._refresh_at = time.monotonic() + self._refresh_s
        self._first = {p: first for p, (first, _) in bounds.items()}
        self._new = new
        plan = self._plans.load()
        if plan is not None and not positions and plan.new == new:
            self._planned |= plan.start
        self._positions = dict(self._planned)
        self._metrics.show_lag(self._positions, bounds)
        if plan is not None:
            for sample, left in plan.samples_after(self._planned, self._size):
                self._hand_over(sample, left)
                self._planned |= sample.after
        if not positions and len(bounds) > 1 and (plan is None or plan.new != new):
            self._plans.keep(SamplePlan(new, self._planned, []))  # the beginning is decided
        self._choose_order(bounds)
        if self._sampler is None:
            self.extend()
        return dict(self._positions)

    def _choose_order(self, bounds: dict[int, Bounds]) -> None:
        """Decide what the plan follows; it does not matter with one partition."""
        if len(bounds) < 2:
            return
        self._kind = self._times.timestamp_type()
        if self._kind == LOG_APPEND_TIME and self._times.in_order(self._planned, bounds):
            self._begin_timeline()
        else:
            self._sampler = self._start_sampler()
        log_event("plan_follows", order="samples" if self._timeline is None else "broker_time")

    def _begin_timeline(self) -> None:
        times = self._times
        self._timeline = Timeline(self._offsets, self._size, times.slack_ms, times.clock)

    def start(self) -> None:
        """Start the clock. From now on only the planner's thread may use its client."""
        self._metrics.answered = time.monotonic()
        self._thread.start()

    # The plan

    def _run(self) -> None:
        began = time.monotonic()
        while True:
            late = (time.monotonic() - began) % self._interval_s
            if self._closing.wait(self._interval_s - late if self._sampler is None else 0):
                return
            try:
                self.extend()
                self._metrics.answered = time.monotonic()
                self._failing = None
            except PlanOver as error:
                self._over = self._over or error
                return
            except Exception as error:  # brokers that are away come back
                since = self._failing[0] if self._failing else time.monotonic()
                self._failing = since, error

    def extend(self) -> None:
        """Extend the plan by all that can be planned now.

        The ends are read each time; new partitions, and the first offsets, which only retention
        moves, at each refresh.
        """
        ends = self._refresh() if time.monotonic() >= self._refresh_at else None
        if self._sampler is not None:
            for taken in self._sampler.samples(min(self._interval_s, WAIT_SECONDS)):
                self._take(taken)
        elif self._timeline is None:
            several, now = len(self._planned) > 1, time.monotonic()
            if several or self._positions == self._planned or now >= self._ask_at:
                self._take(ends or self._offsets.ends(sorted(self._planned)))
                self._ask_at = now + END_SECONDS
        else:  # it does not matter when
            while len(self._stretches) < AHEAD and self._follow(self._timeline):
                pass
        self._keep()

    def _refresh(self) -> dict[int, int]:
        """Look for new partitions, and at the topic. Returns the ends."""
        self._refresh_at = time.monotonic() + self._refresh_s
        few = len(self._planned) < 2
        if few or self._timeline is not None:  # samples tell of new partitions by themselves
            self._add_partitions()
        bounds = self._offsets.bounds(sorted({*self._planned, *self.partitions()}))
        self._first = {p: first for p, (first, _) in bounds.items()}
        with self._changed:
            at = dict(self._positions)
        self._metrics.show_lag(at, bounds)
        if few:
            self._choose_order(bounds)
        elif self._times.timestamp_type() not in (self._kind, None):
            raise PlanOver(f"{self._topic!r} has another message.timestamp.type than before")
        elif self._timeline is not None and self._times.beyond(self._offsets, bounds):
            raise PlanOver(f"{self._topic!r} holds messages whose times no broker has set")
        return {p: end for p, (_, end) in bounds.items()}

    def _add_partitions(self) -> bool:
        """Add partitions that are new to the plan; True if there are any."""
        self._listed_ms = self._times.now_ms()
        new = [p for p in self.partitions() if p not in self._planned]
        if new:
            log_event("partitions_added", partitions=new)
            self._planned |= dict.fromkeys(new, 0)
            self._first |= dict.fromkeys(new, 0)
            if self._timeline is not None:  # it has passed messages that these may have before it
                self._begin_timeline()
        return bool(new)

    def _take(self, ends: dict[int, int]) -> None:
        """Take a sample, if it allows one more batch."""
        if new := [p for p in ends if p not in self._planned]:
            log_event("partitions_added", partitions=new)
            self._planned |= dict.fromkeys(new, 0)
        sample = planned_sample(self._planned, ends, self._size)
        if sample.ranges:
            self._planned |= sample.after
            self._waiting.append(sample)

    def _keep(self) -> None:
        """Hand over samples; with several partitions, only after they have been committed.

        Every sample is committed at once, however many wait: one that a restart loses would be
        replaced by another. A plan is written as a whole each time, as far as the states do not
        contain it; so if many samples wait to be used, some are committed together. If many
        batches have been handed out, the same plan is written again, so that a successor finds it
        among the last states.
        """
        done = self._plans.committed()
        while self._kept and _contains(done, self._kept[0].after):
            self._kept.popleft()
        several = len(self._planned) > 1
        now = time.monotonic()
        again = bool(self._kept) and self._since_kept >= AGAIN // 2
        due = again or len(self._stretches) < MANY or now - self._kept_at > MANY_SECONDS
        chosen: list[PlannedSample] = []
        if due or not several:
            most = max(PLAN_NUMBERS // max(len(self._planned), 1) - len(self._kept), not self._kept)
            chosen = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        if several and (chosen or again):
            samples = [*self._kept, *chosen]
            plan = SamplePlan(self._new, samples[0].before, [sample.ends for sample in samples])
            self._keep_until = now + self._patience_s / 2
            try:
                self._plans.keep(plan)
            except Exception as error:
                self._over = error
                raise PlanOver("the plan could not be kept") from error
            self._keep_until = math.inf
            self._kept_at = now
            with self._changed:
                self._since_kept = 0
                self._changed.notify_all()
        for sample in chosen:
            self._hand_over(sample, sample)

    def _follow(self, timeline: Timeline) -> bool:
        """Plan the next batch in the order of time; False if it is not final, or not stable."""
        found = timeline.next_positions(self._planned)
        if found is None:
            return False
        # A partition may have been added before the batch ended.
        if self._listed_ms <= timeline.ended_ms and self._add_partitions():
            return True
        planned = self._planned
        ranges = [Range(p, planned[p], at) for p, at in found.items() if at > planned[p]]
        self._append(planned, ranges)
        planned |= found
        return True

    def _hand_over(self, sample: PlannedSample, left: PlannedSample) -> None:
        self._kept.append(sample)
        self._append(left.before, left.ranges)

    def _append(self, before: Positions, ranges: list[Range]) -> None:
        first = {**dict.fromkeys(before, 0), **self._first}
        skipped, rest = skip_removed(ranges, first, self._size)
        with self._changed:
            self._stretches.append(_Stretch({**before, **skipped}, rest))
            self._changed.notify_all()

    # Batches

    def wait(self, timeout_s: float) -> None:
        """Wait until a batch is planned, or until time is up."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._stretches) and not self._held, timeout_s)

    @property
    def ahead(self) -> bool:
        """True if messages may be read before they are planned: they decide nothing by then."""
        return self._timeline is not None or len(self._planned) < 2

    @property
    def _held(self) -> bool:
        """True if the plan has to be kept again first."""
        many = self._since_kept >= AGAIN
        return many and bool(self._kept) and len(self._planned) > 1

    @property
    def keeping(self) -> bool:
        """True while a plan is being committed."""
        return self._keep_until < math.inf

    def next_batch(self) -> PlannedBatch | None:
        """The next batch, if one is planned."""
        if self._over is not None:
            raise self._over
        if time.monotonic() > self._keep_until:  # as the end of a batch, it may wait for ever
            raise Unavailable("a plan could not be kept in time")
        failing = self._failing
        if failing is not None and time.monotonic() - failing[0] > self._patience_s:
            raise ClusterError(
                f"the ends of {self._topic!r} could not be read for {self._patience_s:g} s"
            ) from failing[1]
        with self._changed:
            while self._stretches and not self._held:
                stretch = self._stretches[0]
                self._positions |= stretch.before
                stretch.before = {}
                if stretch.ranges:
                    ranges, stretch.ranges = split_batch(stretch.ranges, self._size)
                    self._positions |= {p: end for p, _, end in ranges}
                    self._since_kept += 1
                    return PlannedBatch(tuple(ranges), dict(self._positions))
                self._stretches.popleft()
            return None

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        if self._sampler is not None:
            self._sampler.close()
        self._offsets.close()


def _contains(positions: Positions, others: Positions) -> bool:
    return all(at <= positions.get(p, 0) for p, at in others.items())

"""Defines every metric: its kind, its meaning, and what to do when it moves.

All figures of the service are safe to show: slots, batches, offsets, times, published values. The
number of bad or clipped records is a fact about records that no noise covers, so it is not counted
anywhere.

**With unit=subject this is not so.** The number of records is then as secret as their content, and
some of these figures count records exactly. `/metrics` is then inside the trust boundary; the help
of each such metric says so. **The figures of `score` are not private at all**: they count single
records.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

from ..model.releases import PublishedRelease, parse_release
from ..model.uncertainty import movement, noise_movement
from ..protocols import Bounds, Positions
from .progress import Progress

# These would reveal to the microsecond when the first release was made.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Definition(NamedTuple):
    """A metric: its kind, its meaning, what to do when it moves, and its labels."""

    kind: str
    help: str
    action: str
    labels: tuple[str, ...] = ()


DEFINITIONS: Final[dict[str, Definition]] = {
    "dppca_slots_total": Definition(
        "counter",
        "Slots taken by this process, nulls included. With unit=subject rows read: exact, so for "
        "trusted readers only.",
        "Flat while the lag grows: the service is stuck; see dppca_progress_age_seconds.",
    ),
    "dppca_batches_total": Definition(
        "counter",
        "Batches committed and published by this process.",
        "Flat while slots grow: batches fail; look for task_dropped in the logs.",
    ),
    "dppca_batches_without_result_total": Definition(
        "counter",
        "Batches of this process from which nothing was learned.",
        "Moving with every batch: check the feature names and the format; see /readyz.",
    ),
    "dppca_published_timestamp_seconds": Definition(
        "gauge",
        "Time at which the newest release was published.",
        "Older than a batch takes: see the lag and the logs. Older than a round: an open "
        "transaction on the input may hold it up.",
    ),
    "dppca_lag_messages": Definition(
        "gauge",
        "Messages in the input that are in no batch yet, as last measured, every "
        "partition_refresh_s. With unit=subject at the end of each round: exact, so for trusted "
        "readers only.",
        "Growing: larger packed messages, a faster format, or an engine of several cores.",
    ),
    "dppca_input_partitions": Definition(
        "gauge",
        "Input partitions that are read.",
        "Not all of the topic's: look for partitions_added in the logs.",
    ),
    "dppca_offsets_lost_total": Definition(
        "counter",
        "Offsets that retention removed before they were read. With unit=subject: exact, so for "
        "trusted readers only.",
        "Moving: the service is slower than retention; keep records longer, or read on an engine.",
    ),
    "dppca_owner": Definition(
        "gauge",
        "1 if this process runs the task of the model; 0 for a standby.",
        "0 on every instance: nobody works; look for task_dropped in the logs.",
    ),
    "dppca_tasks_dropped_total": Definition(
        "counter",
        "Tasks dropped from memory, in order to load the committed state again.",
        "A few at rebalances are normal; a steady rate is not: see task_dropped in the logs.",
    ),
    "dppca_rebalances_total": Definition(
        "counter",
        "Changes of the group that this process saw.",
        "A steady rate: instances die or stall; see their logs.",
    ),
    "dppca_commit_seconds": Definition(
        "histogram",
        "Time of a state transaction, confirmation included.",
        "Growing: the brokers are slow; a batch waits this long.",
    ),
    "dppca_loop_age_seconds": Definition(
        "gauge",
        "Time since the loop last turned.",
        "Near stall_timeout_s: the process is about to end itself, with all stacks in the log.",
    ),
    "dppca_progress_age_seconds": Definition(
        "gauge",
        "Time since slots were read, a batch was learned or a commit was confirmed; 0 if there is "
        "nothing to do.",
        "Above a quarter of stall_timeout_s: /readyz and no_progress in the logs say where it "
        "stands.",
    ),
    "dppca_fruitless_batches": Definition(
        "gauge",
        "Batches in a row, up to the last, from which nothing was learned.",
        "Three or more: check the feature names and the format; see /readyz.",
    ),
    "dppca_batch_messages": Definition(
        "gauge",
        "Messages that make a batch; NaN with rounds.",
        "None: it is what the lag is compared with.",
    ),
    "dppca_release_interval_seconds": Definition(
        "gauge",
        "Time between two releases: the length of a round, or the longest time between the last "
        "100 releases of this process; an hour before 20 of them are known.",
        "None: it is what the age of the last release is compared with.",
    ),
    "dppca_stall_timeout_seconds": Definition(
        "gauge",
        "The setting stall_timeout_s.",
        "None: it is what the ages of the loop and of the progress are compared with.",
    ),
    "dppca_changed_timestamp_seconds": Definition(
        "gauge",
        "Time of the newest release that says that the stream has changed; 0 before the first.",
        "New: look at the page; what was learned before was dropped, and limits begin anew.",
    ),
    "dppca_explained_variance_ratio": Definition(
        "gauge",
        "Released share of the variance along a component.",
        "Falling: the features move together less than before.",
        ("component",),
    ),
    "dppca_explained_variance_ratio_sd": Definition(
        "gauge",
        "Released standard deviation of that share.",
        "Large: the share says little; larger batches make it smaller.",
        ("component",),
    ),
    "dppca_eigenvalue": Definition(
        "gauge",
        "Released eigenvalues that stand out of the noise, from 1 on.",
        "More of them than components: a larger n_components would say more.",
        ("number",),
    ),
    "dppca_eigenvalue_sd": Definition(
        "gauge",
        "Released standard deviation of each eigenvalue.",
        "As large as the gap between two: their components cannot be told apart.",
        ("number",),
    ),
    "dppca_limit": Definition(
        "gauge",
        "Released limit of a score, which the share `rate` of the records exceeds.",
        "Growing: records are further from the components than before.",
        ("score", "rate"),
    ),
    "dppca_movement_degrees": Definition(
        "gauge",
        "Angle by which the newest release moved the first component.",
        "Many times that of the noise, again and again: the stream moves.",
    ),
    "dppca_movement_noise_degrees": Definition(
        "gauge",
        "Angle by which the noise of the newest release alone moves it, about.",
        "Large: larger batches or a larger epsilon.",
    ),
    "dppca_shift": Definition(
        "gauge",
        "1 if the newest release says that the mean has shifted.",
        "1: features have another level than before; compare the centres of two releases.",
    ),
}


#: Those of `stream-dppca score`. They are about single records, and NOT PRIVATE.
SCORE_DEFINITIONS: Final[dict[str, Definition]] = {
    "dppca_scored_total": Definition(
        "counter",
        "Records scored by this process. Not private.",
        "Flat while records come: see scoring_interrupted in its log.",
    ),
    "dppca_beyond_total": Definition(
        "counter",
        "Records beyond a limit. Not private.",
        "Moving much faster than the rate of the limit: look at the contributions of its scores.",
    ),
    "dppca_beyond_share": Definition(
        "gauge",
        "Share of the records of about the last 10,000 that were beyond a limit; NaN before 1,000 "
        "could be compared with one. Not private.",
        "Twice dppca_beyond_rate: many records are unusual, or the model is not of this stream.",
    ),
    "dppca_beyond_rate": Definition(
        "gauge",
        "The share that may be beyond a limit: --rate for each score with a limit.",
        "None: it is what the share is compared with.",
    ),
}


class _Registered:
    """Metrics by their definitions."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()

    def _counter(self, name: str) -> Counter:
        definition = (DEFINITIONS | SCORE_DEFINITIONS)[name]
        return Counter(name, definition.help, definition.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        definition = (DEFINITIONS | SCORE_DEFINITIONS)[name]
        return Gauge(name, definition.help, definition.labels, registry=self.registry)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return prometheus_client.generate_latest(self.registry)


class Metrics(_Registered):
    """The metrics of a service.

    Parameters
    ----------
    round_seconds
        Length of a round; None if a batch is a number of records.
    batch_messages
        Messages of a batch, if it is.
    stall_s
        The setting `stall_timeout_s`.
    """

    def __init__(
        self,
        round_seconds: float | None = None,
        batch_messages: float = math.nan,
        stall_s: float = 120.0,
    ) -> None:
        super().__init__()
        self._round_seconds = round_seconds
        self._releases: deque[bytes] = deque(maxlen=2)  # the newest one, and the one before it
        self._intervals: deque[float] = deque(maxlen=100)
        #: Time of the brokers' last answer about the ends of the input; None while no task runs.
        self.answered: float | None = None
        #: Time since when each reader has been waiting for the schema registry.
        self.registry_away: dict[int, float] = {}
        self.progress = Progress()
        self.slots = self._counter("dppca_slots_total")
        self.batches = self._counter("dppca_batches_total")
        self.fruitless = self._counter("dppca_batches_without_result_total")
        self.offsets_lost = self._counter("dppca_offsets_lost_total")
        self.dropped = self._counter("dppca_tasks_dropped_total")
        self.rebalances = self._counter("dppca_rebalances_total")
        self.published = self._gauge("dppca_published_timestamp_seconds")
        self.lag = self._gauge("dppca_lag_messages")
        self.partitions = self._gauge("dppca_input_partitions")
        self.owner = self._gauge("dppca_owner")
        self.fruitless_run = self._gauge("dppca_fruitless_batches")
        self.changed = self._gauge("dppca_changed_timestamp_seconds")
        self._interval = self._gauge("dppca_release_interval_seconds")
        self._interval.set(round_seconds or 3600)
        self._gauge("dppca_batch_messages").set(batch_messages)
        self._gauge("dppca_stall_timeout_seconds").set(stall_s)
        self._ratio = self._gauge("dppca_explained_variance_ratio")
        self._ratio_sd = self._gauge("dppca_explained_variance_ratio_sd")
        self._eigenvalue = self._gauge("dppca_eigenvalue")
        self._eigenvalue_sd = self._gauge("dppca_eigenvalue_sd")
        self._limit = self._gauge("dppca_limit")
        self._movement = self._gauge("dppca_movement_degrees")
        self._noise = self._gauge("dppca_movement_noise_degrees")
        self._shift = self._gauge("dppca_shift")
        self.loop_age = self._gauge("dppca_loop_age_seconds")
        self.progress_age = self._gauge("dppca_progress_age_seconds")
        name = "dppca_commit_seconds"
        buckets = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
        self.commit_seconds = Histogram(
            name, DEFINITIONS[name].help, registry=self.registry, buckets=buckets
        )

    def show_lag(self, at: Positions, bounds: Mapping[int, Bounds]) -> None:
        """Show how many messages there are beyond these positions, of those that are left."""
        left = ((max(at.get(p, first), first), end) for p, (first, end) in bounds.items())
        self.lag.set(sum(max(0, end - start) for start, end in left))
        self.partitions.set(len(bounds))

    def current_lag(self) -> int:
        """Return the lag; 0 before it has been measured."""
        return int(self.registry.get_sample_value("dppca_lag_messages") or 0)

    def note_release(self, value: bytes) -> None:
        """Note that a release was published, now."""
        # To the second, because the duration of a batch may depend on its records.
        now = int(time.time())
        before = self.registry.get_sample_value("dppca_published_timestamp_seconds")
        if self._round_seconds is None and before:
            self._intervals.append(now - before)
            if len(self._intervals) >= 20:
                self._interval.set(max(self._intervals))
        self.published.set(now)
        if value not in self._releases:  # published again
            self._releases.append(value)

    def render(self) -> bytes:
        """Return all metrics; the newest release is read only now, when somebody asks."""
        releases = [parse_release(value) for value in tuple(self._releases)]
        if releases:
            self._show(releases[-1], releases[0] if len(releases) > 1 else None)
        return super().render()

    def _show(self, release: PublishedRelease, before: PublishedRelease | None) -> None:
        k = range(len(release.components))
        _fill(self._ratio, k, release.explained_variance_ratio)
        _fill(self._ratio_sd, k, release.explained_variance_ratio_sd)
        numbers = range(1, len(release.eigenvalues) + 1)
        _fill(self._eigenvalue, numbers, release.eigenvalues)
        _fill(self._eigenvalue_sd, numbers, release.eigenvalues_sd)
        self._limit.clear()
        for score, limits in release.limits.items():
            for limit in limits:
                self._limit.labels(score, f"{limit.rate:g}").set(limit.value)
        moved = None if before is None else movement(before, release)
        noise = noise_movement(release) if release.components else None
        self._movement.set(math.nan if moved is None else moved)
        self._noise.set(math.nan if noise is None else noise)
        self._shift.set(release.shift)


def _fill(gauge: Gauge, names: Sequence[int], values: Sequence[float] | None) -> None:
    """Give a gauge one value for each name, and no others."""
    gauge.clear()
    for name, value in zip(names, values or (), strict=False):
        gauge.labels(str(name)).set(value)


class ScoreMetrics(_Registered):
    """The metrics of `score`. They are about single records, and NOT PRIVATE."""

    #: Records of which the share is shown, about, and the least number of them.
    WINDOW, LEAST = 10_000, 1000

    def __init__(self) -> None:
        super().__init__()
        self.turned_at = time.monotonic()
        self.ready = False  #: there is a model
        self.share: float | None = None  #: of the last records, beyond a limit
        self.rate_of_limits = 0.0  #: share that should be
        self.unlimited = 0  #: records scored without any limit
        self._all = self._counter("dppca_scored_total")
        self._beyond = self._counter("dppca_beyond_total")
        self._share = self._gauge("dppca_beyond_share")
        self._share.set(math.nan)
        self._rate = self._gauge("dppca_beyond_rate")
        self._recent = self._recent_beyond = 0.0

    def follow(self, rate: float) -> None:
        """Note another model, whose limits this share of the records should exceed."""
        self.ready, self.rate_of_limits = True, rate
        self._rate.set(rate)

    def scored(self, count: int, compared: int, beyond: int) -> None:
        """Note scores: all of them, those that a limit is known for, those beyond it."""
        self._all.inc(count)
        self._beyond.inc(beyond)
        self._recent += compared
        self._recent_beyond += beyond
        if self._recent >= self.LEAST:
            self.share = self._recent_beyond / self._recent
            self._share.set(self.share)
        if (fade := self.WINDOW / max(self._recent, 1)) < 1:
            self._recent, self._recent_beyond = self._recent * fade, self._recent_beyond * fade

    def turned(self) -> None:
        """Note that the loop has turned."""
        self.turned_at = time.monotonic()

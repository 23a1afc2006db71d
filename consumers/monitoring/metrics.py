"""Defines the metrics of the service: their kinds and meanings.

Those of `stream-dppca score` are in `scoring/status.py`. The reference of the service
(docs/service-reference.md) says what to do when one moves.

All figures of the service are safe to show: slots, batches, offsets, times, published values. The
number of bad or clipped records is a fact about records that no noise covers, so it is not counted
anywhere.

**With unit=subject this is not so.** The number of records is then as secret as their content, and
some of these figures count records exactly. `/metrics` is then inside the trust boundary; the help
of each such metric says so.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

from ..model.releases import PublishedRelease, parse_release
from ..model.uncertainty import movement, noise_movement
from ..protocols import Bounds, Positions
from .progress import Progress

# These would reveal to the microsecond when the first release was made.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Registered:
    """Metrics with a registry of their own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._counter: Callable[..., Counter] = partial(Counter, registry=self.registry)
        self._gauge: Callable[..., Gauge] = partial(Gauge, registry=self.registry)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return prometheus_client.generate_latest(self.registry)


class Metrics(Registered):
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
        self.slots = self._counter(
            "dppca_slots_total",
            "Slots taken by this process, nulls included. With unit=subject rows read: exact, "
            "so for trusted readers only.",
        )
        self.batches = self._counter(
            "dppca_batches_total", "Batches committed and published by this process."
        )
        self.fruitless = self._counter(
            "dppca_batches_without_result_total",
            "Batches of this process from which nothing was learned.",
        )
        self.offsets_lost = self._counter(
            "dppca_offsets_lost_total",
            "Offsets that retention removed before they were read. With unit=subject: exact, so "
            "for trusted readers only.",
        )
        self.dropped = self._counter(
            "dppca_tasks_dropped_total",
            "Tasks dropped from memory, in order to load the committed state again.",
        )
        self.rebalances = self._counter(
            "dppca_rebalances_total", "Changes of the group that this process saw."
        )
        self.published = self._gauge(
            "dppca_published_timestamp_seconds", "Time at which the newest release was published."
        )
        self.lag = self._gauge(
            "dppca_lag_messages",
            "Messages in the input that are in no batch yet, as last measured, every "
            "partition_refresh_s. With unit=subject at the end of each round: exact, so for "
            "trusted readers only.",
        )
        self.partitions = self._gauge("dppca_input_partitions", "Input partitions that are read.")
        self.owner = self._gauge(
            "dppca_owner", "1 if this process runs the task of the model; 0 for a standby."
        )
        self.fruitless_run = self._gauge(
            "dppca_fruitless_batches",
            "Batches in a row, up to the last, from which nothing was learned.",
        )
        self.changed = self._gauge(
            "dppca_changed_timestamp_seconds",
            "Time of the newest release that says that the stream has changed; 0 before the first.",
        )
        self._interval = self._gauge(
            "dppca_release_interval_seconds",
            "Time between two releases: the length of a round, or the longest time between the "
            "last 100 releases of this process; an hour before 20 of them are known.",
        )
        self._interval.set(round_seconds or 3600)
        self._gauge("dppca_batch_messages", "Messages that make a batch; NaN with rounds.").set(
            batch_messages
        )
        self._gauge("dppca_stall_timeout_seconds", "The setting stall_timeout_s.").set(stall_s)
        self._ratio = self._gauge(
            "dppca_explained_variance_ratio",
            "Released share of the variance along a component.",
            ["component"],
        )
        self._ratio_sd = self._gauge(
            "dppca_explained_variance_ratio_sd",
            "Released standard deviation of that share.",
            ["component"],
        )
        self._eigenvalue = self._gauge(
            "dppca_eigenvalue",
            "Released eigenvalues that stand out of the noise, from 1 on.",
            ["number"],
        )
        self._eigenvalue_sd = self._gauge(
            "dppca_eigenvalue_sd", "Released standard deviation of each eigenvalue.", ["number"]
        )
        self._limit = self._gauge(
            "dppca_limit",
            "Released limit of a score, which the share `rate` of the records exceeds.",
            ["score", "rate"],
        )
        self._movement = self._gauge(
            "dppca_movement_degrees", "Angle by which the newest release moved the first component."
        )
        self._noise = self._gauge(
            "dppca_movement_noise_degrees",
            "Angle by which the noise of the newest release alone moves it, about.",
        )
        self._shift = self._gauge(
            "dppca_shift", "1 if the newest release says that the mean has shifted."
        )
        self.loop_age = self._gauge("dppca_loop_age_seconds", "Time since the loop last turned.")
        self.progress_age = self._gauge(
            "dppca_progress_age_seconds",
            "Time since slots were read, a batch was learned or a commit was confirmed; 0 if "
            "there is nothing to do.",
        )
        self.commit_seconds = Histogram(
            "dppca_commit_seconds",
            "Time of a state transaction, confirmation included.",
            registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
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

"""Defines every metric: its kind, its meaning, and what to do when it moves.

All figures are safe to show: slots, batches, offsets, times, published values. The number of bad or
clipped records is a fact about records that no noise covers, so it is not counted anywhere.

**With unit=subject this is not so.** The number of records is then as secret as their content, and
some of these figures count records exactly. `/metrics` is then inside the trust boundary; the help
of each such metric says so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from .progress import Progress

# These would reveal to the microsecond when the first release was made.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Definition(NamedTuple):
    """A metric: its kind, its meaning, its labels, and what to do when it moves."""

    kind: str
    help: str
    labels: tuple[str, ...]
    action: str


DEFINITIONS: Final[dict[str, Definition]] = {
    "dppca_slots_total": Definition(
        "counter",
        "Slots taken by this process, nulls included. With unit=subject rows read: exact, so for "
        "trusted readers only.",
        (),
        "Flat while the lag grows: the service is stuck; see dppca_progress_age_seconds.",
    ),
    "dppca_batches_total": Definition(
        "counter", "Batches committed and published by this process.", (),
        "Flat while slots grow: batches fail; look for task_dropped in the logs.",
    ),
    "dppca_batches_without_result_total": Definition(
        "counter", "Batches of this process from which nothing was learned.", (),
        "Moving with every batch: check the feature names and the format; see /readyz.",
    ),
    "dppca_published_timestamp_seconds": Definition(
        "gauge", "Time at which the newest release was published.", (),
        "Older than a batch takes: see the lag and the logs. Older than a round: an open "
        "transaction on the input may hold it up.",
    ),
    "dppca_lag_messages": Definition(
        "gauge",
        "Messages in the input that are in no batch yet, as last measured, every "
        "partition_refresh_s. With unit=subject at the end of each round: exact, so for trusted "
        "readers only.",
        (),
        "Growing: larger packed messages, a faster format, or an engine of several cores.",
    ),
    "dppca_input_partitions": Definition(
        "gauge", "Input partitions that are read.", (),
        "Not all of the topic's: look for partitions_added in the logs.",
    ),
    "dppca_offsets_lost_total": Definition(
        "counter",
        "Offsets that retention removed before they were read. With unit=subject: exact, so for "
        "trusted readers only.",
        (),
        "Moving: the service is slower than retention; keep records longer, or read on an engine.",
    ),
    "dppca_owner": Definition(
        "gauge", "1 if this process runs the task of the model; 0 for a standby.", (),
        "0 on every instance: nobody works; look for task_dropped in the logs.",
    ),
    "dppca_tasks_dropped_total": Definition(
        "counter", "Tasks dropped from memory, in order to load the committed state again.", (),
        "A few at rebalances are normal; a steady rate is not: see task_dropped in the logs.",
    ),
    "dppca_rebalances_total": Definition(
        "counter", "Changes of the group that this process saw.", (),
        "A steady rate: instances die or stall; see their logs.",
    ),
    "dppca_commit_seconds": Definition(
        "histogram", "Time of a state transaction, confirmation included.", (),
        "Growing: the brokers are slow; a batch waits this long.",
    ),
    "dppca_loop_age_seconds": Definition(
        "gauge", "Time since the loop last turned.", (),
        "Near stall_timeout_s: the process is about to end itself, with all stacks in the log.",
    ),
    "dppca_progress_age_seconds": Definition(
        "gauge",
        "Time since slots were read, a batch was learned or a commit was confirmed; 0 if there is "
        "nothing to do.",
        (),
        "Above a quarter of stall_timeout_s: /readyz and no_progress in the logs say where it "
        "stands.",
    ),
}  # fmt: skip


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        self.loop_age = self._gauge("dppca_loop_age_seconds")
        self.progress_age = self._gauge("dppca_progress_age_seconds")
        name = "dppca_commit_seconds"
        buckets = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
        self.commit_seconds = Histogram(
            name, DEFINITIONS[name].help, registry=self.registry, buckets=buckets
        )

    def _counter(self, name: str) -> Counter:
        definition = DEFINITIONS[name]
        return Counter(name, definition.help, definition.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        definition = DEFINITIONS[name]
        return Gauge(name, definition.help, definition.labels, registry=self.registry)

    def current_lag(self) -> int:
        """Return the lag; 0 before it has been measured."""
        return int(self.registry.get_sample_value("dppca_lag_messages") or 0)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

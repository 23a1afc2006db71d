"""Batches of offsets: planned, read into slots, learned as a whole."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..model.learner import Learner
from ..monitoring.metrics import Metrics
from ..planning.batch_planner import BatchPlanner, PlannedBatch
from ..planning.guard import TopicGuard
from ..planning.kept_plan import KeptPlans
from ..planning.timeline import BrokerTime
from ..protocols import Cluster, FinishedBatch, Positions
from ..reading.batch_reader import BatchReader
from .config import TaskConfig

if TYPE_CHECKING:
    from ..reading.remote_sums import RemoteSums


class BatchInput:
    """The input of a task in which a record is its own unit."""

    def __init__(
        self,
        cluster: Cluster,
        config: TaskConfig,
        learner: Learner,
        metrics: Metrics,
        plans: KeptPlans,
    ) -> None:
        self._learner, self._start = learner, config.start
        self._guard = TopicGuard(config.input_topic, metrics)
        self._batch: PlannedBatch | None = None  # the one that is being read
        topic, interval_s, refresh_s = config.input_topic, config.plan_interval_s, config.refresh_s
        with ExitStack() as opened:
            self.planner = BatchPlanner(
                cluster.offsets(topic),
                topic,
                metrics,
                size=config.offsets_per_batch(learner.capacity),
                interval_s=interval_s,
                refresh_s=refresh_s,
                patience_s=config.stall_s,
                times=BrokerTime(cluster, topic, config.slack_ms, config.clock),
                plans=plans,
                sampler=lambda: cluster.sampler(topic, interval_s, refresh_s),
            )
            opened.callback(self.planner.close)
            self.reader = _open_reader(cluster, config, learner, metrics)
            opened.callback(self.reader.close)
            self._opened = opened.pop_all()

    def partitions(self) -> list[int]:
        """The partitions that exist now. Ask before `begin`."""
        return self.planner.partitions()

    def unknown_use(self, used: Positions) -> str | None:
        """Say which records were used that the state does not know; None if there are none."""
        return self._guard.unknown_use(self._learner.positions, used)

    def begin(self) -> None:
        """Resume after the last state; refuse a topic that was truncated or recreated."""
        self.reader.begin(self.planner.begin(self._learner.positions, self._start))
        self.planner.start()

    def next(self) -> bool:
        """Begin the next batch, if one is planned."""
        self._batch = self.planner.next_batch()
        if self._batch is None:
            return False
        self.reader.start(self._batch.ranges)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Read ahead where the plan does not depend on it; otherwise wait for the plan."""
        if self.reader.full or not self.planner.ahead:
            self.planner.wait(timeout_s)
            return False
        return self.reader.read(timeout_s)

    def read(self, timeout_s: float) -> bool:
        """Read once of the batch that was begun. True if anything came."""
        return self.reader.read(timeout_s)

    @property
    def at(self) -> str:
        """The place that is being read, for people."""
        partition = self.reader.waits_for
        return "reading" if partition is None else f"reading partition {partition}"

    @property
    def planning(self) -> bool:
        """True while there is something to read whose plan is not durable yet."""
        return self.planner.keeping

    @property
    def complete(self) -> bool:
        """True if all of the batch that was begun has been read."""
        return self.reader.complete

    def learn(self) -> FinishedBatch | None:
        """Learn from the complete batch; None while the first step needs more of them."""
        if self._batch is None:
            raise RuntimeError("no batch was begun")
        return self._learner.learn(self.reader.take(), self._batch.positions)

    def close(self) -> None:
        self._opened.close()


def _open_reader(
    cluster: Cluster, config: TaskConfig, learner: Learner, metrics: Metrics
) -> BatchReader | RemoteSums:
    topic, width, stall_s = config.input_topic, len(config.features), config.stall_s
    if config.remote is None:
        reader, size = cluster.reader(topic), config.offsets_per_batch(learner.capacity)
        return BatchReader(
            reader, topic, config.codec, metrics, width=width, size=size, stall_s=stall_s
        )
    from ..reading.remote_sums import RemoteSums  # needs librdkafka

    offsets, batches, slots = cluster.offsets(topic), learner.batches, learner.capacity
    sizes = {"width": width, "slots": slots}
    return RemoteSums(config.remote, batches, offsets, topic, metrics, **sizes, stall_s=stall_s)

"""Rounds of the broker's time, for privacy per subject.

The estimator gets the subject of each record, and the end of each round. Nothing of a round is kept
before it is over; after a crash in the middle, the round is read again from the positions of the
last state.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..model.learner import Learner
from ..monitoring.metrics import Metrics
from ..planning.guard import TopicGuard
from ..planning.round_planner import PlannedRound, RoundPlanner
from ..planning.timeline import BrokerTime
from ..protocols import Cluster, FinishedBatch, Positions
from ..reading.round_reader import RoundReader
from .config import RoundConfig, TaskConfig

if TYPE_CHECKING:
    from ..reading.remote_rows import RemoteRows


class RoundInput:
    """The input of a task in which all records of a subject are a unit."""

    def __init__(
        self,
        cluster: Cluster,
        config: TaskConfig,
        rounds: RoundConfig,
        learner: Learner,
        metrics: Metrics,
    ) -> None:
        self._learner, self._rounds, self._clock = learner, rounds, config.clock
        self._guard = TopicGuard(config.input_topic, metrics, secret=True)
        self._round: PlannedRound | None = None  # the one that is being read
        topic = config.input_topic
        with ExitStack() as opened:
            self.planner = RoundPlanner(
                cluster.offsets(topic),
                topic,
                rounds.rule,
                metrics,
                interval_s=config.plan_interval_s,
                refresh_s=config.refresh_s,
                times=BrokerTime(cluster, topic, config.slack_ms, config.clock),
            )
            opened.callback(self.planner.close)
            self.reader = self._open_reader(cluster, config, metrics)
            opened.callback(self.reader.close)
            self._opened = opened.pop_all()

    def _open_reader(
        self, cluster: Cluster, config: TaskConfig, metrics: Metrics
    ) -> RoundReader | RemoteRows:
        topic, rule, codec = config.input_topic, self._rounds.rule, self._rounds.codec
        more: dict[str, Any] = {"stall_s": config.stall_s, "take": self._learner.add}
        if config.remote is None:
            reader = cluster.reader(topic, stamped=True)
            return RoundReader(reader, topic, codec, rule, metrics, **more)
        from ..reading.remote_rows import RemoteRows  # needs librdkafka

        more |= {"width": len(config.features), "bounds": self.planner.bounds}
        return RemoteRows(config.remote, topic, rule, metrics, **more)

    def partitions(self) -> list[int]:
        return self.planner.partitions()

    def unknown_use(self, used: Positions) -> str | None:
        return self._guard.unknown_use(self._learner.positions, used)

    def begin(self) -> None:
        learner, rounds = self._learner, self._rounds
        last = learner.last_round
        following = rounds.first_round(int(self._clock() * 1000)) if last is None else last + 1
        self.planner.begin(learner.positions, following, learner.n_batches)

    def next(self) -> bool:
        self._round = self.planner.next_round()
        if self._round is None:
            return False
        self.reader.start(self._round)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait, because there is nothing to read before a round is over."""
        self.planner.wait(timeout_s)
        return False

    def read(self, timeout_s: float) -> bool:
        return self.reader.read(timeout_s)

    @property
    def at(self) -> str:
        """The round alone: whether a partition has records in it is secret."""
        return f"reading round {self._round.number}" if self._round else "reading"

    @property
    def planning(self) -> bool:
        return False  # rounds follow from the broker's time

    @property
    def complete(self) -> bool:
        return self.reader.complete

    def learn(self) -> FinishedBatch:
        if self._round is None:
            raise RuntimeError("no round was begun")
        self.reader.finish()
        return self._learner.close_round(self._round.number, self._round.positions)

    def close(self) -> None:
        self._opened.close()

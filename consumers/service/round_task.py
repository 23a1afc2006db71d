"""A task with privacy per subject: rounds of the broker's time instead of batches of offsets.

Fencing, loading, committing and publishing are those of every task (`Task`). Only the input
differs: rounds are planned and read in their own way, and the estimator gets the subject of each
record and the end of each round. Nothing of a round is kept before it is over; after a crash in the
middle, the round is read again from the positions of the last state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocols import Cluster, FinishedBatch
from .round_reader import RoundReader
from .rounds import PlannedRound, RoundPlanner
from .task import RoundConfig, Task

if TYPE_CHECKING:
    from .spread_rounds import EngineRounds

__all__ = ["RoundTask"]


class RoundTask(Task):
    """A running task. Any error it raises means: drop it."""

    _round: PlannedRound | None = None  # the round that is being read

    @property
    def _rounds(self) -> RoundConfig:
        if self._config.rounds is None:
            raise RuntimeError("a task with rounds needs their settings")
        return self._config.rounds

    def _open_planner(self, cluster: Cluster) -> None:
        config, rounds = self._config, self._rounds
        self.rounds = RoundPlanner(
            cluster.offsets(config.input_topic), config.input_topic, rounds.rule, self._metrics,
            slack_ms=rounds.slack_ms,
            interval_s=config.plan_interval_s, refresh_s=config.refresh_s,
            timestamp_type=lambda: cluster.timestamp_type(config.input_topic), clock=rounds.clock,
        )  # fmt: skip
        self._open.append(self.rounds)

    def _open_reader(self, cluster: Cluster) -> None:
        rounds = self._rounds
        self._reader = self._make_reader(cluster)
        self._open.append(self._reader)
        last = self._learner.last_round
        following = rounds.first_round(int(rounds.clock() * 1000)) if last is None else last + 1
        self.rounds.begin(self._committed, following, self._learner.n_batches)

    def _make_reader(self, cluster: Cluster) -> RoundReader | EngineRounds:
        """Make the reader of the rows of planned rounds."""
        config, rounds, topic = self._config, self._rounds, self._config.input_topic
        if config.spread is None:
            return RoundReader(
                cluster.reader(topic, stamped=True), topic, rounds.codec, rounds.rule,
                self._metrics, stall_s=config.stall_s, bounds=self.rounds.bounds,
                take=self._learner.add,
            )  # fmt: skip
        from .spread_rounds import EngineRounds  # needs librdkafka

        return EngineRounds(
            config.spread, topic, rounds.rule, self._metrics, width=len(config.features),
            stall_s=config.stall_s, bounds=self.rounds.bounds, take=self._learner.add,
        )  # fmt: skip

    def _start_planner(self) -> None:
        pass  # the planner of rounds needs no thread: each call looks at the clock

    def _partitions(self) -> list[int]:
        return self.rounds.partitions()

    def _begin_batch(self) -> bool:
        self._round = self.rounds.next_round()
        if self._round is None:
            return False
        self._reader.start(self._round)
        return True

    def _read(self, timeout_s: float) -> bool:
        return self._reader.read(timeout_s)

    def _reading_at(self) -> str:
        """The round alone: whether a partition has records in it is secret."""
        return f"reading round {self._round.number}" if self._round else "reading"

    def _read_ahead(self, timeout_s: float) -> bool:
        """Wait, because there is nothing to read before a round is over."""
        self.rounds.wait(timeout_s)
        return False

    def _learn(self) -> FinishedBatch | None:
        if self._round is None or not self._reader.complete:
            return None
        self._metrics.progress.moved("learning")
        self._reader.finish()
        return self._learner.close_round(self._round.number, self._round.positions)

    def _lost(self, partition: int, used: int, known: int) -> str:
        """Return the message without the offsets, because they count records."""
        return (
            f"the group has used partition {partition} of {self._config.input_topic!r} further "
            "than the state says"
        )

"""The input of a task: what there is to learn, planned, read and learned, batch after batch.

                                         BatchInput       RoundInput
                                         ───────────────  ──────────────────────────
    what shares a batch                  ranges of        a stretch of the broker's
                                         offsets          time, of many subjects
    planned by                           BatchPlanner     RoundPlanner
    read in this process by              BatchReader      RoundReader
    read in the tasks of an engine by    RemoteSums       RemoteRows

Everything else about a task is the same for both: see `Task`.
"""

from __future__ import annotations

from typing import Protocol

from ..model.learner import Learner
from ..protocols import Cluster, FinishedBatch, Positions
from .batch_input import BatchInput
from .config import TaskConfig
from .kept_plan import KeptPlans
from .metrics import Metrics
from .round_input import RoundInput


class Input(Protocol):
    """Plans, reads and learns: `begin` once, then for each batch `next`, `read` and `learn`."""

    def partitions(self) -> list[int]:
        """The partitions that exist now. Ask before `begin`."""

    def unknown_use(self, used: Positions) -> str | None:
        """Say which records were used that the state does not know; None if there are none."""

    def begin(self) -> None:
        """Resume after the last state; refuse a topic that was truncated or recreated."""

    def next(self) -> bool:
        """Begin the next batch, if one is planned."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a plan, and read ahead if that is possible. True if anything came."""

    def read(self, timeout_s: float) -> bool:
        """Read once of the batch that was begun. True if anything came."""

    @property
    def at(self) -> str:
        """The place that is being read, for people."""

    @property
    def planning(self) -> bool:
        """True while there is something to read whose plan is not durable yet."""

    @property
    def complete(self) -> bool:
        """True if all of the batch that was begun has been read."""

    def learn(self) -> FinishedBatch | None:
        """Learn from the complete batch; None while the first step needs more of them."""

    def close(self) -> None: ...


def open_input(
    cluster: Cluster, config: TaskConfig, learner: Learner, metrics: Metrics, plans: KeptPlans
) -> Input:
    """Open the input of these settings. It resumes where the state of the learner ends."""
    if config.rounds is None:
        return BatchInput(cluster, config, learner, metrics, plans)
    return RoundInput(cluster, config, config.rounds, learner, metrics)

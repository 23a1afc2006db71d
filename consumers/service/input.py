"""The input of a task: what there is to learn, planned, read and learned, batch after batch.

                                         BatchInput       RoundInput
                                         ───────────────  ──────────────────────────
    what shares a batch                  ranges of        a stretch of the broker's
                                         offsets          time, of many subjects
    planned by                           BatchPlanner     RoundPlanner
    read in this process by              BatchReader      RoundReader
    read in the tasks of an engine by    RemoteSums       RemoteRows

Both have `begin`, which is called once, then for each batch `next`, `read` until `complete`, and
`learn`. Everything else about a task is the same for both: see `Task`.
"""

from __future__ import annotations

from ..model.learner import Learner
from ..monitoring.metrics import Metrics
from ..planning.kept_plan import KeptPlans
from ..protocols import Cluster
from .batch_input import BatchInput
from .config import TaskConfig
from .round_input import RoundInput


def open_input(
    cluster: Cluster, config: TaskConfig, learner: Learner, metrics: Metrics, plans: KeptPlans
) -> BatchInput | RoundInput:
    """Open the input of these settings. It resumes where the state of the learner ends."""
    if config.rounds is None:
        return BatchInput(cluster, config, learner, metrics, plans)
    return RoundInput(cluster, config, config.rounds, learner, metrics)

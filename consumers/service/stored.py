"""Compares settings with the stored state, without fencing the owner of the state.

A standby does this when it joins: settings that do not fit would otherwise be refused only when it
takes over, which in a rolling update is after the last instance with the old settings has gone.
"""

from __future__ import annotations

from ..model.learner import Learner
from ..model.states import read_history
from ..protocols import Cluster
from ..settings import Settings
from .config import REFUSAL, TaskConfig


def check_stored(cluster: Cluster, settings: Settings, config: TaskConfig) -> int | None:
    """Return the last batch of the stored state, committed or to be adopted; None if there is none.

    Raises
    ------
    StateRefused
        Names the setting that differs.
    """
    topic = settings.state_topic
    history, _ = read_history(cluster.tail(topic), cluster.unfinished(topic), REFUSAL)
    if not history:
        return None
    return Learner(config.identity(), config.estimator, history[-1:]).n_batches


def reads_old_records(settings: Settings) -> bool:
    """Tell whether a new model begins with records that are already in the topic."""
    return settings.start == "earliest" and settings.unit == "record"


def other_models(cluster: Cluster, settings: Settings) -> list[str]:
    """Return the groups of other models that have read the input: their records were used."""
    groups = cluster.groups_of(settings.input_topic) or []
    scoring = {f"{group}.scores" for group in (*groups, settings.group)}  # they learn nothing
    known = {settings.group, *scoring}
    return [g for g in groups if g.startswith("stream-dppca.") and g not in known]

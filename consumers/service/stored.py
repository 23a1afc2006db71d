"""Compares settings with the stored state, without fencing the owner of the state.

A standby does this when it joins: settings that do not fit would otherwise be refused only when it
takes over, which in a rolling update is after the last instance with the old settings has gone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from ..errors import StateRefused
from ..model.learner import Learner
from ..model.releases import parse_release
from ..model.states import read_history
from ..protocols import Cluster
from ..settings import Settings
from .config import REFUSAL, TaskConfig

#: What to do if states are lost.
WAY_OUT: Final = (
    "Restore the state topic; or, to begin a new model, give it its own name, group and state "
    "topic, and start='latest'."
)
#: Warning about a new model on a topic that another model has read.
USED_TWICE: Final = (
    "a record that two models learn from spends the epsilon of both. With start=latest a new model "
    "leaves out the records so far; those that come, both learn from, unless the other has stopped"
)


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
    return Learner(config.identity(), config.estimator_recipe, history[-1:]).n_batches


def last_release(cluster: Cluster, config: TaskConfig) -> int | None:
    """Return the number of the newest release on the output topic; None if there is none.

    It is 0 if releases of the model are there and none of them can be read.
    """
    found = [m for m in cluster.scan(config.output_topic) if m.key == config.model.encode()]
    numbers = []
    for message in found:
        with suppress(ValueError):
            numbers.append(parse_release(message.value).batch)
    return max(numbers, default=0) if found else None


def lost(last: int | None, known: int, config: TaskConfig) -> str | None:
    """Say what is wrong if a release was published that the states do not know; else None."""
    if last is None or (known and last <= known):
        return None
    return (
        f"the state ends with batch {known}, but {config.output_topic!r} holds a later release of "
        f"model {config.model!r}: states are lost, and the records behind that release must not "
        f"be used again. {WAY_OUT}"
    )


def check_complete(
    cluster: Cluster, settings: Settings, config: TaskConfig, missing: list[str]
) -> int | None:
    """Return the last batch of the stored state, as `check_stored`; refuse if states are lost.

    The state is read last: what an owner publishes in the meantime is in it.
    """
    used = settings.group in (cluster.groups_of(settings.input_topic) or [])
    last = None if settings.output_topic in missing else last_release(cluster, config)
    stored = None if settings.state_topic in missing else check_stored(cluster, settings, config)
    if why := lost(last, stored or 0, config):
        raise StateRefused(why)
    if used and stored is None:
        raise StateRefused(
            f"group {settings.group!r} has used records of {settings.input_topic!r}, and there is "
            f"no state: states are lost. {WAY_OUT}"
        )
    return stored


def other_models(cluster: Cluster, settings: Settings) -> list[str]:
    """Return the groups of other models that have read the input: their records were used."""
    groups = cluster.groups_of(settings.input_topic) or []
    scoring = {f"{group}.scores" for group in (*groups, settings.group)}  # they learn nothing
    known = {settings.group, *scoring}
    return [g for g in groups if g.startswith("stream-dppca.") and g not in known]

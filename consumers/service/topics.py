"""The topics of a model: made if they are not there, checked if they are."""

from __future__ import annotations

from typing import Final

from ..errors import ConfigurationError
from ..events import log_event
from ..protocols import Cluster, TopicInfo
from ..settings import Settings

__all__ = ["ensure_topics", "wanted_topics"]

#: Both topics hold current values by key. Small segments let the cleaner get at old ones, so that
#: a task that starts has little to read.
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": str(3600 * 1000),
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(8 << 20),
}


def wanted_topics(settings: Settings) -> dict[str, TopicInfo]:
    """The topics we need, as they must be."""
    return {
        settings.state_topic: TopicInfo(settings.shards, COMPACTED),
        settings.output_topic: TopicInfo(1, COMPACTED),
    }


def ensure_topics(log: Cluster, settings: Settings, *, make: bool = True) -> list[str]:
    """Make what is missing, or say exactly what is missing or wrong.

    Nothing is made while anything is wrong, nor without `make`. Returns what was missing.
    """
    problems: list[str] = []
    missing: list[str] = []
    if log.topic(settings.input_topic) is None:
        problems.append(f"input_topic {settings.input_topic!r} does not exist: create it")
    wanted = wanted_topics(settings)
    for name in wanted:
        found = log.topic(name)
        if found is None and settings.create_topics:
            missing.append(name)
        else:
            problems += _problems(name, found, settings)
    if make and not problems:
        for name in missing:
            log.create_topic(name, wanted[name], settings.replication_factor)
            log_event("topic_created", topic=name, partitions=wanted[name].partitions)
            problems += _problems(name, log.topic(name), settings)  # another may have been faster
    if problems:
        raise ConfigurationError("\n".join(problems))
    return missing


def _problems(name: str, found: TopicInfo | None, settings: Settings) -> list[str]:
    """What is wrong with the output or the state topic."""
    if found is None:
        command = _command(name, wanted_topics(settings)[name])
        return [f"topic {name!r} does not exist. Create it with:\n  {command}"]
    policy = "compact"  # unless we may look, and see otherwise
    if found.configs is not None:
        policy = found.configs.get("cleanup.policy", "delete")
    if name != settings.state_topic:
        if policy != "compact":
            log_event("topic_not_compacted", level="warning", topic=name)
        return []
    problems = []
    if found.partitions != settings.shards:
        problems.append(
            f"state_topic {name!r} has {found.partitions} partitions, shards is "
            f"{settings.shards}. They must be equal, and shards cannot change under a "
            "model: records would be used twice. For another number of shards take another "
            "model name, and start='latest'."
        )
    if policy != "compact":
        problems.append(
            f"state_topic {name!r} has cleanup.policy={policy}: the state would expire. "
            "Set it to compact."
        )
    return problems


def _command(name: str, info: TopicInfo) -> str:
    configs = " ".join(f"--config {key}={value}" for key, value in (info.configs or {}).items())
    return f"kafka-topics.sh --create --topic {name} --partitions {info.partitions} {configs}"

"""Creates the topics of a model if they do not exist, and checks them if they do."""

from __future__ import annotations

from typing import Final

from ..errors import ConfigurationError
from ..events import log_event
from ..protocols import Cluster, TopicInfo
from ..settings import TopicSettings

__all__ = ["ensure_topics", "wanted_topics"]

#: Both topics hold the current value of each key. Small segments let the cleaner remove old values
#: soon, so that a task that starts has little to read.
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": str(3600 * 1000),
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(32 << 20),
}


def wanted_topics(settings: TopicSettings) -> dict[str, TopicInfo]:
    """Return the topics that a model needs, as they must be."""
    return {
        settings.state_topic: TopicInfo(settings.shards, COMPACTED),
        settings.output_topic: TopicInfo(1, COMPACTED),
    }


def ensure_topics(cluster: Cluster, settings: TopicSettings, *, create: bool = True) -> list[str]:
    """Create the topics that are missing; return their names.

    Nothing is created while anything is wrong, nor without `create`.

    Raises
    ------
    ConfigurationError
        Says what is missing or wrong, and how to put it right.
    """
    problems: list[str] = []
    missing: list[str] = []
    if cluster.topic(settings.input_topic) is None:
        problems.append(f"input_topic {settings.input_topic!r} does not exist: create it")
    wanted = wanted_topics(settings)
    for name in wanted:
        found = cluster.topic(name)
        if found is None and settings.create_topics:
            missing.append(name)
        else:
            problems += _problems(name, found, settings)
    if create and not problems:
        for name in missing:
            cluster.create_topic(name, wanted[name], settings.replication_factor)
            log_event("topic_created", topic=name, partitions=wanted[name].partitions)
            # Another process may have created it first, with other properties.
            problems += _problems(name, cluster.topic(name), settings)
    if problems:
        raise ConfigurationError("\n".join(problems))
    return missing


def _problems(name: str, found: TopicInfo | None, settings: TopicSettings) -> list[str]:
    """Return what is wrong with the output topic or the state topic."""
    if found is None:
        command = _command(name, wanted_topics(settings)[name])
        return [f"topic {name!r} does not exist. Create it with:\n  {command}"]
    policy = "compact"  # taken for granted where we may not look
    if found.configs is not None:
        policy = found.configs.get("cleanup.policy", "delete")
    if name != settings.state_topic:
        if policy != "compact":
            log_event("topic_not_compacted", level="warning", topic=name)
        return []
    problems = []
    if found.partitions != settings.shards:
        problems.append(
            f"state_topic {name!r} must have as many partitions as there are shards. Found "
            f"{found.partitions} partitions and shards = {settings.shards}. The number of shards "
            "of a model cannot change: records would be used twice. For another number, choose "
            "another model name and start='latest'."
        )
    if policy != "compact":
        problems.append(
            f"state_topic {name!r} has cleanup.policy={policy}: the state would expire. "
            "Set the policy to compact."
        )
    return problems


def _command(name: str, info: TopicInfo) -> str:
    configs = " ".join(f"--config {key}={value}" for key, value in (info.configs or {}).items())
    return f"kafka-topics.sh --create --topic {name} --partitions {info.partitions} {configs}"

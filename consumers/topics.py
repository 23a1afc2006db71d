"""The topics of a model: made if they are not there, checked if they are."""

from __future__ import annotations

from typing import Final

from .errors import ConfigurationError
from .log import Log, TopicInfo
from .logs import log_event
from .settings import Settings

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


def ensure_topics(log: Log, settings: Settings) -> None:
    """Make what is missing, or say exactly what is missing or wrong."""
    problems = []
    if log.topic(settings.input_topic) is None:
        problems.append(f"input_topic {settings.input_topic!r} does not exist: create it")
    for name, wanted in wanted_topics(settings).items():
        found = log.topic(name)
        if found is None and settings.create_topics:
            log.create_topic(name, wanted, settings.replication_factor)
            log_event("topic_created", topic=name, partitions=wanted.partitions)
            found = log.topic(name)
        if found is None:
            command = _command(name, wanted)
            problems.append(f"topic {name!r} does not exist. Create it with:\n  {command}")
            continue
        policy = "compact"  # unless we may look, and see otherwise
        if found.configs is not None:
            policy = found.configs.get("cleanup.policy", "delete")
        if name == settings.state_topic:
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
        elif policy != "compact":
            log_event("topic_not_compacted", level="warning", topic=name)
    if problems:
        raise ConfigurationError("\n".join(problems))


def _command(name: str, info: TopicInfo) -> str:
    configs = " ".join(f"--config {key}={value}" for key, value in (info.configs or {}).items())
    return f"kafka-topics.sh --create --topic {name} --partitions {info.partitions} {configs}"

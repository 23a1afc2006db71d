"""Creates the topics of a model if they do not exist, and checks them if they do."""

from __future__ import annotations

import time
from typing import Final

from ..errors import ConfigurationError
from ..events import log_event
from ..kafka.config import MAX_RECORD_BYTES
from ..planning.timeline import LOG_APPEND_TIME
from ..protocols import Cluster, TopicInfo
from ..settings import MESSAGE_KEY, ConnectionSettings, RoundRule, TopicSettings

#: Both topics hold the current value of each key. Small segments let the cleaner remove old values
#: soon, so that a task that starts has little to read.
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": str(3600 * 1000),
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(MAX_RECORD_BYTES),
}

#: Longest time until all brokers know of a topic that one of them has created.
CREATED_SECONDS: Final = 30.0


def wanted_topics(settings: TopicSettings) -> dict[str, TopicInfo]:
    """Return the topics that a model needs, as they must be."""
    return {
        settings.state_topic: TopicInfo(1, COMPACTED),
        settings.output_topic: TopicInfo(1, COMPACTED),
    }


def ensure_topics(
    cluster: Cluster,
    settings: TopicSettings,
    *,
    create: bool = True,
    rounds: RoundRule | None = None,
) -> list[str]:
    """Create the topics that are missing; return their names.

    Nothing is created while anything is wrong, nor without `create`. With rounds, the input topic
    must be suitable for them.

    Raises
    ------
    ConfigurationError
        If anything is missing or wrong; the message says how to correct it.
    """
    problems: list[str] = []
    missing: list[str] = []
    found = cluster.topic(settings.input_topic)
    if found is None:
        problems.append(f"input_topic {settings.input_topic!r} does not exist: create it")
    elif rounds is not None:
        problems += _unfit_for_rounds(cluster, settings, found, rounds)
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
            problems += _problems(name, _created(cluster, name), settings)
    if problems:
        raise ConfigurationError("\n".join(problems))
    return missing


def _created(cluster: Cluster, name: str) -> TopicInfo | None:
    """A topic that has just been created; other brokers may hear of it a moment later."""
    deadline = time.monotonic() + CREATED_SECONDS
    while (found := cluster.topic(name)) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _unfit_for_rounds(
    cluster: Cluster, settings: TopicSettings, found: TopicInfo, rounds: RoundRule
) -> list[str]:
    """Return the reasons why the input topic cannot be divided into rounds.

    If senders set the times of messages, a device can move the end of a round for all others. If
    messages are removed by key, and the key is not the subject, a device can remove the messages of
    others.
    """
    name = settings.input_topic
    problems = []
    kind = cluster.timestamp_type(name)
    if kind is None:
        problems.append(
            f"input_topic {name!r}: unit=subject needs to know its message.timestamp.type. Allow "
            "this client to describe the configs of the topic."
        )
    elif kind != LOG_APPEND_TIME:
        command = (
            f"kafka-configs.sh --bootstrap-server {_servers(settings)} --alter "
            f"--entity-type topics --entity-name {name} "
            f"--add-config message.timestamp.type={LOG_APPEND_TIME}"
        )
        problems.append(
            f"input_topic {name!r} has message.timestamp.type={kind}: with unit=subject the "
            "brokers must set the times, or a device could end a round for all others. Change it "
            f"with:\n  {command}"
        )
    if "compact" in (found.configs or {}).get("cleanup.policy", "") and (
        rounds.subject != MESSAGE_KEY
    ):
        problems.append(
            f"input_topic {name!r} is compacted: with unit=subject the key must then be the "
            f"subject (subject={MESSAGE_KEY}), or one subject's messages could remove another's"
        )
    return problems


def _servers(settings: TopicSettings) -> str:
    return settings.bootstrap_servers if isinstance(settings, ConnectionSettings) else "HOST:9092"


def _problems(name: str, found: TopicInfo | None, settings: TopicSettings) -> list[str]:
    """Return the problems of the output topic or the state topic."""
    if found is None:
        command = _command(name, wanted_topics(settings)[name], settings)
        return [f"topic {name!r} does not exist. Create it with:\n  {command}"]
    policy = "compact"  # assumed without permission to see it
    if found.configs is not None:
        policy = found.configs.get("cleanup.policy", "delete")
    if name != settings.state_topic:
        if policy != "compact":
            log_event("topic_not_compacted", level="warning", topic=name)
        return []
    problems = []
    if found.partitions != 1:
        problems.append(
            f"state_topic {name!r} must have one partition: a model has one state, and one owner. "
            f"Found {found.partitions} partitions. Give the model a state topic of its own."
        )
    if policy != "compact":
        problems.append(
            f"state_topic {name!r} has cleanup.policy={policy}: the state would expire. "
            "Set the policy to compact."
        )
    return problems


def _command(name: str, info: TopicInfo, settings: TopicSettings) -> str:
    configs = " ".join(f"--config {key}={value}" for key, value in (info.configs or {}).items())
    return (
        f"kafka-topics.sh --bootstrap-server {_servers(settings)} --create --topic {name} "
        f"--partitions {info.partitions} {configs}"
    )

"""Apache Kafka behind the Protocols of `consumers.protocols`: topics, and parts of a service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kafka import KafkaAdminClient  # type: ignore[import-untyped]
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType  # type: ignore[import-untyped]
from kafka.structs import TopicPartition  # type: ignore[import-untyped]

from ..errors import ClusterError
from ..protocols import Claim, Message, Reader, TopicInfo
from .client import (
    opened,
    partitions_of,
    read_tail,
    read_to_end,
    read_unfinished,
    translated_errors,
)
from .config import KafkaConfig
from .feed import KafkaFeed, message_of
from .ledger import KafkaLedger
from .membership import KafkaMembership
from .reader import KafkaOffsets, KafkaReader
from .sampler import KafkaSampler


class KafkaCluster:
    """A cluster, with the topics and the group of one model."""

    def __init__(self, config: KafkaConfig) -> None:
        self.config = config

    # Topics

    def topic(self, name: str) -> TopicInfo | None:
        with translated_errors(), self._admin() as admin:
            found = partitions_of(admin, name)
            return None if found is None else TopicInfo(len(found), _topic_configs(admin, name))

    def timestamp_type(self, topic: str) -> str | None:
        with translated_errors(), self._admin() as admin:
            found = _topic_configs(admin, topic) or {}
        return found.get("message.timestamp.type")

    def create_topic(self, name: str, info: TopicInfo, replication: int) -> None:
        made = {
            "num_partitions": info.partitions,
            "replication_factor": replication,
            "configs": dict(info.configs or {}),
        }
        with translated_errors(), self._admin() as admin:
            with contextlib.suppress(kafka_errors.TopicAlreadyExistsError):
                admin.create_topics({name: made})
            admin.wait_for_topics([name])

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Any]:
        admin = KafkaAdminClient(**self.config.client)
        try:
            yield admin
        finally:
            with contextlib.suppress(Exception):
                admin.close()

    # Parts

    def join(self) -> KafkaMembership:
        with translated_errors():
            return KafkaMembership(self.config)

    def offsets(self, topic: str) -> KafkaOffsets:
        with translated_errors():
            return KafkaOffsets(self.config, topic)

    def sampler(self, topic: str, interval_s: float, refresh_s: float) -> KafkaSampler:
        return KafkaSampler(self.config, topic, interval_s, refresh_s)

    def reader(self, topic: str, *, stamped: bool = False) -> Reader:
        with translated_errors():
            if self.config.librdkafka is None:
                return KafkaReader(self.config, topic, stamped=stamped)
            from .confluent import ConfluentReader

            return ConfluentReader(self.config, topic, stamped=stamped)

    def ledger(self, claim: Claim) -> KafkaLedger:
        with translated_errors():
            return KafkaLedger(self.config, claim)

    def scan(self, topic: str) -> list[Message]:
        with contextlib.closing(self.offsets(topic)) as offsets:
            bounds = offsets.bounds(sorted(offsets.partitions()))
        found: list[Message] = []
        for p, (first, _) in bounds.items():
            partition = TopicPartition(topic, p)
            with translated_errors(), opened(self.config, partition) as consumer:
                entries = read_to_end(consumer, partition, first, self.config)
                found += [message_of(entry) for entry in entries]
        return found

    def tail(self, topic: str) -> list[bytes]:
        return [entry.value for entry in self._tail(topic)]

    def unfinished(self, topic: str) -> list[bytes]:
        tail = self._tail(topic)
        with translated_errors():
            return read_unfinished(self.config, TopicPartition(topic, 0), tail)

    def _tail(self, topic: str) -> list[Any]:
        partition = TopicPartition(topic, 0)
        with translated_errors(), opened(self.config, partition) as consumer:
            return read_tail(consumer, partition, self.config)

    def groups_of(self, topic: str) -> list[str] | None:
        try:
            with translated_errors(), self._admin() as admin:
                groups = [group["group_id"] for group in admin.list_groups()]
                found = [
                    group
                    for group in groups
                    for offsets in admin.list_group_offsets({group: None}).values()
                    if any(at.topic == topic and offsets[at].offset > 0 for at in offsets)
                ]
        except (ClusterError, LookupError):  # not allowed, or an old broker
            return None
        return sorted(set(found))

    def follow(self, topic: str, back: int | None = None) -> KafkaFeed:
        with translated_errors():
            return KafkaFeed(self.config, topic, back)


def _topic_configs(admin: Any, name: str) -> dict[str, str] | None:
    """The settings of a topic, those of the cluster included; None without permission."""
    try:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        found = admin.describe_configs([resource], config_filter="all")
        return {key: str(entry["value"]) for key, entry in found["topic"][name].items()}
    except (kafka_errors.KafkaError, LookupError):
        return None

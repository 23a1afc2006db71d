"""Reads committed messages with kafka-python."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer  # type: ignore[import-untyped]
from kafka.structs import TopicPartition  # type: ignore[import-untyped]

from ..protocols import Bounds, Chunk
from .client import close_client, translated_errors
from .config import KafkaConfig

__all__ = ["KafkaReader"]


class KafkaReader:
    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._config, self._topic = config, topic
        self._consumer = KafkaConsumer(**{**config.consumer, **config.fetch})
        self._admin: Any = None

    def partitions(self) -> frozenset[int]:
        with translated_errors():
            if self._admin is None:
                self._admin = KafkaAdminClient(**self._config.client)
            for found in self._admin.describe_topics([self._topic]):
                return frozenset(p["partition_index"] for p in found["partitions"])
            return frozenset()

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        if not partitions:
            return {}
        with translated_errors():
            asked = [TopicPartition(self._topic, p) for p in partitions]
            first = self._consumer.beginning_offsets(asked)
            end = self._consumer.end_offsets(asked)
            return {tp.partition: Bounds(first[tp], end[tp]) for tp in asked}

    def assign(self, offsets: Mapping[int, int]) -> None:
        with translated_errors():
            at = {TopicPartition(self._topic, p): offset for p, offset in offsets.items()}
            self._consumer.assign(list(at))
            for partition, offset in at.items():
                self._consumer.seek(partition, offset)

    def read(self, timeout_s: float) -> list[Chunk]:
        with translated_errors():
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [
            Chunk(
                partition.partition,
                [message.offset for message in messages],
                [message.value for message in messages],
            )
            for partition, messages in polled.items()
            if messages
        ]

    def positions(self) -> dict[int, int]:
        with translated_errors():
            at = {tp.partition: self._consumer.position(tp) for tp in self._consumer.assignment()}
        return {p: offset or 0 for p, offset in at.items()}

    def close(self) -> None:
        close_client(self._consumer)
        if self._admin is not None:
            with contextlib.suppress(Exception):
                self._admin.close()

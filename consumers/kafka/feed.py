"""Follows a whole topic, with keys and headers, for viewers of releases."""

from __future__ import annotations

import time
from typing import Any

from kafka import KafkaConsumer  # type: ignore[import-untyped]
from kafka.structs import TopicPartition  # type: ignore[import-untyped]

from ..protocols import Message
from .client import close_client, translated_errors
from .config import MAX_RECORD_BYTES, KafkaConfig


def message_of(entry: Any) -> Message:
    """A record of kafka-python as a message."""
    return Message(entry.key or b"", entry.value or b"", tuple(entry.headers or ()))


class KafkaFeed:
    """Reads committed messages of all partitions, from `back` offsets before their ends."""

    def __init__(self, config: KafkaConfig, topic: str, back: int | None) -> None:
        self._topic, self._back = topic, back
        self._assigned = False
        self._consumer: Any = KafkaConsumer(
            **config.consumer, max_partition_fetch_bytes=MAX_RECORD_BYTES, fetch_max_wait_ms=200
        )

    def read(self, timeout_s: float) -> list[Message]:
        with translated_errors():
            if not self._assigned and not self._assign():
                time.sleep(timeout_s)
                return []
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [message_of(entry) for entries in polled.values() for entry in entries]

    def _assign(self) -> bool:
        """Begin to read; False if there is no such topic yet."""
        numbers = self._consumer.partitions_for_topic(self._topic)
        if not numbers:
            return False
        partitions = [TopicPartition(self._topic, p) for p in sorted(numbers)]
        first = self._consumer.beginning_offsets(partitions)
        ends = self._consumer.end_offsets(partitions)
        self._consumer.assign(partitions)
        for partition in partitions:
            start = 0 if self._back is None else ends[partition] - self._back
            self._consumer.seek(partition, max(first[partition], start))
        self._assigned = True
        return True

    def close(self) -> None:
        close_client(self._consumer)

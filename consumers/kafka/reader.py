"""Reads committed messages with kafka-python, and asks where partitions begin and end."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer  # type: ignore[import-untyped]
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition  # type: ignore[import-untyped]

from ..errors import ClusterError
from ..protocols import Bounds, Chunk
from .client import close_client, passing_damage, translated_errors
from .config import KafkaConfig
from .lean import Entry, make_lean

__all__ = ["KafkaOffsets", "KafkaReader"]

#: The type of a timestamp that the broker has set, in the protocol.
LOG_APPEND_TIME: Final = 1


class KafkaOffsets:
    """Lists the partitions of a topic, with their first offsets and their ends."""

    def __init__(self, config: KafkaConfig, topic: str, **options: Any) -> None:
        self._config, self._topic, self._options = config, topic, options
        self._opened: Any = None
        self._opened_uncommitted: Any = None
        self._admin: Any = None

    @property
    def _consumer(self) -> Any:
        if self._opened is None:
            self._opened = KafkaConsumer(**{**self._config.consumer, **self._options})
        return self._opened

    def partitions(self) -> frozenset[int]:
        with translated_errors():
            if self._admin is None:
                self._admin = KafkaAdminClient(**self._config.client)
            for found in self._admin.describe_topics([self._topic]):
                error = kafka_errors.for_code(found["error_code"])
                if error is kafka_errors.UnknownTopicOrPartitionError:
                    raise ClusterError(f"topic {self._topic!r} does not exist")
                if error is not kafka_errors.NoError:  # its list of partitions means nothing
                    raise ClusterError(f"topic {self._topic!r}: {error.__name__}")
                return frozenset(p["partition_index"] for p in found["partitions"])
            return frozenset()

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        if not partitions:
            return {}
        with translated_errors():
            asked = [TopicPartition(self._topic, p) for p in partitions]
            found = self._consumer.beginning_offsets(asked)
        ends = self.ends(partitions)
        return {tp.partition: Bounds(first, ends[tp.partition]) for tp, first in found.items()}

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """The last stable offsets: the consumer reads committed messages only."""
        if not partitions:
            return {}
        with translated_errors():
            asked = [TopicPartition(self._topic, p) for p in partitions]
            found = self._consumer.end_offsets(asked)
            return {tp.partition: end for tp, end in found.items()}

    def cuts(self, partitions: Sequence[int], time_ms: int) -> dict[int, int]:
        if not partitions:
            return {}
        with translated_errors():
            if self._opened_uncommitted is None:
                self._opened_uncommitted = KafkaConsumer(
                    **{**self._config.consumer, "isolation_level": "read_uncommitted"}
                )
            asked = [TopicPartition(self._topic, p) for p in partitions]
            # The ends are read first: messages after them may already belong to a later round.
            ends = self._opened_uncommitted.end_offsets(asked)
            found = self._opened_uncommitted.offsets_for_times(dict.fromkeys(asked, time_ms))
        at = {tp: ends[tp] if found[tp] is None else found[tp].offset for tp in asked}
        return {tp.partition: offset for tp, offset in at.items()}

    def close(self) -> None:
        for consumer in (self._opened, self._opened_uncommitted):
            if consumer is not None:
                close_client(consumer)
        if self._admin is not None:
            with contextlib.suppress(Exception):
                self._admin.close()


class KafkaReader(KafkaOffsets):
    """Reads chosen partitions."""

    def __init__(self, config: KafkaConfig, topic: str, *, stamped: bool = False) -> None:
        super().__init__(config, topic, **config.fetch)
        self._stamped = stamped
        # Connects now, so that errors are raised here.
        self._lean = make_lean(self._consumer, config.max_message_bytes)

    def assign(self, offsets: Mapping[int, int]) -> None:
        with translated_errors():
            at = {TopicPartition(self._topic, p): offset for p, offset in offsets.items()}
            self._consumer.assign(list(at))
            self._consumer.resume(*at)
            for partition, offset in at.items():
                self._consumer.seek(partition, offset)

    def pause(self, partitions: Collection[int]) -> None:
        with translated_errors():
            for partition in self._consumer.assignment():
                if partition.partition in partitions:
                    self._consumer.pause(partition)
                else:
                    self._consumer.resume(partition)

    def read(self, timeout_s: float) -> list[Chunk]:
        with translated_errors(), passing_damage():
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        found = {tp.partition: messages for tp, messages in polled.items() if messages}
        if not self._lean:
            found = {p: [_entry(message) for message in messages] for p, messages in found.items()}
        return [self._chunk(partition, entries) for partition, entries in found.items()]

    def _chunk(self, partition: int, entries: Sequence[Entry]) -> Chunk:
        offsets, values, keys, times = zip(*entries, strict=True)
        return Chunk(partition, offsets, values, *((times, keys) if self._stamped else ()))

    def positions(self) -> dict[int, int]:
        with translated_errors():
            at = {tp.partition: self._consumer.position(tp) for tp in self._consumer.assignment()}
        return {p: offset or 0 for p, offset in at.items()}


def _entry(message: Any) -> Entry:
    appended = message.timestamp_type == LOG_APPEND_TIME
    time_ms = message.timestamp if appended else None
    return Entry(message.offset, message.value, message.key, time_ms)

"""Reads a topic as a member of an ordinary consumer group, which remembers its offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from kafka import KafkaConsumer  # type: ignore[import-untyped]

from .client import close_client, translated_errors
from .config import KafkaConfig


class Received(NamedTuple):
    """A message with its partition and offset."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Subscription:
    """A share of the partitions of a topic. `commit` marks all messages so far as done.

    Parameters
    ----------
    config
        Configuration of the cluster.
    topic
        Topic to read.
    group
        Group that shares the partitions and remembers the offsets.
    start
        Where to begin in a partition for which the group has no offset.
    """

    def __init__(
        self, config: KafkaConfig, topic: str, group: str, start: Literal["earliest", "latest"]
    ) -> None:
        with translated_errors():
            self._consumer = KafkaConsumer(
                **{**config.consumer, **config.fetch, "auto_offset_reset": start},
                group_id=group,
                session_timeout_ms=int(config.session_timeout_s * 1000),
                heartbeat_interval_ms=int(config.session_timeout_s * 1000 / 4),
            )
            self._consumer.subscribe([topic])
            self._consumer.partitions_for_topic(topic)

    def read(self, timeout_s: float) -> list[Received]:
        with translated_errors():
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [
            Received(tp.partition, m.offset, m.key, m.value)
            for tp, messages in polled.items()
            for m in messages
        ]

    def positions(self) -> dict[int, int]:
        """The next offset of each assigned partition."""
        return dict(self._positions())

    def _positions(self) -> Iterator[tuple[int, int]]:
        with translated_errors():
            for tp in self._consumer.assignment():
                at = self._consumer.position(tp)
                if at is not None:
                    yield tp.partition, at

    def commit(self) -> None:
        with translated_errors():
            self._consumer.commit()

    def close(self) -> None:
        close_client(self._consumer)

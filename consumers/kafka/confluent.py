"""A faster reader of the input, as an extra: librdkafka behind the same Protocol.

kafka-python spends more time on reading a message than the service spends on decoding it;
librdkafka reads in C. It only reads: the group, the transactions and the fencing of a task stay
with kafka-python, which also reads the batches that librdkafka cannot (`damaged.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from ..errors import ClusterError, OffsetsGone
from ..protocols import Chunk
from .config import LIBRDKAFKA_READER, KafkaConfig
from .damaged import DAMAGED, DamagedBatches
from .reader import KafkaOffsets

__all__ = ["ConfluentReader"]

#: Most that is read ahead. Without a bound, librdkafka would fill the memory.
AHEAD_KILOBYTES: Final = 32 << 10

#: Errors that say that an offset is below or above those of the partition.
_GONE = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE))
#: Other errors mean that brokers are away; librdkafka resumes by itself when they are back.
_LASTING = frozenset(
    (
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._FATAL,
    )
)


class ConfluentReader(KafkaOffsets):
    """Reads messages with librdkafka; kafka-python still lists the partitions and their ends."""

    def __init__(self, config: KafkaConfig, topic: str, *, stamped: bool = False) -> None:
        super().__init__(config, topic)
        self._stamped = stamped
        fetch = config.fetch
        self._most = int(fetch.get("max_poll_records", 5000))
        self._at: dict[int, int] = {}
        self._damaged: set[int] = set()  # partitions in which librdkafka is stuck
        self._careful = DamagedBatches(config, topic, stamped=stamped)
        self._fast = Consumer(
            {
                **(config.librdkafka or {}),
                **LIBRDKAFKA_READER,
                "group.id": f"{config.group}.reader",  # required, but nothing joins the group
                "queued.max.messages.kbytes": AHEAD_KILOBYTES,
                "fetch.min.bytes": fetch.get("fetch_min_bytes", 1),
                "fetch.wait.max.ms": fetch.get("fetch_max_wait_ms", 200),
                "fetch.message.max.bytes": fetch.get("max_partition_fetch_bytes", 4 << 20),
            },
            logger=logging.getLogger("kafka.librdkafka"),
        )

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._at = dict(offsets)
        self._damaged.clear()
        self._paused: frozenset[int] = frozenset()
        self._fast.assign([TopicPartition(self._topic, p, at) for p, at in offsets.items()])

    def pause(self, partitions: Collection[int]) -> None:
        wanted = frozenset(partitions) & self._at.keys()
        # A pause drops what librdkafka has read ahead, so only changes are passed on.
        self._fast.pause(self._named(wanted - self._paused))
        self._fast.resume(self._named(self._paused - wanted))
        self._paused = wanted

    def _named(self, partitions: Collection[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, p) for p in sorted(partitions)]

    def read(self, timeout_s: float) -> list[Chunk]:
        try:
            # `consume` waits for all that it is asked for: wait for one, then take what is there.
            messages = self._fast.consume(1, timeout_s)
            if messages:
                messages += self._fast.consume(self._most - 1, 0)
        except KafkaException as error:
            raise _cluster_error(error) from error
        found: dict[int, tuple[list[int], list[bytes | None]]] = {}
        message: Any  # its types do not know that a message that was read has an offset
        stamps: dict[int, tuple[list[int | None], list[bytes | None]]] = {}
        for message in messages:
            if message.error() is not None:
                self._note(message)
                continue
            partition = message.partition()
            if self._stamped:
                times, keys = stamps.setdefault(partition, ([], []))
                kind, time_ms = message.timestamp()
                times.append(time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None)
                keys.append(message.key())
            if partition not in found:
                found[partition] = [], []
            offsets, values = found[partition]
            offsets.append(message.offset())
            values.append(message.value())
        for partition, (offsets, _) in found.items():
            self._pass(partition, offsets[-1] + 1)
        chunks = [
            Chunk(partition, *both, *stamps.get(partition, ())) for partition, both in found.items()
        ]
        while self._damaged:
            chunks += self._read_damaged(self._damaged.pop())
        return chunks

    def _read_damaged(self, partition: int) -> list[Chunk]:
        """Continue with kafka-python, past the damaged batch."""
        chunks, at = self._careful.pass_one(partition, self._at[partition])
        self._pass(partition, at)
        try:
            self._fast.seek(TopicPartition(self._topic, partition, at))
        except KafkaException as error:
            raise _cluster_error(error) from error
        return chunks

    def _note(self, message: Any) -> None:
        """Handle an error that came instead of a message.

        A caller that catches the error raised here assigns again, so messages of the same read are
        read again.
        """
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            self._pass(message.partition(), message.offset())
        elif error.code() in DAMAGED and message.partition() in self._at:
            self._damaged.add(message.partition())
        elif error.code() in _GONE:
            raise OffsetsGone("an offset is out of range")
        elif error.fatal() or error.code() in _LASTING:
            raise ClusterError(f"librdkafka: {error.name()}")

    def _pass(self, partition: int, offset: int) -> None:
        self._at[partition] = max(self._at.get(partition, 0), offset)

    def positions(self) -> dict[int, int]:
        return dict(self._at)

    def close(self) -> None:
        self._careful.close()
        with contextlib.suppress(KafkaException, RuntimeError):
            self._fast.close()
        super().close()


def _cluster_error(error: KafkaException) -> ClusterError:
    return ClusterError(f"librdkafka: {error.args[0].name()}")

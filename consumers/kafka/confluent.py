"""The default reader of the input: librdkafka behind the same Protocol as kafka-python.

kafka-python spends more time on reading a message than the service spends on decoding it;
librdkafka reads in C. It only reads: the group, the transactions and the fencing of a task stay
with kafka-python, which also reads the batches that librdkafka cannot. librdkafka decompresses
whole batches, so its memory is not bounded where producers are not trusted.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from ..errors import ClusterError, OffsetsGone, Unavailable
from ..protocols import Chunk
from .config import POLL_BYTES, KafkaConfig
from .reader import KafkaOffsets, KafkaReader

#: Most that is read ahead. Without a bound, librdkafka would fill the memory.
AHEAD_BYTES: Final = 32 << 20
#: Largest answer of a broker, unless fetches may be larger.
ANSWER_BYTES: Final = 100_000_000
#: Longest wait of one read of a batch that librdkafka cannot read.
READ_SECONDS: Final = 0.2

#: It reads committed messages from given offsets, and commits nothing itself.
_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "check.crcs": True,
        "enable.partition.eof": True,  # tells the position, also past what cannot be read
        "allow.auto.create.topics": False,
        "message.max.bytes": 1000,  # of producers; `fetch.max.bytes` may not be less
        "fetch.queue.backoff.ms": 5,  # pause while the queue is full; the default is a second
    }
)
#: Errors at a batch whose frame is damaged.
_DAMAGED: Final = frozenset((KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION))
#: Errors that say that an offset is below or above those of the partition.
_GONE: Final = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE))
#: Other errors mean that brokers are away; librdkafka resumes by itself when they are back.
_LASTING: Final = frozenset(
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
        self._most, self._at_once = config.most_messages, config.messages_at_once
        self._at: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._damaged: set[int] = set()  # partitions in which librdkafka is stuck
        self._careful: KafkaReader | None = None  # gets past them
        fetch = config.fetch
        most_bytes = int(fetch.get("fetch_max_bytes", 50 << 20))
        self._fast = Consumer(
            {
                **(config.librdkafka or {}),
                **_OPTIONS,
                "group.id": f"{config.group}.reader",  # required, but nothing joins the group
                "queued.max.messages.kbytes": max(1, min(AHEAD_BYTES, most_bytes) >> 10),
                "fetch.max.bytes": most_bytes,
                "receive.message.max.bytes": max(ANSWER_BYTES, most_bytes + 512),
                "fetch.min.bytes": fetch.get("fetch_min_bytes", 1),
                "fetch.wait.max.ms": fetch.get("fetch_max_wait_ms", 200),
                "fetch.message.max.bytes": fetch.get("max_partition_fetch_bytes", 4 << 20),
            },
            logger=logging.getLogger("kafka.librdkafka"),
        )

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._at = dict(offsets)
        self._damaged.clear()
        self._paused = frozenset()
        with _translated():
            self._fast.assign([TopicPartition(self._topic, p, at) for p, at in offsets.items()])
            self._fast.resume(self._named(offsets))  # a partition stays paused when it is assigned

    def pause(self, partitions: Collection[int]) -> None:
        wanted = frozenset(partitions) & self._at.keys()
        # A pause drops what librdkafka has read ahead, so only changes are passed on.
        with _translated():
            self._fast.pause(self._named(wanted - self._paused))
            self._fast.resume(self._named(self._paused - wanted))
        self._paused = wanted

    def _named(self, partitions: Collection[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, p) for p in sorted(partitions)]

    def read(self, timeout_s: float) -> list[Chunk]:
        found: dict[int, list[Any]] = {}
        for message in self._messages(timeout_s):
            if message.error() is not None:
                self._note(message)
            else:
                found.setdefault(message.partition(), []).append(message)
        for partition, messages in found.items():
            self._pass(partition, messages[-1].offset() + 1)
        chunks = [self._chunk(partition, messages) for partition, messages in found.items()]
        while self._damaged:
            chunks += self._read_damaged(self._damaged.pop())
        return chunks

    def _messages(self, timeout_s: float) -> list[Any]:
        """Messages and errors that are there, few at a time: each may be as large as is allowed."""
        with _translated():
            # `consume` waits for all that it is asked for: wait for one, then take what is there.
            found = more = self._fast.consume(1, timeout_s)
            size = 0
            while more and len(found) < self._most and size < POLL_BYTES:
                more = self._fast.consume(min(self._at_once, self._most - len(found)), 0)
                size += sum(len(m.value() or b"") + len(m.key() or b"") for m in more)
                found += more
        return found

    def _chunk(self, partition: int, messages: list[Any]) -> Chunk:
        offsets, values = [m.offset() for m in messages], [m.value() for m in messages]
        if not self._stamped:
            return Chunk(partition, offsets, values)
        stamps = [m.timestamp() for m in messages]
        times = [at if kind == TIMESTAMP_LOG_APPEND_TIME else None for kind, at in stamps]
        return Chunk(partition, offsets, values, times, [m.key() for m in messages])

    def _read_damaged(self, partition: int) -> list[Chunk]:
        """Read with kafka-python, past the batch here.

        librdkafka stops for good at a batch that it cannot decompress, and it cannot decompress all
        that brokers accept (lz4 with bytes after its frame).
        """
        if self._careful is None:
            self._careful = KafkaReader(self._config, self._topic, stamped=self._stamped)
        start = self._at[partition]
        self._careful.assign({partition: start})
        chunks: list[Chunk] = []
        deadline = time.monotonic() + self._config.request_timeout_s
        while (at := self._careful.positions()[partition]) <= start:
            if time.monotonic() > deadline:
                raise Unavailable(f"{self._topic}:{partition} could not be read")
            chunks += self._careful.read(READ_SECONDS)
        self._careful.assign({})
        self._pass(partition, at)
        with _translated():
            self._fast.seek(TopicPartition(self._topic, partition, at))
        return chunks

    def _note(self, message: Any) -> None:
        """Handle an error that came instead of a message.

        A caller that catches the error raised here assigns again, so messages of the same read are
        read again.
        """
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            self._pass(message.partition(), message.offset())
        elif error.code() in _DAMAGED and message.partition() in self._at:
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
        if self._careful is not None:
            self._careful.close()
        with contextlib.suppress(KafkaException, RuntimeError):
            self._fast.close()
        super().close()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise ClusterError(f"librdkafka: {error.args[0].name()}") from error

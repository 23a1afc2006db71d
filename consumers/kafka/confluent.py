"""librdkafka: the default reader of the input, and what `score` reads and writes with.

kafka-python spends more time on reading a message than the service spends on decoding it;
librdkafka reads in C. For a task it only reads: the group, the transactions and the fencing stay
with kafka-python, which also reads the batches that librdkafka cannot. librdkafka decompresses
whole batches, so its memory is not bounded where producers are not trusted.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from ..errors import ClusterError, OffsetsGone, Unavailable
from ..protocols import Chunk, Message
from .config import MAX_RECORD_BYTES, KafkaConfig
from .reader import KafkaOffsets, KafkaReader

#: Most that is read ahead. Without a bound, librdkafka would fill the memory.
AHEAD_BYTES: Final = 32 << 20
#: Bytes of messages after which one read ends, so that they are still in the cache when decoded.
CACHED_BYTES: Final = 1 << 20
#: Largest answer of a broker, unless fetches may be larger.
ANSWER_BYTES: Final = 100_000_000
#: Time between two reads after which a member has left its group: the default of librdkafka.
POLL_INTERVAL_MS: Final = 300_000
#: Longest wait of one read of a batch that librdkafka cannot read.
READ_SECONDS: Final = 0.2

#: It reads committed messages from given offsets, and commits nothing itself.
_OPTIONS: Final[Mapping[str, Any]] = {
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

    def __init__(
        self, config: KafkaConfig, topic: str, *, stamped: bool = False, group: str = ""
    ) -> None:
        super().__init__(config, topic)
        self._stamped = stamped
        self._most, self._at_once = config.most_messages, config.messages_at_once
        self._at: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._damaged: set[int] = set()  # partitions in which librdkafka is stuck
        self._careful: KafkaReader | None = None  # gets past them
        fetch, session_ms = config.fetch, int(config.session_timeout_s * 1000)
        most_bytes = int(fetch.get("fetch_max_bytes", 50 << 20))
        self._fast = Consumer(
            {
                **(config.librdkafka or {}),
                **_OPTIONS,
                # Required, also where nothing joins the group.
                "group.id": group or f"{config.group}.reader",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": session_ms // 4,
                "max.poll.interval.ms": max(session_ms, POLL_INTERVAL_MS),  # may not be less
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
            while more and len(found) < self._most and size < CACHED_BYTES:
                more = self._fast.consume(min(self._at_once, self._most - len(found)), 0)
                size += sum(len(m.value() or b"") + len(m.key() or b"") for m in more)
                found += more
        return found

    def _chunk(self, partition: int, messages: list[Any]) -> Chunk:
        offsets, values = [m.offset() for m in messages], [m.value() for m in messages]
        self._pass(partition, offsets[-1] + 1)
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


class Subscription(ConfluentReader):
    """A share of the partitions of a topic, as a member of an ordinary consumer group.

    Parameters
    ----------
    config, topic
        The cluster, and the topic to read.
    group
        Group that shares the partitions and remembers the offsets.
    start
        Where to begin in a partition for which the group has no offset.
    """

    def __init__(
        self, config: KafkaConfig, topic: str, group: str, start: Literal["earliest", "latest"]
    ) -> None:
        super().__init__(config, topic, stamped=True, group=group)
        self._start = start
        self._kept: dict[int, int] = {}  # offsets that the group has
        with _translated():
            self._fast.subscribe([topic], on_assign=self._take)

    def _take(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with _translated():
            kept = consumer.committed(partitions, timeout=self._config.request_timeout_s)
        bounds = self.bounds([tp.partition for tp in partitions])
        found = {tp.partition: tp.offset for tp in kept}
        for partition, (first, end) in bounds.items():
            if found[partition] < 0:
                found[partition] = first if self._start == "earliest" else end
            found[partition] = min(max(found[partition], first), end)  # what retention has left
        self.assign(found)
        self._kept = {tp.partition: tp.offset for tp in kept}

    def read(self, timeout_s: float) -> list[Chunk]:
        found = super().read(timeout_s)
        mine = {tp.partition for tp in self._fast.assignment()}
        self._at = {p: at for p, at in self._at.items() if p in mine}
        return [chunk for chunk in found if chunk.partition in mine]

    def commit(self) -> None:
        """Let the group remember that everything so far is done."""
        new = {p: at for p, at in self._at.items() if at != self._kept.get(p)}
        if new:
            places = [TopicPartition(self._topic, p, at) for p, at in new.items()]
            with _translated():
                self._fast.commit(offsets=places, asynchronous=False)
            self._kept |= new


class GroupNote:
    """A number that a group remembers, next to an offset of a topic that nobody subscribes to."""

    def __init__(self, config: KafkaConfig, topic: str, group: str) -> None:
        self._place, self._patience_s = (topic, 0, 0), config.request_timeout_s
        options = {**(config.librdkafka or {}), "group.id": group, "enable.auto.commit": False}
        self._consumer = Consumer(options, logger=logging.getLogger("kafka.librdkafka"))
        self.close = self._consumer.close

    def load(self) -> int | None:
        """The number; None if there is none."""
        with _translated():
            (kept,) = self._consumer.committed(
                [TopicPartition(*self._place)], timeout=self._patience_s
            )
        return int(kept.metadata) if kept.metadata else None

    def keep(self, number: int) -> None:
        """Make a number durable."""
        with _translated():
            place = TopicPartition(*self._place, metadata=str(number))
            self._consumer.commit(offsets=[place], asynchronous=False)


class MessageProducer:
    """Sends messages to a topic for as long as it is open, without transactions."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._topic, self._patience_s = topic, config.request_timeout_s
        self._failed: KafkaError | None = None
        self._producer = Producer(
            {
                **(config.librdkafka or {}),
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": "lz4",
                "partitioner": "murmur2_random",  # the one of all other clients
                "message.max.bytes": MAX_RECORD_BYTES,
                "delivery.timeout.ms": int(self._patience_s * 1000),
                "delivery.report.only.error": True,
                "on_delivery": self._note,
            },
            logger=logging.getLogger("kafka.librdkafka"),
        )

    def _note(self, error: KafkaError | None, message: object) -> None:
        self._failed = self._failed or error

    def put(self, messages: Iterable[tuple[bytes | None, bytes]]) -> None:
        """Begin to send keys with their values."""
        produce, topic = self._producer.produce, self._topic
        with _translated():
            for key, value in messages:
                try:
                    produce(topic, value, key)
                except BufferError:  # so many are on their way
                    self._producer.flush(self._patience_s)
                    produce(topic, value, key)
        self._producer.poll(0)

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages, and return once the brokers have them."""
        self.put((message.key, message.value) for message in messages)
        self.flush()

    def flush(self) -> None:
        """Return once the brokers have everything."""
        left = self._producer.flush(self._patience_s)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise ClusterError(f"librdkafka: {failed.name()}")
        if left:
            raise Unavailable(f"{self._topic}: the brokers did not take all messages in time")

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(0)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise ClusterError(f"librdkafka: {error.args[0].name()}") from error

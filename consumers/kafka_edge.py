"""Apache Kafka behind our Protocols, by kafka-python.

What is relied on, and what is not:

- `init_transactions` ends the transactions of every earlier owner of the transactional id before
  it returns, and the broker refuses whatever such an owner sends later.
- The generation that is sent with the offsets is the one in which the task was claimed, never a
  newer one: a member that was thrown out and has come back cannot commit what it computed before.
- That `commit_transaction` returns is *not* relied on. kafka-python can report a commit that the
  broker did not make (an epoch bump while committing). A commit counts when the state has been
  read back, by a consumer that sees committed records only.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka import (  # type: ignore[import-untyped]
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
)
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType  # type: ignore[import-untyped]
from kafka.coordinator.assignors.sticky.sticky_assignor import (  # type: ignore[import-untyped]
    StickyPartitionAssignor,
)
from kafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped]
from kafka.structs import OffsetAndMetadata, TopicPartition  # type: ignore[import-untyped]

from . import testhooks
from .errors import Fenced, LogError, OffsetsGone, OutcomeUnknown, Unavailable
from .log import Bounds, Chunk, Claim, Position, Record, TopicInfo

__all__ = ["KafkaConfig", "KafkaLog", "KafkaReader"]

#: Of the state and output topics, and of what we send to them.
MAX_RECORD_BYTES: Final = 8 << 20
#: One past this many offsets at the end of the state partition are read first.
TAIL: Final = 64
CLOSE_SECONDS: Final = 1.0
#: In the metadata of the group's offsets, before the next row.
ROW: Final = "row="

_FENCED = (
    kafka_errors.ProducerFencedError,
    kafka_errors.InvalidProducerEpochError,
    kafka_errors.CommitFailedError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.FencedInstanceIdError,
    kafka_errors.RebalanceInProgressError,
)


@dataclass(frozen=True)
class KafkaConfig:
    """Where the cluster is, and what of it is ours."""

    connection: Mapping[str, Any]  #: bootstrap_servers, TLS and SASL, as kafka-python names them
    group: str
    input_topic: str
    state_topic: str
    output_topic: str
    session_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    transaction_timeout_s: float = 60.0
    fetch: Mapping[str, Any] = field(default_factory=dict)  #: of the reader of the input
    #: The connection as librdkafka names it, if that is to read the input.
    librdkafka: Mapping[str, Any] | None = None

    @property
    def client(self) -> dict[str, Any]:
        timeout_ms = int(self.request_timeout_s * 1000)
        return {
            **self.connection,
            "request_timeout_ms": timeout_ms,
            "bootstrap_timeout_ms": timeout_ms,
            "reconnect_backoff_max_ms": 2000,
        }

    @property
    def producer(self) -> dict[str, Any]:
        return {
            **self.client,
            "metrics_enabled": False,
            "max_request_size": MAX_RECORD_BYTES,
            "retry_backoff_ms": 5,  # waited for each transaction that follows another at once
            "allow_auto_create_topics": False,
        }

    @property
    def consumer(self) -> dict[str, Any]:
        return {
            **self.client,
            "metrics_enabled": False,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "allow_auto_create_topics": False,
        }


class _AnyText(bytes):
    """Bytes that can always be decoded."""

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, "replace")

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return _AnyText(found) if isinstance(found, bytes) else found


_read_msg = DefaultRecordBatch._read_msg


def _read_any_msg(batch: Any) -> Any:
    """The names of headers are bytes to a broker and text to kafka-python: it cannot read, nor get
    past, a record with a name that is no UTF-8. One such message would stop a task for good."""
    try:
        return _read_msg(batch)
    except UnicodeDecodeError:
        batch._buffer = _AnyText(batch._buffer)
        return _read_msg(batch)


DefaultRecordBatch._read_msg = _read_any_msg


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Errors of the client as ours. Their texts name topics and offsets, not records."""
    try:
        yield
    except _FENCED as error:
        raise Fenced(f"{type(error).__name__}") from error
    except kafka_errors.OffsetOutOfRangeError as error:
        raise OffsetsGone("an offset is out of range") from error
    except kafka_errors.KafkaTimeoutError as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error
    except kafka_errors.CorruptRecordError as error:  # its text may quote the record
        raise LogError("CorruptRecordError") from error
    except kafka_errors.KafkaError as error:
        raise LogError(f"{type(error).__name__}: {error}") from error


class KafkaLog:
    """A cluster, with the topics and the group of one model."""

    def __init__(self, config: KafkaConfig) -> None:
        self.config = config

    # Topics

    def topic(self, name: str) -> TopicInfo | None:
        with _translated(), self._admin() as admin:
            for found in admin.describe_topics([name]):
                error = kafka_errors.for_code(found["error_code"])
                if error is kafka_errors.NoError:
                    return TopicInfo(len(found["partitions"]), _topic_configs(admin, name))
                if error is not kafka_errors.UnknownTopicOrPartitionError:
                    raise LogError(f"topic {name!r}: {error.__name__}")
        return None

    def create_topic(self, name: str, info: TopicInfo, replication: int) -> None:
        made = {
            "num_partitions": info.partitions,
            "replication_factor": replication,
            "configs": dict(info.configs or {}),
        }
        with _translated(), self._admin() as admin:
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

    def join(self) -> _Membership:
        with _translated():
            return _Membership(self.config)

    def reader(self, topic: str) -> KafkaReader:
        with _translated():
            if self.config.librdkafka is None:
                return KafkaReader(self.config, topic)
            from .confluent_edge import ConfluentReader

            return ConfluentReader(self.config, topic)

    def ledger(self, task: int, claim: Claim) -> _Ledger:
        with _translated():
            return _Ledger(self.config, task, claim)

    def scan(self, topic: str) -> list[Record]:
        with _translated():
            consumer = KafkaConsumer(**self.config.consumer)
            try:
                found: list[Record] = []
                for p in sorted(consumer.partitions_for_topic(topic)):
                    partition = TopicPartition(topic, p)
                    consumer.assign([partition])
                    first = consumer.beginning_offsets([partition])[partition]
                    entries = _read_to_end(consumer, partition, first, self.config)
                    found += [
                        Record(e.key or b"", e.value or b"", tuple(e.headers or ()))
                        for e in entries
                    ]
                return found
            finally:
                _close(consumer)

    def publish(self, records: Sequence[Record]) -> None:
        with _translated():
            producer = KafkaProducer(**self.config.producer)
            try:
                _send(producer, self.config, records)
            finally:
                _close(producer)

    def close(self) -> None:
        pass


def _send(producer: Any, config: KafkaConfig, records: Sequence[Record]) -> None:
    """Send to the output topic, and wait until the brokers have it."""
    sent = [
        producer.send(config.output_topic, r.value, key=r.key, headers=list(r.headers))
        for r in records
    ]
    for future in sent:
        future.get(timeout=config.request_timeout_s)


def _topic_configs(admin: Any, name: str) -> dict[str, str] | None:
    """The settings that differ from the cluster's; None if we may not see them."""
    try:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        found = admin.describe_configs([resource], config_filter="modified")
        return {key: str(entry["value"]) for key, entry in found["topic"][name].items()}
    except (kafka_errors.KafkaError, LookupError):
        return None


def _close(client: Any) -> None:
    """Close within a second or so, whatever state the client is in."""
    with contextlib.suppress(Exception):
        if isinstance(client, KafkaProducer):
            client.close(timeout=CLOSE_SECONDS)
        else:
            client.close(autocommit=False, timeout_ms=int(CLOSE_SECONDS * 1000))


def _read_to_end(
    consumer: Any, partition: TopicPartition, start: int, config: KafkaConfig
) -> list[Any]:
    """Every committed record from `start` to where the partition ends now."""
    end = consumer.end_offsets([partition])[partition]
    consumer.seek(partition, start)
    deadline = time.monotonic() + config.request_timeout_s
    entries: list[Any] = []
    while consumer.position(partition) < end:
        for found in consumer.poll(timeout_ms=200).values():
            entries += found
            deadline = time.monotonic() + config.request_timeout_s
        if time.monotonic() > deadline:
            raise Unavailable(f"{partition.topic}:{partition.partition} could not be read to {end}")
    return entries


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Sets flags. It runs on the client's thread, where nothing may wait."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.changes = 0
        self.held: frozenset[int] | None = None

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._set(None)

    def on_partitions_lost(self, lost: Any) -> None:
        self._set(None)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._set(frozenset(partition.partition for partition in assigned))

    def _set(self, held: frozenset[int] | None) -> None:
        with self._changed:
            self.held = held
            self.changes += 1
            self._changed.notify_all()


class _Membership:
    """A consumer of the state topic that fetches nothing: it is there for its partitions.

    It is polled by a thread of its own, with long timeouts. kafka-python 3.0.12 forgets a join that
    ends between two polls: it joins again and the whole group rebalances again, or (if the join
    began because metadata changed) the member neither settles nor sends heartbeats any more. So
    joins are waited for, the metadata is fetched before the first one, and a member that does not
    settle within the session timeout is replaced.
    """

    POLL_SECONDS: Final = 1.0

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._claim: Claim | None = None
        self._error: BaseException | None = None
        self._join()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        self._thread.start()

    def _join(self) -> None:
        config = self._config
        self._seen = -1
        self._unsettled = time.monotonic()
        self._listener = _Listener(self._changed)
        self._consumer = KafkaConsumer(
            **{**config.consumer, "auto_offset_reset": "latest"},
            group_id=config.group,
            session_timeout_ms=int(config.session_timeout_s * 1000),
            heartbeat_interval_ms=int(config.session_timeout_s * 1000 / 4),
            # Owners keep what they have when a standby comes.
            partition_assignment_strategy=[StickyPartitionAssignor],
        )
        self._consumer.subscribe([config.state_topic], listener=self._listener)
        self._consumer.partitions_for_topic(config.state_topic)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if time.monotonic() - self._unsettled > self._config.session_timeout_s + 1:
                    _close(self._consumer)
                    self._join()
                self._consumer.poll(timeout_ms=int(self.POLL_SECONDS * 1000))
                self._consumer.pause(*self._consumer.assignment())
                self._look()
            except Exception as error:
                with self._changed:
                    self._claim, self._error = None, error
                    self._changed.notify_all()
                self._closing.wait(0.5)

    def _look(self) -> None:
        """See what the group has given us."""
        with self._changed:
            listener = self._listener
            if listener.changes != self._seen and listener.held is not None:
                metadata = self._consumer.group_metadata()
                # A broker takes offsets without a generation from anybody: never send such.
                if metadata.generation_id > 0 and metadata.member_id:
                    self._seen, self._claim = listener.changes, Claim(listener.held, metadata)
            if listener.changes == self._seen:
                self._unsettled = time.monotonic()

    def poll(self, timeout_s: float) -> Claim | None:
        with self._changed:
            changes = self._listener.changes
            nothing_new = changes == self._seen or self._listener.held is None
            if timeout_s and nothing_new and self._error is None:
                self._changed.wait_for(
                    lambda: self._error is not None or self._listener.changes != changes, timeout_s
                )
            error, self._error = self._error, None
        if error is not None:
            with _translated():
                raise error
        self._look()
        return self._current()

    def _current(self) -> Claim | None:
        """The claim, unless something has happened since."""
        return self._claim if self._listener.changes == self._seen else None

    def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, Position]:
        timeout_ms = int(self._config.request_timeout_s * 1000)
        with _translated():
            consumer = KafkaConsumer(**self._config.consumer, group_id=self._config.group)
            try:
                found = {
                    p: consumer.committed(TopicPartition(topic, p), True, timeout_ms)
                    for p in partitions
                }
            finally:
                _close(consumer)
        return {
            p: Position(at.offset, _row(at.metadata)) for p, at in found.items() if at is not None
        }

    def close(self) -> None:
        self._closing.set()
        self._thread.join(self.POLL_SECONDS + 0.2)
        _close(self._consumer)


def _row(metadata: str | None) -> int:
    """The row in the metadata of an offset; 0 if somebody else committed it."""
    row = (metadata or "").removeprefix(ROW)
    return int(row) if row.isdecimal() else 0


class KafkaReader:
    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._config, self._topic = config, topic
        self._consumer = KafkaConsumer(**{**config.consumer, **config.fetch})
        self._admin: Any = None

    def partitions(self) -> frozenset[int]:
        with _translated():
            if self._admin is None:
                self._admin = KafkaAdminClient(**self._config.client)
            for found in self._admin.describe_topics([self._topic]):
                return frozenset(p["partition_index"] for p in found["partitions"])
            return frozenset()

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        if not partitions:
            return {}
        with _translated():
            asked = [TopicPartition(self._topic, p) for p in partitions]
            first = self._consumer.beginning_offsets(asked)
            end = self._consumer.end_offsets(asked)
            return {tp.partition: Bounds(first[tp], end[tp]) for tp in asked}

    def assign(self, offsets: Mapping[int, int]) -> None:
        with _translated():
            at = {TopicPartition(self._topic, p): offset for p, offset in offsets.items()}
            self._consumer.assign(list(at))
            for partition, offset in at.items():
                self._consumer.seek(partition, offset)

    def read(self, timeout_s: float) -> list[Chunk]:
        with _translated():
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
        with _translated():
            at = {tp.partition: self._consumer.position(tp) for tp in self._consumer.assignment()}
        return {p: offset or 0 for p, offset in at.items()}

    def close(self) -> None:
        _close(self._consumer)
        if self._admin is not None:
            with contextlib.suppress(Exception):
                self._admin.close()


class _Ledger:
    def __init__(self, config: KafkaConfig, task: int, claim: Claim) -> None:
        self._config, self._claim = config, claim
        self._partition = TopicPartition(config.state_topic, task)
        self._key = f"{config.group}.{task}".encode()
        self._next = 0  # the offset after the last state that we know of
        self._reader: Any = None
        self._producer = KafkaProducer(
            **config.producer,
            transactional_id=f"stream-dppca.{config.group}.{task}",
            transaction_timeout_ms=int(config.transaction_timeout_s * 1000),
        )
        try:
            self._producer.init_transactions()
            self._reader = KafkaConsumer(
                **{**config.consumer, "fetch_max_wait_ms": 200},
                max_partition_fetch_bytes=2 * MAX_RECORD_BYTES,
            )
            self._reader.assign([self._partition])
        except BaseException:
            self.close()
            raise

    def load(self) -> list[bytes]:
        with _translated():
            first = self._reader.beginning_offsets([self._partition])[self._partition]
            end = self._reader.end_offsets([self._partition])[self._partition]
            back = TAIL
            while True:
                # Aborted transactions take offsets too: go further back until there is a state.
                start = max(first, end - back)
                entries = _read_to_end(self._reader, self._partition, start, self._config)
                found = [entry.value for entry in entries if entry.value is not None]
                if found or start == first:
                    self._next = self._reader.position(self._partition)
                    return found
                back *= 8

    def commit(self, state: bytes, positions: Mapping[int, Position]) -> None:
        config = self._config
        with self._transaction(positions):
            sent = self._producer.send(
                config.state_topic, state, key=self._key, partition=self._partition.partition
            )
            # Nothing may be in flight while we commit: see the top of this module.
            sent.get(timeout=config.request_timeout_s)
            testhooks.reach("inside_transaction")
        with _translated():
            self._confirm(state)

    def _confirm(self, state: bytes) -> None:
        """Read the state back: the one committed record since the last that we knew."""
        self._reader.seek(self._partition, self._next)
        deadline = time.monotonic() + self._config.request_timeout_s
        while time.monotonic() < deadline:
            for entries in self._reader.poll(timeout_ms=200).values():
                if len(entries) != 1 or entries[0].value != state:
                    raise Fenced("somebody else has written to the state of this task")
                self._next = entries[0].offset + 1
                return
        raise OutcomeUnknown("a commit could not be confirmed in time")

    def publish(self, records: Sequence[Record], positions: Mapping[int, Position]) -> None:
        with self._transaction(positions):
            _send(self._producer, self._config, records)
            testhooks.reach("inside_publish")

    @contextlib.contextmanager
    def _transaction(self, positions: Mapping[int, Position]) -> Iterator[None]:
        """Begin, and commit at the end. After any error this ledger is done for: what it left
        open, the next owner's fencing ends.

        The offsets go first. With them the broker checks our epoch and our generation, so an owner
        that is one no longer is refused before it has written anything.
        """
        offsets = {
            TopicPartition(self._config.input_topic, p): OffsetAndMetadata(
                at.offset, f"{ROW}{at.row}", -1
            )
            for p, at in positions.items()
        }
        with _translated():
            self._producer.begin_transaction()
            self._producer.send_offsets_to_transaction(offsets, self._claim.token)
            testhooks.reach("offsets_sent")
            yield
            try:
                self._producer.commit_transaction()
            except _FENCED:
                raise
            except kafka_errors.KafkaError as error:
                raise OutcomeUnknown(f"{type(error).__name__} while committing") from error

    def close(self) -> None:
        _close(self._producer)
        if self._reader is not None:
            _close(self._reader)

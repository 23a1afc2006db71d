"""Parts that all users of kafka-python share: translation of errors, and closing in time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer  # type: ignore[import-untyped]
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition  # type: ignore[import-untyped]

from ..errors import ClusterError, Fenced, OffsetsGone, Unavailable
from ..protocols import PLAN_STATES, Message
from .config import MAX_RECORD_BYTES, KafkaConfig

CLOSE_SECONDS: Final = 1.0
#: Number of offsets at the end of a partition that are read first.
TAIL: Final = 64

FENCED = (
    kafka_errors.ProducerFencedError,
    kafka_errors.InvalidProducerEpochError,
    kafka_errors.CommitFailedError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.FencedInstanceIdError,
    kafka_errors.RebalanceInProgressError,
)


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors of the client. Their texts name topics and offsets, not records."""
    try:
        yield
    except FENCED as error:
        raise Fenced(f"{type(error).__name__}") from error
    except kafka_errors.OffsetOutOfRangeError as error:
        raise OffsetsGone("an offset is out of range") from error
    except kafka_errors.KafkaTimeoutError as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error
    except kafka_errors.CorruptRecordError as error:  # its text may quote the record
        raise ClusterError("CorruptRecordError") from error
    except kafka_errors.KafkaError as error:
        raise ClusterError(f"{type(error).__name__}: {error}") from error


def partitions_of(admin: Any, topic: str) -> frozenset[int] | None:
    """The partitions of a topic; None if it does not exist."""
    for found in admin.describe_topics([topic]):
        error = kafka_errors.for_code(found["error_code"])
        if error is kafka_errors.NoError:
            return frozenset(p["partition_index"] for p in found["partitions"])
        if error is not kafka_errors.UnknownTopicOrPartitionError:  # its list means nothing
            raise ClusterError(f"topic {topic!r}: {error.__name__}")
    return None


def close_client(client: Any) -> None:
    """Close a client within about a second, whatever its state."""
    with contextlib.suppress(Exception):
        if isinstance(client, KafkaProducer):
            try:
                client.close(timeout=CLOSE_SECONDS)
            except kafka_errors.KafkaTimeoutError:
                # The producer has waited for its records; its thread would continue to send them.
                client._sender.force_close()
        else:
            client.close(autocommit=False, timeout_ms=int(CLOSE_SECONDS * 1000))


def start_messages(producer: Any, config: KafkaConfig, messages: Sequence[Message]) -> list[Any]:
    """Begin to send to the output topic; return the futures to wait for.

    The timestamp is the current time rounded down to the second, because the exact duration of a
    batch may depend on its records.
    """
    timestamp_ms = int(time.time()) * 1000
    send = partial(producer.send, config.output_topic, timestamp_ms=timestamp_ms)
    return [send(m.value, key=m.key, headers=list(m.headers)) for m in messages]


def read_to_end(
    consumer: Any, partition: TopicPartition, start: int, config: KafkaConfig
) -> Iterator[Any]:
    """Every record that the consumer may see, from `start` to the current end of the partition."""
    end = consumer.end_offsets([partition])[partition]
    consumer.seek(partition, start)
    deadline = time.monotonic() + config.request_timeout_s
    while consumer.position(partition) < end:
        for found in consumer.poll(timeout_ms=200).values():
            yield from found
            deadline = time.monotonic() + config.request_timeout_s
        if time.monotonic() > deadline:
            raise Unavailable(f"{partition.topic}:{partition.partition} could not be read to {end}")


def plan_key(config: KafkaConfig) -> bytes:
    """The key of plans on the state topic."""
    return config.group.encode() + b".plan"


def _tails(
    consumer: Any, partition: TopicPartition, config: KafkaConfig
) -> Iterator[tuple[list[Any], bool]]:
    """Longer and longer ends of a partition, and whether they are the whole of it."""
    first = consumer.beginning_offsets([partition])[partition]
    end = consumer.end_offsets([partition])[partition]
    start, back = end, TAIL
    while start > first or back == TAIL:
        start, back = max(first, end - back), back * 8
        yield list(read_to_end(consumer, partition, start, config)), start == first


def read_plan(consumer: Any, partition: TopicPartition, config: KafkaConfig) -> bytes | None:
    """The last committed plan, unless more than `PLAN_STATES` states follow it."""
    for entries, _ in _tails(consumer, partition, config):
        for entry in reversed(entries):
            if entry.key == plan_key(config) and entry.value is not None:
                return bytes(entry.value)
        if sum(entry.key == config.group.encode() for entry in entries) > PLAN_STATES:
            break
    return None


def read_tail(consumer: Any, partition: TopicPartition, config: KafkaConfig) -> list[Any]:
    """The newest committed records of a partition, oldest first; at least two if there are as many.

    Two, so that a fork shows, however many starts have failed since. Aborted transactions and
    markers take offsets, too.
    """
    plan = plan_key(config)
    for entries, whole in _tails(consumer, partition, config):
        found = [e for e in entries if e.value is not None and e.key != plan]
        if len(found) > 1 or whole:
            break
    return found


@contextlib.contextmanager
def opened(
    config: KafkaConfig, partition: TopicPartition, isolation: str = "read_committed"
) -> Iterator[Any]:
    """Open a consumer of a partition; with `read_uncommitted`, it sees all transactions."""
    consumer = KafkaConsumer(
        **{**config.consumer, "isolation_level": isolation},
        max_partition_fetch_bytes=2 * MAX_RECORD_BYTES,
    )
    try:
        consumer.assign([partition])
        yield consumer
    finally:
        close_client(consumer)


def read_unfinished(
    config: KafkaConfig, partition: TopicPartition, tail: Sequence[Any]
) -> list[bytes]:
    """The states that were written after the last one in `tail`, oldest first, each of them once.

    Once, because a state that is adopted again and again, while brokers fail, has many copies.
    """
    key = config.group.encode()
    after = [entry.offset + 1 for entry in tail if entry.key == key]
    with opened(config, partition, "read_uncommitted") as consumer:
        first = consumer.beginning_offsets([partition])[partition]
        entries = read_to_end(consumer, partition, max([first, *after]), config)
        found = dict.fromkeys(entry.value for entry in entries if entry.key == key)
    return [value for value in found if value is not None]

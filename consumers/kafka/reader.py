"""Reads committed messages with kafka-python, and asks where partitions begin and end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer  # type: ignore[import-untyped]
from kafka.structs import TopicPartition  # type: ignore[import-untyped]

from ..errors import ClusterError
from ..protocols import Bounds, Chunk
from .bounded import make_bounded
from .client import close_client, partitions_of, translated_errors
from .config import READ_BYTES, KafkaConfig

#: Time after which a read returns what has come.
READ_SECONDS: Final = 0.5
#: The type of a timestamp that the broker has set, in the protocol.
LOG_APPEND_TIME: Final = 1


class KafkaOffsets:
    """Lists the partitions of a topic, with their first offsets and their ends."""

    def __init__(self, config: KafkaConfig, topic: str, **options: Any) -> None:
        self._config, self._topic, self._options = config, topic, options
        self._admin: Any = None

    @cached_property
    def _consumer(self) -> Any:
        return KafkaConsumer(**{**self._config.consumer, **self._options})

    @cached_property
    def _uncommitted(self) -> Any:
        """A consumer that also sees transactions that are open."""
        return KafkaConsumer(**{**self._config.consumer, "isolation_level": "read_uncommitted"})

    def partitions(self) -> frozenset[int]:
        with translated_errors():
            if self._admin is None:
                self._admin = KafkaAdminClient(**self._config.client)
            found = partitions_of(self._admin, self._topic)
        if found is None:
            raise ClusterError(f"topic {self._topic!r} does not exist")
        return found

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        first = self._asked(lambda asked: self._consumer.beginning_offsets(asked), partitions)
        ends = self.ends(partitions)
        return {p: Bounds(at, ends[p]) for p, at in first.items()}

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """The last stable offsets: the consumer reads committed messages only."""
        return self._asked(lambda asked: self._consumer.end_offsets(asked), partitions)

    def log_ends(self, partitions: Sequence[int]) -> dict[int, int]:
        return self._asked(lambda asked: self._uncommitted.end_offsets(asked), partitions)

    def first_at(self, partitions: Sequence[int], time_ms: int) -> dict[int, int | None]:
        found = self._asked(
            lambda asked: self._uncommitted.offsets_for_times(dict.fromkeys(asked, time_ms)),
            partitions,
        )
        return {p: at and at.offset for p, at in found.items()}

    def _asked(
        self,
        ask: Callable[[list[TopicPartition]], Mapping[TopicPartition, Any]],
        partitions: Sequence[int],
    ) -> dict[int, Any]:
        """Ask the brokers about partitions; return the answers by number."""
        if not partitions:
            return {}
        with translated_errors():
            found = ask([TopicPartition(self._topic, p) for p in partitions])
        return {partition.partition: answer for partition, answer in found.items()}

    def close(self) -> None:
        for name in ("_consumer", "_uncommitted"):
            if name in vars(self):
                close_client(vars(self)[name])
        if self._admin is not None:
            with contextlib.suppress(Exception):
                self._admin.close()


class KafkaReader(KafkaOffsets):
    """Reads chosen partitions, in bounded memory whatever producers have compressed."""

    def __init__(self, config: KafkaConfig, topic: str, *, stamped: bool = False) -> None:
        super().__init__(config, topic, **config.fetch)
        self._stamped = stamped
        self._most, self._at_once = config.most_messages, config.messages_at_once
        # Where to resume; of partitions that are read, an older place.
        self._at: dict[int, int] = {}
        make_bounded(self._consumer, config.max_message_bytes)  # connects, or raises here

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._at = dict(offsets)
        with translated_errors():
            self._consumer.assign(self._named(offsets))
            self._seek(offsets)

    def pause(self, partitions: Collection[int]) -> None:
        """Stop reading these partitions for now, and resume all others.

        A consumer of kafka-python that is told to pause a partition may never return what it has
        already parsed of it, and never fetch it again: it looks for parsed messages of a resumed
        partition only while it has none of any other, and does not notice that it has returned the
        last of those. So paused partitions are not assigned, and what was fetched of them is
        fetched again.
        """
        self._at = self.positions()
        wanted = self._at.keys() - set(partitions)
        with translated_errors():
            resumed = wanted - {tp.partition for tp in self._consumer.assignment()}
            self._consumer.assign(self._named(wanted))
            self._seek({p: self._at[p] for p in resumed})

    def _named(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, p) for p in sorted(partitions)]

    def _seek(self, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def read(self, timeout_s: float) -> list[Chunk]:
        if not self._consumer.assignment():
            time.sleep(timeout_s)
            return []
        found: dict[int, list[Any]] = {}
        messages = size = 0
        until = time.monotonic() + timeout_s + READ_SECONDS
        with translated_errors():
            # Few at a time, because each may be as large as is allowed, and its decompression may
            # take long.
            while messages < self._most and size < READ_BYTES:
                if messages and time.monotonic() > until:
                    break
                wait_ms = 0 if messages else int(timeout_s * 1000)
                most = min(self._at_once, self._most - messages)
                polled = self._consumer.poll(timeout_ms=wait_ms, max_records=most)
                if not polled:
                    break
                for tp, entries in polled.items():
                    found.setdefault(tp.partition, []).extend(entries)
                    messages += len(entries)
                    size += sum(len(e.value or b"") + len(e.key or b"") for e in entries)
        return [self._chunk(partition, entries) for partition, entries in found.items()]

    def _chunk(self, partition: int, entries: Sequence[Any]) -> Chunk:
        offsets, values = [e.offset for e in entries], [e.value for e in entries]
        if not self._stamped:
            return Chunk(partition, offsets, values)
        times = [e.timestamp if e.timestamp_type == LOG_APPEND_TIME else None for e in entries]
        return Chunk(partition, offsets, values, times, [e.key for e in entries])

    def positions(self) -> dict[int, int]:
        with translated_errors():
            at = {tp.partition: self._consumer.position(tp) for tp in self._consumer.assignment()}
        return self._at | {p: offset or 0 for p, offset in at.items()}

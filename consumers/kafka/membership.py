"""Membership of this process in the consumer group, of which one member owns the model."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from kafka import ConsumerRebalanceListener, KafkaConsumer  # type: ignore[import-untyped]
from kafka.coordinator.assignors.sticky.sticky_assignor import (  # type: ignore[import-untyped]
    StickyPartitionAssignor,
)
from kafka.structs import TopicPartition  # type: ignore[import-untyped]

from ..protocols import Claim
from .client import close_client, translated_errors
from .config import KafkaConfig


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Sets flags only: it runs on the client's thread, which must not block."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.changes = 0
        self.owner: bool | None = None  # None while the group is not settled

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._set(None)

    on_partitions_lost = on_partitions_revoked

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._set(any(partition.partition == 0 for partition in assigned))

    def _set(self, owner: bool | None) -> None:
        with self._changed:
            self.owner = owner
            self.changes += 1
            self._changed.notify_all()


class KafkaMembership:
    """A consumer of the state topic that fetches nothing: whoever gets its partition is the owner.

    A thread of its own polls it, with long timeouts. kafka-python 3.0.12 forgets a join that ends
    between two polls: it joins again and the whole group rebalances again, or (if the join began
    because metadata changed) the member neither settles nor sends heartbeats any more. So the
    thread waits for joins, the metadata is fetched before the first one, and a member that does not
    settle within the session timeout is replaced. Each replacement makes the group rebalance again,
    so the next one gets twice the time: on a busy machine members would otherwise replace
    themselves for ever.

    A client that fails may still be a member: brokers keep their groups when they crash, and no
    rebalance follows. After an error the claim is therefore read again from the current group,
    instead of waiting for a change that never comes.
    """

    POLL_SECONDS: Final = 1.0
    MOST_PATIENCE_SECONDS: Final = 60.0

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._claim: Claim | None = None
        self._error: BaseException | None = None
        self._patience_s = config.session_timeout_s + 1
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
            # An owner stays the owner when a standby joins.
            partition_assignment_strategy=[StickyPartitionAssignor],
        )
        self._consumer.subscribe([config.state_topic], listener=self._listener)
        self._consumer.partitions_for_topic(config.state_topic)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if time.monotonic() - self._unsettled > self._patience_s:
                    self._patience_s = min(2 * self._patience_s, self.MOST_PATIENCE_SECONDS)
                    close_client(self._consumer)
                    self._join()
                self._consumer.poll(timeout_ms=int(self.POLL_SECONDS * 1000))
                self._consumer.pause(*self._consumer.assignment())
                self._look()
            except Exception as error:
                with self._changed:
                    self._claim, self._seen, self._error = None, -1, error
                    self._changed.notify_all()
                self._closing.wait(0.5)

    def _look(self) -> None:
        """Take over the role that the group has given to this member."""
        with self._changed:
            listener = self._listener
            if listener.changes != self._seen and listener.owner is not None:
                metadata = self._consumer.group_metadata()
                # A broker accepts offsets without a generation from anybody: never send these.
                if metadata.generation_id > 0 and metadata.member_id:
                    self._seen, self._claim = listener.changes, Claim(listener.owner, metadata)
            if listener.changes == self._seen:
                self._unsettled = time.monotonic()
                self._patience_s = self._config.session_timeout_s + 1

    def poll(self, timeout_s: float) -> Claim | None:
        with self._changed:
            changes = self._listener.changes
            nothing_new = changes == self._seen or self._listener.owner is None
            if timeout_s and nothing_new and self._error is None:
                self._changed.wait_for(
                    lambda: self._error is not None or self._listener.changes != changes, timeout_s
                )
            error, self._error = self._error, None
        if error is not None:
            with translated_errors():
                raise error
        self._look()
        return self._current()

    def _current(self) -> Claim | None:
        """The claim, or None if the group has changed since."""
        return self._claim if self._listener.changes == self._seen else None

    def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The offsets that the group has committed; ask after fencing.

        Fencing ends the transactions of every earlier owner before it returns, but the group may
        show the offsets of such a transaction a little later. So the answer may be behind the last
        state, and is never ahead of what was committed. That is enough for its purpose: to notice
        that states are lost. The position to resume from is in the state alone.

        This does not wait for offsets in a transaction that is still open: after a crash of a
        broker, offsets were seen to stay pending for minutes after their transaction had ended, and
        an owner that waits for them never starts.
        """
        timeout_ms = int(self._config.request_timeout_s * 1000)
        with translated_errors():
            config = {**self._config.consumer, "isolation_level": "read_uncommitted"}
            consumer = KafkaConsumer(**config, group_id=self._config.group)
            try:
                found = {
                    p: consumer.committed(TopicPartition(topic, p), True, timeout_ms)
                    for p in partitions
                }
            finally:
                close_client(consumer)
        return {p: at.offset for p, at in found.items() if at is not None}

    def close(self) -> None:
        self._closing.set()
        self._thread.join(self.POLL_SECONDS + 0.2)
        close_client(self._consumer)

"""The one writer of a model's state and releases, in fenced transactions.

Assumptions about brokers and client:

- `init_transactions` ends the transactions of every earlier owner of the transactional id before
  it returns, and the broker refuses whatever such an owner sends later.
- Brokers may fail at that: one that is being stopped may log a transaction as complete although a
  partition has not got the marker that ends it (seen with Apache Kafka 4.3.1). Nobody aborts such a
  transaction later. So the ledger ends it, before anything is loaded.
- The generation that is sent with the offsets is the one in which the model was claimed, never a
  newer one: a member that was removed and has rejoined cannot commit what it computed before.
- A return of `commit_transaction` proves nothing: kafka-python can report a commit that the broker
  did not make (an epoch bump while committing). A commit counts when the state has been read back
  from the offset at which it was written, by a consumer that sees committed records only.
- A consumer that reads uncommitted records sees those of aborted transactions, until the topic is
  compacted.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer  # type: ignore[import-untyped]
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient  # type: ignore[import-untyped]
from kafka.structs import OffsetAndMetadata, TopicPartition  # type: ignore[import-untyped]

from .. import crashpoints
from ..errors import Fenced, OutcomeUnknown, Unavailable
from ..protocols import Claim, Message, Positions
from . import client
from .client import FENCED, close_client, translated_errors
from .config import MAX_RECORD_BYTES, KafkaConfig

#: Time between looks at whether a marker has been written, which takes milliseconds.
POLL_SECONDS: Final = 0.005


class _Client(KafkaNetClient):  # type: ignore[misc]
    """A client that answers False if a node is not ready.

    kafka-python 3.0.12 raises instead, and its sender does not expect that: it forgets the request
    of the transaction that it was about to send to a coordinator which refuses connections, and
    whoever waits for the end of the request waits for ever. After the answer False the sender looks
    for the coordinator again, and repeats the request.
    """

    def await_ready(self, node_id: Any, timeout_ms: float = 30_000) -> bool:
        try:
            return bool(super().await_ready(node_id, timeout_ms))
        except (kafka_errors.KafkaConnectionError, kafka_errors.UnknownBrokerIdError):
            return False


class KafkaLedger:
    """Keeps the states and plans of a model on its state topic, and publishes its releases.

    Its producer fences all earlier ones of the group. Its transactions name the generation of the
    claim, so that the brokers reject a stale owner.
    """

    def __init__(self, config: KafkaConfig, claim: Claim) -> None:
        self._config, self._claim = config, claim
        self._partition = TopicPartition(config.state_topic, 0)
        self._key = config.group.encode()
        self._reader: Any = None
        self._tail: list[Any] = []  # the last states, as they were loaded
        self._lock = threading.Lock()  # of the producer's one transaction, and of the reader
        self._last: Positions = {}  # of the last transaction of a state
        self._producer = KafkaProducer(
            **config.producer,
            kafka_client=_Client,
            transactional_id=f"stream-dppca.{config.group}",
            transaction_timeout_ms=int(config.transaction_timeout_s * 1000),
        )
        try:
            self._producer.init_transactions()
            self._reader = KafkaConsumer(
                **{**config.consumer, "fetch_max_wait_ms": 200},
                max_partition_fetch_bytes=2 * MAX_RECORD_BYTES,
            )
            self._reader.assign([self._partition])
            self._end_earlier_transactions()
        except BaseException:
            self.close()
            raise

    def _end_earlier_transactions(self) -> None:
        """Make visible what an earlier owner has written, if brokers left its transaction open.

        The marker of a commit ends everything that the same producer id has open in a partition. So
        the state that hangs becomes the last one, as the end of its chain: it was computed from the
        last visible state, by an owner whose generation was checked. If it stayed hidden, it would
        be adopted, and the next commit would make two copies visible.
        """
        partition = self._partition
        end = self._last_stable()
        with client.opened(self._config, partition, "read_uncommitted") as consumer:
            log_end = int(consumer.end_offsets([partition])[partition])
        if end < log_end:
            end = self._mark() + 1
            deadline = time.monotonic() + self._config.request_timeout_s
            while self._last_stable() < end:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"a transaction on {partition.topic}:{partition.partition} does not end, "
                        "and may hide the last state (`kafka-transactions.sh find-hanging` shows "
                        "it)"
                    )
                time.sleep(POLL_SECONDS)
        self._reader.seek(partition, end)

    def _last_stable(self) -> int:
        """The offset up to which every transaction on the state partition has ended."""
        return int(self._reader.end_offsets([self._partition])[self._partition])

    def _mark(self) -> int:
        """Commit a record that readers pass over: a tombstone with a key of its own."""
        self._producer.begin_transaction()
        sent = self._send(self._key + b".opened", None)
        offset = int(sent.get(timeout=self._config.request_timeout_s).offset)
        self._producer.commit_transaction()
        return offset

    def confirm_owned(self) -> None:
        with translated_errors():
            self._mark()

    def load_plan(self) -> bytes | None:
        with self._lock, translated_errors():
            return client.read_plan(self._reader, self._partition, self._config)

    def keep_plan(self, plan: bytes, positions: Positions) -> None:
        with self._lock:
            with self._transaction({**positions, **self._last}):
                sent = self._send(client.plan_key(self._config), plan)
                offset = int(sent.get(timeout=self._config.request_timeout_s).offset)
                crashpoints.reach("inside_plan")
            with translated_errors():
                self._confirm(offset, plan)

    def load(self) -> list[bytes]:
        with translated_errors():
            self._tail = client.read_tail(self._reader, self._partition, self._config)
        return [entry.value for entry in self._tail]

    def unfinished(self) -> list[bytes]:
        with translated_errors():
            return client.read_unfinished(self._config, self._partition, self._tail)

    def commit(self, state: bytes, positions: Positions, messages: Sequence[Message] = ()) -> None:
        config = self._config
        with self._lock:
            with self._transaction(positions):
                # All are sent together: each wait is a round trip, and they share a request to the
                # coordinator.
                sent = [
                    self._send(self._key, state),
                    *client.start_messages(self._producer, config, messages),
                ]
                # Nothing may be in flight during the commit: see the top of this module.
                timeout_s = config.request_timeout_s
                offset, *_ = [future.get(timeout=timeout_s).offset for future in sent]
                crashpoints.reach("inside_transaction")
            with translated_errors():
                self._confirm(int(offset), state)

    def _send(self, key: bytes, value: bytes | None) -> Any:
        return self._producer.send(
            self._partition.topic, value, key=key, partition=self._partition.partition
        )

    def _confirm(self, offset: int, state: bytes) -> None:
        """Read back all that was committed since the last record: the one at this offset.

        The reader continues after the last state that it has returned. Its next fetch has been
        waiting at the broker since the last commit; a seek would discard that fetch.
        """
        deadline = time.monotonic() + self._config.request_timeout_s
        while time.monotonic() < deadline:
            for entries in self._reader.poll(timeout_ms=200).values():
                if [(entry.offset, entry.value) for entry in entries] != [(offset, state)]:
                    raise Fenced("somebody else has written to the state of this model")
                return
        raise OutcomeUnknown("a commit could not be confirmed in time")

    def publish(self, messages: Sequence[Message], positions: Positions) -> None:
        with self._lock, self._transaction(positions):
            for future in client.start_messages(self._producer, self._config, messages):
                future.get(timeout=self._config.request_timeout_s)
            crashpoints.reach("inside_publish")

    @contextlib.contextmanager
    def _transaction(self, positions: Positions) -> Iterator[None]:
        """Begin a transaction, and commit it at the end.

        After any error this ledger cannot be used any more: the fencing of the next owner aborts
        the transaction that is left open.

        The offsets are sent first. With them the broker checks the epoch and the generation, so a
        stale owner is rejected before it has written anything.
        """
        offsets = {
            TopicPartition(self._config.input_topic, p): OffsetAndMetadata(offset, "", -1)
            for p, offset in positions.items()
        }
        self._last = positions
        with translated_errors():
            self._producer.begin_transaction()
            self._producer.send_offsets_to_transaction(offsets, self._claim.token)
            crashpoints.reach("offsets_sent")
            yield
            try:
                self._producer.commit_transaction()
            except FENCED:
                raise
            except kafka_errors.KafkaError as error:
                raise OutcomeUnknown(f"{type(error).__name__} while committing") from error

    def close(self) -> None:
        close_client(self._producer)
        if self._reader is not None:
            close_client(self._reader)

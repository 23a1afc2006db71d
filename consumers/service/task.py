"""One task: one estimator over its share of the input partitions.

    fence -> load the last committed state -> publish its release again (same bytes) -> seek
      ┌─> poll -> decode -> slots ... the batch is full -> the estimator releases ─┐
      └────────────────────────────────────────────────────────────────────────────┤
          publish <- one transaction: state, offsets, the exact bytes to publish <─┘

While a batch is committed and published, in a thread of its own, the next one is read. It cannot
end before the one before it is out. Everything in memory is worth nothing until the transaction has
been confirmed. Whatever goes wrong before that, the task is dropped whole and another one loads the
last committed state; nothing of the dropped one can have been seen. The argument is written out in
docs/service.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from stream_dppca import DPPCA, Release

from .. import crashpoints
from ..errors import StateRefused
from ..events import log_event
from ..model.codecs import Codec
from ..model.releases import make_record, make_release
from ..model.states import (
    VERSION,
    Published,
    StateRecord,
    check_history,
    decode_state,
    encode_state,
    make_estimator,
    restore_estimator,
)
from ..protocols import Claim, Cluster, Ledger, Membership, Message, Position
from .background import Background
from .intake import Intake
from .metrics import Metrics

__all__ = ["Task", "TaskConfig"]

CLOSE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class TaskConfig:
    """What all tasks of a model share."""

    model: str
    shards: int
    input_topic: str
    features: tuple[str, ...]
    estimator: Mapping[str, Any]  #: parameters of `DPPCA`
    codec: Codec
    start: Literal["earliest", "latest"] = "earliest"
    refresh_s: float = 10.0  #: how often to look for new partitions, and at the lag
    stall_s: float = 120.0  #: how long a partition with unread messages may stand still


class Task:
    """A running task. Any error it raises means: drop it."""

    def __init__(
        self,
        number: int,
        log: Cluster,
        membership: Membership,
        claim: Claim,
        config: TaskConfig,
        metrics: Metrics,
    ) -> None:
        self.number, self.claim = number, claim
        self._config, self._metrics = config, metrics
        self.current: Message | None = None  #: the release that is out
        self._ending = Background("batch-end")
        crashpoints.reach("claimed")
        # The order is the guarantee: fence first, then read what the fenced may have written.
        self._ledger: Ledger = log.ledger(number, claim)
        crashpoints.reach("fenced")
        self._open: list[Ledger | Intake] = [self._ledger]
        try:
            self._intake = Intake(
                log, config.input_topic, config.codec, metrics, task=number, shards=config.shards,
                refresh_s=config.refresh_s, stall_s=config.stall_s,
            )  # fmt: skip
            self._open.append(self._intake)
            self._estimator = self._load(membership)
            crashpoints.reach("loaded")
            self._publish_again()
        except BaseException:
            self.close()
            raise

    # Start

    def _load(self, membership: Membership) -> DPPCA:
        """The estimator of the last committed state; the intake stands where it stopped."""
        config = self._config
        history = [
            decode_state(
                value, model=config.model, task=self.number, shards=config.shards,
                input=config.input_topic,
            )
            for value in self._ledger.load()
        ]  # fmt: skip
        check_history(history)
        self._committed = positions = history[-1].next_positions() if history else {}
        self._refuse_lost_state(membership, positions)
        if not history:
            self._intake.begin({}, config.start)
            log_event("state_new", task=self.number)
            return make_estimator(config.estimator)
        last = history[-1]
        estimator = restore_estimator(last.estimator, config.estimator)
        if estimator.n_batches != last.batch:
            raise StateRefused(f"the state of batch {last.batch} holds another batch's estimator")
        self.current = last.release.record()
        # A partition that the state does not know is new: nothing of it has been used.
        self._intake.begin(positions, "earliest")
        log_event("state_loaded", task=self.number, batch=last.batch)
        return estimator

    def _refuse_lost_state(self, membership: Membership, positions: Mapping[int, Position]) -> None:
        """State and offsets are committed together. If the offsets are ahead, states are lost
        (topic emptied, copied back, unclean election): records that were used would be used again.
        """
        topic = self._config.input_topic
        for p, used in membership.committed(topic, self._intake.share()).items():
            at = positions.get(p, Position(0))
            if used > at:
                raise StateRefused(
                    f"the group has used partition {p} of {topic!r} up to offset {used.offset}, "
                    f"row {used.row}, the state of task {self.number} only up to {at.offset}, "
                    f"row {at.row}: states are lost. "
                    "Restore the state topic; or, to begin a new model, give it its own name, "
                    "group and state topic, and start='latest'."
                )

    # The loop

    def step(self, timeout_s: float) -> bool:
        """Read once and learn, at most to the end of the batch. True if there was anything."""
        crashpoints.reach("polling")
        self._ending.check()
        if not self._intake.read(timeout_s):
            return False
        estimator = self._estimator
        size, before = estimator.batch_size, estimator.n_batches
        while estimator.n_batches == before and self._intake.waiting:
            estimator.learn_array(self._intake.take(size - estimator.n_seen % size))
        if estimator.n_batches != before:
            crashpoints.reach("batch_full")
            state, record, release = self._end_of_batch()
            positions = dict(self._intake.positions)
            self._ending.start(partial(self._finish_batch, state, record, release, positions))
        return True

    def _end_of_batch(self) -> tuple[bytes, Message, Release]:
        """All that is to be kept of the batch."""
        estimator, config = self._estimator, self._config
        release = estimator.last_release
        if release is None or estimator.n_seen % estimator.batch_size:
            raise RuntimeError("not at the end of a batch")
        published = make_release(
            release, model=config.model, task=self.number, shards=config.shards,
            features=config.features,
        )  # fmt: skip
        record = make_record(published)
        state = StateRecord(
            version=VERSION,
            model=config.model,
            task=self.number,
            shards=config.shards,
            input=config.input_topic,
            batch=release.batch,
            writer=uuid.uuid4().hex,
            positions={str(p): at for p, at in sorted(self._intake.positions.items())},
            estimator=estimator.state(),
            release=Published.of(record),
        )
        return encode_state(state), record, release

    def _finish_batch(
        self, state: bytes, record: Message, release: Release, positions: dict[int, Position]
    ) -> None:
        """Durable, then visible."""
        crashpoints.reach("before_transaction")
        started = time.monotonic()
        self._ledger.commit(state, positions)
        self._committed = positions
        self._metrics.commit_seconds.observe(time.monotonic() - started)
        crashpoints.reach("after_commit")
        self._publish(record)
        self._metrics.batches.labels(task=str(self.number)).inc()
        log_event("released", level="warning" if release.skipped else "info", task=self.number,
                  batch=release.batch, skipped=release.skipped, reason=release.reason)  # fmt: skip
        crashpoints.reach("after_publish")

    def settle(self, timeout_s: float | None = None) -> None:
        """Wait until the last full batch is out; raises what kept it from that."""
        self._ending.wait(timeout_s)

    def _publish(self, record: Message) -> None:
        self._ledger.publish([record], self._committed)
        self.current = record
        self._metrics.published.labels(task=str(self.number)).set_to_current_time()

    def _publish_again(self) -> None:
        """Whoever committed this release may have died before it was out."""
        if self.current is not None:
            self._publish(self.current)
            log_event("published_again", task=self.number, batch=self._estimator.n_batches)

    def publish_merged(self, record: Message) -> None:
        """A merged release. The offsets are those of the last batch, not of where we are now."""
        self.settle()
        self._ledger.publish([record], self._committed)

    def close(self) -> None:
        """Let go of everything. What is in memory is lost, as it must be."""
        with suppress(Exception):  # a batch on its way out gets a moment; then it is lost, too
            self.settle(CLOSE_SECONDS)
        while self._open:
            self._open.pop().close()

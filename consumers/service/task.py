"""One task: one model over its share of the input partitions.

    fence ─> load the last committed state ─> publish its release again (same bytes)
      ┌─> plan ─> read ─> learn ─┐
      └──────────────────────────┴─> commit: one transaction with state and offsets ─> publish

While a batch is committed and published, in a thread of its own, the next one is read. It cannot
end before the one before it is out. Everything in memory is worth nothing until the transaction has
been confirmed. Whatever goes wrong before that, the task is dropped whole and another one loads the
last committed state; nothing of the dropped one can have been seen. The argument is written out in
docs/service.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from .. import crashpoints
from ..errors import ConfigurationError, StateRefused
from ..events import log_event
from ..model.codecs import Codec
from ..model.learner import Learner, finish_batch
from ..model.releases import key_of, parse_release
from ..model.states import ModelIdentity, SlotRule, decode_state
from ..protocols import Claim, Cluster, FinishedBatch, Membership, Message, Positions, Store
from .background import Background
from .metrics import Metrics
from .planner import PlannedBatch, Planner
from .ranges import RangeReader

if TYPE_CHECKING:
    from .spread import EngineRanges, Spread

__all__ = ["Task", "TaskConfig"]

CLOSE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class TaskConfig:
    """Settings that all tasks of a model share."""

    model: str
    shards: int
    input_topic: str
    output_topic: str
    features: tuple[str, ...]
    estimator: Mapping[str, Any]  #: parameters of `DPPCA`
    codec: Codec
    start: Literal["earliest", "latest"] = "earliest"
    plan_interval_s: float = 0.05  #: time between samples of the ends of the partitions
    refresh_s: float = 10.0  #: time between looks for new partitions, and at the lag
    stall_s: float = 120.0  #: how long a partition with unread messages may stand still
    spread: Spread | None = None  #: reads batches on an engine, if it is not this process

    def offsets_per_batch(self, batch_size: int) -> int:
        """The offsets of a batch; refuses a batch that would end inside a message."""
        per_message = self.codec.rows_per_message
        if batch_size % per_message:
            raise ConfigurationError(
                f"`batch_size` must be a multiple of `rows_per_message`. Found {batch_size} and "
                f"{per_message}."
            )
        return batch_size // per_message


class Task:
    """A running task. Any error it raises means: drop it."""

    def __init__(
        self,
        number: int,
        cluster: Cluster,
        membership: Membership,
        claim: Claim,
        config: TaskConfig,
        metrics: Metrics,
    ) -> None:
        self.number, self.claim = number, claim
        self._config, self._metrics = config, metrics
        self.current: Message | None = None  #: the release that is out
        self._ending = Background("batch-end")
        self._batch: PlannedBatch | None = None  # the one that is being read
        crashpoints.reach("claimed")
        # The order is the guarantee: fence first, then read what the fenced may have written.
        self._store: Store = cluster.ledger(number, claim)
        crashpoints.reach("fenced")
        self._open: list[Store | Planner | RangeReader | EngineRanges] = [self._store]
        try:
            self._learner = self._load()
            self._committed = self._learner.positions
            size = config.offsets_per_batch(self._learner.batch_size)
            self.planner = Planner(
                cluster.offsets(config.input_topic), config.input_topic, metrics, task=number,
                shards=config.shards, size=size, interval_s=config.plan_interval_s,
                refresh_s=config.refresh_s, patience_s=config.stall_s,
            )  # fmt: skip
            self._open.append(self.planner)
            self._refuse_lost_state(cluster, membership)
            self._ranges = self._make_ranges(cluster, size)
            self._open.append(self._ranges)
            # A partition that a state does not know is new: nothing of it has been used.
            new = "earliest" if self._learner.n_batches else config.start
            self._ranges.begin(self.planner.begin(self._committed, new))
            crashpoints.reach("loaded")
            self._publish_again()
            self.planner.start()
        except BaseException:
            self.close()
            raise

    # Start

    def _make_ranges(self, cluster: Cluster, size: int) -> RangeReader | EngineRanges:
        """What gives the rows of planned batches."""
        config, metrics = self._config, self._metrics
        width, topic = len(config.features), config.input_topic
        if config.spread is None:
            return RangeReader(
                cluster.reader(topic), topic, config.codec, metrics, width=width, size=size,
                stall_s=config.stall_s, bounds=self.planner.bounds,
            )  # fmt: skip
        from .spread import EngineRanges  # needs librdkafka

        return EngineRanges(
            config.spread, self._learner.batches, topic, metrics, width=width,
            mixed=self._learner.pairs, slots=self._learner.batch_size, stall_s=config.stall_s,
            bounds=self.planner.bounds,
        )  # fmt: skip

    def _load(self) -> Learner:
        """The learner of the last committed state."""
        config = self._config
        identity = ModelIdentity(
            model=config.model, task=self.number, shards=config.shards, input=config.input_topic,
            slots=SlotRule("offsets", config.codec.rows_per_message),
        )  # fmt: skip
        refusal = "the state record cannot be read: is this the state topic?"
        history = [decode_state(value, refusal) for value in self._store.load()]
        learner = Learner(identity, config.estimator, history)
        if history:
            log_event("state_loaded", task=self.number, batch=learner.n_batches)
        else:
            log_event("state_new", task=self.number)
        return learner

    def _refuse_lost_state(self, cluster: Cluster, membership: Membership) -> None:
        """Refuse to begin where records were used before, by a state that is lost.

        State and offsets are committed together. If the offsets are ahead, states are lost (topic
        emptied, copied back, unclean election). Offsets may expire; but what was released stays on
        the output topic, and if it is there without a state, the state is lost too.
        """
        topic = self._config.input_topic
        way_out = (
            "Restore the state topic; or, to begin a new model, give it its own name, group and "
            "state topic, and start='latest'."
        )
        for p, used in membership.committed(topic, self.planner.share()).items():
            at = self._committed.get(p, 0)
            if used > at:
                raise StateRefused(
                    f"the group has used partition {p} of {topic!r} up to offset {used}, the state "
                    f"of task {self.number} only up to {at}: states are lost. {way_out}"
                )
        for message in cluster.scan(self._config.output_topic):
            if self._is_ahead(message):
                raise StateRefused(
                    f"the state of task {self.number} ends with batch {self._learner.n_batches}, "
                    f"but {self._config.output_topic!r} holds a release of model "
                    f"{self._config.model!r} that is later, or was made with another number of "
                    f"shards: states are lost, and the records behind that release must not be "
                    f"used again. {way_out}"
                )

    def _is_ahead(self, message: Message) -> bool:
        """Whether a published release shows that records were used which our state does not know.

        With another number of shards the tasks had other partitions, so the release of any task
        counts where we have no state.
        """
        known, model = self._learner.n_batches, self._config.model
        ours = message.key == key_of(model, self.number)
        if not (ours or message.key.startswith(key_of(model, ""))):
            return False
        try:
            release = parse_release(message.value)
        except ValueError:
            return ours and known == 0
        if ours:
            return release.batch > known
        return known == 0 and release.shards != self._config.shards

    # The loop

    def step(self, timeout_s: float) -> bool:
        """Read once, and learn if the batch is complete. True if there was anything to do."""
        crashpoints.reach("polling")
        self._ending.check()
        if self._batch is None:
            self._batch = self.planner.next_batch()
            if self._batch is None:
                return self._read_ahead(min(timeout_s, self._config.plan_interval_s))
            self._ranges.start(self._batch.ranges)
            progress = True
        else:
            progress = self._ranges.read(timeout_s)
        if self._ranges.complete:
            batch = self._learner.learn(self._ranges.take(), self._batch.positions)
            self._batch = None
            self._ending.start(partial(self._finish, batch))
        return progress

    def _read_ahead(self, timeout_s: float) -> bool:
        """Read before anything is planned: it will be."""
        if self._ranges.full:
            self.planner.wait(timeout_s)
            return False
        return self._ranges.read(timeout_s)

    def _finish(self, batch: FinishedBatch) -> None:
        seconds = finish_batch(self._store, batch)
        self._note_published(batch.message, batch.positions)
        self._metrics.commit_seconds.observe(seconds)
        self._metrics.batches.labels(task=str(self.number)).inc()
        expected = batch.status in ("learned", "warming_up")
        log_event("released", level="info" if expected else "warning", task=self.number,
                  batch=batch.number, status=batch.status, reason=batch.reason,
                  drift=batch.drift)  # fmt: skip

    def _note_published(self, message: Message, positions: Positions) -> None:
        self.current, self._committed = message, positions
        # To the second: how long a batch took may depend on its records.
        self._metrics.published.labels(task=str(self.number)).set(int(time.time()))

    def settle(self, timeout_s: float | None = None) -> None:
        """Wait until the last full batch is out; raises what kept it from that."""
        self._ending.wait(timeout_s)

    def _publish_again(self) -> None:
        """Whoever committed this release may have died before it was out."""
        message = self._learner.current
        if message is not None:
            self._store.publish([message], self._committed)
            self._note_published(message, self._committed)
            log_event("published_again", task=self.number, batch=self._learner.n_batches)

    def publish_merged(self, message: Message) -> None:
        """A merged release. The offsets are those of the last batch, not of where we are now."""
        self.settle()
        self._store.publish([message], self._committed)

    def close(self) -> None:
        """Let go of everything. What is in memory is lost, as it must be."""
        with suppress(Exception):  # a batch on its way out gets a moment; then it is lost, too
            self.settle(CLOSE_SECONDS)
        while self._open:
            self._open.pop().close()

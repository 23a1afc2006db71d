"""A task: the work of the one process that owns a model.

    fence ─> load the last committed state ─> commit what was written after it (same bytes)
      ─> publish its releases again (same bytes)
      ┌─> plan ─> read ─> learn ─┐
      └──────────────────────────┴─> commit: one transaction with state and offsets ─> publish

While a batch is committed and published, in a thread of its own, the next batches are read and
learned. They are committed together after the first one. If one of them is ready by then, or a
moment later, the release of the first becomes visible with their commit, and otherwise at once.
Everything in memory is worthless until the transaction has been confirmed. Whatever goes wrong
before that, the whole task is dropped and another one loads the last committed state; nobody can
have seen any result of the dropped one. The argument is written out in docs/service-design.md.

What is planned, read and learned is the matter of the task's input (`input.py`).
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import Final, NoReturn

from .. import crashpoints
from ..errors import StateRefused
from ..events import log_event
from ..model.describe import learned_nothing
from ..model.finisher import Finisher
from ..model.learner import Learner
from ..model.states import read_history
from ..monitoring.metrics import Metrics
from ..planning.kept_plan import KeptPlans
from ..protocols import Claim, Cluster, FinishedBatch, Ledger, Membership, Message
from .background import Background
from .config import REFUSAL, TaskConfig
from .input import open_input
from .stored import WAY_OUT, last_release, lost

CLOSE_SECONDS: Final = 1.0
#: Longest wait of a release for batches that are being read, to be published with their commit. A
#: transaction costs as much processor time as a few thousand packed records.
RIDE_SECONDS: Final = 0.1
#: Most batches that wait to be committed together, most numbers in their states (a state has about
#: as many as the square of the number of features), and most bytes of their releases, which are in
#: one state.
TOGETHER_BATCHES: Final = 16
TOGETHER_NUMBERS: Final = 1 << 20
TOGETHER_BYTES: Final = 1 << 18


def most_together(features: int, release_bytes: int) -> int:
    """Most batches that may wait to be committed together."""
    fit = min(TOGETHER_NUMBERS // features**2, TOGETHER_BYTES // release_bytes)
    return min(max(fit, 1), TOGETHER_BATCHES)


class Task:
    """A running task. Any error it raises means: drop it."""

    def __init__(
        self,
        cluster: Cluster,
        membership: Membership,
        claim: Claim,
        config: TaskConfig,
        metrics: Metrics,
    ) -> None:
        self._config, self._metrics = config, metrics
        self.current: Message | None = None  #: the published release
        self.fruitless = 0  #: batches in a row, up to the last, from which nothing was learned
        self._visible = 0  # the last batch whose release is on the output topic
        # This is well before the watchdog ends the process: loading the state again is enough.
        self._ending = Background("the end of a batch", self._finish, config.stall_s / 2)
        self._reading = False  # a batch was begun
        crashpoints.reach("claimed")
        # The order is the guarantee: fence first, then read what the fenced may have written.
        self._store: Ledger = cluster.ledger(claim)
        crashpoints.reach("fenced")
        self._opened = ExitStack()
        self._opened.callback(self._store.close)
        try:
            self._adopted: bytes | None = None  # written by an earlier owner, and not committed
            self._learner = self._load()
            self._committed = self._learner.positions
            self._finisher = Finisher(self._store, self._learner.writer, self._more_to_finish)
            plans = KeptPlans(self._store, lambda: self._committed)
            self.input = open_input(cluster, config, self._learner, metrics, plans)
            self._opened.callback(self.input.close)
            self._refuse_lost_state(cluster, membership)
            self._adopt()
            self.input.begin()
            crashpoints.reach("loaded")
            self._publish_again()
        except BaseException:
            self.close()
            raise

    # Start

    def _load(self) -> Learner:
        """The learner of the last committed state, or of the one that was to follow it."""
        config = self._config
        identity = config.identity()
        stored = self._store.load(), self._store.unfinished()
        history, self._adopted = read_history(*stored, REFUSAL)
        learner = Learner(identity, config.estimator_recipe, history)
        if history:
            log_event("state_loaded", batch=learner.n_batches)
        else:
            log_event("state_new")
        return learner

    def _adopt(self) -> None:
        """Commit the state that an earlier owner has written, if it could not commit it.

        Its result is on the log for whoever reads uncommitted records: if the batch was computed
        again, there would be two results of the same records. No release rides along: those that
        may not be visible yet are in the state.
        """
        if self._adopted is not None:
            self._store.commit(self._adopted, self._committed)
            log_event("state_adopted", batch=self._learner.n_batches)

    def _refuse_lost_state(self, cluster: Cluster, membership: Membership) -> None:
        """Refuse to begin if records were used before by a state that is lost.

        State and offsets are committed together. If the offsets are ahead, states are lost (topic
        emptied, copied back, unclean election). Offsets may expire; but releases stay on the output
        topic, and if there is a release without a state, the state is lost, too.
        """
        used = membership.committed(self._config.input_topic, self.input.partitions())
        if unknown := self.input.unknown_use(used):
            self._refuse(f"{unknown}: states are lost. {WAY_OUT}")
        last = last_release(cluster, self._config)
        self._visible = last or 0
        if why := lost(last, self._learner.n_batches, self._config):
            self._refuse(why)

    def _refuse(self, why: str) -> NoReturn:
        """Refuse the state, unless what contradicts it was written by a successor since then."""
        self._store.confirm_owned()
        raise StateRefused(why)

    # The loop

    def turn(self, timeout_s: float) -> bool:
        """Read once, and learn if the batch is complete. True if there was anything to do."""
        progress = self._metrics.progress
        crashpoints.reach("polling")
        self._ending.check()
        if self._reading:
            progress.at = self.input.at
            found = self.input.read(timeout_s)
        elif self.input.next():
            self._reading = found = True
            self._ending.expect(True)
            progress.moved()
        else:
            self._ending.expect(False)
            if self._ending.busy:
                progress.at = "committing"
            elif self.input.planning:
                progress.at = "planning"
            else:
                progress.rest()
            return self.input.wait(min(timeout_s, self._config.plan_interval_s))
        if self.input.complete:
            progress.moved("learning")
            batch = self.input.learn()
            self._reading = False
            if batch is not None:
                progress.moved("committing")
                most = most_together(len(self._config.features), len(batch.message.value))
                self._ending.give(batch, most)
        return found

    def step_at(self) -> tuple[int, int]:
        """Batches of the next step that are in memory, and all that it takes: public numbers."""
        return self._learner.taken, self._learner.step_batches

    def _more_to_finish(self) -> bool:
        """Tell whether batches are ready, after a moment for more of them while they are read."""
        return self._ending.more_waiting(RIDE_SECONDS)

    def _finish(self, batches: list[FinishedBatch]) -> None:
        visible = self._finisher.finish(batches)
        self._committed = batches[-1].positions
        self._metrics.progress.committed()
        # Rounded, because the metric also shows the sum of these.
        self._metrics.commit_seconds.observe(round(self._finisher.commit_seconds, 2))
        for released in visible:
            self._note_published(released.message)
            self._metrics.batches.inc()
            nothing = learned_nothing(released.status)
            self.fruitless = self.fruitless + 1 if nothing else 0
            self._metrics.fruitless_run.set(self.fruitless)
            if nothing:
                self._metrics.fruitless.inc()
            if released.drift:
                self._metrics.changed.set(int(time.time()))
            log_event(
                "released",
                level="warning" if nothing else "info",
                batch=released.number,
                status=released.status,
                reason=released.reason,
                drift=released.drift,
            )

    def _note_published(self, message: Message) -> None:
        self.current = message
        self._metrics.note_release(message.value)

    def settle(self, timeout_s: float | None = None) -> None:
        """Wait until all full batches are published; raise the error if that failed."""
        self._ending.wait(timeout_s)

    def _publish_again(self) -> None:
        """Publish the last releases again: their owner may have died before publishing them.

        The last one is published in any case, the ones before it only if they are not seen on the
        output topic, so that an older release does not follow a newer one.
        """
        messages = self._learner.unpublished
        if messages:
            hidden = max(self._learner.n_batches - self._visible, 1)
            messages = messages[-hidden:]
            self._store.publish(messages, self._committed)
            self._note_published(messages[-1])
            batch = self._learner.n_batches
            log_event("published_again", batch=batch, releases=len(messages))

    def close(self) -> None:
        """Close everything. All that is in memory is lost, as it must be."""
        with suppress(Exception):  # a batch that is being committed gets a moment; then it is lost
            self.settle(CLOSE_SECONDS)
        self._ending.close()
        self._opened.close()

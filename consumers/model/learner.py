"""The end of the road of a record, the same for topics and files: learn, commit, publish.

    rows of a batch ─> Learner.learn ─> FinishedBatch ─> finish_batch: durable, then visible

`finish_batch` is the one place that says in which order a result is stored and published.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dppca.engine import Engine, EngineBatches
from stream_dppca.statistics import Rows

from .. import crashpoints
from ..errors import StateRefused
from ..protocols import FinishedBatch, Message, Positions, Store
from .releases import make_release, release_message
from .states import (
    VERSION,
    ModelIdentity,
    StateRecord,
    StoredMessage,
    UsedInput,
    check_history,
    check_state,
    encode_state,
    make_estimator,
    restore_estimator,
)

__all__ = ["Learner", "finish_batch"]


class Learner:
    """Owns the estimator of a task, and turns the rows of a batch into a finished batch.

    Parameters
    ----------
    identity
        Whose state it is.
    parameters
        Of `DPPCA`.
    history
        The newest states, oldest first: the learner resumes after the last one. States that do
        not fit, or that do not follow each other, are refused.
    """

    def __init__(
        self,
        identity: ModelIdentity,
        parameters: Mapping[str, Any],
        history: Sequence[StateRecord] = (),
    ) -> None:
        self._identity = identity
        for record in history:
            check_state(record, identity)
        check_history(history)
        self.positions: Positions = {}  #: after the last batch
        self.current: Message | None = None  #: the release of the last batch
        if not history:
            self._estimator = make_estimator(parameters)
            return
        last = history[-1]
        self._estimator = restore_estimator(last.estimator, parameters)
        if self._estimator.n_batches != last.batch:
            raise StateRefused(f"the state of batch {last.batch} holds another batch's estimator")
        self.positions = last.next_positions()
        self.current = last.release.message()

    @property
    def batch_size(self) -> int:
        return self._estimator.batch_size

    @property
    def n_batches(self) -> int:
        return self._estimator.n_batches

    @property
    def pairs(self) -> bool:
        """Whether neighbouring slots make one unit."""
        return self._estimator.reading.pairs

    def batches(self, engine: Engine, tasks: int) -> EngineBatches:
        """Makes batches of this model on an engine."""
        return EngineBatches(engine, self._estimator, tasks)

    def learn(
        self,
        rows: NDArray[np.floating[Any]] | Rows,
        positions: Positions,
        inputs: Sequence[UsedInput] = (),
    ) -> FinishedBatch:
        """Learn from the rows of one batch.

        Parameters
        ----------
        rows
            One row per slot; a row with NaN is a null. Or what answers questions about them.
        positions
            Where to resume after this batch.
        inputs
            For files: the rows that are used up after this batch.
        """
        estimator, identity = self._estimator, self._identity
        if not isinstance(rows, np.ndarray):
            estimator.learn_rows(rows)
        elif len(rows) == self.batch_size:
            estimator.learn_array(rows)
        else:
            raise ValueError(f"`rows` must have length {self.batch_size}. Found {len(rows)}.")
        crashpoints.reach("batch_full")
        release = estimator.last_release
        if release is None:
            raise RuntimeError("a full batch has no release")
        published = make_release(
            release, model=identity.model, task=identity.task, shards=identity.shards,
            features=[str(name) for name in estimator.features],
            warm_up_left=estimator.warm_up_left,
        )  # fmt: skip
        message = release_message(published)
        state = StateRecord(
            version=VERSION,
            model=identity.model,
            task=identity.task,
            shards=identity.shards,
            input=identity.input,
            batch=release.batch,
            writer=uuid.uuid4().hex,
            positions={str(p): offset for p, offset in sorted(positions.items())},
            estimator=estimator.state(),
            release=StoredMessage.of(message),
            slots=identity.slots,
            unit=identity.unit,
            inputs=tuple(inputs),
        )
        return FinishedBatch(
            number=release.batch,
            state=encode_state(state),
            message=message,
            positions=dict(positions),
            status=release.status,
            reason=release.reason,
            drift=release.drift,
        )


def finish_batch(store: Store, batch: FinishedBatch) -> float:
    """Durable, then visible: commit a batch, and only then publish its release.

    If the process dies before the commit, nobody has seen the result, and the batch is computed
    afresh. If it dies after the commit, the successor finds the release in the state and publishes
    the same bytes. So no two different releases of the same records can ever be seen.

    Returns the seconds that the commit took.
    """
    crashpoints.reach("before_transaction")
    started = time.monotonic()
    store.commit([batch])
    seconds = time.monotonic() - started
    crashpoints.reach("after_commit")
    store.publish([batch.message], batch.positions)
    crashpoints.reach("after_publish")
    return seconds

"""Learning, the same for topics and files.

rows of a batch ─> Learner.learn ─> FinishedBatch ─> Finisher: durable, then visible
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dppca import DPPCA, Release
from stream_dppca.engine import Engine, EngineBatches
from stream_dppca.statistics import Rows

from .. import crashpoints
from ..errors import StateRefused
from ..messages.codecs import Subject
from ..protocols import FinishedBatch, Message, Positions
from ..settings import EstimatorRecipe
from . import states
from .releases import PublishedRelease, release_message
from .states import ModelIdentity, StateRecord, UsedInput


class Learner:
    """Owns the estimator of a task, and turns the rows of a batch into a finished batch.

    Parameters
    ----------
    identity
        The model to which the state belongs.
    recipe
        The estimator.
    history
        The newest states, oldest first: the learner resumes after the last one. States that do
        not fit, or that do not follow each other, are refused.
    """

    def __init__(
        self, identity: ModelIdentity, recipe: EstimatorRecipe, history: Sequence[StateRecord] = ()
    ) -> None:
        self._identity = identity
        for record in history:
            states.check_state(record, identity)
        states.check_history(history)
        self.positions: Positions = {}  #: after the last batch
        self.taken = 0  #: batches of the next step that are in memory
        self.last_round: int | None = None  #: with privacy per subject
        self.writer = ""  #: of the state that it resumed after; empty if there was none
        #: Releases of the state that may not be visible yet: that of the last batch, after those of
        #: the batches that became durable with it.
        self.unpublished: list[Message] = []
        if not history:
            self._estimator = states.make_estimator(recipe)
            return
        last = history[-1]
        self._estimator = states.restore_estimator(last.estimator, last.release.value, recipe)
        if self._estimator.n_batches != last.batch:
            raise StateRefused(f"the state of batch {last.batch} holds another batch's estimator")
        self.positions = last.next_positions()
        self.last_round = last.last_round
        self.writer = last.writer
        self.unpublished = last.messages()

    @property
    def capacity(self) -> int:
        """Records of a batch, or subjects that a round has places for."""
        return self._estimator.capacity

    @property
    def n_batches(self) -> int:
        return self._estimator.n_batches

    @property
    def step_batches(self) -> int:
        """Batches that the next step takes at once."""
        return self._estimator.step_batches

    def batches(self, engine: Engine, tasks: int) -> EngineBatches:
        """Makes batches of this model on an engine."""
        return EngineBatches(engine, self._adaptive, tasks)

    @property
    def _adaptive(self) -> DPPCA:
        """The estimator, where only `DPPCA` will do: the settings have refused others."""
        if not isinstance(self._estimator, DPPCA):
            raise TypeError("the paper's algorithm knows neither engines nor rounds")
        return self._estimator

    def learn(
        self,
        rows: NDArray[np.floating[Any]] | Rows,
        positions: Positions,
        inputs: Sequence[UsedInput] = (),
    ) -> FinishedBatch | None:
        """Learn from the rows of one batch; None while the first step needs more of them.

        Until then nothing is stored: a successor reads these batches again.

        Parameters
        ----------
        rows
            One row per slot; a row with NaN is a null. Or an object that answers queries on rows.
        positions
            Offsets to resume from after this batch.
        inputs
            For files: the rows that are used up after this batch.
        """
        estimator, before = self._estimator, self._estimator.n_batches
        if not isinstance(rows, np.ndarray):
            self._adaptive.learn_rows(rows)
        elif len(rows) == self.capacity:
            estimator.learn_array(rows)
        else:
            raise ValueError(f"`rows` must have length {self.capacity}. Found {len(rows)}.")
        if estimator.n_batches == before:
            self.taken += 1
            crashpoints.reach("batch_taken")
            return None
        self.taken = 0
        crashpoints.reach("batch_full")
        release = estimator.last_release
        if release is None:
            raise RuntimeError("a full step has no release")
        return self._finished(release, positions, inputs)

    def add(self, rows: NDArray[np.floating[Any]], subjects: Sequence[Subject]) -> None:
        """Add rows to the current round, with the subject of each. They are in memory only."""
        self._adaptive.learn_array(rows, subjects=subjects)

    def close_round(
        self, number: int, positions: Positions, inputs: Sequence[UsedInput] = ()
    ) -> FinishedBatch:
        """Learn from all that was added to a round, which may be nothing.

        The time of the release is the end of the round, because the time when the release was made
        may depend on the number of records.
        """
        release = self._adaptive.close_round()
        crashpoints.reach("batch_full")
        self.last_round = number
        return self._finished(release, positions, inputs)

    def _finished(
        self, release: Release, positions: Positions, inputs: Sequence[UsedInput]
    ) -> FinishedBatch:
        """Everything that is kept of the batch of this release."""
        identity = self._identity
        message = release_message(
            PublishedRelease.of(release, identity.model, identity.rounds, self.last_round)
        )
        estimator = self._estimator.state()
        del estimator["release"]  # the message is it
        state = StateRecord(
            version=states.VERSION,
            identity=identity,
            batch=release.batch,
            writer=uuid.uuid4().hex,
            parent="",  # known when it is committed
            positions={str(p): offset for p, offset in sorted(positions.items())},
            estimator=estimator,
            release=states.StoredMessage.of(message),
            inputs=tuple(inputs),
            last_round=self.last_round,
        )
        return FinishedBatch(
            number=release.batch,
            writer=state.writer,
            state=partial(states.encode_state, state),
            message=message,
            positions=dict(positions),
            status=release.status,
            reason=release.reason,
            drift=release.drift,
        )

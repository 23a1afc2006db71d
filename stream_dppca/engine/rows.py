"""A batch on an engine: the implementation of `statistics.Rows` whose records lie elsewhere.

Every question is a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..arrays import FloatArray
from ..statistics import Statistic
from .groups import Group, split
from .partials import Partial, Present, answer, merged
from .protocol import Engine, EngineError, Source

if TYPE_CHECKING:
    from ..estimator import DPPCA

Ask = Callable[[Statistic], Sequence[Partial]]


class EngineRows:
    """One batch, seen through the partial answers of tasks.

    Parameters
    ----------
    ask
        Runs a job: gives the question to all tasks, and returns their answers in the order of the
        plan.
    slots
        Records in the batch: a public number.
    """

    def __init__(self, ask: Ask, slots: int) -> None:
        self._ask, self._slots = ask, slots

    def __len__(self) -> int:
        return self._slots

    def present(self) -> int:
        """Number of units that are not nulls."""
        return round(float(self.total(Present())[0]))

    def total(self, statistic: Statistic) -> FloatArray:
        """Sum of a statistic over all units: ask all tasks, and add their answers."""
        found = merged(self._ask(statistic))
        if found.slots > self._slots:
            raise EngineError(f"a batch of {self._slots} slots had {found.slots} records")
        if len(found.kernels) > 1:
            raise EngineError(
                "the processes of the engine do not round in the same way, so counts would depend "
                "on where a task runs. Give all of them the same processor, the same numpy and the "
                "same number of threads, or set OPENBLAS_CORETYPE for all of them."
            )
        return found.total


class EngineBatches:
    """Makes batches of one model on one engine.

    Parameters
    ----------
    engine
        Runs the tasks.
    model
        The estimator: its batch size, features and reading are those of the batches.
    tasks
        Approximate number of groups of a batch: the number of cores of the engine, or a small
        multiple of it.
    """

    def __init__(self, engine: Engine, model: DPPCA, tasks: int) -> None:
        self._engine, self._reading, self._slots = engine, model.reading, model.capacity
        self._features = len(model.features)
        self.split(tasks)

    def split(self, tasks: int) -> None:
        """Split the next batches into about this number of groups, which must be public."""
        self.groups: tuple[Group, ...] = split(self._slots, self._features, tasks)

    def rows(self, source: Source) -> EngineRows:
        """The batch whose records are read from this source."""

        def ask(question: Statistic) -> Sequence[Partial]:
            task = partial(answer, question, source, self._reading)
            return self._engine.map(task, self.groups)

        return EngineRows(ask, self._slots)

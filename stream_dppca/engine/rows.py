"""A batch on an engine: the implementation of `statistics.Rows` whose records lie elsewhere.

Every question is a job. `total` takes one job. A form takes one for all counts of the search for
the range; the same job returns the clipped sums for the radius that was released last and for its
neighbours on the public grid, so a second job is needed only if the radius moves further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ..arrays import FloatArray
from ..batch import Reading
from ..statistics import Form, Statistic
from .groups import Group, split
from .protocol import Engine, EngineError, Source
from .questions import GRID, Partial, Present, Question, Ranges, Total, answer, merged

if TYPE_CHECKING:
    from ..estimator import DPPCA

__all__ = ["EngineBatches", "EngineRows", "LastRadii"]

_PLACE: Final = {r: i for i, r in enumerate(GRID)}
#: A clipped sum of more numbers than this is computed at one radius only, not at its neighbours.
LARGE_SUM: Final = 2**17

Ask = Callable[[Question], Sequence[Partial]]


class LastRadii:
    """Remembers the radius that was used last for each kind of form.

    Such a radius is released, or follows from released counts.
    """

    def __init__(self) -> None:
        self._last: dict[type, tuple[float, int]] = {}

    def note(self, form: Form, used: float, size: int) -> None:
        """Note the radius of a clipped sum, and the number of values in the sum."""
        self._last[type(form)] = used, size

    def guess(self, form: Form) -> tuple[float, ...]:
        """Radii that the next batch may ask for, the likeliest first."""
        if type(form) not in self._last:
            return ()
        last, size = self._last[type(form)]
        place = _PLACE.get(last)
        if place is None or size > LARGE_SUM:
            return (last,)
        return (last, *GRID[max(place - 1, 0) : place], *GRID[place + 1 : place + 2])


class EngineRows:
    """One batch, seen through the partial answers of tasks.

    Parameters
    ----------
    ask
        Runs a job: gives the question to all tasks, and returns their answers in the order of the
        plan.
    slots
        Records in the batch: a public number.
    reading
        The rule by which records become units; that of the estimator.
    radii
        Radii of earlier batches.
    """

    def __init__(
        self, ask: Ask, slots: int, reading: Reading, radii: LastRadii | None = None
    ) -> None:
        self._ask, self._slots, self.reading = ask, slots, reading
        self._radii = LastRadii() if radii is None else radii
        self.jobs = 0  #: number of jobs that have run

    def __len__(self) -> int:
        return self._slots

    def total(self, statistic: Statistic) -> FloatArray:
        """Sum of a statistic over all units."""
        return self.run(Total(statistic)).sums[0]

    def ranged(self, form: Form) -> EngineRanged:
        """Counts and clipped sums of a form."""
        return EngineRanged(self, form, self._radii)

    def present(self) -> int:
        """Number of units that are not nulls."""
        return round(float(self.total(Present())[0]))

    def run(self, question: Question) -> Partial:
        """Ask all tasks, and add their answers."""
        self.jobs += 1
        found = merged(self._ask(question))
        if found.slots > self._slots:
            raise EngineError(f"a batch of {self._slots} slots had {found.slots} records")
        if len(found.kernels) > 1:
            raise EngineError(
                "the processes of the engine do not round in the same way, so counts would depend "
                "on where a task runs. Give all of them the same processor, the same numpy and the "
                "same number of threads, or set OPENBLAS_CORETYPE for all of them."
            )
        return found


class EngineRanged:
    """A form over a batch on an engine. Answers that came with others are kept."""

    def __init__(self, rows: EngineRows, form: Form, radii: LastRadii) -> None:
        self._rows, self._form, self._radii = rows, form, radii
        self._counts: dict[float, int] = {}
        self._sums: dict[float, FloatArray] = {}

    def beyond(self, radius: float) -> int:
        """Number of units longer than `radius`."""
        if radius not in self._counts:
            if radius in _PLACE:
                self._job(None, self._radii.guess(self._form))
            else:
                self._job((radius,), ())
        return self._counts[radius]

    def clipped_sum(self, radius: float) -> FloatArray:
        """Sum over all units of terms clipped to `radius`."""
        if radius not in self._sums:
            self._job((), (radius,))
        found = self._sums[radius]
        self._radii.note(self._form, radius, found.size)
        return found.copy()

    def _job(self, counted: tuple[float, ...] | None, radii: tuple[float, ...]) -> None:
        """Run one job; None counts at all radii of the public grid."""
        found = self._rows.run(Ranges(self._form, counted, radii))
        grid = GRID if counted is None else counted
        self._counts |= dict(zip(grid, found.counts.tolist(), strict=True))
        self._sums |= dict(zip(radii, found.sums, strict=True))


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
        self._radii = LastRadii()
        self.split(tasks)

    def split(self, tasks: int) -> None:
        """Split the next batches into about this number of groups, which must be public."""
        self.groups: tuple[Group, ...] = split(self._slots, self._features, tasks)

    def rows(self, source: Source) -> EngineRows:
        """The batch whose records are read from this source."""

        def ask(question: Question) -> Sequence[Partial]:
            task = partial(answer, question, source, self._reading)
            return self._engine.map(task, self.groups)

        return EngineRows(ask, self._slots, self._reading, self._radii)

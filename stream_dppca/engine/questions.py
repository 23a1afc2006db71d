"""Questions that travel to the tasks, and the partial answers that come back.

A question is a frozen dataclass of public parameters: a statistic or a form, and radii. Its answer
on a group is a `Partial`; partials of all groups are added. They are as secret as records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import FloatArray, IntArray, aligned
from ..batch import Batch, Reading
from ..mechanisms.radius import FIRST, LAST, radius
from ..statistics import Block, Form, Statistic
from ..sums import pairwise
from .groups import Group
from .kernels import fingerprint
from .protocol import EngineError, Source, SourceAway

__all__ = [
    "GRID",
    "Partial",
    "Present",
    "Question",
    "Ranges",
    "Total",
    "answer",
    "merged",
    "partial_of",
]


#: The radii of the search for the range: public.
GRID: Final = tuple(radius(j) for j in range(FIRST, LAST + 1))


@dataclass(frozen=True, repr=False)  # it holds exact sums
class Partial:
    """The answer of one group, or of several."""

    sums: tuple[FloatArray, ...]
    counts: IntArray  #: units beyond each radius of a grid; empty if there is no grid
    slots: int  #: records that were read, nulls included: a public number
    kernels: frozenset[str]  #: fingerprints of the arithmetic


class Question(Protocol):
    """A question about the units of a batch."""

    @property
    def columns(self) -> int:
        """Columns of the matrix that rows are multiplied with; 1 if there is none."""
        ...

    def ask(self, batch: Batch) -> tuple[tuple[FloatArray, ...], IntArray]:
        """Sums, and counts beyond radii."""
        ...


@dataclass(frozen=True)
class Total:
    """The sum of a statistic."""

    statistic: Statistic

    @property
    def columns(self) -> int:
        return int(getattr(self.statistic, "multiplied", 1))

    def ask(self, batch: Batch) -> tuple[tuple[FloatArray, ...], IntArray]:
        return (batch.total(self.statistic),), np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Ranges:
    """The number of units beyond each radius of a grid, and clipped sums, for one form."""

    form: Form
    counted: tuple[float, ...] | None  #: radii to count at, which rise; None for `GRID`
    radii: tuple[float, ...]  #: radii to clip to

    @property
    def columns(self) -> int:
        W = getattr(self.form, "W", None)
        return 1 if W is None else int(W.shape[1])

    def ask(self, batch: Batch) -> tuple[tuple[FloatArray, ...], IntArray]:
        answers = batch.ranged(self.form)
        sums = tuple(answers.clipped_sum(radius) for radius in self.radii)
        return sums, answers.beyond_each(GRID if self.counted is None else self.counted)


@dataclass(frozen=True)
class Present:
    """Statistic: the number of units that are not nulls."""

    long_blocks = False

    def __call__(self, block: Block) -> FloatArray:
        return np.array([float(np.count_nonzero(~block.null))])


def answer(question: Question, source: Source, reading: Reading, group: Group) -> Partial:
    """Run a task: read the rows of a group, and answer a question about them.

    Whatever goes wrong, the error names the group and the kind of error, and nothing that was
    read.
    """
    try:
        with np.errstate(all="ignore"):  # a warning would say something about the records
            rows = source.read(group)
            if rows.ndim != 2 or len(rows) != group.slots or rows.dtype.kind != "f":
                raise EngineError(f"a source must give {group.slots} rows of floats")
            return partial_of(question, _aligned(rows), reading)
    except SourceAway:
        raise
    except EngineError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__} in a task"
    raise EngineError(f"slots {group.start} to {group.stop}: {problem}") from None


def partial_of(
    question: Question, rows: NDArray[np.floating[Any]], reading: Reading, placed: bool = True
) -> Partial:
    """The answer for these rows; see `Batch` for `placed`."""
    sums, counts = question.ask(Batch(rows, reading, placed=placed))
    kernels = fingerprint(rows.shape[1], question.columns)
    return Partial(sums, counts, len(rows), frozenset((kernels,)))


def _aligned(rows: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Rows in memory whose alignment is public; float32 is copied block by block later on."""
    if rows.dtype != np.float64 or (rows.flags.c_contiguous and rows.ctypes.data % 64 == 0):
        return rows
    copy = aligned(*rows.shape)
    copy[:] = rows
    return copy


def merged(partials: Iterable[Partial]) -> Partial:
    """The answer for all groups together, added in pairs; the memory of the sums is overwritten."""
    return pairwise(partials, _added)


def _added(one: Partial, other: Partial) -> Partial:
    sums = tuple(np.add(a, b, out=a) for a, b in zip(one.sums, other.sums, strict=True))
    return Partial(
        sums, one.counts + other.counts, one.slots + other.slots, one.kernels | other.kernels
    )

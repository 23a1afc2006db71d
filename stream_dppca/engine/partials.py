"""A question that travels to the tasks, and the partial answers that come back.

A question is a statistic: a frozen dataclass of public parameters. Its answer on a group is a
`Partial`; partials of all groups are added. They are as secret as records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import FloatArray, aligned
from ..batch import Batch, Reading
from ..statistics import Block, Statistic
from ..sums import pairwise
from .groups import Group
from .kernels import fingerprint
from .protocol import EngineError, Source, SourceAway


@dataclass(frozen=True, repr=False)  # it holds an exact sum
class Partial:
    """The answer of one group, or of several."""

    total: FloatArray
    slots: int  #: records that were read, nulls included: a public number
    kernels: frozenset[str]  #: fingerprints of the arithmetic


@dataclass(frozen=True)
class Present:
    """Statistic: the number of units that are not nulls."""

    def __call__(self, block: Block) -> FloatArray:
        return np.array([float(np.count_nonzero(~block.null))])


def answer(question: Statistic, source: Source, reading: Reading, group: Group) -> Partial:
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
    question: Statistic, rows: NDArray[np.floating[Any]], reading: Reading, placed: bool = True
) -> Partial:
    """The answer for these rows; see `Batch` for `placed`."""
    total = Batch(rows, reading, placed=placed).total(question)
    kernels = fingerprint(rows.shape[1], multiplied(question))
    return Partial(total, len(rows), frozenset((kernels,)))


def multiplied(question: Statistic) -> int:
    """Columns of the matrix that rows are multiplied with; 1 if there is none."""
    return int(getattr(question, "multiplied", 1))


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
    total = np.add(one.total, other.total, out=one.total)
    return Partial(total, one.slots + other.slots, one.kernels | other.kernels)

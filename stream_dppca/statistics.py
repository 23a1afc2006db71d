"""Questions that a mechanism may ask about a batch, without seeing its records.

A mechanism never holds the records of a batch. It holds `Rows`, and asks them for `total`: the sum
over the units of a bounded function with public parameters (a `Statistic`).

Statistics are frozen dataclasses of public parameters, defined in modules, so that they can be
pickled. They are pure functions that turn a `Block` of rows into a partial sum; partial sums are
added. A batch in memory (`batch.Batch`) and a batch spread over other machines run the same code on
their blocks.

Sensitivities belong to the statistic, not to the rows: they follow from the bound of a term.

A *unit* is a record, or a pair of records of which each is in one pair only: replacing one record
replaces one unit. Or it is a subject with up to a few rows (`Bundle`), whose term is the mean over
its rows, and clipped after that: replacing everything that one subject sends replaces one unit.

An implementation of `Rows` must guarantee:

- **Each unit is counted once**, in one block. The units of a block, and their places in it, follow
  from public numbers (slots, batch size, number of features).
- **Nulls.** Whether a unit is a null depends on that unit alone. A null adds zero to every sum, and
  keeps its place: `len` counts places, never valid units.
- **The same bits.** The length of a unit does not depend on any other unit, not even in its last
  digit. Matrix products may round a row according to its position in a block and to the shape and
  alignment of the block, so these are public, too; where they cannot be, as with subjects, use
  arithmetic that does not depend on positions (`rowwise`, `vecdot`).
- **Partial sums are as secret as records.** They may be added in any order, with few roundings:
  blocks have at most `sums.LARGEST_BLOCK` rows, and their sums are added in pairs. The
  sensitivities include the rounding of any such sum.
- **The same work** with and without nulls, as far as it can be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from . import rowwise
from .arrays import BoolArray, FloatArray
from .sums import pairwise_sum

#: Size of numpy's buffer, in numbers. Inner loops over at least this many read their operands in
#: place, which is twice as fast.
BUFFER = 1024


def vecdots(rows: FloatArray, W: FloatArray) -> FloatArray:
    """The products of rows with W, one row at a time: the place does not change their rounding."""
    return np.asarray(np.vecdot(rows[:, np.newaxis], np.ascontiguousarray(W.T)))


@dataclass(frozen=True, repr=False)  # it holds records
class Block:
    """Rows of some units, one row per unit. Rows of nulls hold anything: NaN, infinity, 1e300."""

    X: FloatArray  #: read only: it may be the caller's memory
    null: BoolArray
    scratch: FloatArray  #: two arrays of the shape of X, to be overwritten
    placed: bool = True  #: the place of a unit in the block is public
    partial: bool = False  #: rows that are no nulls may hold values that are not finite

    def along(self, W: FloatArray, rows: FloatArray) -> FloatArray:
        """The products of rows with W; row by row if places, which may affect rounding, are secret.

        Parameters
        ----------
        rows
            Rows made of those of the block, row by row.
        """
        return np.asarray(rows @ W) if self.placed else vecdots(rows, W)

    # A unit is one row here, and up to a few in a `Bundle`.

    @property
    def each(self) -> int:
        """Rows per unit."""
        return 1

    @property
    def null_units(self) -> BoolArray:
        return self.null

    def means(self, values: FloatArray) -> FloatArray:
        """The mean over each unit's rows of numbers that were computed row by row."""
        return values

    def sq_lengths(self, values: FloatArray) -> FloatArray:
        """The squared length of numbers per unit."""
        return np.asarray(np.vecdot(values, values))

    def moment_norms(self, rows: FloatArray) -> FloatArray:
        """The Frobenius norm of the mean of x x^T over each unit's rows, made of the block's."""
        return self.sq_lengths(rows)

    def row_weights(self, weights: FloatArray) -> FloatArray:
        """One weight per row with sum (w x)(w x)^T = weight^2 times the mean of x x^T."""
        return weights


@dataclass(frozen=True, repr=False)  # it holds records
class Bundle(Block):
    """Units of `rows_each` rows, unit after unit, none of them a null.

    Their places are not public, so every number of a unit is computed by `rowwise`.
    """

    rows_each: int = 1

    @classmethod
    def of(cls, X: FloatArray, each: int, partial: bool = False) -> Bundle:
        """A bundle of these rows."""
        null, scratch = np.zeros(len(X), dtype=np.bool_), np.empty((2, *X.shape))
        return cls(X, null, scratch, placed=False, partial=partial, rows_each=each)

    @property
    def each(self) -> int:
        return self.rows_each

    @property
    def null_units(self) -> BoolArray:
        return self.null[:: self.each]

    def along(self, W: FloatArray, rows: FloatArray) -> FloatArray:
        columns = np.ascontiguousarray(rows.T)
        return np.stack([rowwise.dots(columns, w[:, np.newaxis]) for w in W.T], axis=1)

    def means(self, values: FloatArray) -> FloatArray:
        return rowwise.means(values, self.each)

    def sq_lengths(self, values: FloatArray) -> FloatArray:
        return rowwise.sq_norms(values)

    def moment_norms(self, rows: FloatArray) -> FloatArray:
        return rowwise.moment_norms(rows, self.each)

    def row_weights(self, weights: FloatArray) -> FloatArray:
        return np.repeat(weights / np.sqrt(self.each), self.each)


class Statistic(Protocol):
    """A bounded function of a unit, summed over units."""

    def __call__(self, block: Block) -> FloatArray:
        """The sum over the units of a block. Its shape depends on public parameters only.

        A statistic with large sums also has `over`, the sum over the units of several blocks with
        at most `sums.LARGEST_BLOCK` rows of units of one size, so that few sums are added up.
        """
        ...


class Rows(Protocol):
    """One batch, used only through sums over its units. The module lists its guarantees."""

    def __len__(self) -> int:
        """Places for units: a public number, by which sums are divided."""
        ...

    def present(self) -> int:
        """Number of units that are not nulls: as secret as a sum. One unit changes it by 1."""
        ...

    def total(self, statistic: Statistic) -> FloatArray:
        """Sum of a statistic over all units."""
        ...


@dataclass(frozen=True, repr=False)
class JoinedRows(Rows):
    """Several batches, seen as one."""

    parts: tuple[Rows, ...]

    @classmethod
    def of(cls, parts: Sequence[Rows]) -> Rows:
        """The batches as one; a single one as it is."""
        return parts[0] if len(parts) == 1 else cls(tuple(parts))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def present(self) -> int:
        return sum(part.present() for part in self.parts)

    def total(self, statistic: Statistic) -> FloatArray:
        """Sum of a statistic over all units of all batches."""
        return pairwise_sum(part.total(statistic) for part in self.parts)

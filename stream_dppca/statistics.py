"""Questions that a mechanism may ask about a batch, without seeing its records.

A mechanism never holds the records of a batch. It holds `Rows`, and asks them two kinds of
questions:

- `total`: the sum over the units of a bounded function with public parameters (a `Statistic`);
- `ranged`: for functions that have a length (a `Form`), the number of units beyond a radius, and
  the sum of all terms clipped to a radius. The radius of the sum depends on the released counts, so
  the questions come one after the other.

Statistics and forms are frozen dataclasses of public parameters, defined in modules, so that they
can be pickled. Their functions are pure and turn a `Block` of rows into a partial sum; partial sums
are added. A batch in memory (`batch.Batch`) and a batch spread over other machines run the same
code on their blocks.

Sensitivities belong to the statistic, not to the rows: they follow from the bound of a term.

A *unit* is a record, or a pair of records of which each is in one pair only: replacing one record
replaces one unit. Or it is a subject with up to a few rows (`Bundle`), whose term is the mean over
its rows, and clipped after that: replacing everything that one subject sends replaces one unit.

An implementation of `Rows` must guarantee:

- **Each unit is counted once**, in one block. The units of a block, and their places in it, follow
  from public numbers (slots, batch size, number of features).
- **Nulls.** Whether a unit is a null depends on that unit alone. A null adds zero to every sum, is
  beyond no radius, and keeps its place: `len` counts places, never valid units.
- **The same bits.** The distance of a unit does not depend on any other unit, not even in its last
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

__all__ = [
    "Block",
    "Bundle",
    "Form",
    "JoinedRows",
    "Ranged",
    "Rows",
    "Statistic",
    "clip_factors",
    "vecdots",
]

#: Below the square of every radius that is used, and above zero.
_TINY = 1e-300


def vecdots(rows: FloatArray, W: FloatArray) -> FloatArray:
    """The products of rows with W, one row at a time: the place does not change their rounding."""
    return np.asarray(np.vecdot(rows[:, np.newaxis], np.ascontiguousarray(W.T)))


@dataclass(frozen=True, repr=False)  # it holds records
class Block:
    """Rows of some units, one row per unit. Rows of nulls hold anything: NaN, infinity, 1e300."""

    X: FloatArray  #: read only: it may be the caller's memory
    sq_norm: FloatArray  #: squared norms of the rows as computed, zero for nulls
    null: BoolArray
    scratch: FloatArray  #: of the shape of X, to be overwritten
    free: bool = False  #: there is no null among the units
    placed: bool = True  #: the place of a unit in the block is public
    partial: bool = False  #: rows that are no nulls may hold values that are not finite

    def clean(self) -> FloatArray:
        """The rows, with zeros for nulls: a copy in the scratch memory, unless the block is free.

        Nulls must not enter a product of matrices: zero times NaN is NaN.
        """
        if self.free:
            return self.X
        self.scratch[:] = self.X
        self.scratch[self.null] = 0.0
        return self.scratch

    def along(self, W: FloatArray, rows: FloatArray | None = None) -> FloatArray:
        """The products x_i^T W; row by row if places, which may affect the rounding, are secret.

        Parameters
        ----------
        rows
            Rows made of those of the block, row by row, to be used in their place.
        """
        X = self.X if rows is None else rows
        return np.asarray(X @ W) if self.placed else vecdots(X, W)

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

    Their places are not public, so every number of a unit is computed by `rowwise`. `sq_norm` is
    not used.
    """

    rows_each: int = 1

    @classmethod
    def of(cls, X: FloatArray, each: int, partial: bool = False) -> Bundle:
        """A bundle of these rows."""
        nothing, free = np.empty(0), np.zeros(len(X), dtype=np.bool_)
        memory = np.empty_like(X)
        return cls(
            X, nothing, free, memory, free=True, placed=False, partial=partial, rows_each=each
        )

    @property
    def each(self) -> int:
        return self.rows_each

    @property
    def null_units(self) -> BoolArray:
        return self.null[:: self.each]

    def along(self, W: FloatArray, rows: FloatArray | None = None) -> FloatArray:
        columns = np.ascontiguousarray((self.X if rows is None else rows).T)
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

    @property
    def long_blocks(self) -> bool:
        """True if adding up partial sums costs more time than short blocks, in the cache, save."""
        ...

    def __call__(self, block: Block) -> FloatArray:
        """The sum over the units of a block. Its shape depends on public parameters only."""
        ...


class Form(Protocol):
    """A function of a unit that has a length, summed over units after clipping."""

    def measure(self, block: Block) -> FloatArray:
        """Numbers of each unit that need its row: one row of them per unit, possibly empty.

        Rows of nulls are ignored.
        """
        ...

    def sq_length(self, sq_norm: FloatArray, measured: FloatArray) -> FloatArray:
        """Over-estimates of the squared length of each unit, from its norm and its numbers alone.

        Every unit is computed by itself, in arithmetic that does not depend on its place.
        """
        ...

    def clipped_sum(self, block: Block, measured: FloatArray, factors: FloatArray) -> FloatArray:
        """The sum over the units of a block, each times its clip factor."""
        ...

    def mean(self, total: FloatArray, radius: float, units: int) -> FloatArray:
        """The query that is released, from the sum of all `clipped_sum`."""
        ...

    def sensitivity(self, radius: float, units: int) -> float:
        """Sensitivity of that query to one unit, as computed, rounding included."""
        ...


def clip_factors(sq_length: FloatArray, null: BoolArray, radius: float) -> FloatArray:
    """s_i = min(1, radius/length), zero for nulls: a longer unit is cut to the length `radius`."""
    factors = np.minimum(1.0, radius / np.sqrt(np.maximum(sq_length, _TINY)))
    factors[null] = 0.0
    return np.asarray(factors)


class Ranged(Protocol):
    """Answers about one form over one batch."""

    def beyond(self, radius: float) -> int:
        """Number of units longer than `radius`. One unit changes it by at most 1."""
        ...

    def clipped_sum(self, radius: float) -> FloatArray:
        """Sum over all units of terms clipped to `radius`."""
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

    def ranged(self, form: Form) -> Ranged:
        """Counts and clipped sums of a form."""
        raise TypeError("only a single batch of records is asked for the range of a form")


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

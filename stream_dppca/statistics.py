"""Questions that a mechanism may ask about a batch, without seeing its records.

A mechanism never holds the records of a batch. It holds `Rows`, and asks them for two things:

- `total`: the sum over the units of a bounded function with public parameters (a `Statistic`);
- `ranged`: for functions that have a length (a `Form`), how many units lie beyond a radius, and the
  sum of all terms clipped to a radius. The radius of the sum depends on the released counts, so
  the questions come one after the other.

Statistics and forms are frozen dataclasses of public parameters, defined in modules, so that they
can be pickled. Their functions are pure and turn a `Block` of rows into a partial sum; partial sums
are added. A batch in memory (`batch.Batch`) and a batch spread over other machines run the same
code on their blocks.

Sensitivities belong to the statistic, not to the rows: they follow from how a term is bounded.

A *unit* is a record, or a pair of records of which each is in one pair only: replacing one record
replaces one unit.

What an implementation of `Rows` must guarantee:

- **Each unit is counted once**, in one block. Which units are in a block, and where, follows from
  public numbers (slots, batch size, number of features).
- **Nulls.** Whether a unit is a null depends on that unit alone. A null adds zero to every sum, is
  beyond no radius, and keeps its place: `len` counts places, never valid units.
- **The same bits.** The distance of a unit does not depend on any other unit, not even in its last
  digit. Matrix products may round a row by its position in a block and by the shape and alignment
  of the block, so these are public too; where they cannot be, use arithmetic row by row (`einsum`,
  `vecdot`).
- **Partial sums are as secret as records.** They are added in whatever order, with few roundings:
  blocks have at most `sums.LARGEST_BLOCK` units, and their sums are added in pairs. The
  sensitivities include the rounding of any such sum.
- **The same work** with and without nulls, as far as it can be measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .arrays import BoolArray, FloatArray

__all__ = ["Block", "Form", "Ranged", "Rows", "Statistic", "clip_factors"]

#: Below the square of every radius that is used, and above zero.
_TINY = 1e-300


@dataclass(frozen=True, repr=False)  # it holds records
class Block:
    """Rows of some units, one row per unit. Rows of nulls hold anything: NaN, infinity, 1e300."""

    X: FloatArray  #: read only: it may be the caller's memory
    sq_norm: FloatArray  #: squared norms of the rows as computed, zero for nulls
    null: BoolArray
    scratch: FloatArray  #: of the shape of X, to be overwritten
    free: bool = False  #: there is no null among the units
    placed: bool = True  #: where a unit stands in the block is public

    def clean(self) -> FloatArray:
        """The rows, with zeros for nulls: a copy in the scratch memory, unless the block is free.

        Nulls must not enter a product of matrices: zero times NaN is NaN.
        """
        if self.free:
            return self.X
        self.scratch[:] = self.X
        self.scratch[self.null] = 0.0
        return self.scratch

    def along(self, W: FloatArray) -> FloatArray:
        """The products x_i^T W; row by row where a place might round them by a secret."""
        if self.placed:
            return np.asarray(self.X @ W)
        return np.asarray(np.vecdot(self.X[:, np.newaxis], np.ascontiguousarray(W.T)))

    def weighed(self, weights: FloatArray) -> FloatArray:
        """The rows times one weight each, with zeros for nulls, in the scratch memory."""
        np.multiply(self.X, weights[:, np.newaxis], out=self.scratch)
        self.scratch[self.null] = 0.0
        return self.scratch


class Statistic(Protocol):
    """A bounded function of a unit, summed over units."""

    def __call__(self, block: Block) -> FloatArray:
        """The sum over the units of a block. Its shape depends on public parameters only."""
        ...


class Form(Protocol):
    """A function of a unit that has a length, summed over units after clipping."""

    @property
    def long_blocks(self) -> bool:
        """Whether adding up partial sums costs more than short blocks, in the cache, save."""
        ...

    def measure(self, block: Block) -> FloatArray:
        """Numbers of each unit for which its row is needed, a row of them per unit, maybe none.

        Rows of nulls are ignored.
        """
        ...

    def sq_length(self, sq_norm: FloatArray, measured: FloatArray) -> FloatArray:
        """Over-estimates of the squared length of each unit, from its norm and its numbers alone.

        Every unit by itself, in arithmetic that does not depend on where it stands.
        """
        ...

    def clipped_sum(self, block: Block, measured: FloatArray, factors: FloatArray) -> FloatArray:
        """The sum over the units of a block, each times its clip factor."""
        ...

    def mean(self, total: FloatArray, radius: float, units: int) -> FloatArray:
        """The query that is released, from the sum of all `clipped_sum`."""
        ...

    def sensitivity(self, radius: float, units: int) -> float:
        """How far one unit moves that query as computed, rounding included."""
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
    """One batch, seen only through sums over its units. The module says what it guarantees."""

    def __len__(self) -> int:
        """Places for units: a public number, by which sums are divided."""
        ...

    def total(self, statistic: Statistic) -> FloatArray:
        """Sum of a statistic over all units."""
        ...

    def ranged(self, form: Form) -> Ranged:
        """Counts and clipped sums of a form."""
        ...

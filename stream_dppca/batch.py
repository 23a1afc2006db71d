"""A batch in the memory of this process: the local implementation of `statistics.Rows`.

Rows are read in blocks that fit into the cache: converted, divided by the public scales, checked
for nulls. Nothing of the size of the batch is copied.

**Nulls and time.** A null may hold NaN, which must not enter a product of matrices, so blocks with
a null are copied before they are added up. That must not show in the time of a batch: a sixteenth
of all blocks is copied in any case, those with a null among them, and if there are more, an eighth,
a quarter, half or all. So one null changes neither the operations nor the memory they run on,
unless the number of blocks with a null passes one of these marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import BoolArray, FloatArray, IntArray, Workspace
from .statistics import Block, Form, Statistic, clip_factors
from .sums import LARGEST_BLOCK, pairwise_sum

__all__ = ["Batch", "Reading", "block_size"]

#: A warning of numpy would say something about the records.
_SILENT = np.errstate(all="ignore")


def block_size(features: int, long: bool = False) -> int:
    """Units per block: at most 1 MB of rows, a power of two between 16 and 4096.

    Long blocks have at least 1024 units. The size depends on public numbers alone, because products
    may round a row according to its position.

    Examples
    --------
    >>> block_size(10), block_size(100), block_size(1000), block_size(1000, long=True)
    (4096, 1024, 128, 1024)
    """
    power = (131_072 // features).bit_length() - 1
    return min(int(2 ** max(power, 10 if long else 4)), LARGEST_BLOCK)


@dataclass(frozen=True)
class Reading:
    """The public rule by which records become units.

    Parameters
    ----------
    max_norm
        A record of a larger norm (after scaling), or with anything that is not finite, is a null.
    scales
        Each feature is divided by its scale.
    partial
        If true, a record is a null only if none of its values is finite; values that are not finite
        are left to the statistics, and the norm is that of the others.
    """

    max_norm: float
    scales: tuple[float, ...] | None = None
    partial: bool = False

    def in_place(self, raw: NDArray[np.floating[Any]]) -> bool:
        """Tell whether the rows of units lie in the caller's memory."""
        plain = raw.dtype == np.float64 and raw.flags.c_contiguous
        return plain and self.scales is None

    def records(self, raw: NDArray[np.floating[Any]], out: FloatArray) -> FloatArray:
        """Float64 records, scaled; in `out` unless `raw` holds them already."""
        if self.scales is not None:
            np.divide(raw, np.array(self.scales), out=out)
        elif raw.dtype == np.float64 and raw.flags.c_contiguous:
            return np.asarray(raw, dtype=np.float64)
        else:
            out[:] = raw
        return out

    def norms(self, records: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Squared norms of records, zero for nulls, and a mask of the nulls."""
        if self.partial:
            finite = np.isfinite(records)
            there = np.where(finite, records, 0.0)
            sq_norm = np.vecdot(there, there)
            null = ~((sq_norm <= self.max_norm * self.max_norm) & finite.any(axis=1))
            sq_norm[null] = 0.0
            return sq_norm, null
        sq_norm = np.vecdot(records, records)
        null = ~(sq_norm <= self.max_norm * self.max_norm)  # true for NaN too
        sq_norm[null] = 0.0
        return sq_norm, null


class Batch:
    """A full batch of records that this process holds.

    Parameters
    ----------
    raw
        One record per row, float32 or float64. It is not written to, and must not change while the
        batch is in use.
    reading
        The rule by which records become units.
    workspace
        Memory for blocks, shared by batches that are used one after the other.
    placed
        False if the position of a record among the others is not public. The numbers of a unit are
        then computed in arithmetic that does not depend on its position.
    """

    def __init__(
        self,
        raw: NDArray[np.floating[Any]],
        reading: Reading,
        workspace: Workspace | None = None,
        placed: bool = True,
    ) -> None:
        self._raw = raw
        self._placed = placed
        self._reading = reading
        self._workspace = Workspace() if workspace is None else workspace
        # Norms and nulls of all units, once they have been read.
        self._sq_norm, self._null = np.empty(len(self)), np.empty(len(self), dtype=np.bool_)
        self._known = False

    def __len__(self) -> int:
        return len(self._raw)

    @_SILENT
    def present(self) -> int:
        """Number of units that are not nulls."""
        return sum(int(np.count_nonzero(~block.null)) for block in self._blocks())

    @_SILENT
    def total(self, statistic: Statistic) -> FloatArray:
        """Sum of a statistic over all units."""
        return pairwise_sum(statistic(block) for block in self._blocks(statistic.long_blocks))

    @_SILENT
    def ranged(self, form: Form) -> RangedBatch:
        """Counts and clipped sums of a form."""
        measured = np.concatenate([form.measure(block) for block in self._blocks()])
        measured[self._null] = 0.0
        sq_length = form.sq_length(self._sq_norm, measured)
        sq_length[self._null] = 0.0
        return RangedBatch(self, form, measured, sq_length)

    @_SILENT
    def matrix(self) -> tuple[FloatArray, BoolArray]:
        """A copy of all rows, with zeros for nulls, and a mask of the nulls.

        For the paper's algorithms, whose statistics are not sums over units.
        """
        parts = [(block.clean().copy(), block.null) for block in self._blocks()]
        rows, null = zip(*parts, strict=True)
        return np.concatenate(rows), np.concatenate(null)

    def _blocks(self, long: bool = False) -> Iterator[Block]:
        """All units in order. Blocks share their memory: each is gone when the next one is read."""
        size = min(block_size(self._raw.shape[1], long), len(self))
        memory = self._memory(size)
        for start in range(0, len(self), size):
            block = self._read(start, size, memory)
            if not self._known:
                block.sq_norm[:], block.null[:] = self._reading.norms(block.X)
            yield block
        self._known = True

    def _blocks_again(self) -> Iterator[tuple[slice, Block]]:
        """All units once more, in any order, and their places. Most blocks are free of nulls."""
        in_place = self._reading.in_place(self._raw)
        size = min(block_size(self._raw.shape[1], in_place), len(self))
        starts = np.arange(0, len(self), size)
        with_null = np.logical_or.reduceat(self._null, starts)
        order = np.argsort(~with_null, kind="stable")  # those with a null first
        copied = _padded(int(np.count_nonzero(with_null)), len(starts)) if in_place else len(starts)
        memory = self._memory(size)
        for start in starts[order[copied:]].tolist():
            yield slice(start, start + size), self._read(start, size, memory, free=True)
        for start in starts[order[:copied]].tolist():
            yield slice(start, start + size), self._read(start, size, memory)

    def _memory(self, size: int) -> tuple[FloatArray, FloatArray]:
        """Memory for the records and the scratch of a block of this many."""
        d, array = self._raw.shape[1], self._workspace.array
        return array(f"records of {size}", size, d), array(f"scratch of {size}", size, d)

    def _read(
        self, start: int, size: int, memory: tuple[FloatArray, FloatArray], free: bool = False
    ) -> Block:
        """The block of units from `start` on."""
        place = slice(start, min(start + size, len(self)))
        raw, (for_records, scratch) = self._raw[place], memory
        records = self._reading.records(raw, for_records[: len(raw)])
        norms = self._sq_norm[place], self._null[place]
        partial = self._reading.partial
        return Block(records, *norms, scratch[: len(raw)], free, self._placed, partial)


class RangedBatch:
    """A form over a batch. The measurement of each unit is kept."""

    def __init__(
        self, batch: Batch, form: Form, measured: FloatArray, sq_length: FloatArray
    ) -> None:
        self._batch, self._form, self._measured = batch, form, measured
        self._sq_length = sq_length

    def beyond(self, radius: float) -> int:
        """Number of units longer than `radius`."""
        return int(np.count_nonzero(self._sq_length > radius**2))

    def beyond_each(self, radii: Sequence[float]) -> IntArray:
        """Number of units longer than each of these radii, which rise: exactly as `beyond`."""
        squares = np.array([radius**2 for radius in radii])
        # NaN stands at the end, and is longer than nothing.
        comparable = len(self._sq_length) - int(np.count_nonzero(np.isnan(self._sq_length)))
        shorter = np.searchsorted(np.sort(self._sq_length)[:comparable], squares, side="right")
        return (comparable - shorter).astype(np.int64)

    @_SILENT
    def clipped_sum(self, radius: float) -> FloatArray:
        """Sum over all units of terms clipped to `radius`."""
        factors = clip_factors(self._sq_length, self._batch._null, radius)
        return pairwise_sum(
            self._form.clipped_sum(block, self._measured[place], factors[place])
            for place, block in self._batch._blocks_again()
        )


def _padded(blocks: int, of: int) -> int:
    """The number of blocks to copy if this many have a null.

    Examples
    --------
    >>> [_padded(n, 157) for n in (0, 1, 10, 11, 100, 157)]
    [10, 10, 10, 20, 157, 157]
    """
    marks = [-(-of // part) for part in (16, 8, 4, 2, 1)]
    return marks[int(np.searchsorted(marks, blocks))]

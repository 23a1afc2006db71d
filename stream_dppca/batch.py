"""A batch in the memory of this process: the local implementation of `statistics.Rows`.

Rows are read in blocks that fit into the cache: converted, divided by the public scales, checked
for nulls. Nothing of the size of the batch is copied.

**Nulls and time.** Statistics write what they compute of a record into scratch memory, and zeros
for a null, so one null changes neither the operations nor the memory they run on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import BoolArray, FloatArray, Workspace
from .statistics import BUFFER, Block, Statistic
from .sums import LARGEST_BLOCK, pairwise_sum

#: A warning of numpy would say something about the records.
_SILENT = np.errstate(all="ignore")


def block_size(features: int) -> int:
    """Units per block: at most 2 MB of rows, a power of two between 16 and 4096.

    The size depends on public numbers alone, because products may round a row according to its
    position.

    Examples
    --------
    >>> block_size(10), block_size(100), block_size(1000)
    (4096, 2048, 256)
    """
    power = (262_144 // features).bit_length() - 1
    return int(2 ** min(max(power, 4), 12))


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

    max_norm: float = 1e18
    scales: tuple[float, ...] | None = None
    partial: bool = False

    def records(self, raw: NDArray[np.floating[Any]], out: FloatArray) -> FloatArray:
        """Float64 records, scaled; in `out` unless `raw` holds them already."""
        if self.scales is not None:
            np.divide(raw, np.array(self.scales), out=out)
        elif raw.dtype == np.float64 and raw.flags.c_contiguous:
            return np.asarray(raw, dtype=np.float64)
        else:
            out[:] = raw
        return out

    def nulls(self, records: FloatArray) -> BoolArray:
        """A mask of the nulls, which depends on each record alone."""
        there = records
        if self.partial:
            finite = np.isfinite(records)
            there = np.where(finite, records, 0.0)
        good = np.vecdot(there, there) <= self.max_norm * self.max_norm  # false for NaN
        if self.partial:
            good &= finite.any(axis=1)
        return np.asarray(~good)


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
        self._null = np.empty(len(self), dtype=np.bool_)  # of all units, once they have been read
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
        np.setbufsize(BUFFER)  # until `_SILENT` ends
        return pairwise_sum(self._sums(statistic))

    def _sums(self, statistic: Statistic) -> Iterator[FloatArray]:
        """The sums over blocks, or over as many of them as may be added up in one go."""
        blocks, over = self._blocks(), getattr(statistic, "over", None)
        if over is None:
            yield from map(statistic, blocks)
            return
        several = LARGEST_BLOCK // block_size(self._raw.shape[1])
        for block in blocks:
            yield over(chain([block], islice(blocks, several - 1)))

    @_SILENT
    def matrix(self) -> tuple[FloatArray, BoolArray]:
        """A copy of all rows, with zeros for nulls, and a mask of the nulls.

        For the paper's algorithms, whose statistics are not sums over units.
        """
        rows = np.concatenate([block.X.copy() for block in self._blocks()])
        rows[self._null] = 0.0
        return rows, self._null.copy()

    def _blocks(self) -> Iterator[Block]:
        """All units in order. Blocks share their memory: each is gone when the next one is read."""
        size = min(block_size(self._raw.shape[1]), len(self))
        memory = self._memory(size)
        for start in range(0, len(self), size):
            block = self._read(start, size, memory)
            if not self._known:
                block.null[:] = self._reading.nulls(block.X)
            yield block
        self._known = True

    def _memory(self, size: int) -> tuple[FloatArray, FloatArray]:
        """Memory for the records and the scratch of a block of this many."""
        d, array = self._raw.shape[1], self._workspace.array
        return array(f"records of {size}", size, d), array(f"scratch of {size}", 2, size, d)

    def _read(self, start: int, size: int, memory: tuple[FloatArray, FloatArray]) -> Block:
        """The block of units from `start` on."""
        place = slice(start, min(start + size, len(self)))
        raw, (for_records, scratch) = self._raw[place], memory
        records = self._reading.records(raw, for_records[: len(raw)])
        null, partial = self._null[place], self._reading.partial
        return Block(records, null, scratch[:, : len(raw)], self._placed, partial)

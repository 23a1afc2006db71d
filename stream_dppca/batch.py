"""A batch in the memory of this process: the local implementation of `statistics.Rows`.

Rows are read in blocks that fit into the cache: converted, divided by the public scales, subtracted
in pairs, checked for nulls. Nothing of the size of the batch is copied, and a null changes neither
the operations nor the memory they run on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import BoolArray, FloatArray, aligned
from .statistics import Block, Form, Statistic

__all__ = ["Batch", "Reading", "block_size"]

_SQRT_HALF = 0.5**0.5
#: A warning of numpy would tell of the records.
_SILENT = np.errstate(all="ignore")


def block_size(features: int) -> int:
    """Units per block: at most 512 kB of rows, a power of two between 16 and 1024.

    It depends on the number of features alone, because products may round a row by its position.

    Examples
    --------
    >>> block_size(10), block_size(100), block_size(1000)
    (1024, 512, 64)
    """
    power = (65_536 // features).bit_length() - 1
    return int(2 ** min(max(power, 4), 10))


@dataclass(frozen=True)
class Reading:
    """The public rule by which records become units.

    Parameters
    ----------
    max_norm
        A record of a larger norm (after scaling), or with anything that is not finite, is a null.
    scales
        Each feature is divided by its scale.
    pairs
        If true, two neighbouring records x, y make one unit (y - x)/sqrt 2: its mean is zero, its
        covariance that of a record. A pair with a null is a null.
    partial
        If true, a record is a null only if none of its values is finite; values that are not are
        left to the statistics, and a norm is that of the others. Not with pairs.
    """

    max_norm: float
    scales: tuple[float, ...] | None = None
    pairs: bool = False
    partial: bool = False

    @property
    def records_per_unit(self) -> int:
        return 2 if self.pairs else 1

    def records(self, raw: NDArray[np.floating[Any]], out: FloatArray) -> FloatArray:
        """Float64 records, scaled; in `out` unless `raw` is just that already."""
        if self.scales is not None:
            np.divide(raw, np.array(self.scales), out=out)
        elif raw.dtype == np.float64 and raw.flags.c_contiguous:
            return np.asarray(raw, dtype=np.float64)
        else:
            out[:] = raw
        return out

    def units(self, records: FloatArray, out: FloatArray) -> FloatArray:
        """Rows of units; in `out` unless the records are just that already."""
        if not self.pairs:
            return records
        np.subtract(records[1::2], records[0::2], out=out)
        return np.multiply(out, _SQRT_HALF, out=out)

    def norms(self, records: FloatArray, units: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Squared norms of units, zero for nulls, and which are nulls."""
        if self.partial:
            finite = np.isfinite(records)
            there = np.where(finite, records, 0.0)
            sq_norm = np.einsum("ij,ij->i", there, there)
            null = ~((sq_norm <= self.max_norm * self.max_norm) & finite.any(axis=1))
            sq_norm[null] = 0.0
            return sq_norm, null
        sq_norm = np.einsum("ij,ij->i", records, records)
        null = ~(sq_norm <= self.max_norm * self.max_norm)  # true for NaN too
        if self.pairs:
            sq_norm = np.einsum("ij,ij->i", units, units)
            null = null[0::2] | null[1::2]
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
        How records become units.
    """

    def __init__(self, raw: NDArray[np.floating[Any]], reading: Reading) -> None:
        self._raw = raw
        self._reading = reading
        self._norms: dict[int, tuple[FloatArray, BoolArray]] = {}  # of blocks that were read before

    def __len__(self) -> int:
        return len(self._raw) // self._reading.records_per_unit

    @_SILENT
    def total(self, statistic: Statistic) -> FloatArray:
        """Sum of a statistic over all units."""
        return _sum(statistic(block) for block in self._blocks())

    @_SILENT
    def ranged(self, form: Form) -> RangedBatch:
        """Counts and clipped sums of a form."""
        measured = [_without_nulls(form.measure(block), block) for block in self._blocks()]
        return RangedBatch(self, form, measured)

    @_SILENT
    def matrix(self) -> tuple[FloatArray, BoolArray]:
        """A copy of all rows, with zeros for nulls, and which are nulls.

        For `method="paper"`, whose statistics are not sums over units.
        """
        parts = [(_without_nulls(block.X.copy(), block), block.null) for block in self._blocks()]
        rows, null = zip(*parts, strict=True)
        return np.concatenate(rows), np.concatenate(null)

    def _blocks(self) -> Iterator[Block]:
        """All units in order. Blocks share their memory: each is gone when the next one is read."""
        d, each = self._raw.shape[1], self._reading.records_per_unit
        size = min(block_size(d), len(self))
        for_records, for_units = aligned(size * each, d), aligned(size if each > 1 else 0, d)
        scratch = aligned(size, d)
        for start in range(0, len(self), size):
            raw = self._raw[start * each : (start + size) * each]
            n = len(raw) // each
            records = self._reading.records(raw, for_records[: len(raw)])
            units = self._reading.units(records, for_units[:n])
            if start not in self._norms:
                self._norms[start] = self._reading.norms(records, units)
            yield Block(units, *self._norms[start], scratch[:n])


class RangedBatch:
    """A form over a batch: what was measured of each unit is kept."""

    def __init__(self, batch: Batch, form: Form, measured: list[FloatArray]) -> None:
        self._batch, self._form, self._measured = batch, form, measured
        self._sq_length = np.concatenate([part[:, 0] for part in measured])

    def beyond(self, radius: float) -> int:
        """Number of units longer than `radius`."""
        return int(np.count_nonzero(self._sq_length > radius**2))

    @_SILENT
    def clipped_sum(self, radius: float) -> FloatArray:
        """Sum over all units of terms clipped to `radius`."""
        return _sum(
            self._form.clipped_sum(block, measured, radius)
            for block, measured in zip(self._batch._blocks(), self._measured, strict=True)
        )


def _without_nulls(numbers: FloatArray, block: Block) -> FloatArray:
    numbers[block.null] = 0.0
    return numbers


def _sum(parts: Iterable[FloatArray]) -> FloatArray:
    """The sum of one array or more."""
    return reduce(np.add, parts)

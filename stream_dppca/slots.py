"""Records into slots, slots into batches.

Neighbouring streams differ in the content of one slot, so nothing about a record may decide which
slot it takes or where a batch ends. A record takes a slot by arriving. One that cannot be used (a
feature missing, not a number, not finite, a norm beyond the public cap) becomes a **null in its
slot**, and whether it does depends on that record alone.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .secrecy import forget_in_child

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Batch", "SlotBuffer", "number"]

FloatArray = NDArray[np.float64]

_SQRT_HALF = 0.5**0.5

# numpy turns its complex scalars into floats and warns; here they are no numbers, and silent.
warnings.filterwarnings(
    "error", category=np.exceptions.ComplexWarning, module=r"stream_dppca\.slots"
)


@dataclass(frozen=True, repr=False)  # it holds records
class Batch:
    """One full batch: a row a slot, null rows all zero."""

    X: FloatArray
    sq_norm: FloatArray  #: squared row norms, as computed
    null: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.X)

    @classmethod
    def of(cls, X: FloatArray, max_norm: float, *, ours: bool = False) -> Batch:
        """Find the nulls of a contiguous block of rows and make them zero.

        If the block is not ours it is copied first, but only if there are nulls. The copy is
        aligned in memory as the block was: last digits of BLAS products may depend on that, and
        a null must not change those of other records.
        """
        with np.errstate(all="ignore"):
            sq_norm = np.einsum("ij,ij->i", X, X)
            null = ~(sq_norm <= max_norm * max_norm)  # true for NaN too
        if null.any():
            X = X if ours else _copy_aligned(X)
            X[null] = 0.0
            sq_norm[null] = 0.0
        return cls(X, sq_norm, null)

    def pairs(self) -> Batch:
        """Differences of neighbouring slots over sqrt 2: mean zero, covariance as before.

        One record is in one difference. A pair with a null is a null.
        """
        null = self.null[0::2] | self.null[1::2]
        X = (self.X[1::2] - self.X[0::2]) * _SQRT_HALF
        X[null] = 0.0
        return Batch(X, np.einsum("ij,ij->i", X, X), null)

    def halves(self) -> tuple[Batch, Batch]:
        """The first floor(n/2) slots and the rest."""
        n1 = len(self) // 2
        first, second = slice(0, n1), slice(n1, None)
        return (
            Batch(self.X[first], self.sq_norm[first], self.null[first]),
            Batch(self.X[second], self.sq_norm[second], self.null[second]),
        )


class SlotBuffer:
    """Fills batches of `size` slots from dicts, frames and arrays alike.

    The rows in it are raw data. Every copy of it, pickles included, comes out empty: two copies
    that release the same records would spend the budget twice.
    """

    def __init__(
        self,
        features: Sequence[Any],
        size: int,
        max_norm: float,
        scales: Sequence[float] | None = None,
    ) -> None:
        self.features = tuple(features)
        self.size = size
        self.max_norm = max_norm
        self.scales = None if scales is None else np.array(scales, dtype=np.float64)
        self.forget()

    def forget(self) -> None:
        """Drop the partial batch."""
        forget_in_child(self)
        self.fill = 0
        self._rows: FloatArray | None = None
        self._known_columns: tuple[Any, slice | list[int] | None] = (None, None)
        self._get = (
            itemgetter(*self.features)
            if len(self.features) > 1
            else lambda x, key=self.features[0]: (x[key],)
        )
        width = struct.Struct(f"={len(self.features)}d")
        self._pack, self._stride = width.pack_into, width.size

    def __getstate__(self) -> tuple[Any, ...]:
        return self.features, self.size, self.max_norm, self.scales

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.features, self.size, self.max_norm, self.scales = state
        self.forget()

    def put_dict(self, x: Any) -> Batch | None:
        """Take one slot. Returns the batch if this filled it."""
        rows = self._rows
        if rows is None:
            rows = self._open()
        slot = self.fill
        try:
            # pack_into takes what has __float__ and refuses text, None and complex numbers.
            self._pack(self._memory, slot * self._stride, *self._get(x))
        except Exception:  # whatever a record does wrong, it is a null
            rows[slot] = np.nan
        self.fill = slot + 1
        return self._close(rows) if self.fill == self.size else None

    def put_rows(self, X: NDArray[np.floating[Any]]) -> Iterator[Batch]:
        """Take a slot for each row of an n x d float array, yielding batches as they fill."""
        start, n = 0, len(X)
        while start < n:
            if self.fill == 0 and n - start >= self.size and X.dtype == np.float64:
                block = X[start : start + self.size]  # a whole batch: no copy
                start += self.size
                if self.scales is None:
                    yield Batch.of(np.ascontiguousarray(block), self.max_norm)
                else:
                    yield Batch.of(
                        self.scaled(np.asarray(block, dtype=np.float64)), self.max_norm, ours=True
                    )
                continue
            rows = self._rows if self._rows is not None else self._open()
            take = min(n - start, self.size - self.fill)
            with np.errstate(all="ignore"):
                rows[self.fill : self.fill + take] = X[start : start + take]
            self.fill += take
            start += take
            if self.fill == self.size:
                yield self._close(rows)

    def put_frame(self, frame: pd.DataFrame) -> Iterator[Batch]:
        """Take a slot for each row of a frame. A missing column makes every row a null."""
        yield from self.put_rows(self.frame_to_rows(frame))

    def frame_to_rows(self, frame: pd.DataFrame) -> FloatArray:
        """The declared columns of a frame as floats; what is missing or no number is NaN."""
        if (where := self._columns(frame)) is not None:
            chosen = frame if where == slice(None) else frame.iloc[:, where]
            values = chosen.to_numpy()
            if values.dtype.kind in "biuf":  # all columns are plain numbers
                with np.errstate(all="ignore"):
                    return np.asarray(values, dtype=np.float64)
        X = np.empty((len(frame), len(self.features)))
        for j, feature in enumerate(self.features):
            X[:, j] = _column(frame, feature)
        return X

    def _columns(self, frame: pd.DataFrame) -> slice | list[int] | None:
        """Where the features stand in a frame, None if not each exactly once."""
        known, where = self._known_columns
        if frame.columns is known:
            return where
        names = list(frame.columns)
        where = None
        if tuple(names) == self.features:
            where = slice(None)
        elif all(names.count(feature) == 1 for feature in self.features):
            where = [names.index(feature) for feature in self.features]
        self._known_columns = frame.columns, where
        return where

    def _open(self) -> FloatArray:
        rows = np.empty((self.size, len(self.features)))
        self._rows, self._memory = rows, rows.data.cast("B")
        return rows

    def scaled(self, rows: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Rows divided by the public scales."""
        if self.scales is None:
            return rows
        with np.errstate(all="ignore"):
            return np.divide(rows, self.scales, out=out)

    def _close(self, rows: FloatArray) -> Batch:
        self.fill = 0
        self.scaled(rows, out=rows)
        return Batch.of(rows, self.max_norm, ours=True)


def _copy_aligned(X: FloatArray) -> FloatArray:
    """A copy whose address is that of X, modulo a cache line."""
    line = 64
    raw = np.empty(X.nbytes + line, dtype=np.uint8)
    shift = (X.ctypes.data - raw.ctypes.data) % line
    copy = raw[shift : shift + X.nbytes].view(np.float64).reshape(X.shape)
    copy[:] = X
    return copy


def _column(frame: pd.DataFrame, feature: Any) -> FloatArray | float:
    """A column as floats by the rule of `put_dict`: numbers pass, anything else is NaN."""
    if feature not in frame.columns:
        return np.nan
    column = frame[feature]
    if column.ndim != 1:  # the name stands twice: which one is meant cannot be known
        return np.nan
    kind = getattr(column.dtype, "kind", "O")
    if kind in "biuf":
        with np.errstate(all="ignore"):
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if kind == "c":  # one complex number makes the whole column complex
        values = column.to_numpy()
        return np.where(values.imag == 0, values.real, np.nan)
    if kind in "mM":
        return np.nan
    return np.fromiter((number(v) for v in column.astype(object)), np.float64, len(column))


def number(value: Any) -> float:
    """A value as a float by the same rule: NaN for what is not a number."""
    try:
        return struct.unpack("=d", struct.pack("=d", value))[0]  # type: ignore[no-any-return]
    except Exception:
        return np.nan

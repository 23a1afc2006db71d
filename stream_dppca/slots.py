"""Puts records into slots, and slots into batches.

Neighbouring streams differ in the content of one slot, so nothing about a record may decide which
slot it takes or where a batch ends. A record takes a slot by arriving. A record that cannot be used
(a feature missing, not a number, not finite, a norm beyond the public cap) becomes a **null in its
slot**, and whether it does depends on that record alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from operator import countOf, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import FloatArray, Workspace, aligned
from .batch import Batch, Reading
from .errors import DPPCAError
from .frames import rows_of
from .paths import RecordReader
from .secrecy import Forgetful
from .statistics import JoinedRows, Rows
from .values import PLAIN, number


class SlotBuffer(Forgetful):
    """Fills batches of `size` slots, or several at once, from dicts, frames and arrays alike.

    The rows in it are raw data, so every copy of it is empty.

    Parameters
    ----------
    features
        Names, in the order of the columns.
    size
        Slots per batch.
    reading
        The rule by which the records of a batch become units.
    """

    PUBLIC = ("features", "size", "reading", "_batches")

    def __init__(self, features: Sequence[Any], size: int, reading: Reading) -> None:
        self.features = tuple(features)
        self.size = size
        self.reading = reading
        self._batches = 1
        self.forget()

    def await_batches(self, number: int) -> None:
        """Fill this many batches at once."""
        if self.fill:
            raise RuntimeError("the buffer is not empty")
        if number != self._batches:
            self._batches = number
            self._resize()

    def _resize(self) -> None:
        self._full = self._batches * self.size
        self._rows: FloatArray | None = None

    def _begin(self) -> None:
        """Begin with an empty batch."""
        self.fill = 0
        self._whole: list[Rows] = []  # batches of which only sums are used
        self._resize()
        self._workspace = Workspace()
        self._get = (
            itemgetter(*self.features)
            if len(self.features) > 1
            else lambda x, key=self.features[0]: (x[key],)
        )
        self._read = RecordReader(self.features)
        self._width = len(self.features)
        row = struct.Struct(f"={self._width}d")
        self._pack, self._stride = row.pack_into, row.size

    def put_batch(self, rows: Rows) -> Rows | None:
        """Take a whole batch. Returns those that are to be used at once, if these are all.

        Until then no single records are taken: they have no place among whole batches.
        """
        self._whole.append(rows)
        self._rows = None
        if len(self._whole) < self._batches:
            return None
        step, self._whole = JoinedRows.of(self._whole), []
        return step

    def put_dict(self, x: Any) -> Batch | None:
        """Take one slot. Returns the batch if this filled it."""
        rows = self._rows
        if rows is None:
            rows = self._open()
        slot = self.fill
        try:
            if type(x) is not dict:  # a subclass may make up values, or insert them
                raise TypeError
            values = self._get(x)
            if countOf(map(type, values), float) != self._width and not PLAIN.issuperset(
                map(type, values)
            ):
                values = map(number, values)
            self._pack(self._memory, slot * self._stride, *values)
        except Exception:  # whatever is wrong with a record, it is a null
            rows[slot] = self._one_by_one(x)
        self.fill = slot + 1
        return self._close(rows) if self.fill == self._full else None

    def _one_by_one(self, x: Any) -> list[float]:
        """The values of a record that is nested, or some of which cannot be read."""
        try:
            if isinstance(x, Mapping) and (
                type(x) is not dict or self.reading.partial or self._read.nested
            ):
                return self._read(x)
        except Exception:  # noqa: S110  # whatever is wrong with a record, it is a null
            pass
        return [np.nan] * len(self.features)

    def put_rows(self, X: NDArray[np.floating[Any]]) -> Iterator[Batch]:
        """Take a slot for each row of an n x d array of float32 or float64.

        Batches are yielded as they fill; each is valid until the next one is requested. A batch
        that lies in X as a whole is not copied.
        """
        self._refuse_if_whole()
        start, n = 0, len(X)
        while start < n:
            size = self._full
            if self.fill == 0 and n - start >= size:
                yield Batch(X[start : start + size], self.reading, self._workspace)
                start += size
                continue
            rows = self._rows if self._rows is not None else self._open()
            take = min(n - start, size - self.fill)
            with np.errstate(all="ignore"):
                rows[self.fill : self.fill + take] = X[start : start + take]
            self.fill += take
            start += take
            if self.fill == size:
                yield self._close(rows)

    def put_frame(self, frame: Any) -> Iterator[Batch]:
        """Take a slot for each row of a frame. A missing column makes every row a null."""
        yield from self.put_rows(rows_of(frame, self.features))

    def take(self) -> FloatArray:
        """Empty the partial batch and return its rows, which are valid until the next put."""
        rows = self._rows if self._rows is not None else self._open()
        rows, self.fill = rows[: self.fill], 0
        return rows

    @property
    def waiting(self) -> int:
        """Slots that are filled, in whole batches or one by one."""
        return self.fill + len(self._whole) * self.size

    def _refuse_if_whole(self) -> None:
        if self._whole:
            raise DPPCAError(
                f"{len(self._whole)} whole batches wait for the first step, which takes "
                f"{self._batches} of them: give the others by learn_rows(), too"
            )

    def _open(self) -> FloatArray:
        self._refuse_if_whole()
        rows = aligned(self._full, len(self.features))
        self._rows, self._memory = rows, rows.data.cast("B")
        return rows

    def _close(self, rows: FloatArray) -> Batch:
        self.fill = 0
        return Batch(rows, self.reading, self._workspace)

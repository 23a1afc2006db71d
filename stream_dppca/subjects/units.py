"""The rows of one round as units: the implementation of `statistics.Rows` for subjects.

A unit is a subject with up to `records` rows. Units with the same number of usable rows are kept
together, so that a block is a plain array (`Bundle`); a subject without usable rows is a null and
has no place. The place of a unit depends on all others, so every number of a unit comes from
`rowwise`. Sums may be added in any order; their sensitivities include the rounding of any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from .. import rowwise
from ..arrays import BoolArray, FloatArray, IntArray
from ..batch import Reading, block_size
from ..statistics import Bundle, Rows, Statistic
from ..sums import pairwise_sum

#: A warning of numpy would say something about the records.
_SILENT = np.errstate(all="ignore")


class SubjectRows(Rows):
    """One round.

    Parameters
    ----------
    rows
        Rows that were kept, in the order of their arrival.
    places
        The place of the subject of each row, from 0 on.
    size
        Places of a round: a public number.
    reading
        The rule by which a row is read.
    own
        If true, rows are deviations from the mean of their subject's n rows, times
        sqrt(n/(n - 1)): the mean of their second moments is the unbiased covariance within the
        subject. A subject with one row contributes nothing and is a null.
    """

    @_SILENT
    def __init__(
        self, rows: FloatArray, places: IntArray, size: int, reading: Reading, own: bool = False
    ) -> None:
        self._rows, self._size, self._reading, self._own = rows, size, reading, own
        usable = np.flatnonzero(~self._nulls())
        each = np.bincount(places[usable], minlength=size)
        of_row = each[places[usable]]
        # By number of rows, then by place, then by arrival.
        order = usable[np.lexsort((places[usable], of_row))]
        least = 2 if own else 1
        self._bundles: list[tuple[int, IntArray]] = []
        for number in range(least, int(each.max(initial=0)) + 1):
            units = int(np.count_nonzero(each == number))
            if units:
                start = int(np.count_nonzero(of_row < number))
                self._bundles.append((number, order[start : start + units * number]))

    def _nulls(self) -> BoolArray:
        """Mask of the rows that cannot be used; it depends on each row alone."""
        d = self._rows.shape[1]
        null = np.empty(len(self._rows), dtype=np.bool_)
        step = block_size(d)
        for start in range(0, len(null), step):
            part = self._read(np.arange(start, min(start + step, len(null))))
            finite = np.isfinite(part)
            there = np.where(finite, part, 0.0)
            good = finite.any(axis=1) if self._reading.partial else finite.all(axis=1)
            good &= rowwise.sq_norms(there) <= self._reading.max_norm**2
            null[start : start + len(part)] = ~good
        return null

    def _read(self, which: IntArray) -> FloatArray:
        """These rows, scaled, in memory of their own."""
        rows = self._rows[which]
        if self._reading.scales is not None:
            rows /= np.array(self._reading.scales)
        return rows

    def _blocks(self) -> Iterator[Bundle]:
        """All units, each once."""
        d = self._rows.shape[1]
        for each, which in self._bundles:
            step = max(block_size(d) // each, 1) * each
            for start in range(0, len(which), step):
                rows = self._read(which[start : start + step])
                rows = _deviations(rows, each) if self._own else rows
                yield Bundle.of(rows, each, self._reading.partial)

    def __len__(self) -> int:
        return self._size

    def present(self) -> int:
        """Number of subjects with usable rows."""
        return sum(len(which) // each for each, which in self._bundles)

    @_SILENT
    def total(self, statistic: Statistic) -> FloatArray:
        """Sum of a statistic over all units."""
        return pairwise_sum(statistic(block) for block in chain([self._nobody()], self._blocks()))

    def _nobody(self) -> Bundle:
        """A block without units: the sum over it has the shape of every other."""
        return Bundle.of(np.zeros((0, self._rows.shape[1])), 1)


def _deviations(rows: FloatArray, each: int) -> FloatArray:
    """Rows less the mean of their unit's, times sqrt(each/(each - 1))."""
    centred = rows - np.repeat(rowwise.means(rows, each), each, axis=0)
    centred *= np.sqrt(each / (each - 1))
    return centred

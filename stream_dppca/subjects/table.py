"""The table of one round, in which each subject has one place.

Neighbouring streams differ in everything that one subject sends, so one subject may take one place
at most, whatever it sends, and no other subject's rows may depend on it:

- A subject takes a place by arriving: the subjects of a round are the first `size` that arrive.
  Without one of them, the next one is in its place: one contribution goes and one comes, also if
  the table is full.
- Of each subject the first `records` rows are kept, later ones are ignored.
- A row without a usable id (`ids`) is ignored. A bad row of a subject is one of its rows.

All this holds if the first records of the *other* subjects come in the same order whatever one
subject sends: several sources must be read in a fixed order.

The table is in memory only, and is dropped with the round. Every copy of it is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch import Reading
from ..errors import DPPCAError
from ..frames import raw_column, rows_of
from ..participation import PerSubject
from ..secrecy import Forgetful
from ..slots import SlotBuffer
from .ids import canonical, canonical_all
from .units import SubjectRows

#: Single records wait until there are this many, and are then entered together.
_WAITING = 1024


class SubjectTable(Forgetful):
    """Fills the places of rounds from dicts, frames and arrays alike.

    Parameters
    ----------
    features
        Names, in the order of the columns.
    unit
        The name of a subject's id, the number of places, and the most rows per subject.
    reading
        The rule by which rows are read.
    own
        As for `SubjectRows`.
    """

    PUBLIC = ("features", "unit", "reading", "own", "open")

    def __init__(
        self, features: Sequence[Any], unit: PerSubject, reading: Reading, own: bool = False
    ) -> None:
        self.features = tuple(features)
        self.unit = unit
        self.reading = reading
        self.own = own
        self.open = True  #: False after the last round
        self.forget()

    @property
    def size(self) -> int:
        """Places of a round."""
        return self.unit.places

    def await_round(self, number: int) -> None:
        """Open round 1, 2, ..., unless it is beyond the horizon."""
        self.open = self.unit.horizon is None or number <= self.unit.horizon

    def _begin(self) -> None:
        """Begin with an empty round."""
        self._waiting = SlotBuffer(self.features, _WAITING + 1, self.reading)
        self._waiting_ids: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._taken = np.zeros(self.size, dtype=np.uint8)  # rows, by place
        self._fill = 0
        self._rows = np.empty((0, len(self.features)))
        self._place = np.empty(0, dtype=np.int32)  # of each row

    # Taking records

    def check_open(self) -> None:
        """Raise if the last round is over."""
        if not self.open:
            raise DPPCAError("the horizon has been reached: this model learns nothing more")

    def put_dict(self, x: Any) -> None:
        """Take one record."""
        if not self.open:
            self.check_open()
        try:
            subject = self.unit.subject
            if type(x) is not dict and not (isinstance(x, Mapping) and subject in x):
                return  # a subclass may make up values, or insert them
            key = canonical(x[subject])
        except Exception:  # whatever is wrong with a record, it has no subject
            return
        if key is None:
            return
        ids, waiting = self._waiting_ids, self._waiting
        if len(ids) != waiting.fill:
            # Ctrl-C came between an id and its row. Another row must not get the id.
            del ids[waiting.fill :]
        ids.append(key)
        waiting.put_dict(x)
        if len(ids) == _WAITING:
            self._enter_waiting()

    def put_frame(self, frame: Any) -> tuple[()]:
        """Take the rows of a frame, which holds the ids in the column of its unit.

        No frame fills a round: a clock ends it.
        """
        self.check_open()
        ids = raw_column(frame, self.unit.subject)
        if ids is not None:
            self.put_rows(rows_of(frame, self.features), ids)
        return ()

    def put_rows(self, X: NDArray[np.floating[Any]], ids: Iterable[Any]) -> None:
        """Take the rows of an n x d array, with one id per row."""
        self.check_open()
        self._enter_waiting()
        self._enter(X, canonical_all(ids))

    def _enter_waiting(self) -> None:
        ids = self._waiting_ids[: self._waiting.fill]
        rows = self._waiting.take()  # then no row waits, whatever ids are left
        self._waiting_ids.clear()
        if ids:
            self._enter(rows, ids)

    def _enter(self, X: NDArray[np.floating[Any]], keys: Sequence[bytes | None]) -> None:
        """Give rows to their subjects, in order."""
        places = np.array(self._find(keys), dtype=np.int32)
        with_place = np.flatnonzero(places >= 0)
        if not with_place.size:
            return
        places = places[with_place]
        # The number of each row among those of its subject, from 0 on.
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        lengths = np.diff(np.r_[starts, len(order)])
        number = np.arange(len(order)) - np.repeat(starts, lengths)
        taken = self._taken[ordered[starts]].astype(np.int64)
        kept = np.sort(order[number + np.repeat(taken, lengths) < self.unit.records])
        self._taken[ordered[starts]] = np.minimum(taken + lengths, self.unit.records)
        self._keep(X[with_place[kept]], places[kept])

    def _find(self, keys: Sequence[bytes | None]) -> list[int]:
        """The place of each subject, -1 for none. New subjects get the next places."""
        places, size = self._places, self.size
        found = []
        for key in keys:
            place = -1 if key is None else places.get(key, -1)
            if place < 0 and key is not None and len(places) < size:
                place = places[key] = len(places)
            found.append(place)
        return found

    def _keep(self, rows: NDArray[np.floating[Any]], places: NDArray[np.int32]) -> None:
        """Append rows."""
        end = self._fill + len(rows)
        if end > len(self._rows):
            most = self.size * self.unit.records
            room = min(max(end, 2 * len(self._rows), _WAITING), most)
            self._rows = _longer(self._rows, self._fill, room)
            self._place = _longer(self._place, self._fill, room)
        with np.errstate(all="ignore"):
            self._rows[self._fill : end] = rows
        self._place[self._fill : end] = places
        self._fill = end

    # The end of a round

    def close(self) -> SubjectRows:
        """The round so far; a new one begins."""
        self._enter_waiting()
        rows, places = self._rows[: self._fill], self._place[: self._fill]
        self._begin()
        return SubjectRows(rows, places.astype(np.int64), self.size, self.reading, self.own)


def _longer(array: NDArray[Any], fill: int, length: int) -> NDArray[Any]:
    """The array with room for more, up to `length`."""
    longer = np.empty((length, *array.shape[1:]), dtype=array.dtype)
    longer[:fill] = array[:fill]
    return longer


def first_rows(ids: Iterable[Any], records: int) -> list[int]:
    """The places of the first `records` rows of each subject, in order; only rows with usable ids.

    For a stretch of a round that is read separately. A row with that many rows of its own subject
    before it in its stretch has them before it in the round, too, and is ignored there: so it may
    be left out at once. Whether a row is left out depends only on rows of the same subject, and a
    table that gets the stretches in order is filled as if it had got everything.

    Examples
    --------
    >>> first_rows(["a", 1, None, "a", "1", "a", 1.0], records=2)
    [0, 1, 3, 4]
    """
    seen: dict[bytes, int] = {}
    kept = []
    for place, key in enumerate(canonical_all(ids)):
        if key is not None and (before := seen.get(key, 0)) < records:
            seen[key] = before + 1
            kept.append(place)
    return kept

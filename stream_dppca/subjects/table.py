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

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import FloatArray
from ..batch import Reading
from ..errors import DPPCAError
from ..frames import raw_column
from ..participation import PerSubject
from ..secrecy import Forgetful
from ..slots import SlotBuffer
from .ids import canonical, canonical_all
from .units import SubjectRows

__all__ = ["SubjectTable"]

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

    PUBLIC = ("features", "subject", "size", "records", "reading", "own", "open")

    def __init__(
        self,
        features: Sequence[Any],
        unit: PerSubject,
        reading: Reading,
        own: bool = False,
    ) -> None:
        self.features = tuple(features)
        self.subject: Any = unit.subject
        self.size = unit.places
        self.records = unit.records
        self.reading = reading
        self.own = own
        self.open = True  #: False after the last round
        self.forget()

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
            key = canonical(x[self.subject])
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
        """Take the rows of a frame, which holds the ids in the column `subject`.

        No frame fills a round: a clock ends it.
        """
        self.check_open()
        ids = raw_column(frame, self.subject)
        if ids is not None:
            self.put_rows(self.frame_to_rows(frame), ids)
        return ()

    def put_rows(self, X: NDArray[np.floating[Any]], ids: Iterable[Any]) -> None:
        """Take the rows of an n x d array, with one id per row."""
        self.check_open()
        self._enter_waiting()
        self._enter(X, canonical_all(ids))

    def frame_to_rows(self, frame: Any) -> FloatArray:
        """Read the rows of a frame as `SlotBuffer` does."""
        return self._waiting.frame_to_rows(frame)

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
        kept = np.sort(order[number + np.repeat(taken, lengths) < self.records])
        self._taken[ordered[starts]] = np.minimum(taken + lengths, self.records)
        self._keep(X[with_place[kept]], places[kept])

    def _find(self, keys: Sequence[bytes | None]) -> list[int]:
        """The place of each subject, -1 for none. New subjects get the next places."""
        places: dict[Any, int] = self._places
        if len(keys) <= self.size - len(places) and None not in keys:
            return [places.setdefault(key, len(places)) for key in keys]
        full = len(places) == self.size
        get = places.get
        found = [get(key, -1) for key in keys]
        if full:
            return found
        for i, (key, place) in enumerate(zip(keys, found, strict=True)):
            if place < 0 and key is not None:
                full = len(places) == self.size
                found[i] = get(key, -1) if full else places.setdefault(key, len(places))
        return found

    def _keep(self, rows: NDArray[np.floating[Any]], places: NDArray[np.int32]) -> None:
        """Append rows."""
        end = self._fill + len(rows)
        if end > len(self._rows):
            most = self.size * self.records
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

"""Sorts the rows of a file into rounds, each row by its own time.

Rows may stand in any order. A row is in the round that its time is in, whatever the times of other
rows are, and a row without a usable time or subject, or with a time outside the declared rounds, is
in none. If rows were taken as they come, and a round ended with the first row of a later one, one
row with a late time would end the round for all rows after it.

So the rows of a round are complete only at the end of the file, and must be kept until then. What a
round keeps is bounded: of the first `places` subjects the first `records` rows each, which is what
the model would use of them. If that is too much for all rounds at once, the file is read several
times, each time for the next few rounds. Their number follows from settings alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from stream_dppca.arrays import FloatArray
from stream_dppca.subjects.ids import canonical

from ..settings import RoundRule
from .blocks import FileRows
from .times import parse_time

#: Memory that the rows of all rounds that are collected at once may take.
KEPT_BYTES: Final = 1 << 30
#: Memory per subject in the table of a round, without its rows: measured at 140 (docs/subjects.md).
_SUBJECT_BYTES: Final = 150


def rounds_at_once(width: int, places: int, records: int) -> int:
    """Return the number of rounds to collect each time that a file is read.

    Parameters
    ----------
    width
        Number of features.
    places, records
        Subjects per round, and rows of each, at most.

    Examples
    --------
    >>> rounds_at_once(10, 1000, 4), rounds_at_once(50, 100_000, 4), rounds_at_once(50, 10**7, 4)
    (2284, 6, 1)
    """
    return max(1, KEPT_BYTES // (places * (8 * width * records + _SUBJECT_BYTES)))


class FileRound:
    """The rows of one round that count, in the order of the file."""

    def __init__(self, places: int, records: int) -> None:
        self._places, self._records = places, records
        self._taken: Counter[bytes] = Counter()
        self._blocks: list[FloatArray] = []
        self.subjects: list[bytes] = []  #: of each row, in its canonical form

    def has_room(self, subject: bytes) -> bool:
        """Tell whether the next row of this subject counts; if so, count it."""
        taken = self._taken[subject]
        room = taken < self._records if taken else len(self._taken) < self._places
        if room:
            self._taken[subject] += 1
        return room

    def keep(self, rows: FloatArray, subjects: Iterable[bytes]) -> None:
        """Keep rows for which there is room."""
        self._blocks.append(rows)
        self.subjects += subjects

    def rows(self, width: int) -> FloatArray:
        """All rows so far."""
        return np.concatenate([np.empty((0, width)), *self._blocks])


def sorted_rounds(
    read: Callable[[], Iterable[FileRows]],
    rule: RoundRule,
    rounds: range,
    *,
    at_once: int,
    places: int,
    records: int,
) -> Iterator[tuple[int, FileRound]]:
    """Yield every one of the rounds with its rows, in order, also those without any.

    Parameters
    ----------
    read
        Reads the file from its beginning, with the subject and the time of each row.
    at_once
        Rounds to collect each time that it is read.
    places, records
        Subjects per round, and rows of each, at most.
    """
    for first in range(0, len(rounds), at_once):
        kept = {number: FileRound(places, records) for number in rounds[first : first + at_once]}
        for block in read():
            _sort(block, rule, kept)
        for number in list(kept):
            yield number, kept.pop(number)


def _sort(block: FileRows, rule: RoundRule, kept: dict[int, FileRound]) -> None:
    """Give the rows of a block to their rounds, if these are among the kept ones."""
    found: dict[int, dict[int, bytes]] = {}  # of each round, rows with their subjects
    for i, (who, time) in enumerate(zip(*block.others, strict=True)):
        when = parse_time(time)
        number = None if when is None else rule.round_at(when)
        if number not in kept:
            continue
        subject = canonical(who)
        if subject is not None and kept[number].has_room(subject):
            found.setdefault(number, {})[i] = subject
    for number, rows in found.items():
        kept[number].keep(block.rows[[*rows]], rows.values())

"""Sorts the rows of a file into rounds, each row by its own time.

Rows may stand in any order. A row is in the round that its time is in, whatever the times of other
rows are, and a row without a usable time or subject, or with a time outside the declared rounds, is
in none. If rows were taken as they come, and a round ended with the first row of a later one, one
row with a late time would end the round for all rows after it.

So the rows of a round are complete only at the end of the file, and must be kept until then. What a
round keeps is bounded: of the first `places` subjects the first `records` rows each, which is what
the model would use of them. If that is too much for all rounds at once, the file is read several
times, each time for the next few rounds. Their number follows from settings alone.

From the second time on, parts of the file without a row of these rounds are skipped. That changes
only the duration of a run: no row is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from stream_dppca.subjects.ids import canonical

from ..settings import RoundRule
from .blocks import Rows
from .span import Span
from .stamped import StampedRows

#: Memory that the rows of all rounds that are collected at once may take.
KEPT_BYTES: Final = 1 << 30
#: Memory per subject in the table of a round, without its rows: measured at 140 (docs/subjects.md).
_SUBJECT_BYTES: Final = 150

#: Reads the blocks of a file; skips a block if its number is not wanted.
Read = Callable[[Callable[[int], bool]], Iterable[StampedRows]]


def rounds_at_once(width: int, places: int, records: int, most_bytes: int = KEPT_BYTES) -> int:
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
    return max(1, most_bytes // (places * (8 * width * records + _SUBJECT_BYTES)))


@dataclass
class RoundRows:
    """The rows of one round that count, in the order of the file."""

    places: int
    records: int
    subjects: list[bytes] = field(default_factory=list)  #: of each row, in its canonical form
    _blocks: list[Rows] = field(default_factory=list)
    _taken: dict[bytes, int] = field(default_factory=dict)

    def has_room(self, subject: bytes) -> bool:
        """Tell whether the next row of this subject counts; if so, count it."""
        taken = self._taken.get(subject, 0)
        if taken >= self.records or (not taken and len(self._taken) >= self.places):
            return False
        self._taken[subject] = taken + 1
        return True

    def keep(self, rows: Rows, subjects: list[bytes]) -> None:
        """Keep rows for which there is room."""
        self._blocks.append(rows)
        self.subjects += subjects

    def rows(self, width: int) -> Rows:
        """All rows so far."""
        return np.concatenate([np.empty((0, width)), *self._blocks])


def sorted_rounds(
    read: Read, rule: RoundRule, span: Span, *, at_once: int, places: int, records: int
) -> Iterator[tuple[int, RoundRows]]:
    """Yield every round of a span with its rows, in order, also those without any.

    Parameters
    ----------
    read
        Reads the file from its beginning.
    at_once
        Rounds to collect each time that it is read.
    places, records
        Subjects per round, and rows of each, at most.
    """
    groups_of_block: list[set[int]] = []  # in which groups of rounds each block has rows
    for group, first in enumerate(range(span.first, span.end, at_once)):
        end = min(first + at_once, span.end)
        kept = [RoundRows(places, records) for _ in range(first, end)]

        def wanted(block: int, group: int = group) -> bool:
            return group == 0 or (block < len(groups_of_block) and group in groups_of_block[block])

        for block in read(wanted):
            rounds = _rounds_of(block, rule, span)
            if group == 0:
                groups = {(r - span.first) // at_once for r in set(rounds) if r is not None}
                groups_of_block.append(groups)
            _sort(block, rounds, first, kept)
        for number in range(first, end):
            yield number, kept[number - first]
            kept[number - first] = RoundRows(0, 0)  # its rows are in the model now


def _rounds_of(block: StampedRows, rule: RoundRule, span: Span) -> list[int | None]:
    """Return the round of each row, None for a row that is in none of the span."""
    earliest, latest = rule.start_ms(span.first), rule.start_ms(span.end)
    return [
        rule.round_at(when) if when is not None and earliest <= when < latest else None
        for when in block.times_ms
    ]


def _sort(block: StampedRows, rounds: list[int | None], first: int, kept: list[RoundRows]) -> None:
    """Give the rows of a block to their rounds, those from `first` on."""
    found: dict[int, tuple[list[int], list[bytes]]] = {}
    for i, (who, round) in enumerate(zip(block.subjects, rounds, strict=True)):
        if round is None or not 0 <= round - first < len(kept):
            continue
        subject = canonical(who)
        if subject is not None and kept[round - first].has_room(subject):
            places, subjects = found.setdefault(round - first, ([], []))
            places.append(i)
            subjects.append(subject)
    for at, (places, subjects) in found.items():
        kept[at].keep(block.rows[places], subjects)

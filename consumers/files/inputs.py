"""Recognises an input that was used before, by digests of its rows.

Rows are hashed as they are learned, converted and in order, so an input is recognised in any
format, and also if rows were added to its end. Two kinds of digests are kept of each input. That of
its first batch tells whether a new input is really new, before anything is learned from it. That of
all rows that were used must match the same rows again before a run is resumed.

**A digest tells whether the rows are these**, which is all that there is to know about a record if
the others are known. So digests are never in a state, which is an output. They are in a file of
their own, as secret as the input (`StateFile.keep_secret`). It is written before the state, so it
may be ahead, by all batches of a step: of the last input it has the digests at the end of the last
state and at the end of the last batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from stream_dppca.arrays import FloatArray

from ..errors import StateRefused
from ..model.states import UsedInput

_AGAIN: Final = (
    "Give the same input again. Only if none of its rows was used before, in any file or order, "
    "give --new-records."
)


class SeenInput(msgspec.Struct, frozen=True):
    """What is known of an input. As secret as the input."""

    name: str
    first_batch: str  #: digest of the first batch of rows
    marks: tuple[tuple[int, str], ...]  #: numbers of rows, from the beginning, and their digests


_decode = msgspec.json.Decoder(tuple[SeenInput, ...]).decode


def seen_inputs(
    secret: bytes | None, used: Sequence[UsedInput], state: object
) -> tuple[SeenInput, ...]:
    """What is known of the inputs of a state, as far as the state has used them.

    Parameters
    ----------
    secret
        The content of the secret file; None if there is none.
    used
        The inputs of the state.
    state
        The path of the state, for errors.
    """
    if not used:
        return ()
    if secret is None:
        raise StateRefused(
            f"{state}.secret is missing. It tells which rows the state has used; without it, rows "
            f"could be used twice. Put it back: it belongs next to {state}, also in a copy or a "
            "backup. If it is lost, begin a new --state, with records that were never used."
        )
    try:
        found = _decode(secret)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = ()
    known = tuple(
        msgspec.structs.replace(seen, marks=tuple(m for m in seen.marks if m[0] == one.rows))
        for one, seen in zip(used, found, strict=False)
        if one.name == seen.name
    )
    if len(known) < len(used) or not all(seen.marks for seen in known):
        raise StateRefused(
            f"{state}.secret does not belong to {state}: one of them is damaged, or from another "
            "time. Put back both from the same copy."
        )
    return known


class InputRecord:
    """Follows the rows of an input while they are used.

    Parameters
    ----------
    name
        Name of the input.
    batch_size
        Rows per batch.
    seen
        Inputs that the state has used. If this one turns out to be one of them, it is refused.
    again
        True if this input is the last of them once more. The rows that were used are skipped; the
        input is refused if they are not the same.
    """

    def __init__(
        self, name: str, batch_size: int, seen: Sequence[SeenInput] = (), again: bool = False
    ) -> None:
        self._name, self._batch_size = name, batch_size
        self._earlier = tuple(seen[:-1] if again else seen)
        self._marks = seen[-1].marks[-1:] if again else ()  # of the last state, and of all rows
        self._hash = hashlib.blake2b(digest_size=32)
        self._first_batch = ""
        self.used = 0  #: rows used so far
        self.missing = self._marks[0][0] if self._marks else 0  #: rows still to be skipped

    def pass_over(self, rows: FloatArray) -> FloatArray:
        """Skip the rows that were used before; return the rows after them."""
        if not self.missing:
            return rows
        old, new = rows[: self.missing], rows[self.missing :]
        self._add(old)
        self.missing -= len(old)
        if not self.missing and self._mark() not in self._marks:
            raise StateRefused(
                f"{self._name} is not the input that the state knows by this name: its first "
                f"{self.used} rows differ from the {self.used} rows that were used. {_AGAIN}"
            )
        return new

    def check_end(self, read: int) -> None:
        """Refuse an input that has fewer rows than were used of it."""
        if self.missing:
            raise StateRefused(
                f"{self._name} has {read} rows, but the state has used {self._marks[0][0]} rows of "
                f"the input with this name: it is another input, or rows were removed. {_AGAIN}"
            )

    def use(self, rows: FloatArray) -> None:
        """Mark the rows of a batch as used, before they are learned."""
        self._add(rows)
        self._marks = (*self._marks[:1], self._mark())
        for known in self._earlier:
            if known.first_batch == self._first_batch:
                self._refuse(known, last=known is self._earlier[-1])

    def commit(self) -> None:
        """A state contains all rows so far."""
        self._marks = self._marks[-1:]

    def _refuse(self, known: SeenInput, last: bool) -> None:
        way = (
            "To resume it, run again without --new-records."
            if last
            else "If rows were added to it, put these into a file of their own."
        )
        raise StateRefused(
            f"{self._name} begins with the same {self._batch_size} rows as {known.name}, which is "
            f"already used up to row {known.marks[-1][0]}. {way}"
        )

    def _mark(self) -> tuple[int, str]:
        return self.used, self._hash.hexdigest()

    def _add(self, rows: FloatArray) -> None:
        if self.used < self._batch_size <= self.used + len(rows):
            room = self._batch_size - self.used
            self._update(rows[:room])
            self._first_batch = self._hash.hexdigest()
            rows = rows[room:]
        self._update(rows)

    def _update(self, rows: FloatArray) -> None:
        # Every NaN gets the same bit pattern, and every zero: formats differ in these.
        same = np.where(np.isnan(rows), np.nan, rows) + 0.0
        self._hash.update(same.astype("<f8").tobytes())
        self.used += len(rows)

    def inputs(self) -> tuple[UsedInput, ...]:
        """All inputs of the state, this one included: names and numbers."""
        earlier = (UsedInput(seen.name, seen.marks[-1][0]) for seen in self._earlier)
        return (*earlier, UsedInput(self._name, self.used))

    def secret(self) -> bytes:
        """What must be known to recognise all these inputs: as secret as they are."""
        this = SeenInput(self._name, self._first_batch, self._marks)
        return msgspec.json.encode((*self._earlier, this))

"""Recognises an input that was used before, by keyed digests of its rows.

Rows are hashed as they are learned, converted and in order, so an input is recognised in any
format, and also if rows were added to its end. Two digests are kept of each input. The digest of
its first batch tells whether a new input is really new, before anything is learned from it. The
digest of all rows that were used must match the same rows again before a run is resumed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..errors import StateRefused
from ..model.states import UsedInput
from .blocks import Rows

__all__ = ["InputRecord"]

DIGEST_BYTES: Final = 16


class InputRecord:
    """Follows the rows of an input while they are used.

    Parameters
    ----------
    name
        Name of the input.
    batch_size
        Rows per batch.
    earlier
        Inputs that the state has used before this one. If this one turns out to be one of them, it
        is refused. A state of version 1 knows them by name only, so the name decides.
    resumed
        The same input as far as it was used, if it is given again. The rows that were used are
        skipped; the input is refused if they are not the same.
    """

    def __init__(
        self,
        name: str,
        batch_size: int,
        earlier: Sequence[UsedInput] = (),
        resumed: UsedInput | None = None,
    ) -> None:
        self._name, self._batch_size = name, batch_size
        self._earlier, self._resumed = tuple(earlier), resumed
        for used in self._earlier:
            if used.name == name and not used.digest:
                raise StateRefused(
                    f"a state of version 1 has used {used.rows} rows of {name}, and does not say "
                    "which ones, so it is not known whether these rows are new. If they are, give "
                    "the input another name."
                )
        known = [*earlier, *([resumed] if resumed is not None else [])]
        self._key = known[-1].key if known else secrets.token_hex(DIGEST_BYTES)
        self._hash = hashlib.blake2b(key=bytes.fromhex(self._key), digest_size=DIGEST_BYTES)
        self._first_batch = ""
        self.used = 0  #: rows used so far
        self.missing = resumed.rows if resumed is not None else 0  #: rows still to be skipped

    def pass_over(self, rows: Rows) -> Rows:
        """Skip the rows that were used before; return the rows after them."""
        if not self.missing or self._resumed is None:
            return rows
        old, new = rows[: self.missing], rows[self.missing :]
        self._add(old)
        self.missing -= len(old)
        digest = self._resumed.digest  # a state of version 1 has none
        if not self.missing and digest and self._hash.hexdigest() != digest:
            raise StateRefused(
                f"{self._name} is not the input that the state knows by this name: its first "
                f"{self.used} rows differ from the {self.used} rows that were used. Give the same "
                "input again, or --new-records if none of its rows has been used."
            )
        return new

    def check_end(self, read: int) -> None:
        """Refuse an input that has fewer rows than were used of it."""
        if self.missing and self._resumed is not None:
            raise StateRefused(
                f"{self._name} has {read} rows, but the state has used {self._resumed.rows} rows "
                "of the input with this name: it is another input, or rows were removed. Give the "
                "same input again, or --new-records if none of its rows has been used."
            )

    def use(self, rows: Rows) -> None:
        """Mark the rows of a batch as used, before they are learned."""
        self._add(rows)
        for known in self._earlier:
            if known.first_batch == self._first_batch:
                self._refuse(known, last=known is self._earlier[-1])

    def _refuse(self, known: UsedInput, last: bool) -> None:
        way = (
            "To resume it, run again without --new-records."
            if last
            else "If rows were added to it, put these into a file of their own."
        )
        raise StateRefused(
            f"{self._name} begins with the same {self._batch_size} rows as {known.name}, which is "
            f"already used up to row {known.rows}. {way}"
        )

    def _add(self, rows: Rows) -> None:
        if self.used < self._batch_size <= self.used + len(rows):
            room = self._batch_size - self.used
            self._update(rows[:room])
            self._first_batch = self._hash.hexdigest()
            rows = rows[room:]
        self._update(rows)

    def _update(self, rows: Rows) -> None:
        # Every NaN gets the same bit pattern, and every zero: formats differ in these.
        same = np.where(np.isnan(rows), np.nan, rows) + 0.0
        self._hash.update(same.astype("<f8").tobytes())
        self.used += len(rows)

    def inputs(self) -> tuple[UsedInput, ...]:
        """All inputs of the state, this one included."""
        this = UsedInput(
            name=self._name, key=self._key, rows=self.used, first_batch=self._first_batch,
            digest=self._hash.hexdigest(),
        )  # fmt: skip
        return (*self._earlier, this)

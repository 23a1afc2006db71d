"""Prints the releases of `run`: JSON lines for programs, a line per release on a terminal."""

from __future__ import annotations

import sys
from typing import Final

from stream_dppca.method import UNREADABLE

from ..errors import ConfigurationError
from ..model.describe import CHECK_NAMES, describe, learned_nothing, summary
from ..model.releases import PublishedRelease, parse_release

#: Batches at the beginning of a file after which nothing more is tried.
UNREADABLE_BATCHES: Final = 3


class Output:
    """Writes releases to standard output.

    It gives up if the first ones say that hardly any record can be read: records that come after
    them are not used. What releases say is public, so this tells nothing.
    """

    #: Follows the advice to check names.
    ADVICE: Final = "and that these columns hold numbers. The budget of the used rows is spent"

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._count, self._learned = 0, False
        self._last: PublishedRelease | None = None
        self.reason = ""  #: the last one, if nothing was learned from any batch

    def __call__(self, value: bytes) -> None:
        self._last = release = parse_release(value)
        if self.as_json:
            sys.stdout.buffer.write(value + b"\n")
        else:  # above the bar (`progress`)
            sys.stdout.write(summary(release) + "\n")
        sys.stdout.flush()
        self._count += 1
        self._learned |= not learned_nothing(release.status)
        self.reason = "" if self._learned else release.reason or ""
        if self.reason == UNREADABLE and self._count == UNREADABLE_BATCHES:
            raise ConfigurationError(
                f"{UNREADABLE} in the first {self._count} batches: {CHECK_NAMES}, "
                f"{self.ADVICE}; the rows after them were not used."
            )

    def end(self) -> None:
        """On a terminal, write the last release in full."""
        if self._last is not None and not self.as_json:
            sys.stdout.write("\n" + describe(self._last).rstrip() + "\n")

"""Prints the releases of `run`: JSON lines for programs, a line per release on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from stream_dppca.method.base import UNREADABLE

from ..errors import ConfigurationError
from ..model.describe import CHECK_NAMES, describe, learned_nothing, status_in_words
from ..model.releases import PublishedRelease, parse_release

#: Batches at the beginning of a file after which nothing more is tried.
UNREADABLE_BATCHES: Final = 3


def json_lines(value: bytes) -> None:
    """Write a release to standard output as it was made."""
    sys.stdout.buffer.write(value + b"\n")
    sys.stdout.buffer.flush()


class Watched:
    """Passes releases on, and gives up if the first ones say that hardly any record can be read.

    Records that come after them are not used. What releases say is public, so this tells nothing.
    """

    def __init__(self, out: Callable[[bytes], None]) -> None:
        self._out = out
        self._count, self._learned = 0, False
        self.reason = ""  #: the last one, if nothing was learned from any batch

    def __call__(self, value: bytes) -> None:
        self._out(value)
        release = parse_release(value)
        self._count += 1
        self._learned |= not learned_nothing(release.status, release.reason)
        self.reason = "" if self._learned else release.reason or ""
        if self.reason == UNREADABLE and self._count == UNREADABLE_BATCHES:
            raise ConfigurationError(
                f"{UNREADABLE} in the first {self._count} batches: {CHECK_NAMES}, and that these "
                "columns hold numbers. The records after them were not used."
            )


class Releases:
    """Shows a line per release, and at the end the last one in full.

    Parameters
    ----------
    write
        Writes a line above the progress bar.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.last: PublishedRelease | None = None

    def __call__(self, value: bytes) -> None:
        self.last = parse_release(value)
        self._write(summary(self.last))

    def end(self) -> None:
        """Write the last release in full."""
        if self.last is not None:
            sys.stdout.write("\n" + describe(self.last).rstrip() + "\n")


def summary(release: PublishedRelease, most: int = 3) -> str:
    """Return one line about a release, with its largest loadings."""
    if release.round is None:
        line = f"batch {release.batch:>5}  {release.n_seen:>12,} records"
    else:
        number = "" if release.subjects is None else f"  about {release.subjects:,.0f} subjects"
        line = f"round {release.batch:>5}  until {release.round.end}{number}"
    if not release.components:
        return f"{line}  {status_in_words(release)}"
    if release.explained_variance_ratio is not None:
        line += f"  explains {min(1.0, max(0.0, release.explained_variance_ratio[0])):4.0%}"
    loadings = zip(release.features, release.components[0], strict=True)
    largest = sorted(loadings, key=lambda loading: -abs(loading[1]))[:most]
    line += "  " + ", ".join(f"{name} {value:+.2f}" for name, value in largest)
    words = status_in_words(release)
    return f"{line}  ({words})" if words else line

"""Opens files, also compressed ones, and cuts them into lines.

**A line takes bounded memory.** One that is longer than a public number of bytes is read as an
empty line; the rest of it is read in pieces and thrown away.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from ..errors import ConfigurationError

GZIP: Final = ".gz"  #: the ending of the name of a compressed file
PIECE: Final = 1 << 20  #: bytes that are read at once
BYTES_PER_FEATURE: Final = 128  #: in a line of more than `PIECE` bytes
MOST_ROWS: Final = 4096  #: in a block of lines
MOST_NUMBERS: Final = 1 << 22  #: in a block of lines, unless one line has more


def longest_line(features: int) -> int:
    """The bytes that a line may have, its end included: 1 MiB, or 128 per feature.

    Examples
    --------
    >>> longest_line(10), longest_line(100_000)
    (1048576, 12800000)
    """
    return max(PIECE, BYTES_PER_FEATURE * features)


def first_line(stream: IO[bytes], features: int) -> bytes:
    """Read the first line, at most as many bytes of it as a line may have."""
    longest = longest_line(features)
    line = rest = stream.readline(longest)
    while len(rest) == longest and not rest.endswith(b"\n"):
        rest = stream.readline(longest)
    return line


def line_blocks(stream: IO[bytes], features: int) -> Iterator[list[bytes]]:
    """The lines of a stream, many at a time, without their ends.

    A line that is too long is empty: its row is a null, as that of an empty line.
    """
    longest = longest_line(features)
    rows = max(1, min(MOST_ROWS, MOST_NUMBERS // features))
    begun = b""  # the beginning of the next line
    while piece := stream.read(PIECE):
        lines = piece.split(b"\n")
        lines[0] = begun + lines[0]
        begun = lines.pop()[:longest]  # this many bytes without an end are too many already
        for start in range(0, len(lines), rows):
            yield [line if len(line) < longest else b"" for line in lines[start : start + rows]]
    if begun:
        yield [begun if len(begun) < longest else b""]


def existing_file(source: str) -> Path:
    """Return the path of a file, or raise if there is no such file."""
    if source == "-":
        raise ConfigurationError("this format cannot be read from standard input: give a file")
    path = Path(source)
    if not path.is_file():
        raise ConfigurationError(f"there is no file {source}")
    return path


def share_read(stream: IO[bytes]) -> float | None:
    """The share of a file that has been read; None if its size is not known, as of a pipe."""
    raw = getattr(stream, "fileobj", stream)  # of a compressed file
    with contextlib.suppress(OSError):
        return float(raw.tell() / os.fstat(raw.fileno()).st_size)
    return None


@contextlib.contextmanager
def opened(source: str) -> Iterator[IO[bytes]]:
    """Open a file, or standard input for `-`; decompress it if its name ends with `.gz`."""
    if source == "-":
        yield sys.stdin.buffer
        return
    path = existing_file(source)
    try:
        opens: Any = gzip.open if path.suffix == GZIP else open
        with opens(path, "rb") as stream:
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error):  # their texts may quote the file
        raise ConfigurationError(f"{source} is not a valid {GZIP} file") from None

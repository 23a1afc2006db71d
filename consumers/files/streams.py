"""Opens files, also compressed ones, cuts them into lines, and tells how much has been read.

**A line takes bounded memory.** One that is longer than a public number of bytes is read as an
empty line; the rest of it is read in pieces and thrown away.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from ..errors import ConfigurationError

#: Endings of the names of compressed files.
COMPRESSIONS: Final = (".gz", ".zst")
PIECE: Final = 1 << 20  #: bytes that are read at once
#: Compressed bytes that are read at once: zstd turns 4 of them into 128 kB, if these are equal.
ZSTD_PIECE: Final = 256
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
        begun = lines.pop()[:longest]  # so many bytes without an end are too many already
        for start in range(0, len(lines), rows):
            yield [line if len(line) < longest else b"" for line in lines[start : start + rows]]
    if begun:
        yield [begun if len(begun) < longest else b""]


def uncompressed_name(name: str) -> str:
    """Return the name of a file without the ending of its compression.

    Examples
    --------
    >>> uncompressed_name("records.csv.gz"), uncompressed_name("records.csv")
    ('records.csv', 'records.csv')
    """
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return name


def existing_file(source: str) -> Path:
    """Return the path of a file, or raise if there is no such file."""
    if source == "-":
        raise ConfigurationError("this format cannot be read from standard input: give a file")
    path = Path(source)
    if not path.is_file():
        raise ConfigurationError(f"there is no file {source}")
    return path


@contextlib.contextmanager
def opened(source: str) -> Iterator[tuple[IO[bytes], Callable[[], float | None]]]:
    """Open a file, or standard input for `-`; decompress it if its name says so.

    Yields the stream, and a function that returns the share of the file that has been read, or None
    if that cannot be known.
    """
    if source == "-":
        yield sys.stdin.buffer, lambda: None
        return
    path = existing_file(source)
    size = path.stat().st_size
    with path.open("rb") as raw:

        def share() -> float | None:
            return min(1.0, raw.tell() / size) if size else None

        try:
            with _decompressed(raw, path.suffix) as stream:
                yield stream, share
        except _damage():  # their texts may quote the file
            raise ConfigurationError(f"{source} is not a valid {path.suffix} file") from None


def _decompressed(raw: IO[bytes], suffix: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]
    if suffix == ".zst":
        return io.BufferedReader(_Zstd(raw), 1 << 17)
    return contextlib.nullcontext(raw)


class _Zstd(io.RawIOBase):
    """Decompresses frames one after another. Unlike zstandard's own reader, it does not take a file
    that was cut off for one that has ended."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._make = raw, _zstandard().ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            chunk = self._raw.read(ZSTD_PIECE)
            if not chunk:
                if self._frame is not None:
                    raise EOFError
                return 0
            if self._frame is None:
                self._frame = self._make()
            self._out = memoryview(self._frame.decompress(chunk))
            if self._frame.eof:  # the next frame begins within the chunk
                self._raw.seek(-len(self._frame.unused_data), io.SEEK_CUR)
                self._frame = None
        taken, self._out = self._out[: len(buffer)], self._out[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise ConfigurationError(".zst files need zstandard: pip install zstandard") from None


def _damage() -> tuple[type[Exception], ...]:
    """Return the errors that decompression raises."""
    kinds: tuple[type[Exception], ...] = (gzip.BadGzipFile, EOFError, zlib.error)
    zstandard = sys.modules.get("zstandard")
    return kinds if zstandard is None else (*kinds, zstandard.ZstdError)

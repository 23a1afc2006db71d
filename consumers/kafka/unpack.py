"""Decompresses batches of messages in pieces, so that memory does not depend on their sizes.

A producer compresses a batch, and brokers store it unchanged. Two thousand bytes can hold 64
megabytes of zeros, and a megabyte can hold many gigabytes. Here a batch comes in pieces of at most
`PIECE` bytes (with snappy, which cannot be cut, of at most 64 times the compressed block), and the
parser keeps only what it needs.

Damage to compressed bytes is damage to the frame that the producer has put around its messages,
not to a message: the messages before that place are read, those after it are not.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import lz4.frame  # type: ignore[import-untyped]
import snappy  # type: ignore[import-untyped]
import zstandard
from kafka.errors import CorruptRecordError  # type: ignore[import-untyped]

#: Bytes that are decompressed at a time.
PIECE: Final = 1 << 18
#: Compressed bytes that are given to a decompressor at a time: some copy what is left of them.
SLICE: Final = 1 << 16
#: Most bytes of a decompressed batch. The limits of clients are far lower; decompressing this many
#: takes a second or two, and what follows in such a batch is not read.
MOST_UNPACKED: Final = 1 << 30
#: Bound on the compression ratio of snappy, which is 21 at most.
MOST_OF_SNAPPY: Final = 64
#: Most memory of a zstd frame: the default limit of its own library.
ZSTD_WINDOW: Final = 1 << 27

_GZIP_MAGIC: Final = b"\x1f\x8b"
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16


def unpacked(kind: int, data: memoryview) -> Iterator[bytes]:
    """Pieces of the decompressed bytes, none of them empty.

    Raises `CorruptRecordError` where bytes cannot be decompressed.

    Parameters
    ----------
    kind
        The compression as a number in the header of a batch: 1 to 4.
    data
        The bytes after the header.
    """
    left = MOST_UNPACKED
    try:
        for piece in _KINDS[kind](data):
            if left < 0:
                break
            left -= len(piece)
            if piece:
                yield piece
    except Exception:  # five libraries, each with errors of its own, some of which quote bytes
        raise CorruptRecordError("a batch cannot be decompressed") from None
    if left < 0:
        raise CorruptRecordError("a batch is larger than allowed")


def _slices(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + SLICE] for at in range(0, len(data), SLICE))


def _gzip(data: memoryview) -> Iterator[bytes]:
    """One or more streams, one after another; bytes after the last one are ignored."""
    stream = zlib.decompressobj(wbits=31)
    for part in _slices(data):
        rest: Any = part
        while True:
            if stream.eof:
                if not _GZIP_MAGIC.startswith(bytes(rest[:2])):
                    return
                stream = zlib.decompressobj(wbits=31)
            piece = stream.decompress(rest, PIECE)
            yield piece
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            if not rest and len(piece) < PIECE:
                break


def _zstd(data: memoryview) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(PIECE):
            yield piece


def _lz4(data: memoryview) -> Iterator[bytes]:
    stream = lz4.frame.LZ4FrameDecompressor()
    for part in _slices(data):
        yield stream.decompress(part, max_length=PIECE)
        while not stream.eof and not stream.needs_input:
            yield stream.decompress(b"", max_length=PIECE)
        if stream.eof:
            return


def _snappy(data: memoryview) -> Iterator[bytes]:
    """One block, or the blocks of xerial's format, which the Java client writes."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _snappy_block(data)
        return
    at = _XERIAL_HEADER
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        at += 4
        yield _snappy_block(data[at : at + size])
        at += size


def _snappy_block(block: memoryview) -> bytes:
    """Decompress a block, which begins with its length: seven bits per byte, the lowest first."""
    claimed = shift = 0
    for byte in block[:5]:
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if claimed > MOST_OF_SNAPPY * len(block):
        raise ValueError("a block claims to be longer than it can be")
    found: bytes = snappy.decompress(bytes(block))
    return found


_KINDS: Final[dict[int, Callable[[memoryview], Iterator[bytes]]]] = {
    1: _gzip,
    2: _snappy,
    3: _lz4,
    4: _zstd,
}

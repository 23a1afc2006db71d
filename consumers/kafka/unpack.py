"""Decompresses batches of messages in pieces, so that memory does not follow what a batch claims.

A producer compresses a batch, and brokers store it as it is. Two thousand bytes can be 64 megabytes
of zeros, and a megabyte can be many gigabytes. Here a batch comes in pieces of at most `PIECE`
bytes (with snappy, which cannot be cut, of at most 64 times the compressed block), and whoever
parses them keeps what it needs.

What is wrong with compressed bytes is wrong with the frame that the producer has put around its
messages, not with a message: the messages before that place are read, those after it are not.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from kafka import codec as kafka_codec  # type: ignore[import-untyped]
from kafka.errors import (  # type: ignore[import-untyped]
    CorruptRecordError,
    UnsupportedCodecError,
)

__all__ = ["MOST_UNPACKED", "PIECE", "unpacked"]

#: Bytes that are decompressed at a time.
PIECE: Final = 1 << 18
#: Compressed bytes that are given to a decompressor at a time: some copy what they have left over.
SLICE: Final = 1 << 16
#: Bytes that one batch may hold, decompressed. Clients bound what they compress by far less; it
#: takes a second or two to get here, and what follows in such a batch is not read.
MOST_UNPACKED: Final = 1 << 30
#: How many times smaller snappy can make anything: it is 21 at most.
MOST_OF_SNAPPY: Final = 64
#: Memory of a zstd frame, at most: what its own library allows by default.
ZSTD_WINDOW: Final = 1 << 27

_GZIP_MAGIC: Final = b"\x1f\x8b"
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16


def unpacked(kind: int, data: memoryview) -> Iterator[bytes]:
    """Pieces of the decompressed bytes, none of them empty.

    Raises `CorruptRecordError` where they cannot be decompressed, and `UnsupportedCodecError` if
    the package that is needed is not there.

    Parameters
    ----------
    kind
        The compression as the header of a batch has it: 1 to 4.
    data
        What follows the header.
    """
    pieces, there = _KINDS.get(kind, (_unknown, kafka_codec.has_gzip))
    if not there():
        raise UnsupportedCodecError
    left = MOST_UNPACKED
    try:
        for piece in pieces(data):
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
    """One or more streams, one after another; what follows the last one is ignored."""
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
    decompressor = kafka_codec.zstd.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(PIECE):
            yield piece


def _lz4(data: memoryview) -> Iterator[bytes]:
    stream = kafka_codec.lz4.LZ4FrameDecompressor()
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
    """A block says first how long it will be, seven bits per byte, the lowest first."""
    claimed = shift = 0
    for byte in block[:5]:
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if claimed > MOST_OF_SNAPPY * len(block):
        raise ValueError("a block claims to be longer than it can be")
    found: bytes = kafka_codec.snappy.decompress(bytes(block))
    return found


def _unknown(data: memoryview) -> Iterator[bytes]:
    raise ValueError("there is no such compression")


_KINDS: Final[dict[int, tuple[Callable[[memoryview], Iterator[bytes]], Callable[[], bool]]]] = {
    1: (_gzip, kafka_codec.has_gzip),
    2: (_snappy, kafka_codec.has_snappy),
    3: (_lz4, lambda: kafka_codec.has_lz4() and kafka_codec.lz4 is not None),
    4: (_zstd, kafka_codec.has_zstd),
}

"""Lets a consumer of kafka-python read batches of any producer, in bounded memory.

kafka-python decompresses a batch as a whole, cannot get past a batch whose frame is damaged, and
cannot read a message with a header whose name is not UTF-8. Here a batch is decompressed in pieces
(`unpack.py`) and parsed as they come. Keys and values that are longer than `max_message_bytes` are
skipped, because such a value is a null anyway, and the messages around them are read. So memory is
bounded by the settings, whatever a producer has compressed. A batch whose checksum is right but
whose frame is damaged, inside or outside of the compression, is read as far as possible; the
offsets that are left are nulls. The frame is made by the producer of the batch, and is not part of
any message in it.

Positions, transactions and checksums stay with kafka-python, and so do batches that were stored
before Kafka 0.11. Clients that were not made bounded are not changed: states and releases are
written by the service itself, and skipping one would lose it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from kafka.consumer.fetcher import Fetcher  # type: ignore[import-untyped]
from kafka.errors import CorruptRecordError  # type: ignore[import-untyped]
from kafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecord,
    DefaultRecordBatch,
)

from .unpack import unpacked

#: Decompressed bytes after which the rest of a fetch is left and fetched again, so that
#: decompression does not hold up the loop.
UNPACKED_PER_FETCH: Final = 1 << 28

_MOST_DIGITS: Final = 10  #: bytes of a number of 64 bits
_HEADER: Final = DefaultRecordBatch.HEADER_STRUCT.size

#: Offset, key and value of a message.
Entry = tuple[int, bytes | None, bytes | None]


def make_bounded(consumer: Any, max_bytes: int) -> None:
    """Let this consumer read in bounded memory; keys and values of more bytes are None."""
    consumer._fetcher.PartitionRecords = type("Bounded", (_Fetched,), {"max_bytes": max_bytes})


class _Fetched(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The fetched messages of a partition, in order."""

    max_bytes = 1 << 20

    def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
        batches = _Batches(records, self.max_bytes)
        found: Iterator[Any] = super()._unpack_records(tp, batches, *deserializers)
        return found


class _Batches:
    """The batches of a fetch, until too much has been decompressed."""

    def __init__(self, records: Any, max_bytes: int) -> None:
        self._records, self.max_bytes = records, max_bytes
        self.left = UNPACKED_PER_FETCH

    def next_batch(self) -> Any:
        batch = self._records.next_batch() if self.left > 0 else None
        return _Batch(batch, self) if isinstance(batch, DefaultRecordBatch) else batch


class _Batch:
    """A batch of kafka-python whose messages are read in bounded memory, as far as possible."""

    def __init__(self, batch: Any, fetched: _Batches) -> None:
        self._batch, self._fetched = batch, fetched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        batch, most = self._batch, self._fetched.max_bytes
        base, last = batch.base_offset, batch.last_offset - batch.base_offset
        with suppress(CorruptRecordError):
            for offset, key, value in read_entries(
                self._pieces(), batch.records_count, base, last, most
            ):
                time_ms, kind = batch.max_timestamp, batch.timestamp_type
                # With a size, so that kafka-python goes on to the next partition in its turn.
                yield DefaultRecord(1, offset, time_ms, kind, key, value, [])

    def _pieces(self) -> Iterator[bytes | memoryview]:
        data, compression = memoryview(self._batch._buffer)[_HEADER:], self._batch.compression_type
        if compression == DefaultRecordBatch.CODEC_NONE:
            yield data
            return
        for piece in unpacked(compression, data):
            self._fetched.left -= len(piece)
            yield piece

    def __next__(self) -> Any:
        return next(self._batch)  # the mark at the end of a transaction


def read_entries(
    pieces: Iterable[bytes | memoryview], count: int, base: int, last: int, max_bytes: int
) -> Iterator[Entry]:
    """Messages of one batch, as the protocol lays them out.

    A message is its length, attributes (one byte), the differences of its time and its offset from
    those of the batch, key, value and headers. All numbers are signed and of variable length: seven
    bits per byte, the lowest first, the sign in the very lowest bit. A negative length stands for a
    null. The headers are skipped by means of the length of the message.

    Parameters
    ----------
    pieces
        The bytes of the batch after its header. Skipped bytes are not kept.
    count
        Number of messages.
    base
        Offset of the batch.
    last
        Largest difference of an offset from `base`; differences grow from message to message.
    max_bytes
        Longer keys and values are None.
    """
    data = _Stream(iter(pieces))
    before = -1
    for _ in range(count):
        end = data.size()
        if end is None:
            raise CorruptRecordError("a message does not have its stated length")
        end += data.at
        data.skip(1)
        data.number()  # the time, which its sender has set
        delta = data.number()
        key = data.take(data.size(), max_bytes)
        value = data.take(data.size(), max_bytes)
        if data.at > end:
            raise CorruptRecordError("a message does not have its stated length")
        if delta & 1 or not before < delta <= last << 1:
            raise CorruptRecordError("a message has a wrong offset")
        before = delta
        data.skip(end - data.at)
        yield base + (delta >> 1), key, value


class _Stream:
    """Bytes that come in pieces."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces = pieces
        self._piece: bytes | memoryview = b""
        self._next = 0
        self._before = 0  # bytes of earlier pieces

    @property
    def at(self) -> int:
        """Number of bytes that have been read or skipped."""
        return self._before + self._next

    def _advance(self) -> None:
        """Go to the next piece."""
        self._before += len(self._piece)
        self._piece, self._next = next(self._pieces, b""), 0
        if not self._piece:
            raise CorruptRecordError("a batch ends inside a message")

    def number(self) -> int:
        """A number of variable length, its sign still in the lowest bit."""
        found = 0
        for shift in range(0, 7 * _MOST_DIGITS, 7):
            if self._next == len(self._piece):
                self._advance()
            byte = self._piece[self._next]
            self._next += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
        raise CorruptRecordError("a number has too many bytes")

    def size(self) -> int | None:
        found = self.number()
        return None if found & 1 else found >> 1

    def skip(self, size: int) -> None:
        while size > (left := len(self._piece) - self._next):
            size -= left
            self._advance()
        self._next += size

    def take(self, size: int | None, most: int) -> bytes | None:
        """The next `size` bytes; None for a null, or for more than `most`, which are skipped."""
        if size is None or size > most:
            self.skip(size or 0)
            return None
        found = [bytes(self._piece[self._next : self._next + size])]
        self._next += len(found[0])
        size -= len(found[0])
        while size > 0:
            self._advance()
            found.append(bytes(self._piece[:size]))
            self._next = len(found[-1])
            size -= self._next
        return found[0] if len(found) == 1 else b"".join(found)

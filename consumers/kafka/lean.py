"""Reads with kafka-python in half the time.

kafka-python 3.0.12 takes 4 kB from a socket at a time, copies every byte about ten times on its way
to the caller, and makes an object with thirteen fields out of each message. This module takes more
at a time, copies less, and of a message keeps only what is used here. Positions, fetch sessions,
transactions and checksums stay with kafka-python.

Batches are decompressed in pieces (`unpack.py`). A batch larger than `WHOLE` is parsed as its
pieces come: keys and values that are longer than `max_message_bytes` are skipped, because such a
value is a null anyway, and the messages around it are read. So memory is bounded by the settings,
whatever a producer has compressed. A batch whose checksum is right but whose frame is damaged,
inside or outside of the compression, is read as far as possible; the offsets that are left are
nulls. The frame is made by the producer of the batch, and is not part of any message in it.

This module uses private parts of kafka-python, so it only works with the versions that were tested
(`TESTED`). Messages of any other version are read through the public interface.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple

import kafka  # type: ignore[import-untyped]
from kafka.consumer.fetcher import Fetcher  # type: ignore[import-untyped]
from kafka.errors import (  # type: ignore[import-untyped]
    CorruptRecordError,
    KafkaConnectionError,
    UnsupportedCodecError,
)
from kafka.net.transport import (  # type: ignore[import-untyped]
    KafkaSSLTransport,
    KafkaTCPTransport,
)
from kafka.protocol.frame import KafkaBytes  # type: ignore[import-untyped]
from kafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped]
from kafka.record.legacy_records import LegacyRecordBatch  # type: ignore[import-untyped]

from .unpack import unpacked

__all__ = [
    "Entry",
    "make_lean",
    "read_entries",
    "read_entries_in_pieces",
    "receive_more_at_a_time",
]

#: Versions of kafka-python whose private parts are those that this module knows.
TESTED: Final = ("3.0.12",)
#: Bytes taken from a socket at a time.
RECEIVED: Final = 1 << 18
#: Decompressed bytes of a batch that are parsed at once, as those of nearly all batches are.
WHOLE: Final = 1 << 22
#: Decompressed bytes after which the rest of a fetch is left and fetched again, so that
#: decompression does not hold up the loop.
UNPACKED_PER_FETCH: Final = 1 << 28

_MAGIC_AT: Final = 16  #: position of the version in a batch of records
_MOST_DIGITS: Final = 10  #: bytes of a number of 64 bits


class Entry(NamedTuple):
    """The parts of an input message that are used."""

    offset: int
    value: bytes | None
    key: bytes | None
    time_ms: int | None  #: at which the broker appended it; None if its sender has set the time


def make_lean(consumer: Any, max_bytes: int) -> bool:
    """Let `consumer.poll` return entries instead of records; return False if that is impossible.

    Keys and values of more than `max_bytes` bytes are None.
    """
    if kafka.__version__ not in TESTED:
        return False
    consumer._fetcher.PartitionRecords = type("Entries", (_Entries,), {"max_bytes": max_bytes})
    return True


class _View(DefaultRecordBatch):  # type: ignore[misc]
    """A batch of records that reads the fetched bytes where they lie."""

    def __init__(self, buffer: memoryview) -> None:
        super().__init__(buffer[: self.HEADER_STRUCT.size])
        self._buffer = buffer
        self.unpacked = 0  #: decompressed bytes so far

    def entries(self, max_bytes: int) -> Iterator[Entry]:
        """Messages; raises `CorruptRecordError` after the last one that can be read."""
        last = self.last_offset - self.base_offset
        time_ms = self.max_timestamp if self.timestamp_type == self.LOG_APPEND_TIME else None
        about = self._num_records, self.base_offset, last, time_ms, max_bytes
        if self.compression_type == self.CODEC_NONE:
            return read_entries(self._buffer, self._pos, *about)
        pieces, first = self._pieces(), []
        with suppress(CorruptRecordError):  # what has come before is read
            for piece in pieces:
                first.append(piece)
                if self.unpacked > WHOLE:
                    return read_entries_in_pieces(chain(first, pieces), *about)
        return read_entries(b"".join(first), 0, *about)

    def _pieces(self) -> Iterator[bytes]:
        for piece in unpacked(self.compression_type, self._buffer[self._pos :]):
            self.unpacked += len(piece)
            yield piece


class _Entries(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The fetched messages of a partition, in order. Replaces the records of kafka-python."""

    max_bytes = 1 << 20

    def _unpack_records(self, tp: Any, records: Any, *_deserializers: Any) -> Iterator[Entry]:
        left = UNPACKED_PER_FETCH
        for batch in _batches(records):
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError(f"a batch of {tp} has a wrong checksum")
            if batch.magic < 2:
                yield from self._old_entries(batch)
                continue
            self.leader_epoch = batch.leader_epoch
            self.bytes_read += batch.size_in_bytes
            if not self._is_hidden(batch):
                with suppress(CorruptRecordError):
                    for entry in batch.entries(self.max_bytes):
                        self.next_fetch_offset = entry.offset + 1
                        yield entry
            # Compaction may have removed the last messages of the batch, or they cannot be read.
            # These are skipped, too.
            self.next_fetch_offset = batch.next_offset
            left -= batch.unpacked
            if left < 0:
                break
        self.drain()

    def _old_entries(self, batch: Any) -> Iterator[Entry]:
        """Messages as they were stored before Kafka 0.11."""
        for record in _readable(batch):
            if self.check_crcs and not record.validate_crc():
                raise CorruptRecordError(f"offset {record.offset} has a wrong checksum")
            self.bytes_read += record.size_in_bytes
            self.next_fetch_offset = record.offset + 1
            appended = record.timestamp_type == DefaultRecordBatch.LOG_APPEND_TIME
            time_ms = record.timestamp if appended else None
            yield Entry(record.offset, record.value, record.key, time_ms)
        # A batch has the offset of its last message, which may be one that cannot be read.
        self.next_fetch_offset = max(self.next_fetch_offset, batch.base_offset + 1)

    def _is_hidden(self, batch: _View) -> bool:
        """Tell whether a batch belongs to an aborted transaction or is a transaction marker."""
        if self.isolation_level and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)

    def _maybe_skip_record(self, record: Entry) -> bool:
        """Skip records before the wanted offset: a batch is always fetched whole."""
        return bool(record.offset < self.fetch_offset)


def _readable(batch: Any) -> Iterator[Any]:
    """Records of an old batch, as far as it can be read."""
    try:
        yield from batch
    except UnsupportedCodecError:
        raise
    except Exception:  # mostly errors of decompression
        return


def _batches(records: Any) -> Iterator[Any]:
    while (view := records._next_slice) is not None:
        if len(view) < records.MIN_SLICE:
            raise CorruptRecordError("a batch is shorter than its header")
        records._cache_next()
        magic = view[_MAGIC_AT]
        yield LegacyRecordBatch(view, magic) if magic < 2 else _View(view)


def read_entries(
    data: bytes | bytearray | memoryview, at: int, count: int, base: int, last: int,
    time_ms: int | None, max_bytes: int,
) -> Iterator[Entry]:  # fmt: skip
    """Messages of one batch, as the protocol lays them out from `at` on.

    A message is its length, attributes (one byte), the differences of its time and its offset from
    those of the batch, key, value and headers. All numbers are signed and of variable length: seven
    bits per byte, the lowest first, the sign in the very lowest bit. A negative length stands for a
    null. The headers are skipped by means of the length of the message.

    Parameters
    ----------
    count
        Number of messages.
    base
        Offset of the batch.
    last
        Largest difference of an offset from `base`; differences grow from message to message.
    time_ms
        The time of all messages, if a broker has set it.
    max_bytes
        Longer keys and values are None.
    """
    before, most, longest, stop = -1, last << 1, max_bytes << 1, len(data)
    try:
        for _ in range(count):
            length, at = _number(data, at) if data[at] > 0x7F else (data[at], at + 1)
            end = at + (length >> 1)
            at += 1
            while data[at] > 0x7F:  # the time, which its sender has set
                at += 1
            at += 1
            delta, at = _number(data, at) if data[at] > 0x7F else (data[at], at + 1)
            size, at = _number(data, at) if data[at] > 0x7F else (data[at], at + 1)
            key = None
            if not size & 1:
                if size <= longest:
                    key = bytes(data[at : at + (size >> 1)])
                at += size >> 1
            size, at = _number(data, at) if data[at] > 0x7F else (data[at], at + 1)
            value = None
            if not size & 1:
                if size <= longest:
                    value = bytes(data[at : at + (size >> 1)])
                at += size >> 1
            if at > end or end > stop or length & 1 or delta & 1:
                raise CorruptRecordError("a message does not have its stated length")
            if not before < delta <= most:
                raise CorruptRecordError("a message has a wrong offset")
            before = delta
            yield Entry(base + (delta >> 1), value, key, time_ms)
            at = end
    except IndexError:
        raise CorruptRecordError("a batch ends inside a message") from None
    if at != stop:
        raise CorruptRecordError("a batch is longer than its messages")


def read_entries_in_pieces(
    pieces: Iterable[bytes], count: int, base: int, last: int, time_ms: int | None, max_bytes: int
) -> Iterator[Entry]:
    """As `read_entries`, from bytes that come in pieces; skipped bytes are not kept."""
    data = _Stream(iter(pieces))
    before = -1
    for _ in range(count):
        end = data.size()
        if end is None:
            raise CorruptRecordError("a message does not have its stated length")
        end += data.at
        data.skip(1)
        while data.byte() > 0x7F:  # the time, which its sender has set
            pass
        delta = data.number()
        key = data.bytes(data.size(), max_bytes)
        value = data.bytes(data.size(), max_bytes)
        if data.at > end:
            raise CorruptRecordError("a message does not have its stated length")
        if delta & 1 or not before < delta <= last << 1:
            raise CorruptRecordError("a message has a wrong offset")
        before = delta
        data.skip(end - data.at)
        yield Entry(base + (delta >> 1), value, key, time_ms)


class _Stream:
    """Bytes that come in pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece, self._next = b"", 0
        self.at = 0  #: bytes that have been read or skipped

    def _take(self, most: int) -> bytes:
        """Some of the next bytes, at least one."""
        if self._next == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                raise CorruptRecordError("a batch ends inside a message")
            self._piece, self._next = piece, 0
        found = self._piece[self._next : self._next + most]
        self._next += len(found)
        self.at += len(found)
        return found

    def byte(self) -> int:
        return self._take(1)[0]

    def number(self) -> int:
        """A number of variable length, its sign still in the lowest bit."""
        digits = bytearray()
        while not digits or digits[-1] > 0x7F:
            digits.append(self.byte())
            if len(digits) > _MOST_DIGITS:
                raise CorruptRecordError("a number has too many bytes")
        return _number(digits, 0)[0]

    def size(self) -> int | None:
        found = self.number()
        return None if found & 1 else found >> 1

    def skip(self, size: int) -> None:
        while size > 0:
            size -= len(self._take(size))

    def bytes(self, size: int | None, most: int) -> bytes | None:
        """The next `size` bytes; None for a null, or for more than `most`, which are skipped."""
        if size is None or size > most:
            self.skip(size or 0)
            return None
        found = []
        while size > 0:
            found.append(self._take(size))
            size -= len(found[-1])
        return b"".join(found)


def _number(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, its sign still in the lowest bit, and the position after it."""
    found = shift = 0
    while (byte := data[at]) > 0x7F:
        found |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift >= 7 * _MOST_DIGITS:
            raise CorruptRecordError("a number has too many bytes")
    return found | byte << shift, at + 1


def receive_more_at_a_time() -> None:
    """Let all clients of this process take more from a socket at a time, and copy less of it."""
    if kafka.__version__ in TESTED:
        KafkaTCPTransport._sock_recv = _receive
        KafkaSSLTransport._sock_recv = _receive
        KafkaBytes.read = _read


def _receive(transport: Any) -> tuple[memoryview, KafkaConnectionError | None]:
    """Return the bytes that have arrived, and the error of the connection, if any.

    Bytes that are left in a plain socket wake the loop again, so one call is enough. An encrypted
    socket is read until it is empty: bytes that it has already decrypted would not wake the loop.
    """
    found: list[bytes] = []
    encrypted = isinstance(transport, KafkaSSLTransport)
    try:
        while not found or encrypted:
            data = transport._sock.recv(RECEIVED)
            if not data:
                return _joined(found), KafkaConnectionError("socket disconnected")
            found.append(data)
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    except Exception as error:
        return _joined(found), KafkaConnectionError(error)
    return _joined(found), None


def _joined(found: list[bytes]) -> memoryview:
    # Slices of a view are views, and the caller slices the result.
    return memoryview(found[0] if len(found) == 1 else b"".join(found))


def _read(frame: Any, count: int | None = None) -> bytes:
    """The next bytes of a frame, or all remaining ones, copied once."""
    start = frame._idx
    frame._idx = len(frame) if count is None else min(start + count, len(frame))
    return bytes(memoryview(frame)[start : frame._idx])

"""The lean reader returns the same messages as kafka-python itself."""

from __future__ import annotations

import contextlib
import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel
from kafka.protocol.frame import KafkaBytes
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c
from kafka.structs import TopicPartition

from consumers.kafka import client, lean, unpack
from consumers.kafka.lean import Entry, read_entries, read_entries_in_pieces

PARTITION = TopicPartition("t", 0)
#: Of the builder: none, gzip, snappy, lz4, zstd.
CODECS = range(5)
LIMIT = 1 << 20
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

maybe_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=2)
some_records = st.lists(st.tuples(maybe_bytes, maybe_bytes, headers), min_size=1, max_size=5)


def made(
    records: Sequence[Record], base: int = 0, codec: int = 0, *, step: int = 1, **how: Any
) -> bytes:
    """A batch of records as a broker stores it, every `step`th offset."""
    options = {
        "is_transactional": False, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1,
    } | how  # fmt: skip
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, batch_size=1 << 30, **options
    )
    for i, (key, value, named) in enumerate(records):
        # Times far apart, so that their differences take several bytes.
        builder.append(step * i, 10**12 + 12_345 * i, key, value, named)
    return marked(bytes(builder.build()), base)


def marked(batch: bytes, base: int, attributes: int = 0) -> bytes:
    """The batch at another offset and with more attributes, its checksum made good."""
    found = bytearray(batch)
    struct.pack_into(">q", found, 0, base)
    found[22] |= attributes
    struct.pack_into(">I", found, 17, calc_crc32c(memoryview(found)[21:]))
    return bytes(found)


def both(data: bytes, start: int = 0, aborted: Sequence[Any] = ()) -> tuple[list[Entry], int]:
    """The entries of fetched bytes and the next offset; kafka-python must say the same."""
    found: list[Any] = []
    for kind in (lean._Entries, Fetcher.PartitionRecords):
        part = kind(
            start, PARTITION, MemoryRecords(data), aborted_transactions=aborted,
            isolation_level=IsolationLevel.READ_COMMITTED,
        )  # fmt: skip
        found += [part.take(), part.next_fetch_offset, part.leader_epoch, bool(part)]
    entries, records = found[0], found[4]
    appended = [r.timestamp if r.timestamp_type == 1 else None for r in records]
    wanted = [(r.offset, r.value, r.key) for r in records]
    assert [entry[:3] for entry in entries] == wanted
    assert [entry.time_ms for entry in entries] == appended
    assert found[1:4] == found[5:]
    return entries, found[1]


def test_the_installed_version_is_known() -> None:
    """If this fails, compare `consumers/kafka/lean.py` with the new kafka-python and run all tests;
    until then messages are read through the public interface, in twice the time."""
    assert kafka.__version__ in lean.TESTED


@given(
    batches=st.lists(st.tuples(some_records, st.sampled_from(CODECS)), max_size=3), data=st.data()
)
def test_the_same_messages(batches: list[tuple[list[Record], int]], data: st.DataObject) -> None:
    """The messages of any batches, from any offset on, compacted or not."""
    fetched, base = b"", 0
    for records, codec in batches:
        step = data.draw(st.sampled_from((1, 100)))
        fetched += made(records, base, codec, step=step)
        base += step * len(records)
    cut = data.draw(st.integers(0, 60))
    both(fetched + made([(None, b"cut off", [])], base)[:cut], data.draw(st.integers(0, base)))


def test_times_of_the_broker() -> None:
    batch = marked(made([(b"k", b"v", [])] * 3), 7, DefaultRecordBatch.TIMESTAMP_TYPE_MASK)
    entries, following = both(batch)
    assert following == 10 and {entry.time_ms for entry in entries} == {10**12 + 2 * 12_345}


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_brokers(magic: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    for i in range(3):
        builder.append(i, timestamp=10**12, key=b"k", value=b"%d" % i)
    entries, _ = both(bytes(builder.build()), 1)
    assert [entry.value for entry in entries] == [b"1", b"2"]


def test_aborted_transactions_are_passed_over() -> None:
    how = {"is_transactional": True, "producer_epoch": 0, "base_sequence": 0}
    records: list[Record] = [(None, b"v", [])] * 2

    def mark(kind: int, base: int) -> bytes:
        end = [(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), [])]
        return marked(made(end, producer_id=5, **how), base, DefaultRecordBatch.CONTROL_MASK)

    fetched = b"".join([
        made(records, 0, producer_id=5, **how), made(records, 2, producer_id=6, **how),
        mark(0, 4), made(records, 5, producer_id=5, **how), mark(1, 7),
    ])  # fmt: skip
    aborted = [SimpleNamespace(first_offset=0, producer_id=5)]
    entries, following = both(fetched, 0, aborted)
    assert [entry.offset for entry in entries] == [2, 3, 5, 6] and following == 8


def test_a_wrong_checksum_is_noticed() -> None:
    batch = bytearray(made([(None, b"value", [])]))
    batch[-3] ^= 1
    part = lean._Entries(0, PARTITION, MemoryRecords(bytes(batch)))
    with pytest.raises(CorruptRecordError, match="checksum"):
        part.take()


@given(records=some_records, data=st.data())
def test_bytes_that_are_no_messages(records: list[Record], data: st.DataObject) -> None:
    """They are refused, or read as some messages; nothing else happens."""
    body = bytearray(made(records)[DefaultRecordBatch.HEADER_STRUCT.size :])
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    try:
        found = list(read_entries(cut, 0, len(records), 0, len(records) - 1, None, LIMIT))
    except CorruptRecordError as error:
        assert error.__cause__ is None
    else:
        assert len(found) == len(records)


def test_a_value_does_not_reach_beyond_its_message() -> None:
    body = made([(None, b"x", []), (None, b"secret", [])])[DefaultRecordBatch.HEADER_STRUCT.size :]
    longer = bytearray(body)
    longer[5] += 4  # the length of the first value
    with pytest.raises(CorruptRecordError, match="stated length"):
        list(read_entries(bytes(longer), 0, 2, 0, 1, None, LIMIT))


def test_names_of_headers_do_not_matter() -> None:
    """kafka-python cannot read a header whose name is not UTF-8."""
    batch = made([(None, b"v", [("name", b"h")])]).replace(b"name", b"n\xff\xfee")
    part = lean._Entries(0, PARTITION, MemoryRecords(marked(batch, 0)))
    assert [entry.value for entry in part.take()] == [b"v"]


# Compressed batches that a producer has made to do harm


def entries_of(data: bytes, limit: int = LIMIT) -> tuple[list[Entry], int]:
    kind = type("Entries", (lean._Entries,), {"max_bytes": limit})
    part = kind(0, PARTITION, MemoryRecords(data))
    return part.take(), part.next_fetch_offset


def repacked(batch: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The batch with another body, its length and its checksum made good."""
    header = DefaultRecordBatch.HEADER_STRUCT.size
    found = bytearray(batch[:header] + change(batch[header:]))
    struct.pack_into(">i", found, 8, len(found) - 12)
    return marked(bytes(found), 0)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a tail": lambda body: body + b"tail",
    "cut short": lambda body: body[: len(body) // 2],
    "something else": lambda body: b"\xff" * len(body),
    "nothing": lambda body: b"",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_cannot_be_decompressed_is_passed(codec: int, damage: str) -> None:
    """Both readers skip it and read the batches around it. They may read a prefix of its messages,
    which depends on the frame alone."""
    records: list[Record] = [(b"k", b"value %d" % i, []) for i in range(20)]
    bad = repacked(made(records, 0, codec), DAMAGE[damage])
    data = made(records[:3]) + marked(bad, 3) + made(records[:3], 23)
    entries, following = entries_of(data)
    assert following == 26
    offsets = [entry.offset for entry in entries]
    assert offsets[:3] == [0, 1, 2] and offsets[-3:] == [23, 24, 25]
    assert offsets[3:-3] == list(range(3, len(offsets) - 3))
    assert all(entry.value == b"value %d" % (entry.offset - 3) for entry in entries[3:-3])
    if damage != "a tail":
        assert len(entries) < 26
    plain = Fetcher.PartitionRecords(0, PARTITION, MemoryRecords(data))
    with client.passing_damage():
        assert [record.offset for record in plain.take()] == offsets
    assert plain.next_fetch_offset == 26
    # States and releases are not skipped.
    plain = Fetcher.PartitionRecords(0, PARTITION, MemoryRecords(bad))
    if damage != "a tail" or codec in (2, 4):
        with pytest.raises(CorruptRecordError):
            plain.take()
            plain.take()


def test_an_unknown_compression_is_passed() -> None:
    bad = marked(made([(None, b"v", [])] * 2), 0, attributes=6)
    assert entries_of(bad + made([(None, b"w", [])], 2)) == ([Entry(2, b"w", None, None)], 3)


@pytest.mark.parametrize("codec", CODECS)
def test_the_neighbours_of_a_huge_message_are_read(codec: int) -> None:
    """It is decompressed in pieces and skipped: memory depends on the limit, not on the message."""
    huge = bytes(48 << 20)
    records: list[Record] = [(b"k", b"before", []), (huge[: 2 << 20], b"long key", []),
                             (None, huge, [("h", b"x")]), (b"k", b"after", [])]  # fmt: skip
    batch = made(records, 0, codec)
    entries_of(batch[:0])
    tracemalloc.start()
    entries, following = entries_of(batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert following == 4
    assert [(entry.value, entry.key) for entry in entries] == [
        (b"before", b"k"), (b"long key", None), (None, None), (b"after", b"k"),
    ]  # fmt: skip
    if codec != 2:  # snappy's blocks are not cut; those of its usual format are small
        assert peak < 24 << 20


@given(records=some_records, data=st.data())
def test_pieces_of_any_size_give_the_same_messages(
    records: list[Record], data: st.DataObject
) -> None:
    """The size of a batch decides nothing about its messages, damaged or not."""
    body = bytearray(made(records)[DefaultRecordBatch.HEADER_STRUCT.size :])
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut, limit = data.draw(st.integers(0, len(body))), data.draw(st.integers(0, 100))
    size = data.draw(st.integers(1, 40))
    pieces = [bytes(body[:cut][i : i + size]) for i in range(0, cut, size)]
    about = len(records), 7, len(records) - 1, None, limit

    def read(entries: Iterator[Entry]) -> list[Entry]:
        found = []
        with contextlib.suppress(CorruptRecordError):
            for entry in entries:
                found.append(entry)
        return found

    whole = read(read_entries(bytes(body[:cut]), 0, *about))
    assert read(read_entries_in_pieces(pieces, *about)) == whole


def test_a_fetch_of_bombs_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the fetch is fetched again, so that the loop runs in between."""
    monkeypatch.setattr(lean, "UNPACKED_PER_FETCH", 1 << 20)
    bombs = b"".join(made([(None, bytes(1 << 20), [])], base, 4) for base in range(5))
    assert entries_of(bombs, 10) == ([Entry(0, None, None, None)], 1)


def test_a_batch_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MOST_UNPACKED", 9 << 20)
    records: list[Record] = [(None, b"v", []), (None, bytes(20 << 20), []), (None, b"w", [])]
    assert entries_of(made(records, 0, 1)) == ([Entry(0, b"v", None, None)], 3)


def test_offsets_stay_inside_their_batch() -> None:
    """Offsets that stand still or lie beyond the batch would be taken for those of others."""
    body = made([(None, b"v", []), (None, b"w", [])])[DefaultRecordBatch.HEADER_STRUCT.size :]
    at = body.index(b"w") - 3  # the difference of the second offset
    for delta in (0, 4):
        wrong = body[:at] + bytes([delta]) + body[at + 1 :]
        with pytest.raises(CorruptRecordError, match="wrong offset"):
            list(read_entries(wrong, 0, 2, 0, 1, None, LIMIT))


class TestReceiving:
    @pytest.fixture
    def ends(self) -> Any:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        yield SimpleNamespace(_sock=ours), theirs
        ours.close()
        theirs.close()

    def test_what_is_there(self, ends: Any) -> None:
        transport, theirs = ends
        assert lean._receive(transport) == (b"", None)
        theirs.send(b"some bytes")
        assert lean._receive(transport) == (b"some bytes", None)

    def test_the_end_of_a_connection(self, ends: Any) -> None:
        transport, theirs = ends
        theirs.close()
        found, error = lean._receive(transport)
        assert found == b"" and "disconnected" in str(error)

    def test_an_error_of_the_connection(self, ends: Any) -> None:
        transport, _ = ends
        transport._sock.close()
        found, error = lean._receive(transport)
        assert found == b"" and error is not None

    def test_frames(self) -> None:
        frame = KafkaBytes(6)
        frame[:] = b"abcdef"
        read: Callable[..., bytes] = lean._read
        assert (read(frame, 2), read(frame), read(frame)) == (b"ab", b"cdef", b"")
        frame.seek(4)
        assert (read(frame, 9), frame.tell()) == (b"ef", 6)


def test_all_clients_receive_more_at_a_time() -> None:
    assert client.receive_more_at_a_time is lean.receive_more_at_a_time
    assert KafkaBytes.read is lean._read

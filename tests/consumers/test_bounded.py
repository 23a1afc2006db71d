"""The bounded reader returns the same messages as kafka-python itself."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c
from kafka.structs import TopicPartition

from consumers.kafka import bounded, unpack
from consumers.kafka.bounded import Entry, make_bounded, read_entries

from ..support.processes import ROOT

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
        "is_transactional": False,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
    } | how
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


def both(data: bytes, start: int = 0, aborted: Sequence[Any] = ()) -> tuple[list[Any], int]:
    """The records of fetched bytes and the next offset; kafka-python must say the same."""
    found: list[Any] = []
    for kind in (bounded._Fetched, Fetcher.PartitionRecords):
        part = kind(
            start,
            PARTITION,
            MemoryRecords(data),
            aborted_transactions=aborted,
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        found += [part.take(), part.next_fetch_offset, part.leader_epoch, bool(part)]
    ours, theirs = ([_used(record) for record in found[at]] for at in (0, 4))
    assert ours == theirs
    assert found[1:4] == found[5:]
    return found[0], found[1]


def _used(record: Any) -> tuple[Any, ...]:
    """The parts of a record that are used: the time only if a broker has set it."""
    time_ms = record.timestamp if record.timestamp_type == 1 else None
    return record.offset, record.key, record.value, time_ms


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
    assert following == 10 and {entry.timestamp for entry in entries} == {10**12 + 2 * 12_345}
    assert {entry.timestamp_type for entry in entries} == {1}


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

    fetched = b"".join(
        [
            made(records, 0, producer_id=5, **how),
            made(records, 2, producer_id=6, **how),
            mark(0, 4),
            made(records, 5, producer_id=5, **how),
            mark(1, 7),
        ]
    )
    aborted = [SimpleNamespace(first_offset=0, producer_id=5)]
    entries, following = both(fetched, 0, aborted)
    assert [entry.offset for entry in entries] == [2, 3, 5, 6] and following == 8


def test_a_wrong_checksum_is_noticed() -> None:
    batch = bytearray(made([(None, b"value", [])]))
    batch[-3] ^= 1
    part = bounded._Fetched(0, PARTITION, MemoryRecords(bytes(batch)))
    with pytest.raises(CorruptRecordError, match="crc"):
        part.take()


@given(records=some_records, data=st.data())
def test_bytes_that_are_no_messages(records: list[Record], data: st.DataObject) -> None:
    """They are refused, or read as some messages; nothing else happens."""
    body = bytearray(made(records)[DefaultRecordBatch.HEADER_STRUCT.size :])
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    try:
        found = list(read_entries([cut], len(records), 0, len(records) - 1, LIMIT))
    except CorruptRecordError as error:
        assert error.__cause__ is None
    else:
        assert len(found) == len(records)


def test_a_value_does_not_reach_beyond_its_message() -> None:
    body = made([(None, b"x", []), (None, b"secret", [])])[DefaultRecordBatch.HEADER_STRUCT.size :]
    longer = bytearray(body)
    longer[5] += 4  # the length of the first value
    with pytest.raises(CorruptRecordError, match="stated length"):
        list(read_entries([bytes(longer)], 2, 0, 1, LIMIT))


def test_names_of_headers_do_not_matter() -> None:
    """kafka-python cannot read a header whose name is not UTF-8."""
    batch = made([(None, b"v", [("name", b"h")])]).replace(b"name", b"n\xff\xfee")
    part = bounded._Fetched(0, PARTITION, MemoryRecords(marked(batch, 0)))
    assert [entry.value for entry in part.take()] == [b"v"]


# Compressed batches that a producer has made to do harm


def entries_of(data: bytes, limit: int = LIMIT) -> tuple[list[Entry], int]:
    consumer = SimpleNamespace(_fetcher=SimpleNamespace())
    make_bounded(consumer, limit)
    part = consumer._fetcher.PartitionRecords(0, PARTITION, MemoryRecords(data))
    return [(r.offset, r.key, r.value) for r in part.take()], part.next_fetch_offset


def repacked(batch: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The batch with another body, its length and its checksum made good."""
    header = DefaultRecordBatch.HEADER_STRUCT.size
    found = bytearray(batch[:header] + change(batch[header:]))
    struct.pack_into(">i", found, 8, len(found) - 12)
    return marked(bytes(found), 0)


def is_readable(part: Any) -> bool:
    try:
        part.take()
        part.take()
    except Exception:  # five libraries, each with errors of its own
        return False
    return True


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a tail": lambda body: body + b"tail",
    "cut short": lambda body: body[: len(body) // 2],
    "something else": lambda body: b"\xff" * len(body),
    "nothing": lambda body: b"",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_cannot_be_decompressed_is_passed(codec: int, damage: str) -> None:
    """It is skipped, and the batches around it are read. A prefix of its messages may be read, too,
    which depends on the frame alone."""
    records: list[Record] = [(b"k", b"value %d" % i, []) for i in range(20)]
    bad = repacked(made(records, 0, codec), DAMAGE[damage])
    data = made(records[:3]) + marked(bad, 3) + made(records[:3], 23)
    entries, following = entries_of(data)
    assert following == 26
    offsets = [offset for offset, _, _ in entries]
    assert offsets[:3] == [0, 1, 2] and offsets[-3:] == [23, 24, 25]
    assert offsets[3:-3] == list(range(3, len(offsets) - 3))
    assert all(value == b"value %d" % (offset - 3) for offset, _, value in entries[3:-3])
    if damage != "a tail":
        assert len(entries) < 26
    # Other consumers skip nothing: it might be a state or a release.
    plain = Fetcher.PartitionRecords(0, PARTITION, MemoryRecords(bad))
    if damage != "a tail":
        assert not is_readable(plain)


def test_an_unknown_compression_is_passed() -> None:
    bad = marked(made([(None, b"v", [])] * 2), 0, attributes=6)
    assert entries_of(bad + made([(None, b"w", [])], 2)) == ([(2, None, b"w")], 3)


@pytest.mark.parametrize("codec", CODECS)
def test_the_neighbours_of_a_huge_message_are_read(codec: int) -> None:
    """It is decompressed in pieces and skipped: memory depends on the limit, not on the message."""
    huge = bytes(48 << 20)
    records: list[Record] = [
        (b"k", b"before", []),
        (huge[: 2 << 20], b"long key", []),
        (None, huge, [("h", b"x")]),
        (b"k", b"after", []),
    ]
    batch = made(records, 0, codec)
    entries_of(batch[:0])
    tracemalloc.start()
    entries, following = entries_of(batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert following == 4
    assert entries == [
        (0, b"k", b"before"),
        (1, None, b"long key"),
        (2, None, None),
        (3, b"k", b"after"),
    ]
    if codec != 2:  # snappy's blocks are not cut; those of its usual format are small
        assert peak < (24 << 20) + len(batch)  # which kafka-python copies once


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

    def read(pieces: list[bytes]) -> list[Entry]:
        found: list[Entry] = []
        with contextlib.suppress(CorruptRecordError):
            found.extend(read_entries(pieces, len(records), 7, len(records) - 1, limit))
        return found

    assert read(pieces) == read([bytes(body[:cut])])


def test_a_fetch_of_bombs_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the fetch is fetched again, so that the loop runs in between."""
    monkeypatch.setattr(bounded, "UNPACKED_PER_FETCH", 1 << 20)
    bombs = b"".join(made([(None, bytes(1 << 20), [])], base, 4) for base in range(5))
    assert entries_of(bombs, 10) == ([(0, None, None)], 1)


def test_a_batch_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MOST_UNPACKED", 9 << 20)
    records: list[Record] = [(None, b"v", []), (None, bytes(20 << 20), []), (None, b"w", [])]
    assert entries_of(made(records, 0, 1)) == ([(0, None, b"v")], 3)


def test_offsets_stay_inside_their_batch() -> None:
    """Offsets that stand still or lie beyond the batch would be taken for those of others."""
    body = made([(None, b"v", []), (None, b"w", [])])[DefaultRecordBatch.HEADER_STRUCT.size :]
    at = body.index(b"w") - 3  # the difference of the second offset
    for delta in (0, 4):
        wrong = body[:at] + bytes([delta]) + body[at + 1 :]
        with pytest.raises(CorruptRecordError, match="wrong offset"):
            list(read_entries([wrong], 2, 0, 1, LIMIT))


def test_imports_change_nothing_of_kafka_python() -> None:
    """Other parts of a process may use it, too."""
    script = """
import importlib, pkgutil, sys, kafka
for found in pkgutil.walk_packages(kafka.__path__, "kafka."):
    if ".benchmarks" not in found.name and not found.name.endswith("__main__"):
        importlib.import_module(found.name)

def parts():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "kafka":
            for key, value in list(vars(module).items()):
                found[name, key] = value
                if isinstance(value, type):
                    found |= {(name, key, inner): v for inner, v in list(vars(value).items())}
    return found

before = parts()
import consumers.kafka.client, consumers.kafka.cluster, consumers.kafka.confluent
import consumers.kafka.task_readers
after = parts()
changed = [key for key in before if after.get(key) is not before[key]]
assert not changed, changed
assert ("kafka.record.default_records", "DefaultRecordBatch", "_read_msg") in before
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, cwd=ROOT)

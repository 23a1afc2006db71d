"""A slot is taken by arrival, never by validity, and all ways in agree."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import itertools
import math
import pickle
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dppca import Projector, frames
from stream_dppca.batch import Batch, Reading
from stream_dppca.slots import SlotBuffer

FEATURES = ("a", "b")
BAD_VALUES = [
    None,
    "1.5",
    "",
    b"2",
    1j,
    [],
    {},
    (1.0,),
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    1e200,
    object(),
    pd.NA,
    pd.NaT,
    dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    dt.timedelta(1),
    decimal.Decimal("NaN"),
]
GOOD_VALUES = [
    1.5,
    -2,
    0.0,
    -0.0,
    True,
    5e-324,
    1e17,
    np.float32(0.5),
    np.int8(3),
    decimal.Decimal("2.5"),
]


def buffer(size: int = 4, max_norm: float = 1e18) -> SlotBuffer:
    return SlotBuffer(FEATURES, size, Reading(max_norm))


def rows_of(batch: Batch | None) -> np.ndarray:
    assert batch is not None
    return batch.matrix()[0]


def nulls_of(batch: Batch | None) -> np.ndarray:
    assert batch is not None
    return batch.matrix()[1]


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_bad_value_is_a_null_in_its_slot(value: Any, feature: str) -> None:
    slots = buffer()
    good = {"a": 1.0, "b": 2.0}
    assert slots.put_dict(good) is None
    assert slots.put_dict({**good, feature: value}) is None
    assert slots.put_dict(good) is None
    batch = slots.put_dict(good)
    assert nulls_of(batch).tolist() == [False, True, False, False]
    assert rows_of(batch).tolist() == [[1, 2], [0, 0], [1, 2], [1, 2]]


@pytest.mark.parametrize("value", GOOD_VALUES, ids=lambda v: type(v).__name__)
def test_a_number_is_a_number(value: Any) -> None:
    slots = buffer(size=1)
    batch = slots.put_dict({"a": value, "b": 1, "unknown": "ignored"})
    assert not nulls_of(batch).any()
    assert rows_of(batch)[0, 0] == float(value)


@pytest.mark.parametrize("record", [{}, {"a": 1.0}, None, 3, "ab", [1.0, 2.0]], ids=repr)
def test_a_record_that_is_none(record: Any) -> None:
    batch = buffer(size=1).put_dict(record)
    assert nulls_of(batch).all()


class Counting(dict[str, Any]):
    """Makes up what is missing, as `collections.Counter` does."""

    def __missing__(self, key: str) -> float:
        return 0.0


@pytest.mark.parametrize(
    "record, expected",
    [
        (Counting(a=1), [1, np.nan]),
        (defaultdict(float, a=1), [1, np.nan]),
        (MappingProxyType({"a": 1, "b": 2}), [1, 2]),
        ([0, 10**400, 5], [np.nan, np.nan]),
        ("ab", [np.nan, np.nan]),
        (np.array([7.0, 8.0, 9.0]), [np.nan, np.nan]),
        ({"a": [1, 2], "b": 5}, [np.nan, 5]),
    ],
    ids=str,
)
def test_a_record_is_read_as_for_scores(record: Any, expected: list[float]) -> None:
    before = str(record)
    batch = SlotBuffer(FEATURES, 1, Reading(1e18, partial=True)).put_dict(record)
    assert batch is not None and np.array_equal(batch._raw, [expected], equal_nan=True)
    assert str(record) == before
    if isinstance(record, Mapping):
        projector = Projector.plain(FEATURES, np.eye(2)[:, :1], None)
        assert np.array_equal(projector._rows(record), [expected], equal_nan=True)


def test_what_is_no_record_takes_no_time() -> None:
    """However long it is: whoever holds the interpreter for a second holds the clock."""
    slots, long = SlotBuffer(range(1000), 10, Reading(1e18)), ScannedList([0] * 10)
    slots.put_dict(long)
    assert long.scans == 0


class ScannedList(list[int]):
    scans = 0

    def __contains__(self, item: object) -> bool:
        self.scans += 1
        return super().__contains__(item)


def test_a_nested_record_is_read_as_for_scores() -> None:
    slots = SlotBuffer(("disk.free", "load[1]", "cpu"), 3, Reading(1e18, partial=True))
    for record in (
        {"disk": {"free": 1}, "load": [5, 6], "cpu": 2.0},
        {"disk.free": 3, "disk": {"free": 1}, "load": [5], "cpu": "text"},
        {"disk.free": "text", "disk": {"free": 1}, "load[1]": 8},
    ):
        batch = slots.put_dict(record)
    assert batch is not None
    expected = [[1, 6, 2], [3, np.nan, np.nan], [np.nan, 8, np.nan]]
    assert np.array_equal(batch._raw, expected, equal_nan=True)


def test_one_feature() -> None:
    batch = SlotBuffer(("a",), 1, Reading(1e18)).put_dict({"a": 3})
    assert rows_of(batch).tolist() == [[3.0]]


def test_the_cap_is_on_the_norm() -> None:
    slots = buffer(size=2, max_norm=5.0)
    slots.put_dict({"a": 3.0, "b": 4.0})
    batch = slots.put_dict({"a": 3.1, "b": 4.0})
    assert nulls_of(batch).tolist() == [False, True]


values = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([*BAD_VALUES[:7], *GOOD_VALUES[:7]]),
)


@given(
    records=st.lists(st.tuples(values, values), max_size=25),
    size=st.integers(1, 7),
    cuts=st.lists(st.integers(0, 25), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_dicts_and_frames_fill_the_same_slots(
    records: list[tuple[Any, Any]], size: int, cuts: list[int]
) -> None:
    """Object columns, cut anywhere: the batches are bit-equal and no slot is lost or shifted."""
    by_dict, by_frame = buffer(size), buffer(size)
    # A batch is a view of the buffer, so it is read before the next record overwrites it.
    expected, found = [], []
    for r in records:
        if (batch := by_dict.put_dict(dict(zip(FEATURES, r, strict=True)))) is not None:
            expected.append(batch.matrix())
    edges = [0, *sorted(min(c, len(records)) for c in cuts), len(records)]
    for start, stop in itertools.pairwise(edges):
        frame = pd.DataFrame(records[start:stop], columns=list(FEATURES), dtype=object)
        found += [b.matrix() for b in by_frame.put_frame(frame)]
    assert by_dict.fill == by_frame.fill == len(records) % size
    assert len(found) == len(expected) == len(records) // size
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("chunk", [1, 3, 10, 40])
def test_arrays_cut_anywhere(dtype: type, chunk: int) -> None:
    X = np.arange(80, dtype=dtype).reshape(40, 2)
    X[5, 1] = np.nan
    X[17] = np.inf
    slots = buffer(size=8)
    batches = [
        rows_of(b)
        for start in range(0, 40, chunk)
        for b in slots.put_rows(X[start : start + chunk])
    ]
    clean = np.where(np.isfinite(X).all(axis=1)[:, None], X, 0.0)
    assert np.array_equal(np.concatenate(batches), clean)


def test_the_callers_array_is_left_alone() -> None:
    X = np.array([[1.0, np.nan], [2.0, 3.0]])
    before = X.copy()
    list(buffer(size=2).put_rows(X))
    assert np.array_equal(X, before, equal_nan=True)


def test_frames_of_every_dtype() -> None:
    frame = pd.DataFrame(
        {
            "float32": np.array([1, 2], dtype=np.float32),
            "int": [1, 2],
            "bool": [True, False],
            "nullable": pd.array([1, None], dtype="Int64"),
            "text": ["1", "2"],
            "object": [1.5, "x"],
            "category": pd.Categorical([1.0, 2.0]),
            "time": pd.to_datetime(["2020", "2021"]),
            "complex": [1j, 2 + 0j],
        }
    )
    names = [*frame.columns, "missing"]
    rows = pd.DataFrame(frames.rows_of(frame, names), columns=names)
    nan = math.nan
    for name, expected in {
        "float32": [1, 2],
        "int": [1, 2],
        "bool": [1, 0],
        "nullable": [1, nan],
        "text": [nan, nan],
        "object": [1.5, nan],
        "category": [1, 2],
        "time": [nan, nan],
        "complex": [nan, 2],
        "missing": [nan, nan],
    }.items():
        assert np.array_equal(rows[name], expected, equal_nan=True), name


def test_odd_frames() -> None:
    slots = buffer(size=2)
    assert list(slots.put_frame(pd.DataFrame())) == []
    assert list(slots.put_frame(pd.DataFrame(columns=["a", "b"]))) == []
    twice = pd.DataFrame([[1.0, 2.0, 3.0]] * 2, columns=["a", "b", "a"])
    (batch,) = slots.put_frame(twice)
    assert nulls_of(batch).all()


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))]
)
def test_copies_come_out_empty(duplicate: Any) -> None:
    slots = buffer()
    slots.put_dict({"a": 123456.789, "b": 2.0})
    twin = duplicate(slots)
    assert (slots.fill, twin.fill) == (1, 0)
    assert twin._rows is None
    assert b"a" in pickle.dumps(slots)
    assert np.float64(123456.789).tobytes() not in pickle.dumps(slots)

"""One rule per value: no cell changes how another is read, and all ways in agree."""

from __future__ import annotations

import copy
import datetime as dt
import math
import struct
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from benchmarks.baselines._common import COORDINATE_CAP, clean
from stream_dppca import DPPCA
from stream_dppca.batch import Reading
from stream_dppca.slots import SlotBuffer
from stream_dppca.values import PLAIN, number

FEATURES = ("a", "b")
NAN = math.nan

RULE: list[tuple[Any, float]] = [
    (1.5, 1.5),
    (-0.0, -0.0),
    (5e-324, 5e-324),
    (3, 3.0),
    (True, 1.0),
    (False, 0.0),
    (2**53 + 1, 2.0**53),
    (2**63 + 1, 2.0**63),
    (10**400, NAN),
    (math.inf, math.inf),
    (np.float16(0.1), float(np.float16(0.1))),
    (np.float32(0.1), float(np.float32(0.1))),
    (np.float64(0.1), 0.1),
    (np.longdouble("0.1"), 0.1),
    (np.bool_(True), 1.0),
    (np.int8(-3), -3.0),
    (np.uint64(2**64 - 1), 2.0**64),
    (Decimal("0.1"), 0.1),
    (Decimal("sNaN"), NAN),
    (Decimal("1e400"), math.inf),
    (Fraction(1, 3), 1 / 3),
    (2 + 0j, 2.0),
    (complex(2, -0.0), 2.0),
    (2 + 1j, NAN),
    (complex(2, NAN), NAN),
    (np.complex64(2), 2.0),
    (np.complex128(0.1), 0.1),
    (np.complex128(2 + 1j), NAN),
    (np.clongdouble(2 + 1j), NAN),
    (np.complex64(2 + 1e-30j), NAN),
    ("1.5", NAN),
    (np.str_("1.5"), NAN),
    (b"1.5", NAN),
    ("", NAN),
    ([1.5], NAN),
    ((1.5,), NAN),
    ({}, NAN),
    (None, NAN),
    (pd.NA, NAN),
    (pd.NaT, NAN),
    (NAN, NAN),
    (np.array(1.5), NAN),
    (np.array([1.5]), NAN),
    (pd.Series([1.5]), NAN),
    (object(), NAN),
    (float, NAN),
    (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), NAN),
    (dt.date(2024, 1, 1), NAN),
    (dt.timedelta(seconds=1), NAN),
    (np.datetime64(5, "ns"), NAN),
    (np.datetime64("2024"), NAN),
    (np.timedelta64(5, "s"), NAN),
    (pd.Timestamp(5), NAN),
    (pd.Timedelta(5), NAN),
    (pd.Period("2024"), NAN),
    (pd.Interval(0, 1), NAN),
]


def bits(value: float) -> bytes:
    """A float to the last bit, except for the sign of zero, which pandas loses and no sum shows."""
    return b"null" if math.isnan(value) else struct.pack("=d", value + 0.0)


@pytest.mark.parametrize("value, expected", RULE, ids=lambda v: f"{type(v).__name__} {v!r:.20}")
def test_the_rule(value: Any, expected: float) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert bits(number(value)) == bits(expected)
        assert bits(by_dict([(value, 1.0)])[0, 0]) == bits(expected)
        column = pd.Series([value, "text"], dtype=object)
        assert bits(by_frame(pd.DataFrame({"a": column, "b": [1.0, 1.0]}))[0, 0]) == bits(expected)
    assert warned == []


@pytest.mark.parametrize("action", ["ignore", "error", "always"])
def test_the_complex_rule_does_not_depend_on_warning_filters(action: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        assert math.isnan(by_dict([(np.complex128(3 + 4j), 1.0)])[0, 0])
        assert by_dict([(np.complex128(3), 1.0)])[0, 0] == 3.0


def test_no_warning_filter_is_set_for_the_program() -> None:
    import subprocess
    import sys

    code = "import numpy, pandas, river, pydantic, warnings; before = list(warnings.filters); \
import stream_dppca; assert warnings.filters == before, warnings.filters"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plain_types_follow_the_rule() -> None:
    for kind in PLAIN:
        assert number(kind(1)) == struct.unpack("=d", struct.pack("=d", kind(1)))[0] == 1.0


def by_dict(rows: list[tuple[Any, ...]]) -> np.ndarray:
    """The numbers that `learn_one` puts into the slots."""
    slots = SlotBuffer(FEATURES, len(rows) + 1, Reading(1e18))
    for row in rows:
        slots.put_dict(dict(zip(FEATURES, row, strict=True)))
    assert slots._rows is not None
    return slots._rows[: len(rows)].copy()


def by_frame(frame: Any) -> np.ndarray:
    """The numbers that `learn_many` puts into the slots."""
    slots = SlotBuffer(FEATURES, len(frame) + 1, Reading(1e18))
    assert list(slots.put_frame(frame)) == []
    assert slots._rows is not None
    return slots._rows[: len(frame)].copy()


# One cell is replaced by anything at all

ANYTHING: list[Any] = [value for value, _ in RULE]
COLUMNS = st.sampled_from(
    [
        st.floats(-1e9, 1e9),
        st.integers(-100, 100),
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.integers(2**53, 2**54),
        st.floats(width=32),
        st.decimals(allow_nan=False, places=3),
        st.floats(width=16).map(np.float16),
        st.floats(-9, 9).map(np.float32),
        st.floats(-9, 9).map(lambda x: complex(x, 0)),
        st.sampled_from(["1", "x"]),
        st.sampled_from([pd.Timestamp(0), pd.Timestamp(5)]),
    ]
)


def by_numpy(cells: list[Any]) -> pd.Series:
    """Refuse cells that numpy converts before our code sees them.

    Next to text or durations numbers become such, too, and an array without dimensions becomes its
    number.
    """
    array = np.array(cells)
    if array.dtype.kind in "SUmM" or any(isinstance(cell, np.ndarray) for cell in cells):
        raise TypeError
    return pd.Series(array)


MAKERS: dict[str, Callable[[list[Any]], pd.Series]] = {
    "as pandas likes": pd.Series,
    "object": lambda cells: pd.Series(cells, dtype=object),
    "nullable": lambda cells: pd.Series(cells).convert_dtypes(),
    "arrow": lambda cells: pd.Series(cells).convert_dtypes(dtype_backend="pyarrow"),
    "category": lambda cells: pd.Series(cells).astype("category"),
    "sparse": lambda cells: pd.arrays.SparseArray(cells),
    "numpy": by_numpy,
}


def holds(made: list[Any], cells: list[Any]) -> bool:
    """Tell whether a library has kept its numbers.

    Next to text or decimals some are changed before our code sees them.
    """
    return [bits(number(x)) for x in made] == [bits(number(x)) for x in cells]


def polars_column(cells: list[Any]) -> pl.Series:
    """A polars column, of objects if polars has no other type for the cells."""
    try:
        made = pl.Series(cells, strict=True)
        if holds(made.to_list(), cells):
            return made
    except (Exception, pl.exceptions.PanicException):  # noqa: S110
        pass
    return pl.Series(cells, dtype=pl.Object)


def arrow_column(cells: list[Any]) -> pa.ChunkedArray:
    """An Arrow column in two pieces. Arrow has no objects: cells of several kinds are refused."""
    try:
        made = pa.chunked_array([pa.array(cells)])
        kept = holds(made.to_pylist(), cells)
    except Exception:
        kept = False
    assume(kept)
    return pa.chunked_array([*made.slice(0, 1).chunks, *made.slice(1).chunks], made.type)


OTHERS: dict[str, Callable[[list[tuple[Any, ...]]], Any]] = {
    "polars": lambda columns: pl.DataFrame([*map(polars_column, columns)], schema=FEATURES),
    "pyarrow": lambda columns: pa.table([*map(arrow_column, columns)], names=FEATURES),
}


def frame_of(rows: list[tuple[Any, ...]], maker: str) -> Any:
    """A frame of these cells, each column made by itself; object where the library cannot."""
    if maker in OTHERS:
        return OTHERS[maker]([list(cells) for cells in zip(*rows, strict=True)])

    def made(cells: list[Any]) -> Any:
        try:
            column = MAKERS[maker](cells)
            if len(column) != len(cells) or np.ndim(column) != 1:
                raise ValueError
            return column
        except Exception:
            return pd.Series(cells, dtype=object)

    return pd.DataFrame(
        {
            name: made(list(cells))
            for name, cells in zip(FEATURES, zip(*rows, strict=True), strict=True)
        }
    )


def rows_bits(X: np.ndarray) -> list[list[bytes]]:
    """Rows to the last bit. A row with anything that is not finite is a null as a whole."""
    return [[bits(value) for value in row] if np.isfinite(row).all() else [] for row in X.tolist()]


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], int, list[tuple[Any, ...]]]:
    n = draw(st.integers(2, 6))
    columns = [draw(st.lists(draw(COLUMNS), min_size=n, max_size=n)) for _ in FEATURES]
    rows = list(zip(*columns, strict=True))
    at, feature = draw(st.integers(0, n - 1)), draw(st.integers(0, 1))
    changed = list(rows[at])
    changed[feature] = draw(
        st.one_of(
            st.sampled_from(ANYTHING),
            st.floats(),
            st.integers(),
            st.text(),
            st.complex_numbers(),
            st.decimals(),
            st.fractions(),
            st.booleans(),
            st.lists(st.floats()),
        )
    )
    return rows, at, [*rows[:at], tuple(changed), *rows[at + 1 :]]


@pytest.mark.parametrize("maker", [*MAKERS, *OTHERS])
@given(pair=neighbours())
@example(pair=([(0.0, 0.0), (0.0, 0.0)], 0, [((1.5,), 0.0), (0.0, 0.0)]))
@example(pair=([(1j, 1.0), (2 + 0j, 2.0)], 0, [("text", 1.0), (2 + 0j, 2.0)]))
@example(pair=([(1.5, 1.0), (2.5, 2.0)], 0, [(1j, 1.0), (2.5, 2.0)]))
@example(pair=([(5, 1.0), (2**53 + 1, 2.0)], 0, [(2**64 + 1, 1.0), (2**53 + 1, 2.0)]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_one_cell_changes_no_other_row(maker: str, pair: Any) -> None:
    """Every other row is bit-identical, and a frame is read as the dicts of its rows are."""
    rows, at, replaced = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas, while the frames are made
        frames = [frame_of(cells, maker) for cells in (rows, replaced)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        before, after = (rows_bits(by_frame(frame)) for frame in frames)
        dicts = rows_bits(by_dict(replaced))
    assert warned == []
    assert before[:at] + before[at + 1 :] == after[:at] + after[at + 1 :]
    assert after == dicts


def test_text_in_a_complex_column_nulls_nobody_else() -> None:
    """A past breach: with the text, all records of the batch were nulls."""
    rng = np.random.default_rng(0)
    cells = [*map(complex, rng.standard_normal(1000)), 3 + 1j]
    spoiled = copy.copy(cells)
    spoiled[7] = "text"
    shown = []
    for column in (cells, spoiled):
        pca = DPPCA(
            features=("a",),
            epsilon=2.0,
            delta=1e-5,
            batch_size=1001,
            seed=1,
            center="none",
            scales=None,
        )
        pca.learn_many(pd.DataFrame({"a": column}))
        assert pca.last_release is not None
        shown.append(pca.last_release.range)
    assert shown[0] == shown[1] is not None and shown[0] > 0.1


# Arrays of objects and lists


def by_array(X: np.ndarray) -> np.ndarray:
    """The rows that `learn_array` puts into the slots."""
    pca = DPPCA(features=FEATURES, epsilon=1.0, delta=1e-5, batch_size=100)
    pca.learn_array(X)
    assert pca._slots._rows is not None
    return pca._slots._rows[: len(X)].copy()


def as_objects(rows: list[tuple[Any, ...]]) -> np.ndarray:
    X = np.empty((len(rows), len(FEATURES)), dtype=object)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            X[i, j] = cell
    return X


@given(pair=neighbours())
@example(pair=([(1.0, 0.0), (0.1, 0.0)], 0, [(None, 0.0), (0.1, 0.0)]))
@example(
    pair=(
        [(np.float64(1), 0.0), (np.float64(0.1), 0.0)],
        0,
        [(np.complex64(2), 0.0), (np.float64(0.1), 0.0)],
    )
)
@settings(max_examples=150, deadline=None)
def test_one_cell_of_an_array_or_a_list_changes_no_other_row(pair: Any) -> None:
    _, _, replaced = pair
    expected = rows_bits(by_dict(replaced))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert rows_bits(by_array(as_objects(replaced))) == expected
        for X in (as_objects(replaced), [list(row) for row in replaced], tuple(replaced)):
            found = clean(X)
            for row, read in zip(by_dict(replaced).tolist(), found.tolist(), strict=True):
                usable = all(abs(value) <= COORDINATE_CAP for value in row)
                assert [*map(bits, read)] == [*map(bits, row if usable else [0.0, 0.0])]
    assert warned == []


@pytest.mark.parametrize("cell", ["SECRET", None, 1j, {}, np.datetime64(5, "ns"), b"1"])
def test_scores_of_an_array_with_a_bad_cell(cell: Any) -> None:
    """A bad cell counts as the mean of its feature, in an array as in a dict."""
    pca = DPPCA(
        features=FEATURES,
        epsilon=9.0,
        delta=1e-3,
        batch_size=500,
        seed=1,
        scales=None,
        center="none",
    )
    pca.learn_array(np.random.default_rng(0).standard_normal((500, 2)))
    X = as_objects([(1.0, 2.0), (cell, 3.0)])
    expected = np.array([[1.0, 2.0], [NAN, 3.0]])
    for method in (pca.transform, pca.spe):
        assert np.array_equal(method(X), method(expected))
        assert np.array_equal(method(X.tolist()), method(expected))


@pytest.mark.parametrize(
    "X",
    [
        np.array([["1", "2"]]),
        np.zeros((1, 2), "M8[ns]"),
        np.zeros((1, 2), "m8[s]"),
        np.full((1, 2), 1j),
        np.array([[b"1", b"2"]]),
    ],
    ids=lambda X: str(X.dtype),
)
def test_arrays_of_anything_but_numbers_hold_nulls(X: np.ndarray) -> None:
    assert np.isnan(by_array(X)).all() and not clean(X).any()

"""One byte form for every spelling of an id."""

from __future__ import annotations

import datetime as dt
import math
import time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dppca.subjects.ids import LONGEST, MOST_BYTES, canonical, canonical_all

ACCENT = ("\u00e9", "e\u0301")  # composed and decomposed


@given(st.integers(-(2**53), 2**53))
def test_all_spellings_of_a_number_agree(n: int) -> None:
    text = str(n)
    spellings = [
        n,
        text,
        text.encode(),
        float(n),
        f"{n}.0",
        f" {n}.00\n",
        Decimal(n),
        np.int64(n),
        np.float64(n),
        np.str_(text),
        np.bytes_(text),
        bytearray(text.encode()),
        text + "\0",
    ]
    assert {canonical(spelling) for spelling in spellings} == {text.encode()}


@given(st.text(max_size=80))
def test_text_and_its_bytes_agree(text: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError:  # lone surrogates have no UTF-8
        assert canonical(text) is None or isinstance(canonical(text), bytes)
        return
    assert canonical(text) == canonical(raw)


def test_normal_form_case_and_length() -> None:
    assert canonical("-0") == canonical("-0.0") == canonical(-0.0) == b"0"
    assert canonical(ACCENT[0]) == canonical(ACCENT[1]) == canonical(ACCENT[1].encode())
    assert canonical("A1") != canonical("a1")
    assert canonical("x" * LONGEST) == b"x" * LONGEST
    long = canonical("x" * 300)
    assert long is not None and len(long) == 32 and long != canonical("x" * 301)
    assert canonical(10**200) == canonical(str(10**200))
    assert canonical(2.5) == canonical("2.5") == canonical(Decimal("2.50")) == b"2.5"
    assert canonical("10.0.0.0") == b"10.0.0.0"  # an address is not a number
    assert canonical(UUID(int=5)) == canonical(str(UUID(int=5)))
    assert canonical(10**5000) is None  # Python writes no such number
    assert canonical(b"\xff\x00\xfe") == b"\xff\x00\xfe"
    different = {
        canonical(one) for one in (1, "+1", "01", "1e0", "1_0", 2.5, "2.50", "2.5e0", 1000, "1e3")
    }
    assert len(different) == 10  # as docs/subjects.md says


# Two kinds of accents in turn: all of them are sorted, in time that grows with their square.
ACCENTS = "\u0301\u0316"


@pytest.mark.parametrize("times", [1, 1000])  # with 1000, a second would not be enough for one
@pytest.mark.parametrize(
    "id",
    [
        lambda n: "x" * n,
        lambda n: b"x" * n,
        lambda n: ACCENTS * (n // 4) + "x",
        lambda n: (ACCENTS * (n // 4) + "x").encode(),
        lambda n: np.str_(ACCENTS * n),
        lambda n: bytearray(n),
        lambda n: memoryview(b"\xff" * n),
        lambda n: " " * n + "1",
        lambda n: "\udc80" * n,
        lambda n: 10**n,
        lambda n: -(10**n),
        lambda n: Decimal("1" + "0" * n),
        lambda n: Decimal(f"1E+{n}"),
    ],
)
def test_a_long_id_is_not_usable_and_nothing_is_done_with_it(id: Any, times: int) -> None:
    found = id((MOST_BYTES + 1) * times)
    started = time.process_time()
    assert canonical(found) is None
    assert canonical_all([found, "a"]) == [None, b"a"]
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "id", ["x" * MOST_BYTES, 10 ** (MOST_BYTES - 1), ACCENTS * (MOST_BYTES // 4)]
)
def test_the_longest_id(id: Any) -> None:
    assert canonical(id) == canonical(str(id)) == canonical(str(id).encode())
    assert len(canonical(id) or b"") == 32


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        b"",
        " ",
        "\0",
        math.nan,
        math.inf,
        True,
        np.bool_(False),
        [1],
        {"a": 1},
        object(),
        dt.date(2026, 1, 1),
        np.datetime64("2026-01-01"),
        np.timedelta64(1, "s"),
        pd.NA,
        pd.NaT,
        1 + 2j,
        Decimal("NaN"),
        (),
        Decimal("1E+999999999"),
    ],
)
def test_what_is_not_usable(value: Any) -> None:
    assert canonical(value) is None


@pytest.mark.parametrize(
    "values",
    [
        np.array([1, 2, -3]),
        np.array([1, 2], dtype=np.uint64),
        np.array([1.0, 2.5, math.nan, math.inf, -0.0]),
        np.array(["a", "1.0", " b"]),
        np.array([b"a", b"1.0", b""]),
        np.array([1, "1", None, b"1", 1.0, True], dtype=object),
        np.array([True, False]),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        ["a", 1, None],
    ],
    ids=str,
)
def test_arrays_are_read_value_by_value(values: Any) -> None:
    assert canonical_all(values) == [canonical(value) for value in list(values)]


def test_a_column_that_one_value_has_turned_into_floats_keeps_its_ids() -> None:
    whole, broken = pd.Series([7, 8, 9]), pd.Series([7, None, 9])
    assert broken.dtype == np.float64
    assert canonical_all(whole.to_numpy())[::2] == canonical_all(broken.to_numpy())[::2]

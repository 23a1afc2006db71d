from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.errors import ConfigurationError
from consumers.model.codecs import FORMATS, make_codec

FEATURES = ("a", "b.c", "b.d.e")
GOOD = json.dumps({"a": 1, "b": {"c": 2.5, "d": {"e": -3}}, "other": [1, {}]}).encode()


def decode(format: str, values: list[bytes | None], limit: int = 10_000, **options: Any) -> Any:
    return make_codec(format, FEATURES, limit, **options).decode(values)  # type: ignore[arg-type]


def test_objects() -> None:
    block = decode("json", [GOOD, b'{"b":{"d":{"e":3},"c":2},"a":1e2}'])
    assert block.rows.tolist() == [[1.0, 2.5, -3.0], [100.0, 2.0, 3.0]]
    assert block.ends is None


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"{", b"null", b"[]", b"{}", b"1", b'"a"', GOOD[:-1], GOOD + b"x",
        b'{"a":1,"b":{"c":2}}', b'{"a":1,"b":{"c":2,"d":3}}', b'{"a":1,"b":[1,2]}',
        b'{"a":"1","b":{"c":2,"d":{"e":3}}}', b'{"a":null,"b":{"c":2,"d":{"e":3}}}',
        b'{"a":true,"b":{"c":2,"d":{"e":3}}}', b'{"a":NaN,"b":{"c":2,"d":{"e":3}}}',
        b'{"a":Infinity,"b":{"c":2,"d":{"e":3}}}', b'{"a":[1],"b":{"c":2,"d":{"e":3}}}',
        b'\xff\xfe{"a":1}', b"[" * 9000, b'{"a":' * 1500, GOOD[:-1] + b" " * 10_000 + b"}",
    ],
)  # fmt: skip
def test_a_bad_object_is_one_null_and_its_neighbours_are_not(value: bytes | None) -> None:
    rows = decode("json", [GOOD, value, GOOD]).rows
    assert np.isnan(rows).tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert rows[0].tolist() == rows[2].tolist() == [1.0, 2.5, -3.0]


@pytest.mark.parametrize("number", [b"1e999", b"1" + b"0" * 400])
def test_numbers_beyond_floats_are_not_finite(number: bytes) -> None:
    value = b'{"a":' + number + b',"b":{"c":2,"d":{"e":3}}}'
    assert not np.isfinite(decode("json", [value]).rows).all()


def test_dots_can_be_literal() -> None:
    value = b'{"a":1,"b.c":2,"b.d.e":3}'
    assert decode("json", [value], nested=False).rows.tolist() == [[1, 2, 3]]
    assert np.isnan(decode("json", [value]).rows).all()


@pytest.mark.parametrize(
    "features", [("a", "a.b"), ("a.b", "a"), ("a..b",), (".a",), ("a.",), ('"',)]
)
def test_paths_that_cannot_be(features: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="feature"):
        make_codec("json", features, 100)


def test_one_feature() -> None:
    codec = make_codec("json", ("a.b",), 100)
    assert codec.decode([b'{"a":{"b":7}}', b"{}"]).rows[0].tolist() == [7.0]


def test_arrays() -> None:
    values = [b"[1,2.5,-3]", b"[1,2]", b"[1,2,3,4]", b'[1,2,"3"]', b"[1,null,3]", b"{}", None]
    rows = decode("json-array", values).rows
    assert rows[0].tolist() == [1.0, 2.5, -3.0]
    assert np.isnan(rows[1:]).all()


@pytest.mark.parametrize("format, letter", [("float32", "f"), ("float64", "d")])
def test_packed(format: str, letter: str) -> None:
    one = struct.pack(f"<3{letter}", 1, 2, 3)
    two = struct.pack(f"<6{letter}", *range(6))
    block = decode(format, [one, two])
    assert block.rows.tolist() == [[1, 2, 3], [0, 1, 2], [3, 4, 5]]
    assert block.ends.tolist() == [1, 3]
    block = decode(format, [one, two[:-1], b"", None, one * 1000, two])
    assert block.ends.tolist() == [1, 2, 3, 4, 5, 7]
    assert np.isnan(block.rows).all(axis=1).tolist() == [False, *[True] * 4, False, False]
    assert block.rows[5:].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_at_all(format: str) -> None:
    assert decode(format, []).rows.shape == (0, 3)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["a", "b", "c", "d", "e"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
messages = st.one_of(
    st.none(),
    st.binary(max_size=60),
    json_values.map(lambda v: json.dumps(v).encode()),
    st.just(GOOD),
    st.integers(0, len(GOOD)).map(lambda n: GOOD[:n]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(messages, max_size=8), st.sampled_from(FORMATS))
def test_any_bytes(values: list[bytes | None], format: str) -> None:
    """Nothing raises, every message has rows, and each depends on that message alone."""
    block = decode(format, values)
    ends = list(range(1, len(values) + 1)) if block.ends is None else block.ends.tolist()
    assert len(ends) == len(values) and (ends[-1] if ends else 0) == len(block.rows)
    start = 0
    for value, end in zip(values, ends, strict=True):
        alone = decode(format, [value]).rows
        assert end - start == len(alone) >= 1
        np.testing.assert_array_equal(block.rows[start:end], alone)
        start = end


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_json_floats_come_through_bit_for_bit(numbers: list[float]) -> None:
    a, c, e = numbers
    value = json.dumps({"a": a, "b": {"c": c, "d": {"e": e}}}).encode()
    found = decode("json", [value]).rows[0].tolist()
    assert found == numbers
    assert [math.copysign(1, x) for x in found] == [math.copysign(1, x) for x in numbers]

from __future__ import annotations

import json
import math
import struct
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.errors import ConfigurationError
from consumers.formats import REGISTERED_FORMATS, Format
from consumers.messages.recipe import MessageRecipe
from consumers.protocols import RegisteredSchema

from .helpers import make_codec, make_subject_codec

FEATURES = ("a", "b.c", "b.d.e")
GOOD = json.dumps({"a": 1, "b": {"c": 2.5, "d": {"e": -3}}, "other": [1, {}]}).encode()


class AnySchema:
    """A registry in which every id is the same schema."""

    def __init__(self, format: str) -> None:
        fields = {"a": "double", "b": {"type": "map", "values": "long"}}
        schema = {
            "type": "record",
            "name": "R",
            "fields": [{"name": n, "type": t} for n, t in fields.items()],
        }
        self._schema = RegisteredSchema(format, json.dumps(schema) if format == "avro" else "")

    def schema(self, number: int) -> RegisteredSchema:
        return self._schema


def decode(format: str, values: list[bytes | None], limit: int = 10_000, **options: Any) -> Any:
    if format.startswith("float"):
        options = {"rows_per_message": 2, **options}
    registry = AnySchema(format) if format in REGISTERED_FORMATS else None
    recipe = MessageRecipe(format, FEATURES, limit, **options)  # type: ignore[arg-type]
    return recipe.codec(registry).decode(values)


def test_objects() -> None:
    rows = decode("json", [GOOD, b'{"b":{"d":{"e":3},"c":2},"a":1e2}'])
    assert rows.tolist() == [[1.0, 2.5, -3.0], [100.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"1",
        b'"a"',
        GOOD[:-1],
        GOOD + b"x",
        b'{"a":NaN,"b":{"c":2,"d":{"e":3}}}',
        b'{"a":Infinity,"b":{"c":2,"d":{"e":3}}}',
        b'\xff\xfe{"a":1}',
        b"[" * 9000,
        b'{"a":' * 1500,
        GOOD[:-1] + b" " * 10_000 + b"}",
    ],
)
def test_a_bad_object_is_one_null_and_its_neighbours_are_not(value: bytes | None) -> None:
    rows = decode("json", [GOOD, value, GOOD])
    assert np.isnan(rows).tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert rows[0].tolist() == rows[2].tolist() == [1.0, 2.5, -3.0]


@pytest.mark.parametrize(
    "value, there",
    [
        (b'{"a":1,"b":{"c":2.5}}', [1, 2.5, None]),
        (b'{"a":1}', [1, None, None]),
        (b'{"a":null,"b":{"c":2.5,"d":{"e":-3}}}', [None, 2.5, -3]),
        (b'{"b":{"c":null,"d":{"e":-3}}}', [None, None, -3]),
        (b'{"a":1,"b":null}', [1, None, None]),
        (b'{"a":"1","b":{"c":2.5}}', [None, 2.5, None]),
        (b'{"a":1,"b":{"c":2,"d":3}}', [1, 2, None]),
        (b'{"a":1,"b":[1,2]}', [1, None, None]),
        (b'{"a":"n/a","b":{"c":2,"d":{"e":3}}}', [None, 2, 3]),
        (b'{"a":[1],"b":{"c":{"x":2},"d":{"e":3}}}', [None, None, 3]),
        (b'{"a":1,"b":"f0"}', [1, None, None]),
    ],
)
def test_a_missing_feature_is_missing_by_itself(value: bytes, there: list[float | None]) -> None:
    rows = decode("json", [GOOD, value, GOOD])
    assert rows[0].tolist() == rows[2].tolist() == [1.0, 2.5, -3.0]
    assert [None if np.isnan(x) else x for x in rows[1]] == there


@pytest.mark.parametrize("number", [b"1e999", b"1" + b"0" * 400])
def test_numbers_beyond_floats_are_not_finite(number: bytes) -> None:
    value = b'{"a":' + number + b',"b":{"c":2,"d":{"e":3}}}'
    assert not np.isfinite(decode("json", [value])).all()


def test_booleans_are_0_or_1() -> None:
    assert decode("json", [b'{"a":true,"b":{"c":false,"d":{"e":3}}}']).tolist() == [[1, 0, 3]]
    assert decode("json-array", [b"[true,false,3]"]).tolist() == [[1, 0, 3]]
    assert np.isnan(decode("json-array", [b'["true",false,3]'])).tolist() == [[True, False, False]]


def test_the_frame_of_a_registry_around_json_is_not_needed() -> None:
    for format, value in (("json", GOOD), ("json-array", b"[1,2.5,-3]")):
        framed = b"\0\0\0\0\7" + value
        assert decode(format, [framed, value, framed[:5], b"\0"])[:2].tolist() == [[1, 2.5, -3]] * 2
        assert np.isnan(decode(format, [framed[:5], b"\0", b""])).all()
    rows, found = whose("json", [b"\0\0\0\0\7" + GOOD[:-1] + b',"id":"d"}'], subject="id")
    assert found == ["d"] and rows.tolist() == [[1, 2.5, -3]]


def test_items_of_arrays() -> None:
    features = ("v[1]", "v[2]", "w.u[0]", "x", "v[0]")
    codec = make_codec("json", features, 10_000)
    whole = b'{"v":[1,2,3,4],"w":{"u":[true]},"x":9,"y":[[]]}'
    short = [b'{"v":[1,2],"w":{"u":[]},"x":9}', b'{"v":[1,null,3],"w":null}', b"{}"]
    rows = np.nan_to_num(codec.decode([whole, *short])).tolist()
    assert rows == [[2, 3, 1, 9, 1], [2, 0, 0, 9, 1], [0, 3, 0, 0, 1], [0] * 5]
    odd_kinds = [
        b'{"v":["1",2,3],"w":{"u":[1]},"x":9}',
        b'{"v":5,"x":1}',
        b'{"v":{"1":2},"w":{"u":"1"}}',
    ]
    rows = np.nan_to_num(codec.decode(odd_kinds)).tolist()
    assert rows == [[2, 3, 1, 9, 0], [0, 0, 0, 1, 0], [0] * 5]
    literal = make_codec("json", ("a.v[0]",), 10_000, nested=False)
    assert literal.decode([b'{"a.v":[7]}']).tolist() == [[7]]
    for odd in (("v", "v[0]"), ("v[0]", "v"), ("v[0]", "v.a"), ("v[0]", "v[00]")):
        with pytest.raises(ConfigurationError, match="feature"):
            make_codec("json", odd, 10_000)


def test_dots_can_be_literal() -> None:
    value = b'{"a":1,"b.c":2,"b.d.e":3}'
    assert decode("json", [value], nested=False).tolist() == [[1, 2, 3]]
    assert np.isnan(decode("json", [value])).tolist() == [[False, True, True]]


@pytest.mark.parametrize(
    "features", [("a", "a.b"), ("a.b", "a"), ("a..b",), (".a",), ("a.",), ('"',)]
)
def test_paths_that_cannot_be(features: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="feature"):
        make_codec("json", features, 100)


def test_one_feature() -> None:
    codec = make_codec("json", ("a.b",), 100)
    assert codec.decode([b'{"a":{"b":7}}', b"{}"])[0].tolist() == [7.0]


def test_arrays() -> None:
    values = [
        b"[1,2.5,-3]",
        b"[1,2]",
        b"[1,2,3,4]",
        b'"1,2"',
        b"{}",
        None,
        b'[1,"2",3]',
        b"[1,null,3]",
    ]
    rows = decode("json-array", values)
    assert rows[0].tolist() == [1.0, 2.5, -3.0]
    assert np.isnan(rows[1:-2]).all()
    assert np.isnan(rows[-2:]).tolist() == [[False, True, False]] * 2


@pytest.mark.parametrize("format, letter", [("float32", "f"), ("float64", "d")])
def test_packed(format: str, letter: str) -> None:
    one = struct.pack(f"<3{letter}", 1, 2, 3)
    two = struct.pack(f"<6{letter}", *range(6))
    assert decode(format, [two, two]).tolist() == [[0, 1, 2], [3, 4, 5]] * 2
    # Each is two rows: nulls where it has fewer or cannot be read, and never more than two.
    rows = decode(format, [one, two[:-1], b"", None, one * 1000, two + one, two])
    good = [True, False, *[False] * 8, *[True] * 4]
    assert (~np.isnan(rows).any(axis=1)).tolist() == good
    assert rows[0].tolist() == [1, 2, 3]
    assert rows[10:].tolist() == [[0, 1, 2], [3, 4, 5]] * 2
    assert decode(format, [one, two], rows_per_message=1).tolist() == [[1, 2, 3], [0, 1, 2]]
    assert np.isnan(decode(format, [two, two], limit=len(two) - 1)).all()


def test_rows_per_message_must_be_said_for_packed_formats() -> None:
    for format in ("float32", "float64"):
        with pytest.raises(ConfigurationError, match="`rows_per_message` must be set"):
            make_codec(format, FEATURES, 100)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be 1 with format json"):
        make_codec("json", FEATURES, 100, rows_per_message=2)
    assert make_codec("json", FEATURES, 100, rows_per_message=1).rows_per_message == 1


@pytest.mark.parametrize("format", get_args(Format))
def test_nothing_at_all(format: str) -> None:
    assert decode(format, []).shape == (0, 3)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), inner, max_size=4)
    ),
    max_leaves=12,
)
messages = st.one_of(
    st.none(),
    st.binary(max_size=60),
    json_values.map(lambda v: json.dumps(v).encode()),
    st.just(GOOD),
    st.integers(0, len(GOOD)).map(lambda n: GOOD[:n]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(messages, max_size=8), st.sampled_from(get_args(Format)))
def test_any_bytes(values: list[bytes | None], format: str) -> None:
    """Nothing raises, every message has its rows, and they depend on that message alone."""
    per_message = 2 if format.startswith("float") else 1
    rows = decode(format, values)
    assert rows.shape == (per_message * len(values), 3) and rows.dtype == np.float64
    for i, value in enumerate(values):
        alone = decode(format, [value])
        np.testing.assert_array_equal(rows[per_message * i : per_message * (i + 1)], alone)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_json_floats_come_through_bit_for_bit(numbers: list[float]) -> None:
    a, c, e = numbers
    value = json.dumps({"a": a, "b": {"c": c, "d": {"e": e}}}).encode()
    found = decode("json", [value])[0].tolist()
    assert found == numbers
    assert [math.copysign(1, x) for x in found] == [math.copysign(1, x) for x in numbers]


# Subjects of rows


def whose(
    format: str,
    values: list[bytes | None],
    keys: list[bytes | None] | None = None,
    subject: str = "@key",
    records: int = 4,
    **options: Any,
) -> tuple[Any, list[Any]]:
    if format.startswith("float"):
        options = {"rows_per_message": 3, **options}
    codec = make_subject_codec(
        format,
        FEATURES,
        10_000,
        subject=subject,
        records=records,
        **options,  # type: ignore[arg-type]
    )
    return codec.decode(values, [None] * len(values) if keys is None else keys)


@pytest.mark.parametrize("subject", ["id", "b.id"])
def test_the_subject_is_a_member(subject: str) -> None:
    def message(who: Any, **more: Any) -> bytes:
        inner = {"c": 2.5, "d": {"e": -3}, "id": who}
        return json.dumps({"a": 1, "b": inner, "id": who, **more}).encode()

    ids = ["d1", 7, 2.5, "", None, True, ["d1"], {"x": 1}]
    values: list[bytes | None] = [message(who) for who in ids]
    rows, found = whose("json", values, subject=subject)
    assert found == ["d1", 7, 2.5, "", None, None, None, None]
    assert rows[:5].tolist() == [[1.0, 2.5, -3.0]] * 5  # without a subject it is ignored
    odd = [message("d1", a=None), message("d1", b=None), message("d1", a="1"), None, b"{", GOOD]
    rows, found = whose("json", odd, subject=subject)
    assert found == ["d1", None if subject == "b.id" else "d1", "d1", None, None, None]
    assert math.isnan(rows[0, 0]) and rows[0, 1:].tolist() == [2.5, -3.0]
    assert rows.shape == (6, 3) and rows[5].tolist() == [1.0, 2.5, -3.0]


@pytest.mark.parametrize("format", ["json", "json-array", "float32", "float64"])
def test_the_subject_is_the_key(format: str) -> None:
    good = {
        "json": GOOD,
        "json-array": b"[1,2,3]",
        "float32": struct.pack("<9f", *range(9)),
        "float64": struct.pack("<9d", *range(9)),
    }[format]
    rows, found = whose(format, [good, None, good], [b"x", b"y", None])
    per_message = 3 if format.startswith("float") else 1
    assert found == [b"x"] * per_message + [b"y"] * per_message + [None] * per_message
    assert rows.shape == (3 * per_message, 3)


@pytest.mark.parametrize("format", ["float32", "float64"])
def test_of_a_packed_message_only_the_rows_that_count_are_decoded(format: str) -> None:
    kind = "f" if format == "float32" else "d"
    full, short = struct.pack(f"<9{kind}", *range(9)), struct.pack(f"<3{kind}", 7, 8, 9)
    for values in ([full, full], [full, short], [short, full], [None, full]):
        every, all_ids = whose(format, values, [b"x", b"y"], records=3)
        rows, found = whose(format, values, [b"x", b"y"], records=2)
        assert found == [b"x", b"x", b"y", b"y"] and all_ids == [b"x"] * 3 + [b"y"] * 3
        np.testing.assert_array_equal(rows, every[[0, 1, 3, 4]])


def test_the_subject_of_what_is_not_an_object_is_the_key() -> None:
    for format in ("json-array", "float32"):
        with pytest.raises(ConfigurationError, match="must be @key"):
            whose(format, [], subject="id")


@settings(max_examples=100, deadline=None)
@given(st.lists(messages, max_size=8), st.sampled_from(["@key", "a.x", "e"]))
def test_any_bytes_are_somebodys_by_themselves(values: list[bytes | None], subject: str) -> None:
    flat = ("b", "c")
    codec = make_subject_codec("json", flat, 10_000, subject=subject, records=1)
    rows, found = codec.decode(values, values)
    assert rows.shape == (len(values), 2) and len(found) == len(values)
    for i, value in enumerate(values):
        alone, who = codec.decode([value], [value])
        np.testing.assert_array_equal(rows[i : i + 1], alone)
        assert who == [found[i]]

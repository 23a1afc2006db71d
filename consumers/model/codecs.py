"""Messages into rows.

A message becomes rows of d numbers by the format that was set, or **one null row** (all NaN) if it
cannot be read: no value, too large, malformed, a feature missing or not a number. Whether it can be
read depends on that message alone, and nothing of it is ever raised, logged or counted.

| format | a message is | rows |
|---|---|---|
| `json` | an object; a feature `a.b` is the member `b` of the member `a` | 1 |
| `json-array` | an array of d numbers in the order of the features | 1 |
| `float32`, `float64` | packed little-endian rows, one after another | 1 or more |
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from ..formats import Format

__all__ = ["FORMATS", "Block", "Codec", "Format", "make_codec"]

FORMATS: Final[tuple[str, ...]] = get_args(Format)

Rows = NDArray[np.floating[Any]]
Values = Sequence[bytes | None]


@dataclass(frozen=True)
class Block:
    """The rows of some messages."""

    rows: Rows
    #: For each message, the number of rows up to its end; None if every message is one row.
    ends: NDArray[np.int64] | None = None


class Codec(Protocol):
    def decode(self, values: Values) -> Block:
        """The rows of each message, in order; at least one row a message."""
        ...


def make_codec(
    format: Format, features: Sequence[str], max_bytes: int, nested: bool = True
) -> Codec:
    """The codec of a format.

    Parameters
    ----------
    format
        One of `FORMATS`.
    features
        The features, in order.
    max_bytes
        Longer messages are nulls.
    nested
        Whether a dot in a feature's name leads into a nested object (`json` only).
    """
    if format == "json":
        return _JsonObjects(features, max_bytes, nested)
    if format == "json-array":
        return _JsonArrays(len(features), max_bytes)
    return _Packed(len(features), "<f4" if format == "float32" else "<f8", max_bytes)


class _Json:
    """One row a message, written straight into one block."""

    def __init__(
        self,
        width: int,
        max_bytes: int,
        parse: Callable[[bytes], Any],
        values: Callable[[Any], Sequence[float]],
    ) -> None:
        self._width, self._max_bytes = width, max_bytes
        self._parse, self._values = parse, values
        self._row = struct.Struct(f"={width}d")

    def decode(self, values: Values) -> Block:
        rows = np.empty((len(values), self._width))
        memory = rows.data.cast("B") if len(values) else memoryview(bytearray())
        parse, numbers, limit = self._parse, self._values, self._max_bytes
        pack, stride = self._row.pack_into, self._row.size
        at = 0
        bad = []
        for i, value in enumerate(values):
            try:
                if len(value) > limit:  # type: ignore[arg-type]  # None raises: a null
                    bad.append(i)
                else:
                    pack(memory, at, *numbers(parse(value)))  # type: ignore[arg-type]
            except Exception:  # whatever a message does wrong, it is a null
                bad.append(i)
            at += stride
        if bad:
            rows[bad] = np.nan
        return Block(rows)


class _JsonArrays(_Json):
    def __init__(self, width: int, max_bytes: int) -> None:
        parse = msgspec.json.Decoder(list[float]).decode
        super().__init__(width, max_bytes, parse, lambda array: array)


class _JsonObjects(_Json):
    """The objects are read into structs that have the wanted members and skip all others."""

    def __init__(self, features: Sequence[str], max_bytes: int, nested: bool) -> None:
        tree: dict[str, Any] = {}
        paths = []
        for feature in features:
            path = feature.split(".") if nested else [feature]
            paths.append(_plant(tree, path, feature))
        parse = msgspec.json.Decoder(_struct(tree)).decode
        # Without nesting the fields are the features, in order, and ten times as fast to get.
        flat = not any("." in path for path in paths)
        super().__init__(
            len(features), max_bytes, parse, msgspec.structs.astuple if flat else _getter(paths)
        )


def _getter(paths: Sequence[str]) -> Callable[[Any], Sequence[float]]:
    get: Callable[[Any], Any] = operator.attrgetter(*paths)
    return get if len(paths) > 1 else lambda x: (get(x),)


def _plant(tree: dict[str, Any], path: Sequence[str], feature: str) -> str:
    """Add a path to the tree of members; returns it in the names of the structs' fields."""
    fields = []
    for depth, member in enumerate(path):
        if not member:
            raise ConfigurationError(f"feature {feature!r} has an empty part between its dots")
        last = depth == len(path) - 1
        if member not in tree:
            tree[member] = None if last else {}
        elif last or tree[member] is None:
            raise ConfigurationError(
                f"feature {feature!r} would be a number and hold another feature: set nested=false"
            )
        fields.append(f"f{list(tree).index(member)}")
        tree = tree[member]
    return ".".join(fields)


def _struct(tree: dict[str, Any]) -> type[msgspec.Struct]:
    """A struct type whose field f0, f1, ... is the first, second, ... member of the tree."""
    fields = [
        (f"f{i}", float if below is None else _struct(below))
        for i, below in enumerate(tree.values())
    ]
    names = {f"f{i}": member for i, member in enumerate(tree)}
    try:
        return msgspec.defstruct("Object", fields, rename=names, gc=False)
    except ValueError:
        raise ConfigurationError(
            "the name of a feature must not have a quote, a backslash or a control character in it"
        ) from None


class _Packed:
    def __init__(self, width: int, dtype: str, max_bytes: int) -> None:
        self._width, self._dtype, self._max_bytes = width, np.dtype(dtype), max_bytes
        self._row_bytes = width * self._dtype.itemsize

    def decode(self, values: Values) -> Block:
        counts = [self._count(value) for value in values]
        ends = np.cumsum([count or 1 for count in counts], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        if all(counts):  # nothing bad: one copy of it all
            joined = b"".join(values)  # type: ignore[arg-type]
            return Block(np.frombuffer(joined, self._dtype).reshape(total, self._width), ends)
        rows = np.full((total, self._width), np.nan, self._dtype)
        for value, count, end in zip(values, counts, ends.tolist(), strict=True):
            if count and value is not None:
                flat = np.frombuffer(value, self._dtype)
                rows[end - count : end] = flat.reshape(count, self._width)
        return Block(rows, ends)

    def _count(self, value: bytes | None) -> int:
        """The rows of a message; 0 for a bad one."""
        if value is None or len(value) > self._max_bytes or len(value) % self._row_bytes:
            return 0
        return len(value) // self._row_bytes

"""Decodes messages into rows.

Every message becomes the same number of rows of d numbers, `rows_per_message`, whatever is in it. A
message that cannot be read (no value, too large, malformed, without a schema) is **null rows**, all
NaN; so are the rows that a message lacks, and rows beyond that number are ignored. A feature of a
JSON message that is missing, null or not a number is NaN by itself: the estimator decides what
happens to such a row (`missing`). How a message is read depends on that message alone, and nothing
of it is ever raised, logged or counted.

| format | a message is | rows in it |
|---|---|---|
| `json` | an object; a feature `a.b` is the member `b` of `a`, `a[3]` the fourth item of `a` | 1 |
| `json-array` | an array of d numbers in the order of the features | 1 |
| `float32`, `float64` | packed little-endian rows, one after another | 0 or more |
| `avro`, `protobuf` | the id of its schema, then the encoded record (`registered.py`) | 1 |

JSON may have the frame of a Schema Registry around it, which is not needed. Booleans are 0 or 1.

With privacy per subject each row also has the id of its subject (`SubjectCodec`): the key of its
message, or a field that is a text or a number. The subject of a row without an id is None, and
the row is ignored.
"""

from __future__ import annotations

import abc
import contextlib
import math
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_dppca.arrays import FloatArray
from stream_dppca.values import number

from ..errors import ConfigurationError
from .cutting import unframed
from .paths import FeatureTree, Id, items_of

Values = Sequence[bytes | None]
#: The id of a subject, as it was sent.
Subject = bytes | str | int | float | None

_value = msgspec.json.Decoder(float | bool | str | None).decode
_id = msgspec.json.Decoder(str | int | float | None).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_NOTHING = msgspec.Raw(b"null")


class Codec(abc.ABC):
    """Decodes messages of one format."""

    rows_per_message: int = 1

    @abc.abstractmethod
    def decode(self, values: Values) -> FloatArray:
        """Rows of the messages, in order: `rows_per_message` for each."""

    def prepare(self, values: Values, unknown: set[bytes], seconds: float) -> int:
        """Fetch the schemas of these messages, for about this long.

        Returns the number of messages, from the first on, that `read` can read without a request.
        Call it again with the others, and with the same set. Raises `RegistryAway`, after which it
        can be called again, too.
        """
        return len(values)

    def read(self, values: Values) -> NDArray[np.floating[Any]]:
        """The same rows in the precision of the messages, for callers that convert them anyway.

        The messages must have been prepared.
        """
        return self.decode(values)


class SubjectCodec:
    """Decodes messages into rows, each with its subject: the id in its message, or else the key."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def decode(self, values: Values, keys: Values) -> tuple[FloatArray, list[Subject]]:
        """Rows of the messages, in order, and the id of the subject of each."""
        if isinstance(self._codec, RowPerMessage) and self._codec.with_id:
            return self._codec.decode_with_ids(values)
        per_message = self._codec.rows_per_message
        return self._codec.decode(values), [key for key in keys for _ in range(per_message)]


class RowPerMessage(Codec):
    """Decodes one row per message, each by itself, written straight into one array.

    Parameters
    ----------
    width
        Number of features.
    readers
        From a message to the numbers of its features, and the id behind them if it has one. If one
        of them fails, the next one tries.
    with_id
        True if there is an id.
    """

    def __init__(
        self,
        width: int,
        max_bytes: int,
        readers: Sequence[Callable[[bytes], Sequence[Any]]],
        with_id: bool = False,
    ) -> None:
        self._width, self._max_bytes, self.with_id = width, max_bytes, with_id
        self._attempts = readers
        self._row = struct.Struct(f"={width}d")

    def decode(self, values: Values) -> FloatArray:
        return self.decode_with_ids(values)[0]

    def decode_with_ids(self, values: Values) -> tuple[FloatArray, list[Subject]]:
        """Rows of the messages, in order, and the id of the subject of each."""
        rows = np.full((len(values), self._width), np.nan)
        ids: list[Subject] = [None] * len(values)
        memory = rows.data.cast("B") if rows.size else memoryview(bytearray())
        readers, limit, with_id = self._attempts, self._max_bytes, self.with_id
        pack, stride = self._row.pack_into, self._row.size
        for i, value in enumerate(values):
            if value is None or len(value) > limit:
                continue
            for read in readers:
                try:
                    found = read(value)
                    if with_id:
                        *found, who = found
                        ids[i] = _id_of(who)
                    pack(memory, i * stride, *found)
                    break
                except Exception:  # whatever is wrong with a message, it is a null
                    rows[i] = np.nan
        return rows, ids


class JsonArrays(RowPerMessage):
    def __init__(self, width: int, max_bytes: int) -> None:
        decode = msgspec.json.Decoder(list[float | bool]).decode
        readers = (lambda v: decode(unframed(v)), lambda v: [*map(_number, _items(unframed(v)))])
        super().__init__(width, max_bytes, readers)


class JsonObjects(RowPerMessage):
    """The objects are read into structs that have the wanted members and skip all others.

    Most have numbers everywhere. Where something is missing or of another kind, features are read
    one by one, with this way to make a number of a value or a text.
    """

    def __init__(
        self,
        tree: FeatureTree,
        width: int,
        max_bytes: int,
        with_id: bool = False,
        number: Callable[[Any], float] = number,
    ) -> None:
        decode = msgspec.json.Decoder(_struct(tree)).decode
        one_by_one = _each(tree, number)
        paths = [path for _, path in sorted(_paths(tree))]
        # Without nesting the fields are the features, in order, and ten times as fast to get.
        flat = not any(isinstance(below, dict) for below in tree.values())
        get = msgspec.structs.astuple if flat else _getter(paths)

        def each(value: bytes) -> Sequence[Any]:
            found = [math.nan] * width + [None] * with_id
            for at, one in one_by_one(unframed(value)):
                found[at] = one
            return found

        super().__init__(width, max_bytes, (lambda v: get(decode(unframed(v))), each), with_id)


def _id_of(found: Any) -> Subject:
    """An id as a field holds it; a number that a reader did not find is NaN."""
    return None if isinstance(found, bool) or found != found else found


def _paths(tree: FeatureTree, above: str = "") -> Iterator[tuple[int, str]]:
    """The number of each feature, and its path in the names of the structs' fields."""
    for i, (name, below) in enumerate(tree.items()):
        path = above + (name if name[0] == "[" else f"f{i}")
        if isinstance(below, dict):
            yield from _paths(below, f"{path}.")
        else:
            yield below, path


def _getter(paths: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Find all features of an object that has all of them."""
    if not any(".[" in path for path in paths):
        get: Callable[[Any], Any] = operator.attrgetter(*paths)
        return get if len(paths) > 1 else lambda x: (get(x),)
    runs: list[tuple[str, int, int]] = []  # items of one array, one after another
    for path in paths:
        head, _, index = path.partition(".[")
        at = int(index[:-1]) if index else -1
        if index and runs and runs[-1][0] == head and runs[-1][2] == at:
            runs[-1] = head, runs[-1][1], at + 1
        else:
            runs.append((head, at, at + 1))
    gets = [(operator.attrgetter(head), start, end) for head, start, end in runs]

    def values(x: Any) -> Sequence[Any]:
        found: list[Any] = []
        for get, start, end in gets:
            if start < 0:
                found.append(get(x))
            else:
                found += get(x)[start:end]  # too few items: not a whole row
        return found

    return values


def _number(raw: msgspec.Raw, number: Callable[[Any], float] = number) -> float:
    try:
        return number(_value(raw))
    except msgspec.ValidationError:  # an array, an object, or a number beyond all floats
        return math.nan if memoryview(raw)[0] in b"[{" else math.inf


def _each(
    tree: FeatureTree, number: Callable[[Any], float]
) -> Callable[[Any], Iterator[tuple[int, Any]]]:
    """Reads features one by one; what is of another kind is left out, and nothing is made of it."""
    parts = [(at, _each(at, number) if isinstance(at, dict) else None) for at in tree.values()]
    if (items := items_of(tree)) is None:
        members = msgspec.json.Decoder(_struct(tree, raw=True)).decode

    def read(raw: Any) -> Iterator[tuple[int, Any]]:
        if items is None:
            found = msgspec.structs.astuple(members(raw))
        else:
            whole = _items(raw)
            found = tuple(whole[i] if i < len(whole) else _NOTHING for i in items)
        for (at, below), part in zip(parts, found, strict=True):
            with contextlib.suppress(msgspec.MsgspecError):
                if below is not None:
                    yield from below(part)
                elif not isinstance(at, dict):
                    yield at, _id(part) if isinstance(at, Id) else _number(part, number)

    return read


def _struct(tree: FeatureTree, raw: bool = False) -> type[msgspec.Struct]:
    """A struct type whose field f0, f1, ... is the first, second, ... member of the tree."""
    fields: list[tuple[str, Any, Any]] = [
        (f"f{i}", msgspec.Raw, _NOTHING)
        if raw
        else (f"f{i}", _type(below) | None, None if isinstance(below, dict | Id) else math.nan)
        for i, below in enumerate(tree.values())
    ]
    names = {f"f{i}": member for i, member in enumerate(tree)}
    try:
        return msgspec.defstruct("Object", fields, rename=names, gc=False)
    except ValueError:
        raise ConfigurationError(
            "the name of a feature must not have a quote, a backslash or a control character in it "
            "(series of metrics need format=otlp, otlp-json or long)"
        ) from None


def _type(below: int | FeatureTree) -> Any:
    if isinstance(below, int):
        return str | int | float if isinstance(below, Id) else float | bool
    if items_of(below) is not None:
        return list[float | bool]
    if any(name[0] == "[" for name in below):
        raise ConfigurationError(f"features would be in an array and in an object: {[*below]}")
    return _struct(below)


class Packed(Codec):
    """Packed rows, of which the first `rows_per_message` are kept."""

    def __init__(self, width: int, dtype: str, max_bytes: int, rows_per_message: int) -> None:
        self.rows_per_message = rows_per_message
        self._width, self._dtype, self._max_bytes = width, np.dtype(dtype), max_bytes
        self._nulls = np.full(rows_per_message * width, np.nan, self._dtype).tobytes()

    def keeping(self, rows: int) -> Packed:
        """The same codec, but keeping at most this many rows of a message."""
        most = min(rows, self.rows_per_message)
        return Packed(self._width, self._dtype.str, self._max_bytes, most)

    def decode(self, values: Values) -> FloatArray:
        with np.errstate(all="ignore"):  # a warning would say something about the records
            return self.read(values).astype(np.float64)

    def read(self, values: Values) -> NDArray[np.floating[Any]]:
        size = len(self._nulls)
        if size > self._max_bytes or any(v is None or len(v) != size for v in values):
            values = [self._whole(value) for value in values]
        joined = b"".join(values)  # type: ignore[arg-type]  # as it should be: one copy of all
        return np.frombuffer(joined, self._dtype).reshape(-1, self._width)

    def _whole(self, value: bytes | None) -> bytes:
        """A message with as many rows as it should have; all of them are nulls in a bad one."""
        row_bytes = self._width * self._dtype.itemsize
        if value is None or len(value) > self._max_bytes or len(value) % row_bytes:
            return self._nulls
        return value[: len(self._nulls)] + self._nulls[len(value) :]

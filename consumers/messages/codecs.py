"""Decodes messages into rows.

Every message becomes the same number of rows of d numbers, `rows_per_message`, whatever is in it. A
message that cannot be read (no value, too large, malformed, a feature that is not a number) is
**null rows**, all NaN; so are the rows that a message lacks, and rows beyond that number are
ignored. A feature that is missing or null in a JSON message is NaN by itself: the estimator decides
what happens to such a row (`missing`). How a message is read depends on that message alone, and
nothing of it is ever raised, logged or counted.

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
import importlib
import operator
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from ..formats import Format
from ..protocols import SchemaSource
from .cutting import unframed
from .paths import path_of

Rows = NDArray[np.float64]
Values = Sequence[bytes | None]
#: The id of a subject, as it was sent.
Subject = bytes | str | int | float | None


class Codec(abc.ABC):
    """Decodes messages of one format."""

    rows_per_message: int = 1

    @abc.abstractmethod
    def decode(self, values: Values) -> Rows:
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


class SubjectCodec(Protocol):
    """Decodes messages of one format into rows, each with its subject."""

    def decode(self, values: Values, keys: Values) -> tuple[Rows, list[Subject]]:
        """Rows of the messages, in order, and the id of the subject of each."""


def make_registered(
    format: Format,
    features: Sequence[str],
    max_bytes: int,
    nested: bool,
    registry: SchemaSource | None,
    with_id: bool = False,
) -> RowPerMessage:
    """Make a codec whose libraries are extras; `with_id` if the last feature is the id."""
    from .registered import RegisteredCodec, feature_tree

    if registry is None:
        raise ConfigurationError(f"`schema_registry_url` must be set with format {format}")
    try:
        reader = (
            importlib.import_module(".avro", __package__).avro_reader
            if format == "avro"
            else importlib.import_module(".protobuf", __package__).protobuf_reader
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"format {format} needs {error.name}: pip install '.[{format}]'"
        ) from None
    tree, width = feature_tree(features, nested, with_id), len(features)
    return RegisteredCodec(
        width - with_id, max_bytes, registry, lambda schema: reader(schema, tree, width)
    )


def make_member_parser(
    name: str, nested: bool = True
) -> Callable[[bytes], str | int | float | None]:
    """Make a function that finds one member of a JSON object: a text, a number, or None."""
    tree: dict[str, Any] = {}
    get = _careful_getter([_plant(tree, name, nested, _Id)])
    parse = msgspec.json.Decoder(_struct(tree)).decode

    def find(value: bytes) -> Any:
        with suppress(Exception):
            return get(parse(value))[0]
        return None

    return find


class KeyedMessages:
    """Messages whose key is the subject of all their rows."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def decode(self, values: Values, keys: Values) -> tuple[Rows, list[Subject]]:
        per_message = self._codec.rows_per_message
        ids: list[Subject] = [key for key in keys for _ in range(per_message)]
        return self._codec.decode(values), ids


class SubjectInMessage:
    """Messages that hold the id of their subject."""

    def __init__(self, codec: RowPerMessage) -> None:
        self._codec = codec

    def decode(self, values: Values, keys: Values) -> tuple[Rows, list[Subject]]:
        return self._codec.decode_with_ids(values)


class RowPerMessage(Codec):
    """Decodes one row per message, each by itself, written straight into one array.

    Parameters
    ----------
    parse
        From a message to an object.
    values
        From an object to the numbers of its features, and for `decode_with_ids` the id behind them.
    parts
        The same, for objects with missing members, which are None.
    """

    def __init__(
        self,
        width: int,
        max_bytes: int,
        parse: Callable[[bytes], Any],
        values: Callable[[Any], Sequence[float | None]],
        parts: Callable[[Any], Sequence[float | None]] | None = None,
    ) -> None:
        self._width, self._max_bytes, self._parse = width, max_bytes, parse
        self._getters: list[Callable[[Any], Sequence[Any]]] = [values]
        if parts is not None:
            self._getters.append(lambda x: [np.nan if item is None else item for item in parts(x)])
        self._row = struct.Struct(f"={width}d")

    def decode(self, values: Values) -> Rows:
        return self._decode(values, None)

    def decode_with_ids(self, values: Values) -> tuple[Rows, list[Subject]]:
        """Rows of the messages, in order, and the id of the subject of each."""
        ids: list[Subject] = [None] * len(values)
        return self._decode(values, ids), ids

    def _decode(self, values: Values, ids: list[Subject] | None) -> Rows:
        rows = np.full((len(values), self._width), np.nan)
        memory = rows.data.cast("B") if len(values) else memoryview(bytearray())
        parse, getters, limit = self._parse, self._getters, self._max_bytes
        pack, stride = self._row.pack_into, self._row.size
        for i, value in enumerate(values):
            if value is None or len(value) > limit:
                continue
            for get in getters:
                try:
                    found = get(parse(value))
                    if ids is not None:
                        *found, who = found
                        ids[i] = _id_of(who)
                    pack(memory, i * stride, *found)
                    break
                except Exception:  # whatever is wrong with a message, it is a null
                    rows[i] = np.nan
        return rows


class JsonArrays(RowPerMessage):
    def __init__(self, width: int, max_bytes: int) -> None:
        decode = msgspec.json.Decoder(list[float | bool | None]).decode
        super().__init__(width, max_bytes, lambda v: decode(unframed(v)), list, list)


class JsonObjects(RowPerMessage):
    """The objects are read into structs that have the wanted members and skip all others."""

    def __init__(
        self, features: Sequence[str], max_bytes: int, nested: bool, subject: str | None = None
    ) -> None:
        tree: dict[str, Any] = {}
        paths = [_plant(tree, feature, nested) for feature in features]
        if subject is not None:
            paths.append(_plant(tree, subject, nested, _Id))
        decode = msgspec.json.Decoder(_struct(tree)).decode
        # Without nesting the fields are the features, in order, and ten times as fast to get.
        flat = not any("." in path for path in paths)
        values = msgspec.structs.astuple if flat else _getter(paths)
        super().__init__(
            len(features), max_bytes, lambda v: decode(unframed(v)), values, _careful_getter(paths)
        )


def _id_of(found: Any) -> Subject:
    """An id as a field holds it; a number that a reader did not find is NaN."""
    return None if isinstance(found, bool) or found != found else found


def _getter(paths: Sequence[str]) -> Callable[[Any], Sequence[float | None]]:
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

    def values(x: Any) -> Sequence[float | None]:
        found: list[float | None] = []
        for get, start, end in gets:
            if start < 0:
                found.append(get(x))
            else:
                found += get(x)[start:end]  # too few items: not a whole row
        return found

    return values


def _careful_getter(paths: Sequence[str]) -> Callable[[Any], Sequence[float | None]]:
    """As `_getter`; members below a missing member, and missing items, are None."""

    def follow(value: Any, path: str) -> Any:
        for name in path.split("."):
            if value is not None and name[0] == "[":
                index = int(name[1:-1])
                value = value[index] if index < len(value) else None
            else:
                value = None if value is None else getattr(value, name)
        return value

    return lambda x: [follow(x, path) for path in paths]


def _plant(tree: dict[str, Any], feature: str, nested: bool, leaf: Any = None) -> str:
    """Add a feature to the tree of members; return it in the names of the structs' fields."""
    fields = []
    path = path_of(feature, nested)
    for depth, member in enumerate(path):
        last = depth == len(path) - 1
        if member not in tree:
            tree[member] = leaf if last else {}
        elif last or not isinstance(tree[member], dict):
            raise ConfigurationError(
                f"feature {feature!r} would be a number and hold another feature: set nested=false"
            )
        fields.append(member if member[0] == "[" else f"f{list(tree).index(member)}")
        tree = tree[member]
    return ".".join(fields)


class _Id:
    """Marks the place of the id among the members."""


def _struct(tree: dict[str, Any]) -> type[msgspec.Struct]:
    """A struct type whose field f0, f1, ... is the first, second, ... member of the tree."""
    fields = [(f"f{i}", _leaf_type(below) | None, None) for i, below in enumerate(tree.values())]
    names = {f"f{i}": member for i, member in enumerate(tree)}
    try:
        return msgspec.defstruct("Object", fields, rename=names, gc=False)
    except ValueError:
        raise ConfigurationError(
            "the name of a feature must not have a quote, a backslash or a control character in it"
        ) from None


def _leaf_type(below: Any) -> Any:
    if below is _Id:
        return str | int | float
    if below is None:
        return float | bool
    items = [member for member in below if member[0] == "["]
    if items and len(items) < len(below):
        raise ConfigurationError(f"a feature would be in an array and in an object: {items[0]}")
    return list[float | bool | None] if items else _struct(below)


class Packed(Codec):
    """Packed rows, of which the first `rows_per_message` are kept.

    Parameters
    ----------
    full
        Number of rows that a message should hold; `rows_per_message`, unless only some are kept.
    """

    def __init__(
        self, width: int, dtype: str, max_bytes: int, rows_per_message: int, full: int | None = None
    ) -> None:
        self.rows_per_message = rows_per_message
        self._full = rows_per_message if full is None else full
        self._width, self._dtype, self._max_bytes = width, np.dtype(dtype), max_bytes
        self._row_bytes = width * self._dtype.itemsize

    def keeping(self, rows: int) -> Packed:
        """The same codec, but keeping at most this many rows of a message."""
        most = min(rows, self.rows_per_message)
        return Packed(self._width, self._dtype.str, self._max_bytes, most, self._full)

    def decode(self, values: Values) -> Rows:
        return _as_float64(self.read(values))

    def read(self, values: Values) -> NDArray[np.floating[Any]]:
        per_message, width = self.rows_per_message, self._width
        full = self._full * self._row_bytes
        if full <= self._max_bytes and all(v is not None and len(v) == full for v in values):
            joined = b"".join(values)  # type: ignore[arg-type]  # as it should be: one copy of all
            packed = np.frombuffer(joined, self._dtype).reshape(len(values), self._full, width)
            kept = packed if per_message == self._full else packed[:, :per_message]
            return kept.reshape(len(values) * per_message, width)
        rows = np.full((len(values) * per_message, width), np.nan, self._dtype)
        for i, value in enumerate(values):
            count = min(self._count(value), per_message)
            if count and value is not None:
                start = i * per_message
                flat = np.frombuffer(value, self._dtype, count * width)
                rows[start : start + count] = flat.reshape(count, width)
        return rows

    def _count(self, value: bytes | None) -> int:
        """The rows of a message; 0 for a bad one."""
        if value is None or len(value) > self._max_bytes or len(value) % self._row_bytes:
            return 0
        return len(value) // self._row_bytes


def _as_float64(packed: NDArray[np.floating[Any]]) -> Rows:
    with np.errstate(all="ignore"):  # a warning would say something about the records
        return packed.astype(np.float64)

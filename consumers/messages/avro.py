"""Reads the features out of Avro messages, and skips everything else.

A schema is compiled once into readers of fields: each takes the message and a position, puts the
numbers that it finds into the row, and returns the next position. Fields of fixed size that follow
each other have one reader. Fields that no feature needs are measured and skipped, never built: a
message can neither fill the memory nor exhaust the stack, and takes time in proportion to its
length. fastavro could read such messages as well; but it builds all that is in them, takes twice as
long, does not end on an array of 2^60 nulls (ten bytes), and crashes the process on a message that
nests ten thousand times: one message would stop a service for good. Whether a message does so is
not known before it has been decoded. Its parser of schemas writes out every name in full, which
took 700 MB for 256 kB of schema, in a second in which no other thread ran.

| type | as a feature |
|---|---|
| `int`, `long`, `float`, `double` | the number, whatever its logical type |
| `boolean` | 0 or 1 |
| `bytes`, `fixed` of the logical type `decimal` | the number |
| `null` | missing |
| a union | by its branch |
| anything else | not a number: the message is a null |

A feature `a.b` is the field `b` of a record `a`, or the value `b` of a map `a`; `a[3]` is the
fourth item of an array `a`. A field that the schema does not have is missing. The id of a subject
may also be a string.

The writer of a message may also be allowed to register schemas, so the cost of a schema is bounded
by public numbers (`MOST_PARTS`, `DEEPEST_PART`, `MOST_BRANCHES`, `LONGEST_NAME`, `MOST_DIGITS`);
the messages of a schema that exceeds them are nulls. Everything but the JSON is parsed in Python,
so that other threads, such as the one that samples offsets, have their turn every few milliseconds.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from ..protocols import RegisteredSchema
from . import registered
from .cutting import whole_number
from .paths import FeatureTree, Id, items_of
from .registered import MalformedMessage, UnusableSchema

#: Most parts that one reader is compiled of. A record that is skipped counts once; a type that
#: holds features counts each time it is used, so nested unions cannot multiply for long.
MOST_PARTS: Final = 20_000
#: Bytes that a part of a reader takes at most, as measured.
PART_BYTES: Final = 500
#: Most levels of nested types in a schema. A type that holds itself does not count again.
DEEPEST_PART: Final = 100
#: Most branches of a union: their indexes have one byte, for speed.
MOST_BRANCHES: Final = 64
#: Largest scale and precision of a decimal. A float64 has no more than 1100 decimal places.
MOST_DIGITS: Final = 1100

#: From a message and a position to the next position; numbers go into the row.
FieldReader = Callable[[bytes, int, list[Any]], int]
#: The same for items of a block: the number of the first one and how many there are come last.
Items = Callable[[bytes, int, list[Any], int, int], int]
#: A number of bytes to skip, a number of fixed size with its feature, or a reader.
Part = int | tuple[str, int] | FieldReader
Wanted = int | FeatureTree | None

#: Numbers of fixed size, as `struct` spells them, and their bytes.
_LETTERS: Final = {"boolean": "?", "float": "f", "double": "d"}
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_PRIMITIVE: Final = frozenset({*_SIZES, "int", "long", "string", "bytes"})
_DEFINED: Final = frozenset({"record", "error", "enum", "fixed"})


def make_reader(schema: RegisteredSchema, tree: FeatureTree, width: int) -> registered.Compiled:
    """Compile a schema into the reader of its messages.

    Parameters
    ----------
    schema
        The schema of the writer.
    tree
        Positions of the features.
    width
        Number of features.
    """
    compiler = _Compiler()
    reader = _joined(compiler.schema(schema, tree))
    nothing = [math.nan] * width

    def read(value: bytes) -> Sequence[float]:
        row = nothing.copy()
        if reader(value, registered.FRAME_BYTES, row) != len(value):
            raise MalformedMessage
        return row

    return registered.Compiled(read, PART_BYTES * (compiler.count + 1))


class _Type(NamedTuple):
    name: str  #: as Avro has it: "record", "long", "union", ...
    kind: Any  #: its JSON
    namespace: str  #: of the names in it


class _Compiler:
    """Compiles the types of one schema, and of those that it refers to, into parts."""

    def __init__(self) -> None:
        self.count = self._depth = 0
        self._named: dict[str, _Type] = {}
        self._skips: dict[int, list[Part]] = {}  # of records, by the identity of their JSON

    def schema(self, schema: RegisteredSchema, tree: FeatureTree) -> list[Part]:
        for one in schema.each():
            if one.kind != "avro":
                raise UnusableSchema
            parts = self._parts(json.loads(one.text), "", tree if one is schema else None)
        return parts

    def _resolved(self, kind: Any, namespace: str) -> _Type:
        """Find the type that JSON names or defines."""
        while isinstance(kind, dict) and isinstance(kind["type"], dict | list):
            kind = kind["type"]
        if isinstance(kind, list):
            return _Type("union", kind, namespace)
        name = kind["type"] if isinstance(kind, dict) else kind
        if name in _PRIMITIVE:
            return _Type(name, kind, namespace)
        if isinstance(kind, dict) and name in ("array", "map"):
            return _Type(name, kind, namespace)
        if isinstance(kind, dict) and name in _DEFINED:
            namespace, full = _full_name(kind["name"], kind.get("namespace", namespace))
            name = "record" if name == "error" else name
            found = self._named.setdefault(full, _Type(name, kind, namespace))
            if found.kind is not kind:  # another one of this name
                raise UnusableSchema
            return found
        return self._named[_full_name(name, namespace)[1]]

    def _parts(self, kind: Any, namespace: str, wanted: Wanted) -> list[Part]:
        """The parts of a type: exactly one if nothing in it is wanted."""
        self.count += 1
        self._depth += 1
        if self.count > MOST_PARTS or self._depth > DEEPEST_PART:
            raise UnusableSchema
        found = self._parts_of(self._resolved(kind, namespace), wanted)
        self._depth -= 1
        return found

    def _parts_of(self, of: _Type, wanted: Wanted) -> list[Part]:
        name, kind, namespace = of
        if name == "union":
            return [self._union(of, wanted)]
        if name == "null":  # features below it are missing
            return [0]
        if name in ("record", "map", "array"):
            tree = wanted if isinstance(wanted, dict) else {}
            items = items_of(tree) if name == "array" else {}
            if name == "record":
                parts = self._fields(of, tree) if tree else self._skipped(of)
            elif name == "map":
                parts = [_blocks(self._map(kind["values"], namespace, tree))]
            else:
                parts = [_blocks(self._array(kind["items"], namespace, items or {}))]
            return [_refuse] if isinstance(wanted, int) or items is None else parts
        if isinstance(wanted, dict):
            return [_refuse]
        return [_skip(name, kind) if wanted is None else _number(name, kind, wanted)]

    def _fields(self, record: _Type, tree: FeatureTree) -> list[Part]:
        return [
            part
            for one in record.kind["fields"]
            for part in self._parts(one["type"], record.namespace, tree.get(one["name"]))
        ]

    def _skipped(self, record: _Type) -> list[Part]:
        """The part that skips a record, compiled once. A record that contains itself calls it."""
        own = self._skips.get(id(record.kind))
        if own is None:
            own = self._skips[id(record.kind)] = []
            parts = self._fields(record, {})
            sizes = [part for part in parts if isinstance(part, int)]
            # One number is kept: records that hold each other twice double with every level.
            own.append(sum(sizes) if len(sizes) == len(parts) else _joined(parts))
        elif not own:  # the record is inside itself
            return [lambda value, at, row: own[0](value, at, row)]  # type: ignore[operator]
        return own

    def _union(self, union: _Type, wanted: Wanted) -> FieldReader:
        if len(union.kind) > MOST_BRANCHES:
            raise UnusableSchema
        readers = [_joined(self._parts(one, union.namespace, wanted)) for one in union.kind]

        def read(value: bytes, at: int, row: list[Any]) -> int:
            index = value[at]
            if index & 1:  # negative, or more than one byte
                raise MalformedMessage
            return readers[index >> 1](value, at + 1, row)

        return read

    def _map(self, kind: Any, namespace: str, tree: FeatureTree) -> Items:
        keys = {
            name.encode(): _joined(self._parts(kind, namespace, below))
            for name, below in tree.items()
        }
        other = _joined(self._parts(kind, namespace, None))

        def read(value: bytes, at: int, row: list[Any], first: int, count: int) -> int:
            for _ in range(count):
                key, at = _bytes(value, at)
                at = keys.get(key, other)(value, at, row)
            return at

        return read

    def _array(self, kind: Any, namespace: str, items: dict[int, int]) -> Items:
        """Read items as far as there are features, and skip the others."""
        most = max(items, default=-1) + 1
        readers = [_joined(self._parts(kind, namespace, items.get(i))) for i in range(most)]
        (skip,) = self._parts(kind, namespace, None)
        reader = _joined([skip])

        def read(value: bytes, at: int, row: list[Any], first: int, count: int) -> int:
            for wanted in readers[first : first + count]:
                at = wanted(value, at, row)
                count -= 1
            # Items of fixed size, which may be 0, are not skipped one by one: a message can claim
            # any number of them. Any other item takes at least a byte, and bytes run out.
            if isinstance(skip, int):
                return at + count * skip
            for _ in range(count):
                at = reader(value, at, row)
            return at

        return read


def _full_name(name: str, namespace: str | None) -> tuple[str, str]:
    """The namespace of a type and its full name. Both are bounded: they are made for every use."""
    if len(name) + len(namespace or "") > registered.LONGEST_NAME:
        raise UnusableSchema
    if "." in name:
        return name.rpartition(".")[0], name
    return namespace or "", f"{namespace}.{name}" if namespace else name


# Readers of fields


def _joined(parts: Iterable[Part]) -> FieldReader:
    """One reader of all parts."""
    readers: list[FieldReader] = []
    for is_reader, group in itertools.groupby(parts, callable):
        run: list[Any] = list(group)
        readers += run if is_reader else [_unpack(run)]
    if len(readers) == 1:
        return readers[0]

    def read(value: bytes, at: int, row: list[Any]) -> int:
        for reader in readers:
            at = reader(value, at, row)
        return at

    return read


def _unpack(fields: Sequence[int | tuple[str, int]]) -> FieldReader:
    """Read fields of fixed size that follow each other."""
    letters = [f"{part}x" if isinstance(part, int) else part[0] for part in fields]
    features = [part[1] for part in fields if not isinstance(part, int)]
    format = struct.Struct("<" + "".join(letters))
    unpack, size = format.unpack_from, format.size
    if not features:
        return lambda value, at, row: at + size

    first, end = features[0], features[-1] + 1
    in_order = features == list(range(first, end))

    def read(value: bytes, at: int, row: list[Any]) -> int:
        if in_order:
            row[first:end] = unpack(value, at)
        else:
            for feature, number in zip(features, unpack(value, at), strict=True):
                row[feature] = number
        return at + size

    return read


def _blocks(items: Items) -> FieldReader:
    """Read an array or a map: blocks of items, the last one empty."""

    def read(value: bytes, at: int, row: list[Any]) -> int:
        done = 0
        while True:
            count, at = whole_number(value, at)
            if count == 0:
                return at
            if count < 0:  # then the bytes of the block follow, which are not needed
                count, (_, at) = -count, whole_number(value, at)
            at = items(value, at, row, done, count)
            done += count

    return read


def _number(name: str, kind: Any, feature: int) -> Part:
    """Read the number of a feature, or the text of an id."""
    if isinstance(feature, Id) and name == "string":
        return _read_bytes(feature, None, bytes.decode)
    if name in _LETTERS:
        return _LETTERS[name], feature
    if name in ("int", "long"):
        return _read_whole(feature)
    if name in ("bytes", "fixed") and kind != name and kind.get("logicalType") == "decimal":
        scale, precision = kind.get("scale", 0), kind.get("precision", MOST_DIGITS)
        # JSON may hold something else here, or an absurdly large number.
        if not all(type(digits) is int for digits in (scale, precision)):
            raise UnusableSchema
        if not 0 <= scale <= MOST_DIGITS or not 0 < precision <= MOST_DIGITS:
            raise UnusableSchema
        unit = 10**scale  # the quotient is the nearest float
        size = _size(kind) if name == "fixed" else None
        return _read_bytes(feature, size, lambda raw: int.from_bytes(raw, signed=True) / unit)
    return _refuse


def _size(kind: Any) -> int:
    """The bytes of a fixed type."""
    size = kind["size"]
    if type(size) is not int or size < 0:
        raise UnusableSchema
    return size


def _skip(name: str, kind: Any) -> Part:
    if name == "fixed":
        return _size(kind)
    if name in _SIZES:
        return _SIZES[name]
    return _skip_bytes if name in ("string", "bytes") else _skip_whole


def _skip_whole(value: bytes, at: int, row: list[Any]) -> int:
    while value[at] > 127:
        at += 1
    return at + 1


def _skip_bytes(value: bytes, at: int, row: list[Any]) -> int:
    return _bytes(value, at)[1]


def _bytes(value: bytes, at: int) -> tuple[bytes, int]:
    """Bytes, and their end. If that is beyond the message, the message cannot be read whole."""
    size, at = whole_number(value, at)
    if size < 0:
        raise MalformedMessage
    return value[at : at + size], at + size


def _read_whole(feature: int) -> FieldReader:
    def read(value: bytes, at: int, row: list[Any]) -> int:
        row[feature], at = whole_number(value, at)
        return at

    return read


def _read_bytes(feature: int, size: int | None, convert: Callable[[bytes], Any]) -> FieldReader:
    """Read bytes of this size, or of the one that they say."""

    def read(value: bytes, at: int, row: list[Any]) -> int:
        found, end = _bytes(value, at) if size is None else (value[at : at + size], at + size)
        row[feature] = convert(found)
        return end

    return read


def _refuse(value: bytes, at: int, row: list[Any]) -> int:
    raise MalformedMessage

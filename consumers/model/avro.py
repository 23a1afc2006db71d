"""Reads the features out of Avro messages, and skips everything else.

A schema is compiled once into steps; a step takes the message and a position, puts the numbers that
it finds into the row, and returns the next position. Fields of fixed size that follow each other
are one step. Fields that no feature needs are measured and skipped, never built: a message can
neither fill the memory nor exhaust the stack, and takes time in proportion to its length. fastavro,
which parses the schemas here, could read such messages as well; but it builds all that is in them,
takes twice as long, does not end on an array of 2^60 nulls (ten bytes), and crashes the process on
a message that nests ten thousand times: one message would stop a service for good.

| type | as a feature |
|---|---|
| `int`, `long`, `float`, `double` | the number, whatever its logical type |
| `boolean` | 0 or 1 |
| `bytes`, `fixed` of the logical type `decimal` | the number |
| `null` | missing |
| a union | by its branch |
| anything else | not a number: the message is a null |

A feature `a.b` is the field `b` of a record `a`, or the value `b` of a map `a`. A field that the
schema does not have is missing.

The writer of a message may also be allowed to register schemas, so the size of a compiled schema is
bounded by public numbers (`MOST_PARTS`, `DEEPEST_PART`, `MOST_DIGITS`); the messages of a schema
that exceeds them are nulls.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import fastavro

from ..protocols import RegisteredSchema
from .registered import (
    FRAME_BYTES,
    FeatureTree,
    MalformedMessage,
    RowReader,
    UnusableSchema,
    whole_number,
)

__all__ = ["DEEPEST_PART", "MOST_DIGITS", "MOST_PARTS", "avro_reader"]

#: Most types that one reader is compiled of. A named type that is skipped counts once; one that
#: holds features counts each time it is used, so nested unions cannot multiply for long.
MOST_PARTS: Final = 20_000
#: Most levels of nested types in a schema. A type that holds itself does not count again.
DEEPEST_PART: Final = 100
#: Largest scale and precision of a decimal. A float64 has no more than 1100 decimal places.
MOST_DIGITS: Final = 1100

#: From a message and a position to the next position; numbers go into the row.
Step = Callable[[bytes, int, list[float]], int]
Wanted = int | FeatureTree | None

#: Types of fixed size, as `struct` spells them.
_FIXED: Final = {"null": "", "boolean": "?", "float": "f", "double": "d"}

_BUILT_IN: Final = frozenset({
    *_FIXED, "int", "long", "string", "bytes", "record", "error", "enum", "array", "map", "fixed",
})  # fmt: skip


def avro_reader(schema: RegisteredSchema, tree: FeatureTree, width: int) -> RowReader:
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
    step = _Compiler(schema).step(tree)
    nothing = [math.nan] * width

    def read(value: bytes) -> Sequence[float]:
        row = nothing.copy()
        if step(value, FRAME_BYTES, row) != len(value):
            raise MalformedMessage
        return row

    return read


class _Compiler:
    """Compiles the types of one schema."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._named: dict[str, Any] = {}
        self._skips: dict[str, list[_Fixed | Step]] = {}  # of records, each compiled once
        self._inside: set[str] = set()
        self._count = self._depth = 0  # of the types compiled so far, and of the current one
        self._references: set[int] = set()  # identities of those that have been parsed
        self._schema = self._parsed(schema)

    def _parsed(self, schema: RegisteredSchema) -> Any:
        for _, reference in schema.references:
            if id(reference) not in self._references:  # two schemas may refer to the same one
                self._references.add(id(reference))
                self._parsed(reference)
        if schema.kind != "avro":
            raise UnusableSchema
        return fastavro.parse_schema(json.loads(schema.text), named_schemas=self._named)

    def step(self, tree: FeatureTree) -> Step:
        """The step that reads a whole message."""
        return self._joined(self._parts(self._schema, tree))

    # A type is a list of parts: formats of fixed size with the features in them, and steps.

    def _parts(self, kind: Any, wanted: Wanted) -> list[_Fixed | Step]:
        self._count += 1
        self._depth += 1
        if self._count > MOST_PARTS or self._depth > DEEPEST_PART:
            raise UnusableSchema
        parts = self._parts_of(*self._resolved(kind), wanted)
        self._depth -= 1
        return parts

    def _parts_of(self, name: str, kind: Any, wanted: Wanted) -> list[_Fixed | Step]:
        if isinstance(kind, list):
            return [self._union(kind, wanted)]
        if name == "record" or name == "error":
            return self._record(kind, wanted)
        if name == "map" and isinstance(wanted, dict):
            return [self._map(kind["values"], wanted)]
        if wanted is None or name == "null":  # features below a null are missing
            return self._skipped(name, kind)
        if isinstance(wanted, dict):
            return [_refuse]
        return self._number(name, kind, wanted)

    def _resolved(self, kind: Any) -> tuple[str, Any]:
        """The name of a type as Avro has it ("record", "long", "union", ...), and the type."""
        while True:
            if isinstance(kind, list):
                return "union", kind
            if isinstance(kind, str):
                if self._is_built_in(kind):
                    return kind, {"type": kind}
                kind = self._named[kind]
            elif isinstance(kind["type"], str):
                if self._is_built_in(kind["type"]):
                    return kind["type"], kind
                kind = self._named[kind["type"]]
            else:
                kind = kind["type"]

    def _is_built_in(self, name: str) -> bool:
        """Tell whether a name is one of Avro's own types, also if a schema defines it again."""
        return name in _BUILT_IN or name not in self._named

    def _record(self, kind: Any, wanted: Wanted) -> list[_Fixed | Step]:
        if isinstance(wanted, int):
            return [_refuse]
        if wanted is None:
            return self._skipped("record", kind)
        parts: list[_Fixed | Step] = []
        for field in kind["fields"]:
            parts += self._parts(field["type"], wanted.get(field["name"]))
        return parts

    def _number(self, name: str, kind: Any, feature: int) -> list[_Fixed | Step]:
        if name in _FIXED:
            return [_Fixed(_FIXED[name], [feature])]
        if name in ("int", "long"):
            return [_read_whole(feature)]
        if kind.get("logicalType") == "decimal" and name in ("bytes", "fixed"):
            size = kind["size"] if name == "fixed" else None
            scale, precision = kind.get("scale", 0), kind.get("precision", MOST_DIGITS)
            # JSON may hold something else here, or an absurdly large number.
            if not all(type(digits) is int for digits in (scale, precision)):
                raise UnusableSchema
            if not 0 <= scale <= MOST_DIGITS or not 0 < precision <= MOST_DIGITS:
                raise UnusableSchema
            return [_read_decimal(feature, 10**scale, size)]
        return [_refuse]

    def _union(self, kinds: Sequence[Any], wanted: Wanted) -> Step:
        if len(kinds) > 64:  # an index of one byte, for speed
            return _refuse
        steps = [self._joined(self._parts(kind, wanted)) for kind in kinds]

        def read(value: bytes, at: int, row: list[float]) -> int:
            index = value[at]
            if index & 1:  # negative, or more than one byte
                raise MalformedMessage
            return steps[index >> 1](value, at + 1, row)

        return read

    def _map(self, values: Any, wanted: FeatureTree) -> Step:
        keys = {
            name.encode(): self._joined(self._parts(values, below))
            for name, below in wanted.items()
        }
        other = self._joined(self._parts(values, None))

        def read(value: bytes, at: int, row: list[float]) -> int:
            while True:
                count, at = whole_number(value, at)
                if count == 0:
                    return at
                if count < 0:  # then the bytes of the block follow, which are not needed
                    count, (_, at) = -count, whole_number(value, at)
                for _ in range(count):
                    size, at = whole_number(value, at)
                    if size < 0:
                        raise MalformedMessage
                    key = value[at : at + size]
                    at = keys.get(key, other)(value, at + size, row)

        return read

    # Types that no feature needs

    def _skipped(self, name: str, kind: Any) -> list[_Fixed | Step]:
        if name in _FIXED:
            return [_Fixed(f"{struct.calcsize('<' + _FIXED[name])}x", [])]
        if name == "fixed":
            return [_Fixed(f"{int(kind['size'])}x", [])]
        if name == "record" or name == "error":
            return self._skipped_record(kind)
        if name == "array":
            return [self._skip_blocks(self._parts(kind["items"], None))]
        if name == "map":
            return [self._skip_blocks([_skip_bytes, *self._parts(kind["values"], None)])]
        if name in ("string", "bytes"):
            return [_skip_bytes]
        if name in ("int", "long", "enum"):
            return [_skip_whole]
        raise UnusableSchema

    def _skipped_record(self, kind: Any) -> list[_Fixed | Step]:
        """Parts that skip a record: at most one. A record that contains itself calls it."""
        name = kind["name"]
        if name in self._inside:
            return [lambda value, at, row: self._joined(self._skips[name])(value, at, row)]
        if name not in self._skips:
            self._inside.add(name)
            parts = [p for field in kind["fields"] for p in self._parts(field["type"], None)]
            self._inside.remove(name)
            fixed = [part for part in parts if isinstance(part, _Fixed)]
            if len(fixed) == len(parts):
                # One number is kept: records that hold each other twice double with every level.
                self._skips[name] = [_Fixed(f"{sum(part.size for part in fixed)}x", [])]
            else:
                self._skips[name] = [self._joined(parts)]
        return self._skips[name]

    def _skip_blocks(self, parts: Sequence[_Fixed | Step]) -> Step:
        """Skip an array or a map: blocks of items, the last one empty."""
        fixed = [part for part in parts if isinstance(part, _Fixed)]
        # Items of fixed size, which may be 0, are not skipped one by one: a message can claim any
        # number of them. Any other item takes at least a byte, and bytes run out.
        size = sum(part.size for part in fixed) if len(fixed) == len(parts) else None
        step = self._joined(parts)

        def skip(value: bytes, at: int, row: list[float]) -> int:
            while True:
                count, at = whole_number(value, at)
                if count == 0:
                    return at
                if count < 0:
                    length, at = whole_number(value, at)
                    if length < 0:
                        raise MalformedMessage
                    at += length
                elif size is not None:
                    at += count * size
                else:
                    for _ in range(count):
                        at = step(value, at, row)

        return skip

    # Steps of parts

    @staticmethod
    def _joined(parts: Sequence[_Fixed | Step]) -> Step:
        steps: list[Step] = []
        for fixed, run in itertools.groupby(parts, lambda part: isinstance(part, _Fixed)):
            if not fixed:
                steps += run  # type: ignore[arg-type]
            elif (whole := _Fixed.of(run)).size:  # type: ignore[arg-type]
                steps.append(whole.step())
        if len(steps) == 1:
            return steps[0]

        def read(value: bytes, at: int, row: list[float]) -> int:
            for step in steps:
                at = step(value, at, row)
            return at

        return read


class _Fixed:
    """Fields of fixed size, one after another, and the features that they hold."""

    def __init__(self, format: str, features: list[int]) -> None:
        self._format, self._features = format, features
        try:
            self.size = struct.calcsize("<" + format)
        except struct.error:  # an absurdly large size
            raise UnusableSchema from None

    @staticmethod
    def of(run: Iterable[_Fixed]) -> _Fixed:
        """All fields of a run as one."""
        fields = list(run)
        return _Fixed(
            "".join(part._format for part in fields),
            [feature for part in fields for feature in part._features],
        )

    def step(self) -> Step:
        size, features = self.size, self._features
        unpack = struct.Struct("<" + self._format).unpack_from
        if not features:
            return lambda value, at, row: at + size
        first, count = features[0], len(features)
        if features == list(range(first, first + count)):
            end = first + count

            def read_run(value: bytes, at: int, row: list[float]) -> int:
                row[first:end] = unpack(value, at)
                return at + size

            return read_run

        def read(value: bytes, at: int, row: list[float]) -> int:
            for feature, number in zip(features, unpack(value, at), strict=True):
                row[feature] = number
            return at + size

        return read


def _read_whole(feature: int) -> Step:
    def read(value: bytes, at: int, row: list[float]) -> int:
        row[feature], at = whole_number(value, at)
        return at

    return read


def _read_decimal(feature: int, unit: int, size: int | None) -> Step:
    def read(value: bytes, at: int, row: list[float]) -> int:
        length = size
        if length is None:
            length, at = whole_number(value, at)
        digits = value[at : at + length]
        if length < 0 or len(digits) != length:
            raise MalformedMessage
        row[feature] = int.from_bytes(digits, signed=True) / unit  # the nearest float
        return at + length

    return read


def _skip_whole(value: bytes, at: int, row: list[float]) -> int:
    while value[at] > 127:
        at += 1
    return at + 1


def _skip_bytes(value: bytes, at: int, row: list[float]) -> int:
    size, at = whole_number(value, at)
    if size < 0:
        raise MalformedMessage
    return at + size


def _refuse(value: bytes, at: int, row: list[float]) -> int:
    raise MalformedMessage

"""Reads the features out of Avro messages, and skips everything else.

A schema is compiled once into steps; a step takes the message and a position, puts the numbers that
it finds into the row, and returns the next position. Fields of fixed size that follow each other
are one step. Fields that no feature needs are measured and skipped, never built: a message can
neither fill the memory nor exhaust the stack, and takes time in proportion to its length. fastavro
could read such messages as well; but it builds all that is in them, takes twice as long, does not
end on an array of 2^60 nulls (ten bytes), and crashes the process on a message that nests ten
thousand times: one message would stop a service for good. Its parser of schemas writes out every
name in full, which took 700 MB for 256 kB of schema, in a second in which no other thread ran.

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
by public numbers (`MOST_PARTS`, `DEEPEST_PART`, `LONGEST_NAME`, `MOST_DIGITS`); the messages of a
schema that exceeds them are nulls. Everything but the JSON is parsed in Python, so that other
threads, such as the one that samples offsets, have their turn every few milliseconds.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from ..protocols import RegisteredSchema
from . import registered
from .registered import FeatureTree, MalformedMessage, UnusableSchema, items_of, whole_number

#: Most types of a schema, and most that one reader is compiled of. There, a named type that is
#: skipped counts once; one that holds features counts each time it is used, so nested unions cannot
#: multiply for long.
MOST_PARTS: Final = 20_000
#: Bytes that a part of a reader takes at most, as measured.
PART_BYTES: Final = 500
#: Most levels of nested types in a schema. A type that holds itself does not count again.
DEEPEST_PART: Final = 100
#: Largest scale and precision of a decimal. A float64 has no more than 1100 decimal places.
MOST_DIGITS: Final = 1100

#: From a message and a position to the next position; numbers go into the row.
Step = Callable[[bytes, int, list[float]], int]
Wanted = int | FeatureTree | None

#: Types of fixed size, as `struct` spells them.
_FIXED: Final = {"null": "", "boolean": "?", "float": "f", "double": "d"}

_PRIMITIVE: Final = frozenset({*_FIXED, "int", "long", "string", "bytes"})


def avro_reader(schema: RegisteredSchema, tree: FeatureTree, width: int) -> registered.Compiled:
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
    step = compiler.step(_Parser().parsed(schema), tree)
    nothing = [math.nan] * width

    def read(value: bytes) -> Sequence[float]:
        row = nothing.copy()
        if step(value, registered.FRAME_BYTES, row) != len(value):
            raise MalformedMessage
        return row

    return registered.Compiled(read, PART_BYTES * (compiler.count + 1))


@dataclass(eq=False, slots=True)
class _Type:
    """A type whose names have been resolved: types that it holds are these themselves."""

    name: str  #: as Avro has it: "record", "long", "union", ...
    kind: dict[str, Any] = field(default_factory=dict)  #: its JSON
    #: Types of fields by name, branches of a union, or the one of items or values.
    below: list[tuple[str, _Type]] = field(default_factory=list)


class _Bounded:
    """Counts the parts of a schema, and how deep they are."""

    def __init__(self) -> None:
        self.count = self._depth = 0

    @contextmanager
    def part(self) -> Iterator[None]:
        self.count += 1
        self._depth += 1
        if self.count > MOST_PARTS or self._depth > DEEPEST_PART:
            raise UnusableSchema
        yield
        self._depth -= 1


class _Parser(_Bounded):
    """Resolves the names of one schema and of those that it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self._named: dict[str, _Type] = {}
        self._primitive = {name: _Type(name) for name in _PRIMITIVE}
        self._references: set[int] = set()  # identities of those that have been parsed

    def parsed(self, schema: RegisteredSchema) -> _Type:
        for _, reference in schema.references:
            if id(reference) not in self._references:  # two schemas may refer to the same one
                self._references.add(id(reference))
                self.parsed(reference)
        if schema.kind != "avro":
            raise UnusableSchema
        return self._type(json.loads(schema.text), "")

    def _type(self, kind: Any, namespace: str) -> _Type:
        with self.part():
            return self._resolved(kind, namespace)

    def _resolved(self, kind: Any, namespace: str) -> _Type:
        if isinstance(kind, str):
            return self._primitive.get(kind) or self._named[_full_name(kind, namespace)[1]]
        if isinstance(kind, list):
            return _Type("union", below=[("", self._type(one, namespace)) for one in kind])
        name = kind["type"]
        if name in ("record", "error", "enum", "fixed"):
            return self._definition(name, kind, namespace)
        if name in ("array", "map"):
            inner = self._type(kind["items" if name == "array" else "values"], namespace)
            return _Type(name, below=[("", inner)])
        if name in ("int", "long", "bytes"):  # the only ones whose other members matter
            return _Type(name, kind)
        return self._type(name, namespace)

    def _definition(self, name: str, kind: dict[str, Any], namespace: str) -> _Type:
        namespace, full = _full_name(kind["name"], kind.get("namespace", namespace))
        if full in self._named:
            raise UnusableSchema
        made = self._named[full] = _Type("record" if name == "error" else name, kind)
        if made.name == "record":
            for one in kind["fields"]:
                made.below.append((one["name"], self._type(one["type"], namespace)))
        return made


def _full_name(name: str, namespace: str | None) -> tuple[str, str]:
    """The namespace of a type and its full name. Both are bounded: they are made for every use."""
    if len(name) + len(namespace or "") > registered.LONGEST_NAME:
        raise UnusableSchema
    if "." in name:
        return name.rpartition(".")[0], name
    return namespace or "", f"{namespace}.{name}" if namespace else name


class _Compiler(_Bounded):
    """Compiles the types of one schema."""

    def __init__(self) -> None:
        super().__init__()
        self._skips: dict[_Type, list[_Fixed | Step]] = {}  # of records, each compiled once

    def step(self, kind: _Type, tree: FeatureTree) -> Step:
        """The step that reads a whole message."""
        return self._joined(self._parts(kind, tree))

    # A type is a list of parts: formats of fixed size with the features in them, and steps.

    def _parts(self, kind: _Type, wanted: Wanted) -> list[_Fixed | Step]:
        with self.part():
            return self._parts_of(kind, wanted)

    def _parts_of(self, kind: _Type, wanted: Wanted) -> list[_Fixed | Step]:
        if kind.name == "union":
            return [self._union(kind, wanted)]
        if kind.name == "record":
            return self._record(kind, wanted)
        if kind.name == "map" and isinstance(wanted, dict):
            return [self._map(kind.below[0][1], wanted)]
        if kind.name == "array" and isinstance(wanted, dict) and (items := items_of(wanted)):
            return [self._array(kind.below[0][1], items)]
        if wanted is None or kind.name == "null":  # features below a null are missing
            return self._skipped(kind)
        if isinstance(wanted, dict):
            return [_refuse]
        return self._number(kind.name, kind.kind, wanted)

    def _record(self, kind: _Type, wanted: Wanted) -> list[_Fixed | Step]:
        if isinstance(wanted, int):
            return [_refuse]
        if wanted is None:
            return self._skipped_record(kind)
        parts: list[_Fixed | Step] = []
        for name, below in kind.below:
            parts += self._parts(below, wanted.get(name))
        return parts

    def _number(self, name: str, kind: Any, feature: int) -> list[_Fixed | Step]:
        if isinstance(feature, registered.Id) and name == "string":
            return [_read_text(feature)]
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

    def _union(self, union: _Type, wanted: Wanted) -> Step:
        if len(union.below) > 64:  # an index of one byte, for speed
            return _refuse
        steps = [self._joined(self._parts(kind, wanted)) for _, kind in union.below]

        def read(value: bytes, at: int, row: list[float]) -> int:
            index = value[at]
            if index & 1:  # negative, or more than one byte
                raise MalformedMessage
            return steps[index >> 1](value, at + 1, row)

        return read

    def _map(self, values: _Type, wanted: FeatureTree) -> Step:
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

    def _array(self, item: _Type, items: dict[int, int]) -> Step:
        """Read items of an array as far as there are features, and skip the others."""
        wanted = [self._joined(self._parts(item, items.get(i))) for i in range(max(items) + 1)]
        skip = self._skip_items(self._parts(item, None))

        def read(value: bytes, at: int, row: list[float]) -> int:
            left = iter(wanted)
            while True:
                count, at = whole_number(value, at)
                if count == 0:
                    return at
                if count < 0:
                    count, (_, at) = -count, whole_number(value, at)
                for step in itertools.islice(left, count):
                    at = step(value, at, row)
                    count -= 1
                at = skip(value, at, row, count)

        return read

    # Types that no feature needs

    def _skipped(self, kind: _Type) -> list[_Fixed | Step]:
        name = kind.name
        if name in _FIXED:
            return [_Fixed(f"{struct.calcsize('<' + _FIXED[name])}x", [])]
        if name == "fixed":
            return [_Fixed(f"{int(kind.kind['size'])}x", [])]
        if name == "array":
            return [self._skip_blocks(self._parts(kind.below[0][1], None))]
        if name == "map":
            return [self._skip_blocks([_skip_bytes, *self._parts(kind.below[0][1], None)])]
        return [_skip_bytes if name in ("string", "bytes") else _skip_whole]

    def _skipped_record(self, kind: _Type) -> list[_Fixed | Step]:
        """Parts that skip a record: at most one. A record that contains itself calls it."""
        own = self._skips.get(kind)
        if own is None:
            own = self._skips[kind] = []
            parts = [part for _, below in kind.below for part in self._parts(below, None)]
            fixed = [part for part in parts if isinstance(part, _Fixed)]
            if len(fixed) == len(parts):
                # One number is kept: records that hold each other twice double with every level.
                own.append(_Fixed(f"{sum(part.size for part in fixed)}x", []))
            else:
                own.append(self._joined(parts))
        elif not own:  # the record is inside itself
            return [lambda value, at, row: own[0](value, at, row)]  # type: ignore[operator]
        return own

    def _skip_items(self, parts: Sequence[_Fixed | Step]) -> Callable[..., int]:
        """Skip a number of items."""
        fixed = [part for part in parts if isinstance(part, _Fixed)]
        # Items of fixed size, which may be 0, are not skipped one by one: a message can claim any
        # number of them. Any other item takes at least a byte, and bytes run out.
        if len(fixed) == len(parts):
            size = sum(part.size for part in fixed)
            return lambda value, at, row, count: at + count * size
        step = self._joined(parts)

        def skip(value: bytes, at: int, row: list[float], count: int) -> int:
            for _ in range(count):
                at = step(value, at, row)
            return at

        return skip

    def _skip_blocks(self, parts: Sequence[_Fixed | Step]) -> Step:
        """Skip an array or a map: blocks of items, the last one empty."""
        skip_items = self._skip_items(parts)

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
                else:
                    at = skip_items(value, at, row, count)

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


def _read_text(feature: int) -> Step:
    def read(value: bytes, at: int, row: list[Any]) -> int:
        size, at = whole_number(value, at)
        text = value[at : at + size]
        if size < 0 or len(text) != size:
            raise MalformedMessage
        row[feature] = text.decode()
        return at + size

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

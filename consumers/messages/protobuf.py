"""Reads the features out of Protobuf messages.

After the frame comes the path to the type of the message inside its file: a count, then that many
numbers, all zigzag; a single zero stands for the first type. The registry gives the file as a
descriptor, so no compiler and no generated code is needed. The messages are parsed by upb, the
parser in C that comes with protobuf, which bounds how deeply they nest.

**Of a schema only the fields that hold features are compiled**, into types of our own, in which a
message inside a message is bytes, to be parsed by itself. All other fields are skipped as unknown
ones. The writer of a message may also be allowed to register schemas, and upb gives every message
inside a message the memory of all fields of its type: with a type of a thousand fields, one message
of 1 MB would take 4 GB. It also writes out the full name of everything in a schema, so that 256 kB
of schema took 600 MB, in a second in which no other thread ran. Here only messages have full names,
whose lengths are bounded (`LONGEST_NAME`, `MOST_DOTS`).

| type | as a feature |
|---|---|
| numbers, `bool` | the number; missing if it has presence and is not set |
| a wrapper such as `google.protobuf.DoubleValue` | its number; missing if it is not set |
| anything else | not a number: the message is a null |

A feature `a.b` is the field `b` of a message `a`, or the value `b` of a map `a` with text for keys;
`a[3]` is the fourth number of a repeated field. A field that the schema does not have is missing.
The id of a subject may also be a `string`. Features cannot be inside groups (of proto2, or of an
edition with delimited encoding). If a message holds a field twice that is not repeated, the last
one counts.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from ..protocols import RegisteredSchema
from . import registered
from .cutting import whole_number
from .paths import FeatureTree, Id, items_of
from .registered import MalformedMessage, UnusableSchema

F = descriptor_pb2.FieldDescriptorProto
Features = descriptor_pb2.FeatureSet

#: Most bytes of a number in the path to the type of a message: it has 32 bits.
INDEX_DIGITS: Final = 5
#: Most dots in the full name of a type.
MOST_DOTS: Final = 32
#: Types of one schema that are kept compiled. Messages of one topic hardly ever have several.
MOST_PATHS: Final = 4
#: Bytes that a schema takes at most, as measured: for each of its characters, and for each feature
#: in each compiled type.
CHARACTER_BYTES: Final = 60
FEATURE_BYTES: Final = 2000
#: Puts the numbers of a message, or of the value of a field, into the row.
Fill = Callable[[Any, list[Any]], None]

_NUMBERS: Final = frozenset(F.Type.values()) - {
    F.TYPE_STRING,
    F.TYPE_BYTES,
    F.TYPE_ENUM,
    F.TYPE_MESSAGE,
    F.TYPE_GROUP,
}
_WRAPPERS: Final = frozenset(
    f".google.protobuf.{kind}Value"
    for kind in ("Bool", "Double", "Float", "Int32", "Int64", "UInt32", "UInt64")
)
#: Files that schemas import although the registry does not have them, if they can hold features.
_WELL_KNOWN: Final = (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)


def make_reader(schema: RegisteredSchema, tree: FeatureTree, width: int) -> registered.Compiled:
    """Compile a schema into the reader of its messages; parameters as for `avro.make_reader`."""
    types = _Types(schema)
    nothing = [math.nan] * width
    known: dict[tuple[int, ...], Fill] = {}  # types that messages have named

    def made(path: tuple[int, ...]) -> Fill:
        found = _message(types, types.by_path[path], tree)
        if len(known) >= MOST_PATHS:
            del known[next(iter(known))]
        known[path] = found
        return found

    def read(value: bytes) -> Sequence[float]:
        if value[registered.FRAME_BYTES]:
            path, at = _path(value)
        else:
            path, at = (0,), registered.FRAME_BYTES + 1
        row = nothing.copy()
        (known.get(path) or made(path))(value[at:], row)
        return row

    size = CHARACTER_BYTES * types.characters + FEATURE_BYTES * MOST_PATHS * (width + 1)
    return registered.Compiled(read, size)


def _path(value: bytes) -> tuple[tuple[int, ...], int]:
    """The path to the type of a message, and the position after it."""
    count, at = whole_number(value, registered.FRAME_BYTES, INDEX_DIGITS)
    if not 0 < count <= len(value):
        raise MalformedMessage
    path = []
    for _ in range(count):
        index, at = whole_number(value, at, INDEX_DIGITS)
        path.append(index)
    return tuple(path), at


@dataclass(frozen=True, eq=False)
class _Type:
    """A type of a schema, with the file that it is in."""

    name: str  #: in full, with a dot in front
    proto: descriptor_pb2.DescriptorProto
    file: descriptor_pb2.FileDescriptorProto

    @cached_property
    def fields(self) -> dict[str, F]:
        return {field.name: field for field in self.proto.field}

    def is_missing(self, field: F) -> bool:
        """Tell whether a field that is not set is missing, not 0."""
        implicit = self._feature(field, "field_presence") == Features.IMPLICIT
        # In proto3, `optional` is a oneof with one member.
        return field.HasField("oneof_index") or not (implicit or self.file.syntax == "proto3")

    def is_group(self, field: F) -> bool:
        delimited = self._feature(field, "message_encoding") == Features.DELIMITED
        return delimited or field.type == F.TYPE_GROUP

    def _feature(self, field: F, name: str) -> int:
        """A feature of an edition: the field's own, or the file's; 0 if neither has it."""
        of_file: int = getattr(self.file.options.features, name)
        return getattr(field.options.features, name) or of_file


class _Types:
    """The types of a schema and of all that it imports, by path or by name."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self.characters = 0
        self._by_name: dict[str, _Type] = {}
        for known in _WELL_KNOWN:
            file = descriptor_pb2.FileDescriptorProto()
            known.DESCRIPTOR.CopyToProto(file)
            self._add(file)
        for one in schema.each():
            if one.kind != "protobuf":
                raise UnusableSchema
            self.characters += len(one.text)
            raw = base64.b64decode(one.text, validate=True)
            #: Those in the last file, which is the one of the schema itself.
            self.by_path = self._add(descriptor_pb2.FileDescriptorProto.FromString(raw))

    def below(self, field: F, scope: str) -> _Type | None:
        """The type of a field if that is a message. Names may leave out parts of the scope."""
        name = field.type_name
        if not name or field.type == F.TYPE_ENUM:
            return None
        if len(name) > registered.LONGEST_NAME:
            raise UnusableSchema
        if name.startswith("."):
            scope, name = "", name[1:]
        while (found := self._by_name.get(f"{scope}.{name}")) is None and scope:
            scope = scope.rpartition(".")[0]
        return found

    def _add(self, file: descriptor_pb2.FileDescriptorProto) -> dict[tuple[int, ...], _Type]:
        """Add the types of a file; return them by their paths."""
        found: dict[tuple[int, ...], _Type] = {}
        package = f".{file.package}" if file.package else ""
        left: list[tuple[str, tuple[int, ...], Any]] = [
            (package, (i,), proto) for i, proto in enumerate(file.message_type)
        ]
        while left:
            scope, path, proto = left.pop()
            name = f"{scope}.{proto.name}"
            if len(name) > registered.LONGEST_NAME or name.count(".") > MOST_DOTS:
                raise UnusableSchema
            self.characters += len(name)
            self._by_name[name] = found[path] = _Type(name, proto, file)
            left += [(name, (*path, i), inner) for i, inner in enumerate(proto.nested_type)]
        return found


def _message(types: _Types, kind: _Type, tree: FeatureTree) -> Fill:
    """Compile a type into the function that reads the features in an encoded message."""
    # In files of this edition every field has presence.
    file = descriptor_pb2.FileDescriptorProto(
        name="features.proto", syntax="editions", edition=descriptor_pb2.EDITION_2023
    )
    made = file.message_type.add(name="Features")
    fills = [
        _field(types, made, kind, kind.fields[name], below)
        for name, below in tree.items()
        if name in kind.fields
    ]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    parse = message_factory.GetMessageClass(pool.FindMessageTypeByName(made.name)).FromString

    def fill(value: bytes, row: list[Any]) -> None:
        message = parse(value)
        for one in fills:
            one(message, row)

    return fill


def _field(types: _Types, made: Any, kind: _Type, field: F, below: int | FeatureTree) -> Fill:
    """Add a field to our type; return the function that reads the features in it."""
    if field.label == F.LABEL_REPEATED:
        return _repeated(types, made, kind, field, below)
    value = _value(types, kind, field, below)
    if value is None:
        return _refuse
    (type, read), name = value, field.name
    new = made.field.add(name=name, number=field.number, label=F.LABEL_OPTIONAL, type=type)
    is_missing = type == F.TYPE_BYTES or kind.is_missing(field)
    if field.HasField("default_value"):
        new.default_value, is_missing = field.default_value, False

    def fill(message: Any, row: list[Any]) -> None:
        if not is_missing or message.HasField(name):
            read(getattr(message, name), row)

    return fill


def _value(
    types: _Types, kind: _Type, field: F, below: int | FeatureTree
) -> tuple[Any, Fill] | None:
    """Return our type of a field and the function that reads its value, if it can hold features."""
    message = types.below(field, kind.name)
    if message is not None and message.name in _WRAPPERS and isinstance(below, int):
        below = {"value": below}
    if isinstance(below, dict):
        if message is None or kind.is_group(field):
            return None
        return F.TYPE_BYTES, _message(types, message, below)
    if field.type not in _NUMBERS and not (field.type == F.TYPE_STRING and isinstance(below, Id)):
        return None
    feature = below

    def put(value: Any, row: list[Any]) -> None:
        row[feature] = value

    return field.type, put


def _repeated(types: _Types, made: Any, kind: _Type, field: F, below: int | FeatureTree) -> Fill:
    """As `_field`, for items of a list of numbers, or values of a map."""
    entry, name = types.below(field, kind.name), field.name
    if not isinstance(below, dict):
        return _refuse
    if entry is not None and entry.proto.options.map_entry:
        return _map(types, made, entry, field, below)
    items = items_of(below)
    if not items or field.type not in _NUMBERS:
        return _refuse
    made.field.add(name=name, number=field.number, label=F.LABEL_REPEATED, type=field.type)
    end = max(items) + 1

    def fill(message: Any, row: list[Any]) -> None:
        for index, number in enumerate(getattr(message, name)[:end]):
            if index in items:
                row[items[index]] = number

    return fill


def _map(types: _Types, made: Any, entry: _Type, field: F, tree: FeatureTree) -> Fill:
    key, value, name = entry.fields["key"], entry.fields["value"], field.name
    values = {text: _value(types, entry, value, below) for text, below in tree.items()}
    reads = {text: found[1] for text, found in values.items() if found is not None}
    if len(reads) < len(tree) or key.type != F.TYPE_STRING:
        return _refuse
    type = F.TYPE_BYTES if types.below(value, entry.name) is not None else value.type
    pair = made.nested_type.add(name=entry.proto.name)
    pair.options.map_entry = True
    pair.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=F.TYPE_STRING)
    pair.field.add(name="value", number=2, label=F.LABEL_OPTIONAL, type=type)
    made.field.add(name=name, number=field.number, label=F.LABEL_REPEATED, type_name=pair.name)

    def fill(message: Any, row: list[Any]) -> None:
        found = getattr(message, name)
        for text, read in reads.items():
            if text in found:
                read(found[text], row)

    return fill


def _refuse(value: Any, row: list[Any]) -> None:
    raise MalformedMessage

"""Reads the features out of Protobuf messages.

After the frame comes the path to the type of the message inside its file: a count, then that many
numbers, all zigzag; a single zero stands for the first type. The registry gives the file as a
descriptor, so no compiler and no generated code is needed. Each schema has a pool of types of its
own, because two schemas may use one name for different types. The messages are parsed by upb, the
parser in C that comes with protobuf, which bounds how deeply they nest.

| type | as a feature |
|---|---|
| numbers, `bool` | the number; missing if it has presence and is not set |
| a wrapper such as `google.protobuf.DoubleValue` | its number; missing if it is not set |
| anything else | not a number: the message is a null |

A feature `a.b` is the field `b` of a message `a`, or the value `b` of a map `a` with text for keys.
A field that the schema does not have is missing.
"""

from __future__ import annotations

import base64
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from ..protocols import RegisteredSchema
from .registered import (
    DEEPEST_NAME,
    FRAME_BYTES,
    FeatureTree,
    MalformedMessage,
    RowReader,
    UnusableSchema,
    whole_number,
)

__all__ = ["MOST_TYPES", "message_type", "protobuf_field_names", "protobuf_reader"]

#: Most bytes of a number in the path to the type of a message: it has 32 bits.
INDEX_DIGITS: Final = 5
#: Most types and fields of a file. A reader is made of the types that messages name.
MOST_TYPES: Final = 20_000
#: Puts the numbers of a message into the row.
Fill = Callable[[Any, list[float]], None]

_NUMBERS: Final = frozenset({
    FieldDescriptor.CPPTYPE_BOOL, FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT,
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64,
})  # fmt: skip
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Double", "Float", "Int32", "Int64", "UInt32", "UInt64")
)
#: Files that schemas import although the registry does not have them.
_WELL_KNOWN: Final = (
    "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
    "timestamp", "type", "wrappers",
)  # fmt: skip


def protobuf_reader(schema: RegisteredSchema, tree: FeatureTree, width: int) -> RowReader:
    """Compile a schema into the reader of its messages; parameters as for `avro_reader`."""
    types = dict(_types(schema))
    nothing = [math.nan] * width
    known: dict[tuple[int, ...], tuple[Any, Fill]] = {}  # types that messages have named

    def made(path: tuple[int, ...]) -> tuple[Any, Fill]:
        kind = types[path]
        known[path] = message_factory.GetMessageClass(kind).FromString, _fill(kind, tree)
        return known[path]

    def read(value: bytes) -> Sequence[float]:
        if value[FRAME_BYTES]:
            path, at = _path(value)
        else:
            path, at = (0,), FRAME_BYTES + 1
        parse, fill = known.get(path) or made(path)
        row = nothing.copy()
        fill(parse(value[at:]), row)
        return row

    return read


# Names


def message_type(value: bytes) -> tuple[int, ...] | None:
    """The path to the type of a message inside its file; None if the message is damaged."""
    try:
        return _path(value)[0] if value[FRAME_BYTES] else (0,)
    except (IndexError, MalformedMessage):
        return None


def protobuf_field_names(schema: RegisteredSchema, path: tuple[int, ...]) -> Iterator[str]:
    """The fields of a type, dotted where messages nest, as features are named.

    Nothing is found in a schema that cannot be used, or that does not have the type.
    """
    try:
        kind = dict(_types(schema))[path]
    except Exception:  # whatever is wrong with it
        return
    yield from _names(kind, "")


def _names(kind: Descriptor, prefix: str) -> Iterator[str]:
    for field in kind.fields:
        name, below = f"{prefix}{field.name}", field.message_type
        leaf = below is None or field.is_repeated or below.full_name in _WRAPPERS
        if below is None or leaf or not below.fields or name.count(".") >= DEEPEST_NAME:
            yield name
        else:
            yield from _names(below, f"{name}.")


# Types


def _types(schema: RegisteredSchema) -> Iterator[tuple[tuple[int, ...], Descriptor]]:
    """The types of a file by their paths."""
    pool = descriptor_pool.DescriptorPool()
    file = pool.FindFileByName(_add(schema, "", pool, set()))
    package = f"{file.package}." if file.package else ""
    described = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(described)

    def below(kinds: Any, path: tuple[int, ...], prefix: str) -> Iterator[Any]:
        for i, kind in enumerate(kinds):
            name = prefix + kind.name
            yield (*path, i), pool.FindMessageTypeByName(name)
            yield from below(kind.nested_type, (*path, i), f"{name}.")

    yield from below(described.message_type, (), package)


def _add(
    schema: RegisteredSchema, name: str, pool: descriptor_pool.DescriptorPool, added: set[str]
) -> str:
    """Add the file of a schema to a pool, after all that it imports; return its name there."""
    if schema.kind != "protobuf":
        raise UnusableSchema
    described = descriptor_pb2.FileDescriptorProto.FromString(
        base64.b64decode(schema.text, validate=True)
    )
    described.name = name or described.name or "message.proto"
    if described.name not in added:
        if sum(map(_size, described.message_type)) > MOST_TYPES:
            raise UnusableSchema
        added.add(described.name)
        for imported, reference in schema.references:
            _add(reference, imported, pool, added)
        for imported in described.dependency:
            _add_well_known(imported, pool, added)
        pool.Add(described)
    return described.name


def _size(kind: descriptor_pb2.DescriptorProto) -> int:
    """Types and fields of a type and of those inside it, which nest at most a hundred times."""
    return 1 + len(kind.field) + sum(map(_size, kind.nested_type))


def _add_well_known(name: str, pool: descriptor_pool.DescriptorPool, added: set[str]) -> None:
    stem = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if name in added or stem not in _WELL_KNOWN:
        return
    added.add(name)
    described = descriptor_pb2.FileDescriptorProto()
    importlib.import_module(f"google.protobuf.{stem}_pb2").DESCRIPTOR.CopyToProto(described)
    for imported in described.dependency:
        _add_well_known(imported, pool, added)
    pool.Add(described)


def _path(value: bytes) -> tuple[tuple[int, ...], int]:
    """The path to the type of a message, and the position after it."""
    count, at = whole_number(value, FRAME_BYTES, INDEX_DIGITS)
    if not 0 < count <= len(value):
        raise MalformedMessage
    path = []
    for _ in range(count):
        index, at = whole_number(value, at, INDEX_DIGITS)
        path.append(index)
    return tuple(path), at


# Features


def _fill(kind: Descriptor, tree: FeatureTree) -> Fill:
    """Make the function that reads the features below a message of this type."""
    fills = [
        _field(kind.fields_by_name[name], below)
        for name, below in tree.items()
        if name in kind.fields_by_name
    ]

    def fill(message: Any, row: list[float]) -> None:
        for one in fills:
            one(message, row)

    return fill


def _field(field: FieldDescriptor, below: int | FeatureTree) -> Fill:
    name = field.name
    if field.is_repeated:
        return _map(field, below) if isinstance(below, dict) else _refuse
    value = _value(field, below)
    if not field.has_presence or field.has_default_value:
        return lambda message, row: value(getattr(message, name), row)

    def fill(message: Any, row: list[float]) -> None:
        if message.HasField(name):
            value(getattr(message, name), row)

    return fill


def _value(field: FieldDescriptor, below: int | FeatureTree) -> Fill:
    """Make the function that reads the features from the value of a field."""
    kind = field.message_type
    if isinstance(below, dict):
        return _refuse if kind is None else _fill(kind, below)
    feature = below
    if kind is not None and kind.full_name in _WRAPPERS:

        def unwrap(value: Any, row: list[float]) -> None:
            row[feature] = value.value

        return unwrap
    if field.cpp_type not in _NUMBERS:
        return _refuse

    def put(value: Any, row: list[float]) -> None:
        row[feature] = value

    return put


def _map(field: FieldDescriptor, tree: FeatureTree) -> Fill:
    entry, name = field.message_type, field.name
    if entry is None or not entry.GetOptions().map_entry:
        return _refuse
    if entry.fields_by_name["key"].cpp_type != FieldDescriptor.CPPTYPE_STRING:
        return _refuse
    values = {key: _value(entry.fields_by_name["value"], below) for key, below in tree.items()}

    def fill(message: Any, row: list[float]) -> None:
        found = getattr(message, name)
        for key, value in values.items():
            if key in found:
                value(found[key], row)

    return fill


def _refuse(value: Any, row: list[float]) -> None:
    raise MalformedMessage

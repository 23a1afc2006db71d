"""Reads the features out of Protobuf messages.

After the frame comes the path to the type of the message inside its file: a count, then that many
numbers, all zigzag; a single zero stands for the first type. The registry gives the file as a
descriptor, so no compiler and no generated code is needed. The messages are parsed by upb, the
parser in C that comes with protobuf, which bounds how deeply they nest.

**Of a schema only the fields that hold features are compiled.** All others are skipped as unknown
ones. The writer of a message may also be allowed to register schemas, and upb gives every message
inside a message the memory of all fields of its type: with a type of a thousand fields, one message
of 1 MB would take 4 GB. It also writes out the full name of everything in a schema, so that 256 kB
of schema took 600 MB, in a second in which no other thread ran. Here, names are looked up one by
one, for features only, and their lengths are bounded (`LONGEST_NAME`, `MOST_DOTS`).

| type | as a feature |
|---|---|
| numbers, `bool` | the number; missing if it has presence and is not set |
| a wrapper such as `google.protobuf.DoubleValue` | its number; missing if it is not set |
| anything else | not a number: the message is a null |

A feature `a.b` is the field `b` of a message `a`, or the value `b` of a map `a` with text for keys;
`a[3]` is the fourth number of a repeated field. A field that the schema does not have is missing.
The id of a subject may also be a `string`.
"""

from __future__ import annotations

import base64
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from ..protocols import RegisteredSchema
from . import registered
from .registered import FeatureTree, MalformedMessage, UnusableSchema, items_of, whole_number

#: Most bytes of a number in the path to the type of a message: it has 32 bits.
INDEX_DIGITS: Final = 5
#: Most dots in the full name of a type that holds features.
MOST_DOTS: Final = 32
#: Types of one schema that are kept compiled. Messages of one topic hardly ever have several.
MOST_PATHS: Final = 4
#: Bytes that a schema takes at most, as measured: for each of its characters, and for each feature
#: in each compiled type.
CHARACTER_BYTES: Final = 50
FEATURE_BYTES: Final = 2000
#: Puts the numbers of a message into the row.
Fill = Callable[[Any, list[float]], None]

_KINDS: Final = ("Bool", "Double", "Float", "Int32", "Int64", "UInt32", "UInt64")
_NUMBERS: Final = frozenset(getattr(FieldDescriptor, f"CPPTYPE_{kind.upper()}") for kind in _KINDS)
_WRAPPERS: Final = frozenset(f".google.protobuf.{kind}Value" for kind in _KINDS)
#: Files that schemas import although the registry does not have them.
_WELL_KNOWN: Final = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct"),
    *("timestamp", "type", "wrappers"),
)


def protobuf_reader(schema: RegisteredSchema, tree: FeatureTree, width: int) -> registered.Compiled:
    """Compile a schema into the reader of its messages; parameters as for `avro_reader`."""
    types = _Types(schema)
    nothing = [math.nan] * width
    known: dict[tuple[int, ...], tuple[Any, Fill]] = {}  # types that messages have named

    def made(path: tuple[int, ...]) -> tuple[Any, Fill]:
        kind = _Pruned(types).compiled(types.at(path), tree)
        if len(known) >= MOST_PATHS:
            del known[next(iter(known))]
        known[path] = message_factory.GetMessageClass(kind).FromString, _fill(kind, tree)
        return known[path]

    def read(value: bytes) -> Sequence[float]:
        if value[registered.FRAME_BYTES]:
            path, at = _path(value)
        else:
            path, at = (0,), registered.FRAME_BYTES + 1
        parse, fill = known.get(path) or made(path)
        row = nothing.copy()
        fill(parse(value[at:]), row)
        return row

    size = CHARACTER_BYTES * types.characters + FEATURE_BYTES * MOST_PATHS * (width + 1)
    return registered.Compiled(read, size)


# Names


def message_type(value: bytes) -> tuple[int, ...] | None:
    """The path to the type of a message inside its file; None if the message is damaged."""
    try:
        return _path(value)[0] if value[registered.FRAME_BYTES] else (0,)
    except (IndexError, MalformedMessage):
        return None


def protobuf_field_names(schema: RegisteredSchema, path: tuple[int, ...]) -> Iterator[str]:
    """The fields of a type, dotted where messages nest, as features are named.

    Nothing is found in a schema that cannot be used, or that does not have the type.
    """
    try:
        types = _Types(schema)
        yield from _names(types, types.at(path), "")
    except Exception:  # whatever is wrong with it
        return


def _names(types: _Types, kind: _Type, prefix: str) -> Iterator[str]:
    for field in kind.proto.field:
        name = f"{prefix}{field.name}"
        repeated = field.label == field.LABEL_REPEATED
        below = None if repeated else types.below(field, kind.name)
        leaf = below is None or below.name in _WRAPPERS or not below.proto.field
        if below is None or leaf or name.count(".") >= registered.DEEPEST_NAME:
            yield name
        else:
            yield from _names(types, below, f"{name}.")


# Types


@dataclass(frozen=True, eq=False)
class _Type:
    """A type of a schema, with the file that it is in."""

    proto: descriptor_pb2.DescriptorProto
    name: str  #: in full, with a dot in front
    file: descriptor_pb2.FileDescriptorProto
    features: descriptor_pb2.FeatureSet  #: of the type and of those around it

    @staticmethod
    def inside(
        proto: descriptor_pb2.DescriptorProto,
        scope: str,
        file: descriptor_pb2.FileDescriptorProto,
        around: descriptor_pb2.FeatureSet,
    ) -> _Type:
        features = descriptor_pb2.FeatureSet()
        features.MergeFrom(around)
        features.MergeFrom(proto.options.features)
        return _Type(proto, _joined(scope, proto.name), file, features)

    @cached_property
    def fields(self) -> dict[str, descriptor_pb2.FieldDescriptorProto]:
        return {field.name: field for field in self.proto.field}

    @cached_property
    def nested(self) -> dict[str, descriptor_pb2.DescriptorProto]:
        return {kind.name: kind for kind in self.proto.nested_type}


def _joined(scope: str, name: str) -> str:
    """The full name of something. Names are made for every lookup, so they are bounded."""
    if (
        len(scope) + len(name) > registered.LONGEST_NAME
        or scope.count(".") + name.count(".") > MOST_DOTS
    ):
        raise UnusableSchema
    return f"{scope}.{name}"


class _Types:
    """The types of a schema and of all that it imports, found by path or by name."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self.characters = 0
        self._known: dict[str, _Type | None] = {}
        self._files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        #: By package, with a dot in front: the types on top of its files.
        self._top: dict[str, dict[str, tuple[Any, Any]]] = {}
        self._file = self._add(schema, "")

    def at(self, path: tuple[int, ...]) -> _Type:
        """The type at a path in the file of the schema."""
        package = f".{self._file.package}" if self._file.package else ""
        first, *rest = path
        found = _Type.inside(
            self._file.message_type[first], package, self._file, self._file.options.features
        )
        for index in rest:
            proto = found.proto.nested_type[index]
            found = _Type.inside(proto, found.name, self._file, found.features)
        return found

    def below(self, field: descriptor_pb2.FieldDescriptorProto, scope: str) -> _Type | None:
        """The type of a field if that is a message. Names may leave out parts of the scope."""
        name = field.type_name
        if not name or field.type == field.TYPE_ENUM:
            return None
        if name.startswith("."):
            scope, name = "", name[1:]
        while (found := self._find(_joined(scope, name))) is None and scope:
            scope = scope.rpartition(".")[0]
        return found

    def _find(self, name: str) -> _Type | None:
        if name not in self._known:
            self._known[name] = self._look_up(name)
        return self._known[name]

    def _look_up(self, name: str) -> _Type | None:
        scope, _, last = name.rpartition(".")
        if last in self._top.get(scope, ()):
            proto, file = self._top[scope][last]
            return _Type.inside(proto, scope, file, file.options.features)
        around = self._find(scope) if scope else None
        if around is None or last not in around.nested:
            return None
        return _Type.inside(around.nested[last], scope, around.file, around.features)

    def _add(self, schema: RegisteredSchema, name: str) -> descriptor_pb2.FileDescriptorProto:
        """Add the file of a schema and all that it imports."""
        if schema.kind != "protobuf":
            raise UnusableSchema
        file = descriptor_pb2.FileDescriptorProto.FromString(
            base64.b64decode(schema.text, validate=True)
        )
        name = name or file.name or "message.proto"
        if name in self._files:
            return self._files[name]
        self._files[name] = file
        self.characters += len(schema.text)
        for imported, reference in schema.references:
            self._add(reference, imported)
        for imported in file.dependency:
            stem = imported.removeprefix("google/protobuf/").removesuffix(".proto")
            if stem in _WELL_KNOWN and imported not in self._files:
                module = importlib.import_module(f"google.protobuf.{stem}_pb2")
                self._files[imported] = descriptor_pb2.FileDescriptorProto()
                module.DESCRIPTOR.CopyToProto(self._files[imported])
                self._index(self._files[imported])
        self._index(file)
        return file

    def _index(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        top = self._top.setdefault(f".{file.package}" if file.package else "", {})
        for proto in file.message_type:
            top[proto.name] = proto, file


class _Pruned:
    """A pool of types that have nothing but the fields that hold features.

    Every use of a type is a type of its own here, in a file of its own: features are in different
    fields of it. Its name is short, and begins with W if it is a wrapper.
    """

    def __init__(self, types: _Types) -> None:
        self._types = types
        self._pool = descriptor_pool.DescriptorPool()
        self._count = 0

    def compiled(self, kind: _Type, tree: FeatureTree) -> Descriptor:
        return self._pool.FindMessageTypeByName(self._add(kind, tree))

    def _add(self, kind: _Type, tree: FeatureTree) -> str:
        """Add a type and those of its fields; return its name."""
        self._count += 1
        name = f"{'W' if kind.name in _WRAPPERS else 'T'}{self._count}"
        file = descriptor_pb2.FileDescriptorProto(name=name, syntax=kind.file.syntax)
        if kind.file.HasField("edition"):
            file.edition = kind.file.edition
            file.options.features.CopyFrom(kind.features)
        self._fill(file.message_type.add(name=name), file, kind, tree)
        self._pool.Add(file)
        return name

    def _fill(self, made: Any, file: Any, kind: _Type, tree: FeatureTree) -> None:
        """Add the fields that hold features."""
        fields = [(kind.fields[name], below) for name, below in tree.items() if name in kind.fields]
        oneofs: dict[int, int] = {}
        # The oneofs that stand for `optional` come last.
        for field, below in sorted(fields, key=lambda pair: pair[0].proto3_optional):
            new = made.field.add(name=field.name, number=field.number, label=field.label)
            new.proto3_optional = field.proto3_optional
            if kind.file.HasField("edition"):
                new.options.features.CopyFrom(field.options.features)
            if field.HasField("oneof_index"):
                if field.oneof_index not in oneofs:
                    oneofs[field.oneof_index] = len(oneofs)
                    made.oneof_decl.add(name=kind.proto.oneof_decl[field.oneof_index].name)
                new.oneof_index = oneofs[field.oneof_index]
            message = self._types.below(field, kind.name)
            if message is not None and message.proto.options.map_entry:
                new.type, new.type_name = field.TYPE_MESSAGE, message.proto.name
                entry = made.nested_type.add(name=message.proto.name)
                entry.options.map_entry = True
                inner = _merged(below.values()) if isinstance(below, dict) else 0
                self._fill(entry, file, message, {"key": 0, "value": inner})
            elif message is not None:
                unwrapped: FeatureTree = {"value": 0} if message.name in _WRAPPERS else {}
                added = self._add(message, below if isinstance(below, dict) else unwrapped)
                # A descriptor may leave out the type where it has the name of one.
                new.type = field.type if field.HasField("type") else field.TYPE_MESSAGE
                new.type_name = f".{added}"
                file.dependency.append(added)
            elif field.type_name:  # an enum
                new.type = field.TYPE_INT32
            else:
                new.type = field.type
                if field.HasField("default_value"):
                    new.default_value = field.default_value


def _merged(trees: Iterable[int | FeatureTree]) -> int | FeatureTree:
    """One tree with all names: the values of a map have one type."""
    merged: dict[str, list[int | FeatureTree]] = {}
    for tree in trees:
        for name, below in tree.items() if isinstance(tree, dict) else ():
            merged.setdefault(name, []).append(below)
    return {name: _merged(below) for name, below in merged.items()} or 0


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
        items = items_of(below) if isinstance(below, dict) else None
        if items and field.cpp_type in _NUMBERS:
            return _items(name, items)
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
    if kind is not None and kind.full_name.startswith("W"):

        def unwrap(value: Any, row: list[float]) -> None:
            row[feature] = value.value

        return unwrap
    text = isinstance(feature, registered.Id) and field.cpp_type == FieldDescriptor.CPPTYPE_STRING
    if field.cpp_type not in _NUMBERS and not text:
        return _refuse

    def put(value: Any, row: list[float]) -> None:
        row[feature] = value

    return put


def _items(name: str, items: dict[int, int]) -> Fill:
    def fill(message: Any, row: list[float]) -> None:
        found = getattr(message, name)[: max(items) + 1]
        for index, number in enumerate(found):
            if index in items:
                row[items[index]] = number

    return fill


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

"""Avro and Protobuf with a Schema Registry; fastavro and Confluent's serializers are oracles."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from consumers.errors import ConfigurationError, RegistryAway
from consumers.kafka.registry_client import RegistryClient
from consumers.messages import registered
from consumers.messages.registered import LARGEST_SCHEMA
from consumers.protocols import RegisteredSchema

from ..support.registry import Registry, registry
from .helpers import make_codec, make_subject_codec
from .hostile import HOSTILE, unions

LIMIT = 1 << 20
NAN = math.nan


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with registry() as made:
        yield made


class Schemas(dict[int, RegisteredSchema]):
    """A registry without a network."""

    def schema(self, number: int) -> RegisteredSchema | None:
        return self.get(number)


def framed(number: int, message: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + message


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def decode(
    format: Any, features: tuple[str, ...], source: Any, values: list[bytes | None], **options: Any
) -> list[list[float]]:
    return make_codec(format, features, LIMIT, registry=source, **options).decode(values).tolist()


def avro_rows(schema: Any, features: tuple[str, ...], *messages: bytes) -> list[list[float]]:
    source = Schemas({1: RegisteredSchema("avro", json.dumps(schema))})
    return decode("avro", features, source, [framed(1, message) for message in messages])


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


# Avro against fastavro

READ = {
    "type": "record",
    "name": "Disk",
    "fields": [
        {"name": "read", "type": "double"},
        {"name": "write", "type": ["null", "long"]},
    ],
}
TELEMETRY = {
    "type": "record",
    "name": "Telemetry",
    "namespace": "example",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "cpu", "type": "double"},
        {"name": "load", "type": "float"},
        {"name": "on", "type": "boolean"},
        {"name": "disk", "type": ["null", READ]},
        {"name": "spare", "type": ["null", "Disk"]},
        {"name": "tags", "type": {"type": "map", "values": ["string", "double"]}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "notes", "type": {"type": "array", "items": "Disk"}},
    ],
}
RECORD = {
    "device": "röck-7",
    "at": 1_700_000_000_000,
    "cpu": 0.1,
    "load": 0.5,
    "on": True,
    "disk": {"read": 2.5, "write": -7},
    "spare": None,
    "tags": {"t": 21.5, "place": "x"},
    "price": Decimal("-12.34"),
    "notes": [{"read": 1.0, "write": None}] * 3,
}
FEATURES = (
    "price",
    "tags.t",
    "disk.write",
    "disk.read",
    "on",
    "load",
    "cpu",
    "at",
    "spare.read",
    "gone",
    "tags.gone",
)
ROW = [-12.34, 21.5, -7.0, 2.5, 1.0, 0.5, 0.1, 1.7e12, NAN, NAN, NAN]


def test_every_type_that_is_a_number() -> None:
    (row,) = avro_rows(TELEMETRY, FEATURES, avro(TELEMETRY, RECORD))
    assert all(map(same, row, ROW)), row


@pytest.mark.parametrize("feature", ["device", "tags.place", "tags", "disk", "notes", "cpu.x"])
def test_what_is_not_a_number_makes_the_message_a_null(feature: str) -> None:
    (row,) = avro_rows(TELEMETRY, ("load", feature), avro(TELEMETRY, RECORD))
    assert np.isnan(row).all()


def test_dots_can_be_literal_and_paths_must_be_possible() -> None:
    schema = {"type": "map", "values": "double"}
    source = Schemas({1: RegisteredSchema("avro", json.dumps(schema))})
    message = framed(1, avro(schema, {"a.b": 3.0}))
    assert decode("avro", ("a.b",), source, [message], nested=False) == [[3.0]]
    for features in (("a", "a.b"), ("a.b", "a"), ("a..b",)):
        with pytest.raises(ConfigurationError, match="feature"):
            make_codec("avro", features, LIMIT, registry=source)


LEAVES = st.sampled_from(
    [
        "null",
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "string",
        "bytes",
        {"type": "fixed", "size": 3},
        {"type": "enum", "symbols": ["A", "B"]},
    ]
)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    """Any schema: names are made unique afterwards."""
    kind = draw(st.sampled_from(["leaf", "leaf", "record", "record", "array", "map", "union"]))
    if depth == 0 or kind == "leaf":
        return draw(LEAVES)
    below = schemas(depth - 1)
    if kind == "array":
        return {"type": "array", "items": draw(below)}
    if kind == "map":
        return {"type": "map", "values": draw(below)}
    if kind == "record":
        names = draw(st.lists(st.sampled_from("abcdefg"), unique=True, max_size=5))
        return {"type": "record", "fields": [{"name": n, "type": draw(below)} for n in names]}
    other = draw(below)
    return ["null", other] if other != "null" and not isinstance(other, list) else other


def named(schema: Any, counter: list[int]) -> Any:
    if isinstance(schema, list):
        return [named(kind, counter) for kind in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if made["type"] in ("record", "fixed", "enum"):
        counter[0] += 1
        made["name"] = f"N{counter[0]}"
    for key in ("items", "values"):
        if key in made:
            made[key] = named(made[key], counter)
    if "fields" in made:
        made["fields"] = [{**f, "type": named(f["type"], counter)} for f in made["fields"]]
    return made


def datum(draw: st.DrawFn, schema: Any) -> Any:
    if isinstance(schema, list):
        return draw(st.none()) if draw(st.booleans()) else datum(draw, schema[1])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {f["name"]: datum(draw, f["type"]) for f in schema["fields"]}
    if kind == "array":
        return [datum(draw, schema["items"]) for _ in range(draw(st.integers(0, 3)))]
    if kind == "map":
        keys = draw(st.lists(st.sampled_from(["a", "b", "ü", ""]), unique=True, max_size=3))
        return {key: datum(draw, schema["values"]) for key in keys}
    return draw(
        {
            "null": st.none(),
            "boolean": st.booleans(),
            "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1),
            "float": st.floats(width=32),
            "double": st.floats(),
            "string": st.text(max_size=9),
            "bytes": st.binary(max_size=200),
            "fixed": st.binary(min_size=3, max_size=3),
            "enum": st.sampled_from("AB"),
        }[kind]
    )


def expected(value: Any, path: list[str]) -> float:
    """The number at the end of a path, NaN if it is missing; raises for anything else."""
    if value is None:
        return NAN
    if path:
        if not isinstance(value, dict):
            raise TypeError
        return expected(value.get(path[0]), path[1:])
    if not isinstance(value, int | float):
        raise TypeError
    return float(value)


@given(data=st.data())
@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_schema_is_read_as_fastavro_reads_it(data: st.DataObject) -> None:
    fields = [{"name": n, "type": data.draw(schemas())} for n in "abc"]
    schema = named({"type": "record", "fields": fields}, [0])
    value = data.draw(st.composite(lambda draw: datum(draw, schema))())
    message = avro(schema, value)
    found = fastavro.schemaless_reader(io.BytesIO(message), fastavro.parse_schema(schema))
    paths = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map(".".join)
    features = data.draw(st.lists(paths, unique=True, min_size=1, max_size=4))
    dotted = [feature + "." for feature in features]
    assume(not any(a != b and a.startswith(b) for a in dotted for b in dotted))
    try:
        row = [expected(found, feature.split(".")) for feature in features]
    except TypeError:
        row = [NAN] * len(features)
    (read,) = avro_rows(schema, tuple(features), message)
    # A type that can hold no feature is refused by the schema, before a value is looked at.
    assert all(map(same, read, row)) or (np.isnan(read).all() and _refused(schema, features))


def _refused(schema: Any, features: list[str]) -> bool:
    """Tell whether the schema, with nothing missing, has no number at the end of some path."""

    def numeric(kind: Any, path: list[str]) -> bool:
        if isinstance(kind, list):
            return all(numeric(one, path) for one in kind)
        name = kind["type"] if isinstance(kind, dict) else kind
        if name == "null":
            return True
        if path and name == "record":
            below = [f["type"] for f in kind["fields"] if f["name"] == path[0]]
            return not below or numeric(below[0], path[1:])
        if path and name == "map":
            return numeric(kind["values"], path[1:])
        return not path and name in ("boolean", "int", "long", "float", "double")

    return not all(numeric(schema, feature.split(".")) for feature in features)


GOOD = avro(TELEMETRY, RECORD)


@given(
    st.one_of(
        st.binary(max_size=300),
        st.just(GOOD[:-1]),
        st.just(GOOD + b"\0"),
        st.tuples(st.integers(0, len(GOOD) - 1), st.binary(max_size=12)).map(
            lambda cut: GOOD[: cut[0]] + cut[1] + GOOD[cut[0] + len(cut[1]) :]
        ),
    )
)
@settings(max_examples=200, deadline=None)
def test_a_broken_message_changes_no_other(broken: bytes) -> None:
    rows = avro_rows(TELEMETRY, FEATURES, GOOD, broken, GOOD)
    assert len(rows) == 3
    assert all(map(same, rows[0], ROW)) and all(map(same, rows[2], ROW))


def whole(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def wide(kind: Any) -> Any:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": kind}, {"name": "cpu", "type": "double"}],
    }


EMPTY = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
CHAIN = {"type": "record", "name": "C", "fields": [{"name": "next", "type": ["null", "C"]}]}
CPU = struct.pack("<d", 0.5)


@pytest.mark.parametrize(
    "kind, message, row",
    [
        ({"type": "array", "items": "null"}, whole(2**60) + b"\0" + CPU, 0.5),
        ({"type": "array", "items": EMPTY}, whole(2**60) + b"\0" + CPU, 0.5),
        ({"type": "array", "items": "double"}, whole(2**60) + b"\0" + CPU, NAN),
        ({"type": "array", "items": "int"}, whole(2**60) + b"\0" * 1000 + CPU, NAN),
        ({"type": "array", "items": "int"}, whole(-(2**60)) + whole(2**40) + CPU, NAN),
        ({"type": "array", "items": "string"}, whole(9) + whole(-1) * 9 + CPU, NAN),
        ({"type": "map", "values": "null"}, whole(2**60) + b"\0" * 1000 + CPU, NAN),
        ("string", whole(2**60) + CPU, NAN),
        ("string", whole(-3) + CPU, NAN),
        ("bytes", whole(2**40) + CPU, NAN),
        ("long", b"\xff" * 5000 + b"\1" + CPU, 0.5),
        (["null", "int"], whole(-1) + CPU, NAN),
        (["null", "int"], whole(7) + CPU, NAN),
        (CHAIN, whole(1) * 900_000 + whole(0) + CPU, NAN),
    ],
)
def test_no_message_takes_long_or_much(kind: Any, message: bytes, row: float) -> None:
    """Lengths and depths that a message only claims are not believed."""
    started = time.process_time()
    (read,) = avro_rows(wide(kind), ("cpu",), message)
    assert same(read[0], row)
    assert time.process_time() - started < 5


def test_schemas_that_share_types_many_times_over_are_compiled_once() -> None:
    kind: Any = "int"
    for depth in range(40):  # 2^40 fields, were each of them compiled by itself
        first = {
            "type": "record",
            "name": f"L{depth}",
            "fields": [
                {"name": "l", "type": kind},
                {"name": "r", "type": f"L{depth - 1}" if depth else "int"},
            ],
        }
        kind = first
    assert np.isnan(avro_rows(wide(kind), ("cpu",), CPU)).all()


# Protobuf against Confluent's serializer

F = descriptor_pb2.FieldDescriptorProto


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="telemetry.proto", package="example", syntax="proto3"
    )
    file.dependency.append("google/protobuf/wrappers.proto")
    other = file.message_type.add(name="Other")
    other.field.add(name="x", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    message = file.message_type.add(name="Telemetry")
    disk = message.nested_type.add(name="Disk")
    disk.field.add(name="read", number=1, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    entry = message.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_FLOAT, label=F.LABEL_OPTIONAL)
    message.oneof_decl.add(name="_memory")
    for number, (name, kind, more) in enumerate(
        [
            ("device", F.TYPE_STRING, {}),
            ("cpu", F.TYPE_DOUBLE, {}),
            ("count", F.TYPE_UINT64, {}),
            ("memory", F.TYPE_SINT64, {"oneof_index": 0, "proto3_optional": True}),
            ("on", F.TYPE_BOOL, {}),
            ("disk", F.TYPE_MESSAGE, {"type_name": ".example.Telemetry.Disk"}),
            ("heat", F.TYPE_MESSAGE, {"type_name": ".google.protobuf.DoubleValue"}),
            (
                "tags",
                F.TYPE_MESSAGE,
                {"type_name": ".example.Telemetry.TagsEntry", "label": F.LABEL_REPEATED},
            ),
            ("many", F.TYPE_DOUBLE, {"label": F.LABEL_REPEATED}),
        ],
        1,
    ):
        options = {"label": F.LABEL_OPTIONAL, **more}
        message.field.add(name=name, number=number, type=kind, json_name=name, **options)
    return file


def proto_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(proto_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"example.{name}"))


PROTO = RegisteredSchema("protobuf", base64.b64encode(proto_file().SerializeToString()).decode())
PROTO_FEATURES = ("cpu", "count", "memory", "on", "disk.read", "heat", "tags.t", "tags.u", "gone")
AT_1 = b"\x02\x02"  # one number, which is 1


def proto_rows(features: tuple[str, ...], *messages: bytes) -> list[list[float]]:
    values = [framed(1, message) for message in messages]
    return decode("protobuf", features, Schemas({1: PROTO}), list(values))


@given(st.data())
@settings(max_examples=75, deadline=None)
def test_protobuf_fields(data: st.DataObject) -> None:
    made = proto_class("Telemetry")(device="d", many=[1.0])
    row = [0.0, 0.0, NAN, 0.0, NAN, NAN, NAN, NAN, NAN]
    for index, name, kind in (
        (0, "cpu", st.floats()),
        (1, "count", st.integers(0, 2**64 - 1)),
        (2, "memory", st.integers(-(2**63), 2**63 - 1)),
        (3, "on", st.booleans()),
    ):
        if data.draw(st.booleans()):
            setattr(made, name, value := data.draw(kind))
            row[index] = float(value)
    if data.draw(st.booleans()):
        made.disk.read = row[4] = data.draw(st.floats())
    if data.draw(st.booleans()):
        made.heat.value = row[5] = data.draw(st.floats())
    if data.draw(st.booleans()):
        made.tags["t"] = row[6] = data.draw(st.floats(width=32))
    (read,) = proto_rows(PROTO_FEATURES, AT_1 + made.SerializeToString())
    assert all(map(same, read, row)), (read, row)


@pytest.mark.parametrize("feature", ["device", "many", "disk", "tags", "cpu.x", "many.x"])
def test_protobuf_fields_that_are_not_numbers(feature: str) -> None:
    made = proto_class("Telemetry")(cpu=1.0)
    made.disk.read = 2.0
    (row,) = proto_rows(("count", feature), AT_1 + made.SerializeToString())
    assert np.isnan(row).all()


def test_protobuf_paths_to_types() -> None:
    other = proto_class("Other")(x=7).SerializeToString()
    disk = proto_class("Telemetry.Disk")(read=3.0).SerializeToString()
    bad = (b"\2\7", b"\1", b"", b"\xff" * 20)
    rows = proto_rows(("x",), b"\0" + other, b"\2\0" + other, b"\4\2\0" + disk, *bad)
    assert rows[:2] == [[7.0], [7.0]] and np.isnan(rows[2:]).all()
    (row,) = proto_rows(("read",), b"\4\2\0" + disk)
    assert row == [3.0]


@given(st.data())
@settings(max_examples=75, deadline=None)
def test_pruned_types_are_read_as_whole_ones(data: st.DataObject) -> None:
    """Presence, defaults, oneofs, relative names and maps of messages, in all syntaxes."""
    syntax = data.draw(st.sampled_from(["proto2", "proto3", "editions"]))
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p.q", syntax=syntax)
    if syntax == "editions":
        file.edition = descriptor_pb2.EDITION_2023
        features = descriptor_pb2.FeatureSet
        file.options.features.field_presence = data.draw(st.integers(0, 2))
    top = file.message_type.add(name="Top")
    inner = top.nested_type.add(name="In")
    entry = top.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=F.TYPE_MESSAGE, type_name="In", label=F.LABEL_OPTIONAL
    )
    default = {"default_value": "7"} if syntax == "proto2" else {}
    for number, (name, kind, more) in enumerate(
        [
            ("text", F.TYPE_STRING, {}),
            ("x", F.TYPE_SINT32, default),
            ("y", F.TYPE_FIXED64, {}),
            ("z", F.TYPE_FLOAT, {"oneof_index": 0}),
            ("u", F.TYPE_INT64, {"oneof_index": 0}),
            (
                "in",
                F.TYPE_MESSAGE,
                {
                    "type_name": data.draw(
                        st.sampled_from(["In", "Top.In", "q.Top.In", "p.q.Top.In", ".p.q.Top.In"])
                    )
                },
            ),
        ],
        1,
    ):
        inner.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL, **more)
    if syntax == "editions":
        inner.field[2].options.features.field_presence = features.IMPLICIT
    inner.oneof_decl.add(name="either")
    top.field.add(name="in", number=1, type_name="In", label=F.LABEL_OPTIONAL)
    top.field.add(
        name="m", number=2, type=F.TYPE_MESSAGE, type_name="MEntry", label=F.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.q.Top"))()

    def fill(message: Any, depth: int) -> None:
        message.text = data.draw(st.text(max_size=3))
        for name, values in (
            ("x", st.integers(-9, 9)),
            ("y", st.integers(0, 9)),
            ("z", st.floats(width=32)),
            ("u", st.integers(0, 9)),
        ):
            if data.draw(st.booleans()):
                setattr(message, name, data.draw(values))
        if depth and data.draw(st.booleans()):
            fill(getattr(message, "in"), depth - 1)

    fill(getattr(made, "in"), 2)
    for key in data.draw(st.lists(st.sampled_from("abc"), unique=True)):
        fill(made.m[key], 1)

    def expected(message: Any, path: list[str]) -> float:
        name, *rest = path
        if name == "m":
            return expected(message.m[rest[0]], rest[1:]) if rest[0] in message.m else NAN
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.has_presence and not message.HasField(name) and not field.has_default_value:
            return NAN
        return expected(getattr(message, name), rest) if rest else float(getattr(message, name))

    features = ("in.x", "in.y", "in.z", "in.in.x", "in.in.in.u", "m.a.x", "m.b.in.y", "m.a.z")
    text = base64.b64encode(file.SerializeToString()).decode()
    source = Schemas({1: RegisteredSchema("protobuf", text)})
    message = framed(1, b"\0" + made.SerializeToString())
    (row,) = decode("protobuf", features, source, [message])
    assert all(map(same, row, (expected(made, f.split(".")) for f in features)))


@pytest.mark.parametrize("delimited", [False, True])
def test_features_in_groups_make_nulls(delimited: bool) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", syntax="proto2")
    if delimited:
        file.syntax, file.edition = "editions", descriptor_pb2.EDITION_2023
        file.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
    top = file.message_type.add(name="Top")
    kind = F.TYPE_MESSAGE if delimited else F.TYPE_GROUP
    top.field.add(name="in", number=1, type=kind, type_name="In", label=F.LABEL_OPTIONAL)
    top.field.add(name="x", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    inner = top.nested_type.add(name="In")
    inner.field.add(name="y", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    text = base64.b64encode(file.SerializeToString()).decode()
    source = Schemas({1: RegisteredSchema("protobuf", text)})
    value = framed(1, b"\0\x0b\x08\x05\x0c\x10\x07")
    assert decode("protobuf", ("x",), source, [value]) == [[7.0]]
    assert np.isnan(decode("protobuf", ("x", "in.y"), source, [value])).all()


PROTO_GOOD = AT_1 + proto_class("Telemetry")(cpu=1.5, memory=3).SerializeToString()
PROTO_ROW = [1.5, 0.0, 3.0, 0.0, NAN, NAN, NAN, NAN, NAN]


@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=300).map(lambda b: AT_1 + b),
        st.just(AT_1 + b"\x0a" * 100_000),
        st.just(AT_1 + b"\x33" * 1000),
        st.tuples(st.integers(0, len(PROTO_GOOD) - 1), st.binary(max_size=12)).map(
            lambda cut: PROTO_GOOD[: cut[0]] + cut[1] + PROTO_GOOD[cut[0] + len(cut[1]) :]
        ),
    )
)
@settings(max_examples=150, deadline=None)
def test_a_broken_protobuf_message_changes_no_other(broken: bytes) -> None:
    rows = proto_rows(PROTO_FEATURES, PROTO_GOOD, broken, PROTO_GOOD)
    assert len(rows) == 3
    assert all(map(same, rows[0], PROTO_ROW)) and all(map(same, rows[2], PROTO_ROW))


# The frame and the registry


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\1\0\0\0\1" + GOOD,
        framed(2, GOOD),
        framed(2**32 - 1, GOOD),
        framed(2**31, GOOD),
        b"{}",
        GOOD,
        framed(3, GOOD),
        framed(4, GOOD),
        framed(5, GOOD),
        framed(1, GOOD + b"x" * LIMIT),
    ],
)
def test_a_bad_frame_is_one_null(value: bytes | None) -> None:
    source = Schemas(
        {
            1: RegisteredSchema("avro", json.dumps(TELEMETRY)),
            3: PROTO,
            4: RegisteredSchema("avro", "{"),
            5: RegisteredSchema("avro", '{"type": "nothing"}'),
        }
    )
    good = framed(1, GOOD)
    rows = decode("avro", FEATURES, source, [good, value, good])
    assert np.isnan(rows[1]).all()
    assert all(map(same, rows[0], ROW)) and all(map(same, rows[2], ROW))


# Schemas that their producers have made to do harm


def halves(levels: int, leaf: Any) -> dict[str, Any]:
    """A record that holds two records, each of which holds two, and so on: 2^levels leaves."""
    inner: Any = leaf
    for level in range(levels):
        inner = {
            "type": "record",
            "name": f"R{level}",
            "fields": [
                {"name": "a", "type": inner},
                {"name": "b", "type": inner if level == 0 else f"R{level - 1}"},
            ],
        }
    return {
        "type": "record",
        "name": "Top",
        "fields": [
            {"name": "x", "type": "double"},
            {"name": "rest", "type": inner},
        ],
    }


def decimal(**options: Any) -> dict[str, Any]:
    kind = {"type": "bytes", "logicalType": "decimal", **options}
    return {"type": "record", "name": "D", "fields": [{"name": "x", "type": kind}]}


def deep(levels: int) -> Any:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return {"type": "record", "name": "Deep", "fields": [{"name": "y", "type": kind}]}


HARMFUL = {
    "decimal of no scale": decimal(precision=9, scale=None),
    "decimal of a vast scale": decimal(scale=30_000_000),
    "decimal of a vast precision": decimal(precision=10**9, scale=2),
    "decimal of a doubtful scale": decimal(precision=9, scale=True),
    "more bytes than there are": halves(70, "double"),
    "nested a hundred times": deep(100),
    "nested two thousand times": '{"type":"array","items":' * 2000 + '"int"' + "}" * 2000,
    "larger than allowed": {**TELEMETRY, "doc": "x" * (1 << 18)},
    "a size that is no number": {"type": "fixed", "name": "x", "size": "many"},
    "a size beyond all numbers": '{"type":"fixed","name":"x","size":1' + "0" * 5000 + "}",
    "a name that is a list": {"type": ["no", "such", {"type": "thing"}]},
    "nothing": None,
}


@pytest.mark.parametrize("harmful", HARMFUL.values(), ids=list(HARMFUL))
def test_a_harmful_schema_makes_nulls_of_its_own_messages(harmful: Any) -> None:
    text = harmful if isinstance(harmful, str) else json.dumps(harmful)
    good = {"type": "record", "name": "G", "fields": [{"name": "x", "type": "double"}]}
    source = Schemas(
        {
            1: RegisteredSchema("avro", json.dumps(good)),
            2: RegisteredSchema("avro", text),
        }
    )
    message = avro(good, {"x": 1.5})
    values = [framed(number, message) for number in (1, 2, 1)]
    began = time.process_time()
    rows = decode("avro", ("x",), source, values)
    assert rows[0] == rows[2] == [1.5] and np.isnan(rows[1]).all()
    assert time.process_time() - began < 2.0


def test_unions_that_multiply_are_refused_in_time() -> None:
    """Thirty to the power of eight places in which the feature may be, and a schema of 20 kB."""
    features = (".".join("x" * 17),)
    began = time.process_time()
    rows = avro_rows(unions(8, "x", "x"), features, b"\0" * 8 + struct.pack("<d", 1.5))
    assert np.isnan(rows).all() and time.process_time() - began < 2.0
    two = avro_rows(unions(2, "x", "x"), ("x.x.x.x.x",), b"\0" * 2 + struct.pack("<d", 1.5))
    assert two == [[1.5]]


def test_records_that_double_are_passed_over_as_a_number() -> None:
    """Thirty levels: 2^30 doubles that no message can hold, and a schema of 3 kB."""
    schema = halves(30, "double")
    began = time.process_time()
    rows = avro_rows(schema, ("x",), struct.pack("<d", 1.5))
    assert np.isnan(rows).all() and time.process_time() - began < 1.0
    (row,) = avro_rows(halves(3, "double"), ("x",), struct.pack("<9d", *range(9)))
    assert row == [0.0]


def test_a_type_may_have_the_name_of_a_type_of_avro() -> None:
    """The lookup among the named types must end."""
    inner = {"type": "record", "name": "record", "fields": [{"name": "y", "type": "double"}]}
    schema = {
        "type": "record",
        "name": "Top",
        "fields": [{"name": "x", "type": "double"}, {"name": "in", "type": inner}],
    }
    assert avro_rows(schema, ("x",), struct.pack("<2d", 1.5, 2.0)) == [[1.5]]


def test_a_harmful_descriptor_makes_nulls_of_its_own_messages() -> None:
    def file(types: int, fields: int) -> RegisteredSchema:
        made = descriptor_pb2.FileDescriptorProto(name="f.proto", syntax="proto3")
        for i in range(types):
            kind = made.message_type.add(name=f"M{i}")
            for j in range(fields):
                kind.field.add(
                    name=f"x{j or ''}", number=j + 1, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL
                )
        return RegisteredSchema("protobuf", base64.b64encode(made.SerializeToString()).decode())

    source = Schemas({1: file(1, 1), 2: file(21_000, 0), 3: file(1, 20_000), 4: file(100, 100)})
    message = b"\0\x09" + struct.pack("<d", 1.5)
    values = [framed(number, message) for number in (1, 2, 3, 4, 1)]
    began = time.process_time()
    rows = decode("protobuf", ("x",), source, values)
    assert rows[0] == rows[3] == rows[4] == [1.5] and np.isnan(rows[1:3]).all()
    assert time.process_time() - began < 2.0


def test_serializers_and_a_registry_over_http(served: Registry) -> None:
    client = SchemaRegistryClient({"url": served.url})
    context = SerializationContext("telemetry", MessageField.VALUE)
    serialize = AvroSerializer(client, json.dumps(TELEMETRY))
    values = [serialize(RECORD, context) for _ in range(3)]
    options = {"url": served.url}
    served.asked.clear()
    codec = make_codec("avro", FEATURES, LIMIT, registry=RegistryClient(options, protobuf=False))
    for _ in range(3):
        for row in codec.decode(values).tolist():
            assert all(map(same, row, ROW))
    assert len(served.asked) == 1, "a schema is fetched once"
    message = proto_class("Telemetry")(cpu=1.5, memory=3)
    proto = ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
    source = RegistryClient(options, protobuf=True)
    (row,) = decode("protobuf", PROTO_FEATURES, source, [proto(message, context)])
    assert all(map(same, row, PROTO_ROW))


def test_references(served: Registry) -> None:
    served.register("disk", {**READ, "namespace": "example"})
    schema = {
        "type": "record",
        "name": "Uses",
        "namespace": "example",
        "fields": [{"name": "disk", "type": "Disk"}],
    }
    references = [{"name": "example.Disk", "subject": "disk", "version": 1}]
    number = served.register("uses", schema, references=references)
    whole_schema = {**schema, "fields": [{"name": "disk", "type": READ}]}
    value = framed(number, avro(whole_schema, {"disk": {"read": 2.0, "write": 3}}))
    source = RegistryClient({"url": served.url}, protobuf=False)
    assert decode("avro", ("disk.write", "disk.read"), source, [value]) == [[3.0, 2.0]]
    lost = served.register("uses", schema, references=[{**references[0], "version": 9}])
    assert np.isnan(decode("avro", ("disk.read",), source, [framed(lost, value[5:])])).all()

    def file(name: str) -> descriptor_pb2.FileDescriptorProto:
        return descriptor_pb2.FileDescriptorProto(name=name, package="p", syntax="proto3")

    inner, outer = file("inner.proto"), file("outer.proto")
    inner.message_type.add(name="In").field.add(
        name="y", number=1, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL
    )
    outer.dependency.append("inner.proto")
    outer.message_type.add(name="Out").field.add(
        name="in", number=1, type=F.TYPE_MESSAGE, type_name=".p.In", label=F.LABEL_OPTIONAL
    )
    text = [base64.b64encode(f.SerializeToString()).decode() for f in (inner, outer)]
    served.register("inner", text[0], "PROTOBUF")
    number = served.register(
        "outer",
        text[1],
        "PROTOBUF",
        references=[{"name": "inner.proto", "subject": "inner", "version": 1}],
    )
    message = b"\0" + b"\x0a\x09\x09" + struct.pack("<d", 4.5)
    source = RegistryClient({"url": served.url}, protobuf=True)
    assert decode("protobuf", ("in.y",), source, [framed(number, message)]) == [[4.5]]


def test_an_unknown_id_decides_about_nothing_else(served: Registry) -> None:
    known = served.register("known", TELEMETRY)
    later = max(served.schemas) + 1
    source = RegistryClient({"url": served.url}, protobuf=False)
    codec = make_codec("avro", FEATURES, LIMIT, registry=source)
    values = [framed(known, GOOD), framed(later, GOOD), framed(known, GOOD)]
    rows = codec.decode(values).tolist()
    assert [np.isnan(row).all() for row in rows] == [False, True, False]
    # Nothing was remembered of it: when there is such a schema, its messages are read.
    served.schemas[later] = {"schema": json.dumps(TELEMETRY), "schemaType": "AVRO"}
    assert not np.isnan(codec.decode(values)).all(axis=1).any()


@pytest.mark.parametrize(
    "status, broken",
    [
        (403, None),
        (410, None),
        (422, None),
        (None, b"<html>"),
        (None, b""),
        (None, b"[]"),
        (None, b"7"),
        (None, b'{"schema": 7}'),
        (None, b'{"schema": "1", "references": 1}'),
        (None, b"[" * 100_000),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_an_answer_that_may_concern_one_id_is_a_null(
    served: Registry, status: int | None, broken: bytes | None
) -> None:
    """A record chooses the id, so it must not hold up others, and the answer is not remembered."""
    number = served.register("refused", {**TELEMETRY, "name": f"Refused{status}"})
    source = RegistryClient({"url": served.url}, protobuf=False)
    codec = make_codec("avro", FEATURES, LIMIT, registry=source)
    served.status, served.broken = status, broken
    try:
        assert np.isnan(codec.decode([framed(number, GOOD)])).all()
    finally:
        served.status = served.broken = None
    lasting = broken == b'{"schema": 7}'  # that is a schema, if one that cannot be used
    assert np.isnan(codec.decode([framed(number, GOOD)])).all() == lasting


def test_references_that_double_are_asked_for_once(served: Registry) -> None:
    """Thirty levels, each referring twice to the next: 2^30 paths, thirty schemas."""
    for level in range(30):
        schema = {"type": "record", "name": f"L{level}", "fields": []}
        below = {"name": f"L{level - 1}", "subject": f"L{level - 1}", "version": 1}
        number = served.register(f"L{level}", schema, references=[below, below] if level else [])
    served.asked.clear()
    found = RegistryClient({"url": served.url}, protobuf=False).schema(number)
    assert found is not None and len(served.asked) == 30
    began = time.process_time()
    codec = make_codec("avro", ("x",), LIMIT, registry=Schemas({1: found}))
    assert np.isnan(codec.decode([framed(1, b"")])).all()  # read, and x is missing
    assert time.process_time() - began < 20


def test_schemas_are_forgotten_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages of more schemas than are kept are read in turns; a forgotten one is asked again."""
    schema = {"type": "record", "name": "T", "fields": [{"name": "x", "type": "double"}]}
    text = json.dumps(schema)
    source = Schemas({number: RegisteredSchema("avro", text) for number in range(1, 11)})
    codec = make_codec("avro", ("x",), LIMIT, registry=source)
    value = struct.pack("<d", 1.5)
    codec.decode([framed(1, value)])
    kept = codec._readers  # type: ignore[attr-defined]
    monkeypatch.setattr(registered, "KEPT_BYTES", 3 * next(iter(kept.values())).size)
    every = [framed(n, value) for n in range(1, 11)]
    for _ in range(2):
        assert codec.decode(every).tolist() == [[1.5]] * 10
        for number in (3, 7):
            assert codec.decode([framed(number, value)]).tolist() == [[1.5]]
        assert len(kept) == 3 and framed(7, b"") in kept
    unknown: set[bytes] = set()
    assert codec.prepare(every, unknown, 60.0) == 3 and len(kept) == 4
    assert codec.read(every[:3]).tolist() == [[1.5]] * 3
    assert codec.prepare(every[3:], unknown, 60.0) == 3
    monkeypatch.setattr(registered, "KEPT_BYTES", 0)  # one is kept in any case
    assert codec.decode(every).tolist() == [[1.5]] * 10 and len(kept) <= 2


@pytest.fixture(scope="module")
def costs() -> dict[str, list[float]]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.consumers.hostile"],
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(json.loads(run.stdout))


@pytest.mark.xdist_group("hostile schemas")  # measured once for all of them
@pytest.mark.parametrize("name", HOSTILE)
def test_no_schema_takes_long_or_much(costs: dict[str, list[float]], name: str) -> None:
    """The manifest allows 512 MB, and the process has a planner that must have its turn."""
    _, schemas, _ = HOSTILE[name]()
    lengths = [sum(len(one.text) for one in schema.each()) for schema in schemas]
    assert max(lengths) <= LARGEST_SCHEMA, "tests nothing"
    seconds, megabytes, hold = costs[name]
    assert seconds < 5 and megabytes < 64 and hold < 0.25


def test_questions_take_no_longer_than_allowed() -> None:
    """They are not repeated for the same messages, only for later ones."""
    asked: list[int] = []

    class Slow(Schemas):
        def schema(self, number: int) -> RegisteredSchema | None:
            asked.append(number)
            return super().schema(number)

    source = Slow()
    codec = make_codec("avro", ("x",), LIMIT, registry=source)
    values = [framed(number, b"") for number in range(1, 4)]
    unknown: set[bytes] = set()
    assert codec.prepare(values, unknown, -1.0) == 0 and asked == []
    assert codec.prepare(values, unknown, 60.0) == 3 and asked == [1, 2, 3]
    assert codec.prepare(values, unknown, -1.0) == 3 and asked == [1, 2, 3]
    source[2] = RegisteredSchema("avro", '"double"')
    assert codec.prepare(values, set(), 60.0) == 3 and asked == [1, 2, 3] * 2
    assert codec.prepare(values[1:2], set(), -1.0) == 1
    assert codec.prepare(values[1:], set(), -1.0) == 1


@pytest.mark.parametrize("status", [500, 503, 401, 407, 408, 429, 404])
def test_a_registry_that_is_away_is_an_error_that_names_nothing(
    served: Registry, status: int
) -> None:
    number = 9_753_186  # no part of a status
    served.schemas[number] = {"schema": json.dumps(TELEMETRY), "schemaType": "AVRO"}
    codec = make_codec(
        "avro", FEATURES, LIMIT, registry=RegistryClient({"url": served.url}, protobuf=False)
    )
    served.status = status
    try:
        with pytest.raises(RegistryAway, match="schema registry") as caught:
            codec.decode([framed(number, GOOD)])
    finally:
        served.status = None
    assert str(number) not in str(caught.value) and caught.value.__cause__ is None
    assert not np.isnan(codec.decode([framed(number, GOOD)])).all()


def test_a_registry_that_is_not_there() -> None:
    source = RegistryClient({"url": "http://127.0.0.1:9"}, protobuf=False)
    with pytest.raises(RegistryAway, match=r"^the schema registry does not answer \(\w+\)$"):
        source.schema(7)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigurationError, match="`schema_registry_url` must be set"):
        make_codec("avro", ("a",), LIMIT)
    code = """
import sys
sys.modules[sys.argv[2]] = None
from consumers.errors import ConfigurationError
from consumers.messages.recipe import MessageRecipe
try:
    MessageRecipe(sys.argv[1], ("a",), 9).codec(object())
except ConfigurationError as error:
    print(error)
"""
    shown = subprocess.run(
        [sys.executable, "-c", code, "protobuf", "google.protobuf"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert shown == "format protobuf needs google.protobuf: pip install 'stream-dppca[protobuf]'\n"


def test_the_subject_is_the_key() -> None:
    source = Schemas({1: RegisteredSchema("avro", json.dumps(TELEMETRY))})
    codec = make_subject_codec("avro", FEATURES, LIMIT, registry=source, subject="@key", records=1)
    rows, subjects = codec.decode([framed(1, GOOD), framed(2, GOOD)], [b"k", None])
    assert all(map(same, rows[0], ROW)) and np.isnan(rows[1]).all()
    assert subjects == [b"k", None]


def test_the_subject_is_a_field() -> None:
    source = Schemas({1: RegisteredSchema("avro", json.dumps(TELEMETRY))})

    def whose(subject: str, *values: bytes | None) -> tuple[Any, list[Any]]:
        codec = make_subject_codec(
            "avro", FEATURES, LIMIT, registry=source, subject=subject, records=1
        )
        return codec.decode(values, [None] * len(values))

    rows, subjects = whose("device", framed(1, GOOD), framed(2, GOOD), None, framed(1, GOOD[:-1]))
    assert all(map(same, rows[0], ROW)) and np.isnan(rows[1:]).all()
    assert subjects == [RECORD["device"], None, None, None]
    assert whose("tags.place", framed(1, GOOD))[1] == ["x"]
    assert whose("absent", framed(1, GOOD))[1] == [None]
    assert whose("notes", framed(1, GOOD))[1] == [None]


def test_the_subject_is_a_field_of_protobuf() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto3")
    kind = file.message_type.add(name="T")
    kind.field.add(name="who", number=1, label=1, type=9)
    kind.field.add(name="number", number=2, label=1, type=3)
    kind.field.add(name="v", number=3, label=3, type=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("T"))
    text = base64.b64encode(file.SerializeToString()).decode()
    source = Schemas({1: RegisteredSchema("protobuf", text)})
    values = [
        framed(1, b"\0" + made(who="a", number=7, v=[1.0, 2.0, 3.0]).SerializeToString()),
        framed(1, b"\0" + made(number=8, v=[4.0]).SerializeToString()),
    ]
    for subject, expected in (("who", ["a", ""]), ("number", [7, 8]), ("v", [None, None])):
        codec = (
            make_subject_codec(
                "protobuf", ("v[2]", "v[0]"), LIMIT, registry=source, subject=subject, records=1
            )
            if subject != "v"
            else make_subject_codec(
                "protobuf", ("number",), LIMIT, registry=source, subject=subject, records=1
            )
        )
        rows, subjects = codec.decode(values, [None, None])
        assert subjects == expected
        if subject != "v":
            assert np.nan_to_num(rows).tolist() == [[3.0, 1.0], [0.0, 4.0]]


@pytest.mark.parametrize("item", ["double", "long", ["null", "float"], "null"])
def test_items_of_an_array(item: Any) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "v", "type": {"type": "array", "items": item}},
            {"name": "x", "type": "double"},
        ],
    }
    none = item == "null"
    numbers = [None] * 5 if none else [1, 2, 3, 4, 5]
    features = ("v[3]", "x", "v[0]")
    for count in range(6):
        message = avro(schema, {"v": numbers[:count], "x": 7.0})
        (row,) = avro_rows(schema, features, message)
        wanted = [4.0 if count > 3 else NAN, 7.0, 1.0 if count else NAN]
        assert all(map(same, row, [NAN, 7.0, NAN] if none else wanted)), count
    # Blocks that say how many bytes they have, and a number of items that no message can hold.
    blocks = [b"\x01\x02\x02", b"\x02\x04", b"\x00"] if item == "long" else []
    if blocks:
        (row,) = avro_rows(schema, features, b"".join(blocks) + bytes(8))
        assert all(map(same, row, [NAN, 0.0, 1.0]))
    many = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    (row,) = avro_rows(schema, features, many + bytes(9))
    assert np.isnan(row[0]) and np.isnan(row[2])


def test_a_chain_of_references_is_followed_to_its_limit(served: Registry) -> None:
    """A schema that refers to more others than allowed makes nulls, however deep they are."""
    for level in range(300):
        kind = f"C{level - 1}" if level else "double"
        schema = {"type": "record", "name": f"C{level}", "fields": [{"name": "x", "type": kind}]}
        below = [{"name": f"C{level - 1}", "subject": f"C{level - 1}", "version": 1}]
        number = served.register(f"C{level}", schema, references=below if level else [])
        if level == 60:
            within = number
    source = RegistryClient({"url": served.url}, protobuf=False)
    value = struct.pack("<d", 1.5)
    features = (".".join("x" * 61),)
    assert decode("avro", features, source, [framed(within, value)]) == [[1.5]]
    assert np.isnan(decode("avro", features, source, [framed(number, value)])).all()

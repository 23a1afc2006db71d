"""Schemas that were made to do harm, and what each of them costs a process of its own.

`python -m tests.consumers.hostile` prints the costs as JSON, in the form {name: [CPU seconds,
megabytes, longest CPU time in which no other thread ran]}. Each schema is read in a fork.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import resource
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2

from consumers.protocols import RegisteredSchema
from tests.consumers.helpers import make_codec

F = descriptor_pb2.FieldDescriptorProto
LIMIT = 1 << 20
#: Features on several levels, so that types which hold features are compiled again and again.
FEATURES = ("x", *(f"a.{name}" for name in "xyz"), *(f"a.b.{name}" for name in "xyz"))

Schema = tuple[str, list[RegisteredSchema], list[bytes]]  #: format, schemas 1, 2, ..., messages


def record(name: str, fields: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": kind} for i, kind in enumerate(fields)],
        **more,
    }


def avro(kind: Any) -> Schema:
    text = json.dumps(kind, separators=(",", ":"))
    return "avro", [RegisteredSchema("avro", text)], [bytes(LIMIT - 100), b"\2" * 100_000]


def nested(levels: int) -> Any:
    kind: Any = "int"
    for level in range(levels):
        kind = record(f"N{level}", [kind, kind if level == 0 else f"N{level - 1}"])
    return kind


def unions(levels: int, inner: str = "b", outer: str = "a") -> Any:
    """A record with a union of thirty records, each with a record with such a union, and so on."""
    kind: Any = {"type": "record", "name": "V0", "fields": [{"name": "x", "type": "double"}]}
    for level in range(1, levels + 1):
        branches = [
            {
                "type": "record",
                "name": f"U{level}_{i}",
                "fields": [{"name": inner, "type": kind if i == 0 else f"V{level - 1}"}],
            }
            for i in range(30)
        ]
        kind = {
            "type": "record",
            "name": f"V{level}",
            "fields": [{"name": outer, "type": branches}],
        }
    return kind


def inside(levels: int, kind: str, member: str) -> Any:
    found: Any = "double"
    for _ in range(levels):
        found = {"type": kind, member: found}
    return found


def proto(file: descriptor_pb2.FileDescriptorProto, *messages: bytes, **more: Any) -> Schema:
    text = base64.b64encode(file.SerializeToString()).decode()
    empty = [b"\0" + b"\x0a\x00" * (LIMIT // 2 - 100), b"\0" + b"\x0b" * 100_000]
    return "protobuf", [RegisteredSchema("protobuf", text, **more)], [*messages, *empty]


def wide(types: int, fields: int, package: str = "", kind: str = "", depth: int = 0) -> Any:
    """Types with fields; `kind` is the type of the first field, which is repeated."""
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package=package, syntax="proto3")
    inner: Any = file
    for _ in range(depth):
        inner = (
            inner.nested_type.add(name="D")
            if inner is not file
            else file.message_type.add(name="D")
        )
    for i in range(types):
        made = (inner.nested_type if depth else inner.message_type).add(name=f"M{i}")
        for j in range(fields):
            if kind and j == 0:
                made.field.add(
                    name="a", number=1, type=F.TYPE_MESSAGE, type_name=kind, label=F.LABEL_REPEATED
                )
            else:
                made.field.add(
                    name=f"x{j}", number=j + 1, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL
                )
    return file


def relatives(package: str, count: int) -> Any:
    """Features whose types have relative names, to be looked up in every scope."""
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package=package, syntax="proto3")
    made = file.message_type.add(name="M")
    made.field.add(name="a", number=1, type=F.TYPE_MESSAGE, type_name="A", label=F.LABEL_OPTIONAL)
    for i in range(count):
        made.field.add(
            name=f"g{i}", number=i + 2, type=F.TYPE_MESSAGE, type_name="A", label=F.LABEL_OPTIONAL
        )
    file.message_type.add(name="A").field.add(
        name="b", number=1, type=F.TYPE_MESSAGE, type_name="A", label=F.LABEL_OPTIONAL
    )
    return file


def enums(count: int, package: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package=package, syntax="proto3")
    kind = file.enum_type.add(name="E")
    for i in range(count):
        kind.value.add(name=f"V{i}", number=i)
    file.message_type.add(name="M")
    return file


def imports(count: int) -> Schema:
    references = []
    for i in range(count):
        file = wide(30, 1, package=f"p{i}.{'n' * 200}")
        file.name = f"i{i}.proto"
        _, (schema,), _ = proto(file)
        references.append((file.name, schema))
    return proto(wide(1, 1), references=tuple(references))


def paths(count: int) -> Schema:
    """Messages of every type of a file."""

    def number(i: int) -> bytes:
        i, out = i << 1, b""
        while i > 127:
            out, i = out + bytes([i & 127 | 128]), i >> 7
        return out + bytes([i])

    return proto(wide(count, 1), *(b"\2" + number(i) for i in range(count)))


def many(count: int) -> Schema:
    """Many schemas in one fetch, each of which is as large as it may be."""
    texts = [
        json.dumps(
            record("R", [{"type": "array", "items": "string"}] * 4000, doc=str(i)),
            separators=(",", ":"),
        )
        for i in range(count)
    ]
    return "avro", [RegisteredSchema("avro", text) for text in texts], [bytes(9)] * count


STRINGS = {"type": "array", "items": "string"}
LONG = "n" * 100_000
SOME = "n" * 400
HOSTILE: dict[str, Callable[[], Schema]] = {
    "a long namespace, many references": lambda: avro(
        record("R", ["int", *["R"] * 5000], namespace=LONG)
    ),
    "a long namespace, many definitions": lambda: avro(
        record("R", [record(f"S{i}", []) for i in range(2000)], namespace=LONG)
    ),
    "a namespace as long as allowed": lambda: avro(
        record("R", ["int", *["R"] * 9000], namespace=SOME)
    ),
    "deep arrays": lambda: avro(record("R", [inside(90, "array", "items")])),
    "records that double": lambda: avro(nested(70)),
    "a wide union": lambda: avro(
        record("R", [[{"type": "fixed", "name": f"F{i}", "size": 1} for i in range(5000)]])
    ),
    "unions of features": lambda: avro(unions(8)),
    "maps of features": lambda: avro(inside(90, "map", "values")),
    "many fields": lambda: avro(record("R", ["double"] * 7000)),
    "many strings in arrays": lambda: avro(record("R", [STRINGS] * 4000)),
    "a large enum": lambda: avro(
        {"type": "enum", "name": "E", "symbols": [f"S{i}" for i in range(25_000)]}
    ),
    "records that hold each other": lambda: avro(
        record("A", [record("B", [["null", "A"], ["null", "B"]] * 3000)])
    ),
    "values that are nothing": lambda: avro([[]] * 80_000),
    "many schemas in one fetch": lambda: many(60),
    "a long package, many fields": lambda: proto(wide(1, 5000, LONG)),
    "a long package, many types": lambda: proto(wide(8000, 0, LONG)),
    "a package of many parts": lambda: proto(relatives(".".join("n" * 20_000), 4000)),
    "a package of some parts": lambda: proto(relatives(".".join("n" * 30), 5000)),
    "types in types": lambda: proto(wide(1000, 3, SOME, depth=80)),
    "types of nothing": lambda: proto(wide(18_000, 0)),
    "messages in a message, each with many fields": lambda: proto(wide(1, 4000, kind=".M0")),
    "a large enum of protobuf": lambda: proto(enums(12_000, LONG[:20_000])),
    "many imports": lambda: imports(150),
    "messages of many types": lambda: paths(3000),
}


class _Source(dict[int, RegisteredSchema]):
    def schema(self, number: int) -> RegisteredSchema | None:
        return self.get(number)


def _cost(schema: Schema) -> list[float]:
    """What it costs to read messages of a schema: CPU seconds, megabytes, longest hold."""
    format, given, messages = schema
    ticks, stop = [time.process_time()], threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks.append(time.process_time())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.process_time()
    source = _Source(enumerate(given, 1))
    codec = make_codec(format, FEATURES, LIMIT, registry=source)  # type: ignore[arg-type]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    last = len(messages) if len(given) > 1 else 0
    codec.decode(
        [
            b"\0" + struct.pack(">I", i + 1 if last else 1) + value
            for i, value in enumerate(messages)
        ]
    )
    seconds = time.process_time() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    stop.set()
    thread.join()
    ticks.append(time.process_time())
    hold = max(b - a for a, b in itertools.pairwise(ticks))
    return [seconds, grown / 1024, hold]


def main() -> None:
    names = sys.argv[1:] or list(HOSTILE)
    make_codec("protobuf", FEATURES, LIMIT, registry=_Source())
    make_codec("avro", FEATURES, LIMIT, registry=_Source())
    found = {}
    for name in names:
        receive, send = os.pipe()
        if not (child := os.fork()):
            os.write(send, json.dumps(_cost(HOSTILE[name]())).encode())
            os._exit(0)
        os.close(send)
        with os.fdopen(receive) as answer:
            found[name] = json.loads(answer.read() or "null")
        os.waitpid(child, 0)
    sys.stdout.write(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

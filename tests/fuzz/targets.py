"""Targets of made-up messages, and the properties that must hold for each message.

A message may hold anything. It becomes exactly `rows_per_message` rows and as many ids of subjects;
it changes nothing about the messages before and after it; and nothing is raised, warned of, printed
or logged, because that would reveal something about the message. The parser of batches that a
broker sends may also report that a batch is damaged, without quoting it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import fastavro
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kafka.errors import CorruptRecordError

from consumers.formats import ARRAY_FORMATS, Format
from consumers.kafka.bounded import read_entries
from consumers.messages.gathered import Gathering
from consumers.messages.recipe import MessageRecipe
from consumers.protocols import RegisteredSchema
from tests.consumers.otlp import as_json, message, resource

__all__ = ["LARGEST", "seeds", "target"]

FEATURES: Final = ("a", "b.c", "b.d")
#: Longer messages are nulls; the fuzzer makes some of them.
LARGEST: Final = 2000
PACKED_ROWS: Final = 2

_AVRO: Final = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": ["null", "double", "long"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "more", "type": {"type": "array", "items": "bytes"}},
        {
            "name": "b",
            "type": {
                "type": "record",
                "name": "B",
                "fields": [{"name": "c", "type": "float"}, {"name": "d", "type": "int"}],
            },
        },
        {"name": "id", "type": "string"},
    ],
}


class Schemas(dict[int, RegisteredSchema]):
    """A registry without a network."""

    def schema(self, number: int) -> RegisteredSchema | None:
        return self.get(number)


def _proto() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    inner = file.message_type.add(name="B")
    inner.field.add(name="c", number=1, type=kinds.TYPE_FLOAT, label=kinds.LABEL_OPTIONAL)
    inner.field.add(name="d", number=2, type=kinds.TYPE_SINT32, label=kinds.LABEL_OPTIONAL)
    outer = file.message_type.add(name="R")
    outer.field.add(name="a", number=1, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    outer.field.add(
        name="b", number=2, type=kinds.TYPE_MESSAGE, type_name=".B", label=kinds.LABEL_OPTIONAL
    )
    outer.field.add(name="id", number=3, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    return file


def _source() -> Schemas:
    text = base64.b64encode(_proto().SerializeToString()).decode()
    return Schemas(
        {
            1: RegisteredSchema("avro", json.dumps(_AVRO)),
            2: RegisteredSchema("protobuf", text),
        }
    )


def _good(format: Format) -> bytes:
    """A message that can be read."""
    if format == "json":
        return b'{"id": "x", "a": 1.5, "b": {"c": -2, "d": 1e3}, "more": [null, "text"]}'
    if format == "json-array":
        return b"[1.5, -2, 1e3]"
    if format == "avro":
        stream = io.BytesIO()
        record = {"a": 1.5, "tags": {"k": "v"}, "more": [b"xyz"], "b": {"c": -2.0, "d": 1000}}
        schema = fastavro.parse_schema(_AVRO)
        fastavro.schemaless_writer(stream, schema, {**record, "id": "x"})
        return b"\0" + (1).to_bytes(4) + stream.getvalue()
    if format == "protobuf":
        pool = descriptor_pool.DescriptorPool()
        pool.Add(_proto())
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("R"))
        made: Any = kind(a=1.5, id="x")
        made.b.c, made.b.d = -2.0, 1000
        return b"\0" + (2).to_bytes(4) + b"\2\2" + bytes(made.SerializeToString())
    if format == "long":
        one = {"id": "x", "timestamp": 5}
        points = zip(FEATURES, (1.5, -2, 1e3), strict=True)
        return json.dumps([{**one, "metric": name, "value": v} for name, v in points]).encode()
    if format in ("otlp", "otlp-json"):
        points = zip(FEATURES, (1.5, -2, 1e3), strict=True)
        made = resource({"id": "x"}, *({"name": n, "value": v, "time": 5} for n, v in points))
        return message(made) if format == "otlp" else as_json([made])
    rows = np.array([[1.5, -2.0, 1e3]] * PACKED_ROWS)
    return bytes(rows.astype("<f4" if format == "float32" else "<f8").tobytes())


def _batch() -> bytes:
    """Three messages as a broker sends them: a value, a null, one with a key and a header."""
    one = bytes([0, 0, 0, 1, 6]) + b"abc" + bytes([0])
    two = bytes([0, 2, 2, 1, 1, 0])
    three = bytes([0, 4, 4, 4]) + b"kk" + bytes([4]) + b"vv" + bytes([2, 2]) + b"h" + bytes([1])
    return b"".join(bytes([2 * len(message)]) + message for message in (one, two, three))


def _codec_target(format: Format) -> Callable[[bytes], None]:
    packed = PACKED_ROWS if format in ("float32", "float64") else None
    recipe = MessageRecipe(format, FEATURES, LARGEST, rows_per_message=packed)
    plain = recipe.codec(_source())
    good = _good(format)
    expected = plain.decode([good])
    assert np.isfinite(expected).all(), f"the good message of {format} was not read"
    each = plain.rows_per_message
    subjects = None
    if format not in ARRAY_FORMATS:
        subjects = replace(recipe, subject="id", places=9).subject_codec(_source())

    def one(message: bytes) -> None:
        for read in (plain.decode, plain.read):
            rows = read([good, message, None, good])
            assert rows.shape == (4 * each, len(FEATURES))
            assert (rows[:each] == expected).all() and (rows[3 * each :] == expected).all()
            assert np.isnan(rows[2 * each : 3 * each]).all()
        if len(message) > LARGEST:
            assert np.isnan(plain.decode([message])).all()
        if isinstance(subjects, Gathering):
            gatherer = subjects.begin((0, 1000))
            gatherer.add(0, range(4), [1] * 4, [good, message, None, good], [None] * 4)
            found, ids = gatherer.fold.rows()
            # The message may be of the same subject, or of several others.
            assert ids[0] == b"x" and found.shape[1] == len(FEATURES)
        elif subjects is not None:
            found, ids = subjects.decode([good, message, good], [None, None, None])
            assert len(found) == len(ids) == 3 and ids[0] == ids[2] == "x"

    return one


def _batch_target() -> Callable[[bytes], None]:
    assert [value for _, _, value in read_entries([_batch()], 3, 7, 2, 99)] == [b"abc", None, b"vv"]

    def one(batch: bytes) -> None:
        try:
            entries = list(read_entries([batch], 3, 7, 2, 99))
        except CorruptRecordError as error:
            assert not error.__context__ or error.__suppress_context__
        else:
            assert len(entries) == 3 and all(offset >= 7 for offset, _, _ in entries)

    return one


def seeds(name: str) -> list[bytes]:
    """Messages to begin with."""
    good = _batch() if name == "batch" else _good(name)  # type: ignore[arg-type]
    return [b"", good, good[: len(good) // 2], good * 2, good + b"\xff" * LARGEST]


def target(name: str) -> Callable[[bytes], None]:
    """The function that takes a message and fails if something does not hold."""
    check = _batch_target() if name == "batch" else _codec_target(name)  # type: ignore[arg-type]

    def one(message: bytes) -> None:
        with _silence():
            check(message)

    return one


class _Alarm(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError("something was logged")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Check that nothing is printed, logged or warned of."""
    out = io.StringIO()
    alarm = _Alarm()
    logging.getLogger().addHandler(alarm)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error")
            yield
    finally:
        logging.getLogger().removeHandler(alarm)
    assert not out.getvalue(), "something was printed"

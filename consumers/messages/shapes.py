"""Recognises what a few messages are, and names the settings that read them.

For an operator at a terminal only, as everything in `sample`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ..formats import POINT_FORMATS, Format
from . import long, otlp
from .cutting import unframed
from .gathered import pieces_of
from .registered import FRAME_BYTES, LARGEST_ID
from .series import Attributes

#: Most series that are shown.
MOST_SHOWN: Final = 100
#: Attributes that tell the parts of one host apart, and are left out of the list.
_PARTS_OF_A_HOST: Final = frozenset(
    ["core", "cpu", "device", "disk", "interface", "mountpoint", "path", "pid", "__name__"]
)
#: Usual names of the fields of messages with one metric each.
_FIELDS: Final = {
    "name": ("metric", "name", "metric_name", "__name__", "measurement"),
    "value": ("value", "val", "v", "fields"),
    "time": ("timestamp", "time", "ts", "@timestamp"),
    "labels": ("labels", "tags", "attributes", "dimensions"),
}
_SUBJECTS: Final = ("host.name", "host", "instance", "hostname", "device", "device_id", "node")


class SeenSeries(NamedTuple):
    """A series that was seen."""

    name: str
    attributes: Attributes
    unit: str = ""
    counter: bool = False


class Shape(NamedTuple):
    """What messages seem to be."""

    what: str
    formats: Sequence[Format]  #: which read it
    settings: Mapping[str, str] = {}  #: others that it needs
    series: Collection[SeenSeries] = ()


def recognise(values: Sequence[bytes | None], fields: long.Fields | None = None) -> Shape | None:
    """Say what all messages seem to be, if it can be read.

    Parameters
    ----------
    fields
        The fields of messages with one metric each, if they are known.
    """
    for format in POINT_FORMATS:
        with suppress(Exception):  # another format, or the library of this one is missing
            cut, parse, _ = pieces_of(format)
            pieces = [parse(piece) for value in values if value for piece in cut(value)]
            shape = _long(pieces, fields) if format == "long" else _otlp(pieces, format)
            if shape is not None:
                return shape
    objects = [parsed_json(value) for value in values]
    if all(isinstance(found, dict) for found in objects):
        return Shape("JSON objects", ["json"])
    if all(isinstance(found, list) for found in objects):
        if any(isinstance(item, dict) for found in objects for item in found):
            return Shape("arrays of objects, which can be read if each is one metric", ["long"])
        return Shape("JSON arrays", ["json-array"])
    if all(schema_number(value) is not None for value in values):
        needed = {"schema_registry_url": "..."}
        return Shape("messages of a Schema Registry", ["avro", "protobuf"], needed)
    return None


def parsed_json(value: bytes | None) -> Any:
    """The content of a message; None if it is not JSON."""
    try:
        return json.loads(unframed(value or b""))
    except (ValueError, RecursionError):
        return None


def schema_number(value: bytes | None) -> int | None:
    """The number of the schema that a message begins with."""
    if value is None or len(value) < FRAME_BYTES or value[0]:
        return None
    number = int.from_bytes(value[1:FRAME_BYTES])
    return number if number <= LARGEST_ID else None


def _otlp(resources: Sequence[Any], format: Format) -> Shape | None:
    series: dict[SeenSeries, None] = {}
    names: set[str] = set()
    for resource in resources:
        names |= dict(otlp.attributes_of(resource.resource.attributes)).keys()
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            kind = metric.WhichOneof("data")
            if kind in (None, "summary"):
                continue
            data = getattr(metric, kind)
            counter = kind == "sum" and data.is_monotonic and not otlp.is_delta(data)
            for point in data.data_points:
                attributes = tuple(sorted(otlp.attributes_of(point.attributes)))
                series[SeenSeries(metric.name, attributes, metric.unit, counter)] = None
    return Shape("metrics of OpenTelemetry", [format], _subject(names), series) if series else None


def _long(objects: Sequence[Any], fields: long.Fields | None) -> Shape | None:
    first, settings = objects[0], dict[str, str]()
    if not all(isinstance(found, dict) for found in objects):
        return None
    if fields is None:
        given = {
            part: name
            for part, usual in _FIELDS.items()
            for name in usual[::-1]
            if name in first and (part != "labels" or isinstance(first[name], dict))
        }
        if not {"name", "value"} <= given.keys():
            return None
        fields = long.Fields(**given, text=isinstance(first[given["value"]], str))
        settings["long_fields"] = ",".join(f"{part}={name}" for part, name in given.items())
        settings |= {"text_values": "true"} if fields.text else {}
    series: dict[SeenSeries, None] = {}
    names = [*first]
    for found in objects:
        name, attributes = long.find(found, fields.name), long.attributes_of(found, fields)
        names += [f"{fields.labels}.{key}" for key, _ in attributes if fields.labels]
        value = long.find(found, fields.value)
        for metric, _ in long.values_of(name, value, fields.text) if isinstance(name, str) else ():
            counter = metric.endswith("_total")
            series[SeenSeries(metric, tuple(sorted(attributes)), "", counter)] = None
    return Shape("one metric per message", ["long"], settings | _subject(names), series)


def _subject(names: Iterable[str]) -> dict[str, str]:
    """The name that probably names the subject."""
    known = set(names)
    for wanted in _SUBJECTS:
        for name in known:
            if name == wanted or name.endswith(f".{wanted}"):
                return {"subject": name}
    return {}


def shown_series(series: Iterable[SeenSeries], subject: str | None = None) -> list[str]:
    """The series as features that can be pasted into a file of settings.

    The subject is left out, and attributes of which hosts have different ones: such a feature
    selects several series.
    """
    lines: dict[str, None] = {}
    for one in series:
        kept = [
            f"{key}={json.dumps(text, ensure_ascii=False)}"
            for key, text in one.attributes
            if key not in _PARTS_OF_A_HOST and not (subject or "").endswith(key)
        ]
        feature = one.name + (f"{{{','.join(kept)}}}" if kept else "")
        feature = f"rate({feature})" if one.counter else feature
        lines[f"    '{feature}'," + (f"  # {one.unit}" if one.unit else "")] = None
    shown = list(lines)
    more = [f"    # and {len(shown) - MOST_SHOWN} more"] if len(shown) > MOST_SHOWN else []
    return ["  features = [", *shown[:MOST_SHOWN], *more, "  ]"]

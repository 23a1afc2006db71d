"""Recognises telemetry in a few messages, and names the settings that read it.

For an operator at a terminal only, as everything in `sample`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from . import long, otlp
from .cutting import json_cutter, protobuf_pieces
from .series import Attributes

#: Most series that are shown.
MOST_SHOWN: Final = 100
#: An attribute with more values than this is left out of the list.
_MOST_VALUES: Final = 8
#: Attributes that tell the parts of one host apart, and are left out of the list.
_PARTS_OF_A_HOST: Final = frozenset(
    ["core", "cpu", "device", "disk", "interface", "mountpoint", "path", "pid", "__name__"]
)
#: Usual names of the fields of messages with one metric each.
_FIELDS: Final = {
    "name": ("metric", "name", "metric_name", "__name__", "measurement"),
    "value": ("value", "val", "v"),
    "time": ("timestamp", "time", "ts", "@timestamp"),
    "labels": ("labels", "tags", "attributes", "dimensions"),
}
_SUBJECTS: Final = ("host.name", "host", "instance", "hostname", "device", "device_id", "node")

Values = Sequence[bytes | None]


@dataclass(frozen=True)
class Series:
    """A series that was seen."""

    name: str
    attributes: Attributes
    unit: str = ""
    counter: bool = False
    summary: bool = False  #: which cannot be a feature


@dataclass(frozen=True)
class Shape:
    """What messages seem to be."""

    what: str
    settings: Mapping[str, str]
    series: Sequence[Series] = ()


def recognise(values: Values, fields: long.Fields | None = None) -> Shape | None:
    """Say what all messages seem to be, if it is telemetry that can be read.

    Parameters
    ----------
    fields
        The fields of messages with one metric each, if they are known.
    """
    messages = [value for value in values if value]
    if not messages:
        return None
    with suppress(ModuleNotFoundError):
        whole, _ = otlp.protobuf_parsers()
        if shape := _otlp(messages, "otlp", "Protobuf", protobuf_pieces, whole):
            return shape
    whole, _ = otlp.json_parsers()
    cut = json_cutter("resourceMetrics")
    return _otlp(messages, "otlp-json", "JSON", cut, whole) or _long(messages, fields)


def _otlp(messages: Sequence[bytes], format: str, kind: str, cut: Any, parse: Any) -> Shape | None:
    series: dict[Series, None] = {}
    subjects: set[str] = set()
    for message in messages:
        try:
            resources = [parse(piece) for piece in cut(message)]
        except Exception:
            return None
        if not any(resource.scope_metrics for resource in resources):
            return None
        for resource in resources:
            subjects |= dict(otlp.attributes_of(resource.resource.attributes)).keys()
            series |= dict.fromkeys(_series_of(resource))
    return Shape(
        f"metrics of OpenTelemetry (OTLP {kind})",
        {"format": format, **_subject(subjects)},
        list(series),
    )


def _series_of(resource: Any) -> Iterator[Series]:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            kind = metric.WhichOneof("data")
            if kind in (None, "summary"):
                if kind:
                    yield Series(metric.name, (), summary=True)
                continue
            data = getattr(metric, kind)
            counter = kind == "sum" and data.is_monotonic and not otlp.is_delta(data)
            for point in data.data_points:
                attributes = tuple(sorted(otlp.attributes_of(point.attributes)))
                yield Series(metric.name, attributes, metric.unit, counter)


def _long(messages: Sequence[bytes], fields: long.Fields | None) -> Shape | None:
    cut = json_cutter("metrics")
    try:
        objects = [json.loads(piece) for message in messages for piece in cut(message)]
    except (ValueError, RecursionError):
        return None
    if not objects or not all(isinstance(found, dict) for found in objects):
        return None
    first = objects[0]
    given: dict[str, str] = {}
    what = "one metric per message"
    if fields is None:
        if isinstance(first.get("fields"), dict) and isinstance(first.get("tags"), dict):
            what, given = "Telegraf's JSON", {"name": "name", "value": "fields", "labels": "tags"}
        else:
            for part, names in _FIELDS.items():
                for name in names[::-1]:
                    if name in first and (part != "labels" or isinstance(first[name], dict)):
                        given[part] = name
        if "name" not in given or "value" not in given:
            return None
        text = isinstance(long.find(first, given["value"]), str)
        if text and "labels" in given:
            what += ", as the Prometheus adapter writes it"
        fields = long.Fields(**given, text=text)
    settings = {"format": "long"}
    if given:
        settings["long_fields"] = ",".join(f"{part}={name}" for part, name in given.items())
        settings |= {"text_values": "true"} if fields.text else {}
    inside = long.find(first, fields.labels)
    keys = [f"{fields.labels}.{key}" for key in inside] if isinstance(inside, dict) else []
    series = {s: None for found in objects for s in _series_of_object(found, fields)}
    return Shape(what, settings | _subject([*keys, *first]), list(series))


def _series_of_object(found: Any, fields: long.Fields) -> Iterator[Series]:
    name = long.find(found, fields.name)
    if isinstance(name, str):
        attributes = tuple(sorted(long.attributes_of(found, fields)))
        for metric, _ in long.values_of(name, long.find(found, fields.value), fields.text):
            yield Series(metric, attributes, counter=metric.endswith("_total"))


def _subject(names: Iterable[str]) -> dict[str, str]:
    """The name that probably names the subject."""
    known = set(names)
    for wanted in _SUBJECTS:
        for name in known:
            if name == wanted or name.endswith(f".{wanted}"):
                return {"subject": name}
    return {}


def shown_series(series: Sequence[Series], subject: str | None = None) -> list[str]:
    """The series as features that can be pasted into a file of settings.

    The subject is left out, and attributes of which hosts have different ones: such a feature
    selects several series.
    """
    values: dict[tuple[str, str], set[str]] = {}
    for one in series:
        for key, text in one.attributes:
            values.setdefault((one.name, key), set()).add(text)
    lines: dict[str, None] = {}
    for one in series:
        if one.summary:
            lines[f"    # {one.name} is a summary, which is left out"] = None
            continue
        kept = [
            f"{key}={json.dumps(text, ensure_ascii=False)}"
            for key, text in one.attributes
            if len(values[one.name, key]) <= _MOST_VALUES
            and key not in _PARTS_OF_A_HOST
            and not (subject or "").endswith(key)
        ]
        feature = one.name + (f"{{{','.join(kept)}}}" if kept else "")
        feature = f"rate({feature})" if one.counter else feature
        lines[f"    '{feature}'," + (f"  # {one.unit}" if one.unit else "")] = None
    shown = list(lines)
    more = [f"    # and {len(shown) - MOST_SHOWN} more"] if len(shown) > MOST_SHOWN else []
    return ["  features = [", *shown[:MOST_SHOWN], *more, "  ]"]

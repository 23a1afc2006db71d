"""Reads metrics of OpenTelemetry: OTLP as Protobuf, and as JSON.

A message holds `ResourceMetrics`, one or more per host. Each is cut out and parsed by itself; one
that cannot be parsed is missing. Of its points those are read that a feature selects:

| data | its points |
|---|---|
| gauge, sum that is not monotonic | levels |
| sum, delta | increases, each since the one before |
| sum, cumulative and monotonic | a counter; only its rate says something |
| histogram, exponential histogram | sum and count |
| summary | left out: quantiles of several series or times cannot be combined |

Left out are also points that say "no recorded value", that have no value, and histograms that have
counted nothing. An attribute that is not a text is read as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from .cutting import protobuf_pieces
from .fold import Kind, Point, make_point
from .series import Attributes, OfMetric, Selectors, Series

_NO_RECORDED_VALUE: Final = 1
_DELTA: Final = frozenset({1, "1", "AGGREGATION_TEMPORALITY_DELTA"})
_HISTOGRAMS: Final = frozenset({"histogram", "exponential_histogram"})


_START, _TIME, _DOUBLE, _INT, _ATTRIBUTES = b"\x11", b"\x19", b"\x21", b"\x31", b"\x3a"  # tags
#: Bytes before the attributes of a number, by the tags in the first places of the first fields.
_BEFORE: Final = {
    begin + _TIME + value + (b"" if begin else end): 9 * len(begin + _TIME + value)
    for begin in (_START, b"")
    for value in (_DOUBLE, _INT)
    for end in (_ATTRIBUTES, b"")
}

#: The parser of one `ResourceMetrics`, and one that reads nothing but its resource.
Parsers = tuple[Callable[[bytes], Any], Callable[[bytes], Any]]


def protobuf_parsers() -> Parsers:
    """The parsers of Protobuf; raises `ModuleNotFoundError` without its library."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    def head(piece: bytes) -> Any:
        return ResourceMetrics(resource=Resource.FromString(protobuf_pieces(piece)[0]))

    return ResourceMetrics.FromString, head


def json_parsers() -> Parsers:
    """The parsers of JSON, into objects with the names of Protobuf."""
    whole, head = (msgspec.json.Decoder(kind, strict=False) for kind in (_ResourceMetrics, _Head))
    return whole.decode, head.decode


def is_delta(data: Any) -> bool:
    """Tell whether points are increases since the ones before."""
    return data.aggregation_temporality in _DELTA


def attributes_of(pairs: Iterable[Any]) -> Attributes:
    """Attributes as texts, in their order."""
    return tuple([(pair.key, pair.value.string_value or _text(pair.value)) for pair in pairs])


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind in ("int_value", "double_value"):
        return str(getattr(value, kind))
    return "" if kind in (None, "string_value") else "?"  # lists, maps and bytes


def _spelled(point: Any) -> bytes | None:
    """Bytes that stand for the attributes of a number: for speed, because upb writes fast.

    Fields are in the order of their numbers. Start, time and value come first, nine bytes each.
    """
    raw: bytes = point.SerializePartialToString()
    before = _BEFORE.get(raw[:19:9])
    return None if before is None else raw[before:]


def points_of(resource: Any, selectors: Selectors, only_last: bool) -> list[Point]:
    """The points of a `ResourceMetrics` that features select; `only_last` as in `make_point`."""
    found: list[Point] = []
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            of_metric = selectors.get(metric.name)
            data_kind = None if of_metric is None else metric.WhichOneof("data")
            if of_metric is not None and data_kind not in (None, "summary"):
                found += _points(data_kind, getattr(metric, data_kind), of_metric, only_last)
    return found


def _points(data_kind: str, data: Any, of_metric: OfMetric, only_last: bool) -> list[Point]:
    """The points of a metric that features select."""
    found: list[Point] = []
    delta, histogram = data_kind != "gauge" and is_delta(data), data_kind in _HISTOGRAMS
    kind: Kind = "increase" if delta else "level"
    if histogram:
        kind = "histogram increase" if delta else "histogram"
    spell = (lambda _: None) if histogram or isinstance(data, _Message) else _spelled
    for point in data.data_points:
        spelled = spell(point)
        selected = of_metric.get(spelled)
        if selected is None:
            selected = of_metric.select(Series(attributes_of(point.attributes)), spelled)
        features, series = selected
        if not features or point.flags & _NO_RECORDED_VALUE:
            continue
        count = 1
        if histogram:
            value, count = point.sum if point.HasField("sum") else math.nan, point.count
        elif which := point.WhichOneof("value"):
            value = getattr(point, which)
        else:
            continue
        if count > 0:
            start, time = point.start_time_unix_nano, point.time_unix_nano
            found += [
                make_point(feature, function, kind, series, start, time, value, count, only_last)
                for feature, function in features
            ]
    return found


# The objects of OTLP in JSON: numbers of 64 bits may be texts, and null is what is not there.


class _Message(msgspec.Struct, rename="camel", gc=False):
    """Answers as a message of Protobuf does."""

    def WhichOneof(self, _: str) -> str | None:
        for name in self.__struct_fields__:
            if name in _ONE_OF and getattr(self, name) is not None:
                return name
        return None

    def HasField(self, name: str) -> bool:
        return getattr(self, name) is not None


class _Value(_Message):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None
    array_value: Any = None
    kvlist_value: Any = None
    bytes_value: Any = None


class _Pair(_Message):
    key: str = ""
    value: _Value = msgspec.field(default_factory=_Value)


class _Point(_Message):
    attributes: list[_Pair] = []
    start_time_unix_nano: int = 0
    time_unix_nano: int = 0
    flags: int = 0
    as_int: int | None = None
    as_double: float | None = None
    count: int = 0
    sum: float | None = None


class _Data(_Message):
    data_points: list[_Point] = []
    aggregation_temporality: int | str = 0
    is_monotonic: bool = False


class _Metric(_Message):
    name: str = ""
    unit: str = ""
    gauge: _Data | None = None
    sum: _Data | None = None
    histogram: _Data | None = None
    exponential_histogram: _Data | None = None
    summary: Any = None


class _Scope(_Message):
    metrics: list[_Metric] = []


class _Resource(_Message):
    attributes: list[_Pair] = []


class _Head(_Message):
    resource: _Resource = msgspec.field(default_factory=_Resource)


class _ResourceMetrics(_Head):
    scope_metrics: list[_Scope] = []


_ONE_OF: Final = {*_Value.__struct_fields__, *_Metric.__struct_fields__[2:], "as_int", "as_double"}

"""Messages of OpenTelemetry: made here, and recorded from a real collector."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData, ResourceMetrics

__all__ = ["as_json", "message", "metrics", "recorded", "resource"]

DELTA, CUMULATIVE = 1, 2


def recorded(topic: str) -> tuple[list[bytes], list[bytes | None]]:
    """Values and keys of the messages of Collector 0.139 with hostmetrics."""
    lines = Path(__file__).with_name("messages.jsonl").read_text().splitlines()
    found = [entry for entry in map(json.loads, lines) if entry["topic"] == topic]
    keys = [entry["key"] and base64.b64decode(entry["key"]) for entry in found]
    return [base64.b64decode(entry["value"]) for entry in found], keys


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}
    return [
        KeyValue(key=key, value=AnyValue(**{kinds[type(value)]: value}))
        for key, value in attributes.items()
    ]


def resource(attributes: Mapping[str, Any], *points: Mapping[str, Any]) -> ResourceMetrics:
    """A resource with points: `name`, `value`, and optionally `time`, `start`, `kind`, ..."""
    found = ResourceMetrics()
    found.resource.attributes.extend(pairs(attributes))
    scope = found.scope_metrics.add()
    for point in points:
        metric = scope.metrics.add(name=point["name"], unit=point.get("unit", ""))
        kind = point.get("kind", "gauge")
        data = getattr(metric, {"delta": "sum", "counter": "sum"}.get(kind, kind))
        if kind != "gauge" and kind != "summary":
            delta = kind == "delta" or point.get("delta", False)
            data.aggregation_temporality = DELTA if delta else CUMULATIVE
        if kind == "counter":
            data.is_monotonic = True
        made = data.data_points.add(
            time_unix_nano=point.get("time", 0),
            start_time_unix_nano=point.get("start", 0),
            flags=point.get("flags", 0),
            attributes=pairs(point.get("attributes", {})),
        )
        value = point.get("value")
        if kind in ("histogram", "exponential_histogram", "summary"):
            made.sum, made.count = value
        elif value is not None:
            setattr(made, "as_int" if isinstance(value, int) else "as_double", value)
    return found


def metrics(*resources: ResourceMetrics) -> MetricsData:
    return MetricsData(resource_metrics=resources)


def message(*resources: ResourceMetrics) -> bytes:
    return metrics(*resources).SerializeToString()


def as_json(resources: Iterable[ResourceMetrics]) -> bytes:
    """As the collector writes it: enumerations as numbers."""
    return MessageToJson(metrics(*resources), use_integers_for_enums=True).encode()

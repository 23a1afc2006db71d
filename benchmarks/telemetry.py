"""The speed of rows out of OTLP, against a bare loop over every point of the same messages.

    python -m benchmarks.telemetry

Both run on one core, one after the other, several times; the best of each counts. The bare loop
parses a message with `opentelemetry-proto` and reads value, time and attributes of every point. A
host has 400 series: 40 metrics with 10 series each. 64 features are selected from them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from consumers.messages.gathered import Gathering, Grouping

METRICS, SERIES, FEATURES, HOSTS = 40, 10, 64, 16
SECOND = 10**9
RESULTS = Path(__file__).with_name("results") / "telemetry.json"


def fleet(scrapes: int, series: int = SERIES, hosts: int = HOSTS) -> list[bytes]:
    """Messages of a fleet: one host and scrape each."""
    return [
        _scrape(f"host-{host:03d}", scrape, series)
        for scrape in range(scrapes)
        for host in range(hosts)
    ]


def _scrape(host: str, scrape: int, series: int) -> bytes:
    data = MetricsData()
    resource = data.resource_metrics.add()
    resource.resource.attributes.append(
        KeyValue(key="host.name", value=AnyValue(string_value=host))
    )
    scope = resource.scope_metrics.add()
    for m in range(METRICS):
        metric = scope.metrics.add(name=f"system.metric.{m:02d}", unit="By")
        kind = metric.sum if m % 2 else metric.gauge
        if m % 2:
            metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
        for s in range(series):
            point = kind.data_points.add(
                time_unix_nano=(scrape + 1) * SECOND, start_time_unix_nano=SECOND // 2
            )
            point.attributes.append(KeyValue(key="device", value=AnyValue(string_value=f"dev{s}")))
            point.attributes.append(
                KeyValue(key="state", value=AnyValue(string_value=("used", "free")[s % 2]))
            )
            if m % 2:
                point.as_int = 1000 * scrape + s
            else:
                point.as_double = 0.5 * s + scrape
    return data.SerializeToString()


def features() -> tuple[str, ...]:
    """64 features, of every metric one or two: levels and rates of single series."""
    found = []
    for f in range(FEATURES):
        m, s = f % METRICS, f // METRICS * 3 + 1
        name = f'system.metric.{m:02d}{{device="dev{s}"}}'
        found.append(f"rate({name})" if m % 2 else name)
    return tuple(found)


def bare(values: Sequence[bytes]) -> int:
    """Parse messages, and read everything of every point."""
    count = 0
    for value in values:
        for resource in MetricsData.FromString(value).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    data = getattr(metric, metric.WhichOneof("data"))
                    for point in data.data_points:
                        getattr(point, point.WhichOneof("value"))
                        point.time_unix_nano  # noqa: B018
                        for pair in point.attributes:
                            pair.key, pair.value.string_value  # noqa: B018
                        count += 1
    return count


def gathered(values: Sequence[bytes]) -> int:
    """Fold messages into the rows of one round."""
    grouping = Grouping("otlp", features(), 1 << 21, "host.name")
    gatherer = Gathering(grouping).begin((0, 1000))

    n = len(values)
    gatherer.add(0, range(n), [0] * n, values, [None] * n)
    return len(gatherer.fold.rows()[0])


def best(run: Callable[[Sequence[bytes]], Any], values: Sequence[bytes], repeats: int) -> float:
    """The least processor time in seconds."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        run(values)
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.telemetry")
    parser.add_argument("--scrapes", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    values = fleet(options.scrapes)
    loop, fold = best(bare, values, options.repeats), best(gathered, values, options.repeats)
    large = fleet(1, series=250, hosts=1)
    one = best(gathered, large, options.repeats)
    found = {
        "messages": len(values),
        "bytes_per_message": len(values[0]),
        "points_per_message": METRICS * SERIES,
        "features": FEATURES,
        "bare_us_per_message": round(loop / len(values) * 1e6, 1),
        "gathered_us_per_message": round(fold / len(values) * 1e6, 1),
        "share_of_bare": round(loop / fold, 2),
        "points_per_s": round(len(values) * METRICS * SERIES / fold),
        "large_message_bytes": len(large[0]),
        "large_message_points": METRICS * 250,
        "large_message_ms": round(one * 1e3, 1),
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.save:
        RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()

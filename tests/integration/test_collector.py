"""A real OpenTelemetry Collector, a real broker, and the service with kill -9 in between.

It needs the collector that `make otel` builds and caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.model.releases import parse_release
from consumers.settings import Settings, load_settings
from demo import supervised
from demo.deployments import as_flags
from demo.deployments import command as stream_dppca
from demo.generator import ensure_topic
from demo.otel import FEATURES, collector_config, collector_program

from ..support.processes import wait_for
from .conftest import RunningBroker

HOSTS = 24


@pytest.fixture(scope="module")
def collector() -> Path:
    program = collector_program()
    if not program.is_file():
        pytest.skip("no collector is cached: `make otel` builds one")
    return program


@pytest.fixture
def children() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for child in started:
        supervised.kill_supervised(child)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "encoding", "split"),
    [
        ("subject", "otlp_proto", False),
        ("subject", "otlp_json", True),
        ("record", "otlp_proto", False),
    ],
)
def test_components_of_a_collector(
    broker: RunningBroker,
    fresh_name: Callable[[str], str],
    collector: Path,
    children: list[Any],
    tmp_path: Path,
    unit: str,
    encoding: str,
    split: bool,
) -> None:
    topic, servers = fresh_name("otlp"), broker.bootstrap_servers
    flags: dict[str, Any] = {
        "bootstrap_servers": servers,
        "input_topic": topic,
        "features": FEATURES[unit],
        "format": "otlp" if encoding == "otlp_proto" else "otlp-json",
        "epsilon": 100.0,
        "delta": 1e-2,
        "http_port": 0,
        "session_timeout_s": 6,
    }
    if unit == "record":
        flags |= {"batch_size": 60}
    else:
        flags |= {"subject": "host.name", "places": HOSTS, "round": "5s", "clock_slack": "1s"}
    settings = load_settings(flags)
    ensure_topic(KafkaCluster(kafka_config(settings)), topic, broker_time=unit == "subject")
    config = tmp_path / "collector.yaml"
    config.write_text(
        collector_config(servers, topic, HOSTS, encoding=encoding, interval="1s", split=split)
    )
    command = [str(collector), f"--config={config}"]
    children.append(supervised.start_supervised(command, tmp_path / "collector.log", tmp_path))

    def serve(number: int) -> Any:
        log = tmp_path / f"service-{number}.log"
        children.append(
            supervised.start_supervised([*stream_dppca("serve"), *as_flags(flags)], log, tmp_path)
        )
        return children[-1]

    def learned(after: int) -> bool:
        return any(r.components for r in released(settings) if r.batch > after)

    first = serve(1)
    wait_for("components", lambda: learned(0), 240)
    supervised.kill_supervised(first)  # with SIGKILL
    done = max(r.batch for r in released(settings))
    serve(2)
    wait_for("components after kill -9", lambda: learned(done), 240)
    found = released(settings)
    assert [r.batch for r in found] == list(range(1, len(found) + 1))
    assert found[-1].features == FEATURES[unit]
    logs = "".join(path.read_text(errors="replace") for path in tmp_path.glob("service-*.log"))
    assert "host-0" not in logs


def released(settings: Settings) -> list[Any]:
    cluster = KafkaCluster(kafka_config(settings))
    if cluster.topic(settings.output_topic) is None:
        time.sleep(0.5)
        return []
    # A successor publishes the last release again, with the same bytes.
    values = dict.fromkeys(message.value for message in cluster.scan(settings.output_topic))
    return [parse_release(value) for value in values]

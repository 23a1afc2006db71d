"""`make otel`: a real OpenTelemetry Collector, a real Kafka, and private components.

    python -m demo.otel                    # everything of a host in a round is a row
    python -m demo.otel --unit record      # every message is a row
    python -m demo.otel --releases 5

The collector is built once from Go modules. It scrapes this machine under several names, because
one host alone cannot be private. `stream-dppca serve` learns, `stream-dppca watch` shows.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console

from consumers.cli.flags import Options, add_options, read_options

from ..deployments import DemoConfig, Deployment
from ..entry import find_broker, present
from . import FEATURES, collector_config, ensure_collector

TOPIC: Final = "otlp_metrics"
HOSTS: Final = 50


class CollectorOptions(Options):
    """Options of the demonstration with a collector."""

    unit: Literal["subject", "record"] = "subject"
    """unit of privacy: everything of a host in a round, or a message"""
    encoding: Literal["otlp_proto", "otlp_json"] = "otlp_proto"
    """encoding of the messages"""
    split: bool = False
    """partition messages by resource"""
    releases: int | None = None
    """end after this number of releases"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser("python -m demo.otel", description="Learn from a collector.")
    add_options(parser, CollectorOptions)
    options = read_options(parser, CollectorOptions, vars(parser.parse_args(arguments)))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        return present(partial(start, options, Path(file.name)), None, None, options.releases)


def start(options: CollectorOptions, file: Path, console: Console) -> Deployment:
    """Start the collector, with its configuration in this file, the broker and the service."""
    with console.status("the collector is built once, which takes minutes"):
        collector = str(ensure_collector())
    broker = find_broker(console)
    servers, encoding = broker.bootstrap_servers, options.encoding
    text = collector_config(
        servers, TOPIC, HOSTS, encoding=encoding, interval="2s", split=options.split
    )
    file.write_text(text, encoding="utf-8")
    flags = settings(options.unit, encoding, servers)
    return Deployment(DemoConfig(flags, generator=(collector, f"--config={file}")), broker)


def settings(unit: str, encoding: str, servers: str) -> dict[str, Any]:
    """Return the settings of the service. Epsilon is loud: there are few hosts and short rounds."""
    found: dict[str, Any] = {
        "bootstrap_servers": servers,
        "input_topic": TOPIC,
        "model": f"hosts-{unit}",
        "format": "otlp" if encoding == "otlp_proto" else "otlp-json",
        "features": FEATURES[unit],
        "epsilon": 10.0,
        "delta": 1e-3,
        "http_port": 0,
    }
    if unit == "record":
        return {**found, "batch_size": 500}
    rounds = {"subject": "host.name", "places": HOSTS, "round": "10s", "clock_slack": "1s"}
    return found | rounds


if __name__ == "__main__":
    raise SystemExit(main())

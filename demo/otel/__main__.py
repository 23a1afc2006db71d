"""`make otel`: a real OpenTelemetry Collector, a real Kafka, and private components.

    python -m demo.otel                    # everything of a host in a round is a row
    python -m demo.otel --unit record      # every message is a row
    python -m demo.otel --releases 5

The collector is built once from Go modules. It scrapes this machine under several names, because
one host alone cannot be private. `stream-dppca serve` learns, `stream-dppca watch` shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console

from consumers.cli.flags import Options, parse_options

from ..deployments import Deployment
from ..show import perform, show, start_broker
from ..truth import Simulated
from . import FEATURES, collector_config, ensure_collector

TOPIC: Final = "otlp_metrics"
HOSTS: Final = 50
#: Of the service, for each unit. There are few hosts and short rounds.
UNITS: Final[dict[str, dict[str, Any]]] = {
    "record": {"batch_size": 500},
    "subject": {"subject": "host.name", "places": HOSTS, "round": "10s", "clock_slack": "1s"},
}


class CollectorOptions(Options):
    """Options of the demonstration with a collector."""

    about = "Learn from a collector."

    unit: Literal["subject", "record"] = "subject"
    """unit of privacy: everything of a host in a round, or a message"""
    releases: int | None = None
    """end after this number of releases"""


def main(arguments: Sequence[str] | None = None) -> int:
    return perform(partial(play, parse_options("python -m demo.otel", CollectorOptions, arguments)))


def play(options: CollectorOptions, console: Console, stack: ExitStack) -> int:
    """Start the broker, the service and the collector, and show the model."""
    with console.status("the collector is built once, which takes minutes"):
        collector = str(ensure_collector())
    servers = start_broker(console, stack)
    file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "collector.yaml"
    file.write_text(collector_config(servers, TOPIC, HOSTS, interval="2s"), encoding="utf-8")
    flags = {
        "bootstrap_servers": servers,
        "input_topic": TOPIC,
        "model": f"hosts-{options.unit}",
        "format": "otlp",
        "features": FEATURES[options.unit],
        "epsilon": 10.0,  # which is loud
        "delta": 1e-3,
        **UNITS[options.unit],
    }
    sender = [collector, f"--config={file}"]
    deployment = stack.enter_context(closing(Deployment(flags, sender)))
    return show(console, deployment, Simulated(None, known=False), None, options.releases)


if __name__ == "__main__":
    raise SystemExit(main())

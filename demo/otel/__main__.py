"""`make otel`: a real OpenTelemetry Collector, a real Kafka, and private components.

    python -m demo.otel                    # everything of a host in a round is a row
    python -m demo.otel --unit record      # every message is a row
    python -m demo.otel --releases 5

The collector is built once from Go modules. It scrapes this machine under several names, because
one host alone cannot be private. `stream-dppca serve` learns, `stream-dppca watch` shows.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from consumers.cli.own import WatchOptions
from consumers.cli.watch import watch
from consumers.settings import ViewSettings, load_part

from .. import broker as brokers
from ..deployments import DemoConfig, ProcessDeployment
from . import FEATURES, collector_config, ensure_collector

TOPIC: Final = "otlp_metrics"
HOSTS: Final = 50
LOOK_SECONDS: Final = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m demo.otel", description="Learn from a collector.")
    parser.add_argument("--unit", choices=("subject", "record"), default="subject")
    parser.add_argument("--encoding", choices=("otlp_proto", "otlp_json"), default="otlp_proto")
    parser.add_argument("--split", action="store_true", help="partition messages by resource")
    parser.add_argument("--releases", type=int, help="end after this number of releases")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        _say("the collector is built once, which takes minutes")
        collector = ensure_collector()
        broker = brokers.provide_broker(_say)
    except brokers.BrokerError as error:
        _say(str(error))
        return 1
    servers = broker.bootstrap_servers
    flags = settings(options.unit, options.encoding, servers)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(
            collector_config(
                servers, TOPIC, HOSTS, encoding=options.encoding, interval="2s", split=options.split
            )
        )
        file.flush()
        command = (str(collector), f"--config={Path(file.name)}")
        deployment = ProcessDeployment(DemoConfig(flags, 0.0, None, generator=command), broker)
        try:
            threading.Thread(target=_look, args=(deployment, stop), daemon=True).start()
            shown = WatchOptions(releases=options.releases)
            watch(deployment.cluster(), load_part(ViewSettings, flags), shown, stop)
            if failure := deployment.failed():
                _say(failure)
            return 1 if failure else 0
        finally:
            stop.set()
            deployment.close()


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


def _look(deployment: ProcessDeployment, stop: threading.Event) -> None:
    """End the view when a part has failed."""
    while not stop.wait(LOOK_SECONDS):
        if deployment.failed():
            stop.set()


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main())

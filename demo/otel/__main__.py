"""`make otel`: a real OpenTelemetry Collector, a real Kafka, and private components.

    python -m demo.otel                    # everything of a host in a round is a row
    python -m demo.otel --unit record      # every message is a row
    python -m demo.otel --releases 5

The collector is built once from Go modules. It scrapes this machine under several names, because
one host alone cannot be private. `stream-dppca serve` learns, `stream-dppca watch` shows.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from consumers.cli.watch import watch
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.settings import ViewSettings, load_part, load_settings

from .. import broker as brokers
from ..deployments import as_flags, service_command
from ..generator import ensure_topic
from . import FEATURES, collector_config, ensure_collector

TOPIC: Final = "otlp_metrics"
HOSTS: Final = 50
LOOK_SECONDS: Final = 0.5


def settings(unit: str, servers: str) -> dict[str, Any]:
    """Return the settings of the service. Epsilon is loud: there are few hosts and short rounds."""
    found: dict[str, Any] = {
        "bootstrap_servers": servers,
        "input_topic": TOPIC,
        "model": f"hosts-{unit}",
        "format": "otlp",
        "features": FEATURES[unit],
        "epsilon": 10.0,
        "delta": 1e-3,
        "http_port": 0,
    }
    if unit == "record":
        return {**found, "batch_size": 500}
    return {
        **found, "subject": "host.name", "places": HOSTS, "round": "10s", "clock_slack": "1s",
    }  # fmt: skip


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
    with contextlib.ExitStack() as stack:
        try:
            _say("the collector is built once, which takes minutes")
            collector = ensure_collector()
            broker = stack.enter_context(contextlib.closing(brokers.provide_broker(_say)))
        except brokers.BrokerError as error:
            _say(str(error))
            return 1
        servers = broker.bootstrap_servers
        flags = settings(options.unit, servers)
        if options.encoding == "otlp_json":
            flags["format"] = "otlp-json"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-dppca-otel-")))
        cluster = KafkaCluster(kafka_config(load_settings(flags)))
        ensure_topic(cluster, TOPIC, broker_time=options.unit == "subject")
        (folder / "collector.yaml").write_text(collector_config(
            servers, TOPIC, HOSTS, encoding=options.encoding, interval="2s", split=options.split,
        ))  # fmt: skip
        children = {}
        for name, command in {
            "collector": [str(collector), f"--config={folder / 'collector.yaml'}"],
            "service": [*service_command(), *as_flags(flags)],
        }.items():
            children[name] = brokers.start_supervised(command, folder / f"{name}.log", folder)
            stack.callback(brokers.kill_supervised, children[name])

        def look() -> None:
            while not stop.wait(LOOK_SECONDS):
                if any(child.poll() is not None for child in children.values()):
                    stop.set()

        threading.Thread(target=look, daemon=True).start()
        shown = argparse.Namespace(json=False, web=False, releases=options.releases)
        watch(cluster, load_part(ViewSettings, flags), shown, stop)
        for name, child in children.items():
            if child.poll() is not None:
                log = (folder / f"{name}.log").read_text(errors="replace").splitlines()
                _say("\n".join([f"the {name} has ended; the end of its log:", *log[-8:]]))
                return 1
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main())

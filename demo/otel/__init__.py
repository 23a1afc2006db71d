"""A real OpenTelemetry Collector: built from Go modules, and what it is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from ..broker.base import BrokerUnavailable
from ..broker.jars import cache_folder

VERSION: Final = "0.139.0"
_AT_ONCE: Final = (
    'system.memory.usage{state="used"}',
    'system.cpu.utilization{state="user"}',
    'system.cpu.utilization{state="system"}',
    "system.cpu.load_average.1m",
)
#: Features of this machine. A single message has no rates.
FEATURES: Final = {
    "subject": (
        *_AT_ONCE,
        'rate(system.network.io{direction="receive"})',
        'rate(system.network.io{direction="transmit"})',
        'rate(system.disk.io{direction="write"})',
        'rate(system.cpu.time{state="user"})',
    ),
    "record": (*_AT_ONCE, 'system.memory.usage{state="cached"}'),
}


def collector_program() -> Path:
    """Return the place of the collector's program in the cache."""
    return cache_folder() / f"otelcol-{VERSION}" / "otelcol"


def ensure_collector() -> Path:
    """Return the collector's program; it is built if it is not cached, which takes minutes.

    Where Go's checksum database cannot be reached, set `GOSUMDB=off`.
    """
    program = collector_program()
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        raise BrokerUnavailable("no go command to build the collector with (Go 1.24 or newer)")
    folder = program.parent.with_name(f"{program.parent.name}.part")
    folder.mkdir(parents=True, exist_ok=True)
    builder = f"go.opentelemetry.io/collector/cmd/builder@v{VERSION}"
    config = str(Path(__file__).with_name("builder.yaml"))
    for command, more in (
        ([go, "install", builder], {"GOBIN": str(folder)}),
        ([str(folder / "builder"), "--config", config, f"--output-path={folder / 'out'}"], {}),
    ):
        done = subprocess.run(  # noqa: S603
            command,
            env={**os.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            last = "\n".join(done.stdout.splitlines()[-5:])
            why = "the collector could not be built (is GOSUMDB=off needed here?)"
            raise BrokerUnavailable(f"{why}:\n{last}")
    program.parent.mkdir(exist_ok=True)
    (folder / "out" / "otelcol").rename(program)
    shutil.rmtree(folder, ignore_errors=True)
    return program


def collector_config(
    servers: str,
    topic: str,
    hosts: int = 1,
    *,
    encoding: str = "otlp_proto",
    interval: str = "1s",
    split: bool = False,
) -> str:
    """Return the collector's configuration: metrics of this machine, under several names.

    Parameters
    ----------
    hosts
        Names under which this machine appears: each is scraped by itself.
    split
        True if messages are partitioned by resource: five messages per scrape.
    """
    config: dict[str, Any] = {
        "receivers": {},
        "processors": {},
        "exporters": {
            "kafka": {
                "brokers": servers.split(","),
                "partition_metrics_by_resource_attributes": split,
                "metrics": {"topic": topic, "encoding": encoding},
            }
        },
        "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": {}},
    }
    for host in range(hosts):
        config["receivers"][f"hostmetrics/{host}"] = {
            "collection_interval": interval,
            "initial_delay": f"{20 * host}ms",
            "scrapers": {
                "cpu": {"metrics": {"system.cpu.utilization": {"enabled": True}}},
                **{name: {} for name in ("memory", "load", "network", "disk")},
            },
        }
        config["processors"][f"resource/{host}"] = {
            "attributes": [{"key": "host.name", "value": f"host-{host:02d}", "action": "upsert"}]
        }
        config["service"]["pipelines"][f"metrics/{host}"] = {
            "receivers": [f"hostmetrics/{host}"],
            "processors": [f"resource/{host}"],
            "exporters": ["kafka"],
        }
    return json.dumps(config, indent=1)  # which is YAML, too

"""`make run`: telemetry, a real Kafka, the service, and the private component as it is learned.

    python -m demo                   # until Ctrl-C
    python -m demo --seconds 30      # for a while; or --releases 10
    python -m demo --unit subject    # privacy of a device, not of a record
    python -m demo --engine spark    # one model on a Spark cluster: `make cluster`

A broker is started (`demo.broker`), or that at `KAFKA_BOOTSTRAP_SERVERS` is taken.
`demo.generator` sends records of a simulated fleet to it, and `stream-dppca serve` learns from
them; each is a process of its own, as in production. The view is `stream-dppca watch`, which reads
the output topic only. The true direction, which is unknown in a real stream, is known from the
simulation and drawn over it.

The settings are the defaults: nothing is said about means, units or scales. After a while the
cooling of one machine fails: `stream-dppca score` compares every record with the released limits,
and raises the flag. Half-way the whole fleet changes, and the view shows when, and how the model
notices and follows.

With `--engine spark` a master and two workers of Apache Spark are started, too. Their executors
read the topic and add up; the service plans, adds the noise and publishes.

With `--unit subject` thousands of devices send a few records each, and everything that one of them
sends in a round is protected together. Rounds last seconds, so that one can watch; in production
they last hours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Final, Literal

from pydantic import Field, model_validator
from rich.console import Console

from consumers.cli.flags import Options, parse_options
from consumers.settings import MESSAGE_KEY

from .broker.local import ADDRESS_VARIABLE
from .deployments import Deployment, as_flags
from .generator import MACHINES
from .show import perform, show, start_broker
from .standalone import StandaloneCluster, spark_home
from .telemetry import FEATURES
from .truth import Simulated

#: Batches between two changes of the fleet, in a run without an end.
CHANGE_BATCHES: Final = 120
DELTA: Final = 1e-6
#: With `--unit subject`: devices of the fleet, and settings of the rounds.
DEVICES: Final = 4000
ROUNDS: Final = {"subject": MESSAGE_KEY, "round": "2s", "clock_slack": "500ms"}
#: Records per release. A job of Spark takes a quarter of a second however small it is.
BATCH_SIZE: Final = {"local": 5_000, "spark": 20_000}


class DemoOptions(Options):
    """Options of the demonstration."""

    about = (
        "Send simulated telemetry to a Kafka broker, learn its main direction privately, and show "
        "it as it is learned."
    )

    unit: Literal["record", "subject"] = "record"
    """unit of privacy: one record, or everything that a device sends in a round"""
    engine: Literal["local", "spark"] = "local"
    """engine that adds up records: the service, or a Spark cluster started for it"""
    seconds: float | None = None
    """duration; without it, until Ctrl-C"""
    releases: int | None = None
    """end after this number of releases"""
    rate: float = Field(default=10_000.0, gt=0)
    """records per second"""
    batch_size: int | None = Field(default=None, gt=0)
    """records per release (devices per round); without it, 5,000, or 20,000 with --engine spark"""
    epsilon: float = Field(default=1.0, gt=0)
    """privacy guarantee of every record or device"""

    @model_validator(mode="after")
    def _possible(self) -> DemoOptions:
        if self.unit == "subject" and self.engine == "spark":
            raise ValueError("--engine spark does not work with --unit subject")
        return self

    @property
    def size(self) -> int:
        """Records per release, or places of a round."""
        return self.batch_size or BATCH_SIZE[self.engine]

    def change_after(self) -> int | None:
        """Return the number of records after which the fleet changes, half-way; None for never."""
        if self.unit == "subject":
            return None  # a viewer does not know how many records of subjects there were
        half_way = [float(CHANGE_BATCHES * self.size)]
        if self.seconds is not None:
            half_way.append(self.seconds * self.rate / 2)
        if self.releases is not None:
            half_way.append(self.releases * self.size / 2)
        return max(int(min(half_way)), 1)

    def fault_after(self) -> int | None:
        """Return the number of records after which a machine fails, until the fleet changes."""
        change = self.change_after()
        return None if change is None else max(change * 2 // 3, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns its exit code."""
    return perform(partial(play, parse_options("python -m demo", DemoOptions, arguments)))


def play(options: DemoOptions, console: Console, stack: ExitStack) -> int:
    """Start the broker, the service and the fleet, show the model, and say what happened."""
    on_spark = options.engine == "spark"
    if on_spark:
        spark_home()  # raises before a broker is started for nothing
    servers = start_broker(console, stack)
    flags, environment = service_flags(options, servers), dict[str, str]()
    if on_spark:
        with console.status("starting Apache Spark: a master and two workers"):
            spark = stack.enter_context(StandaloneCluster())
        flags |= {"engine": "spark", "spark_master": spark.master}
        environment = spark.environment()
    sender = sender_command(options, servers, flags["input_topic"])
    deployment = stack.enter_context(closing(Deployment(flags, sender, environment)))
    simulated = Simulated(options.change_after(), options.fault_after())
    return show(console, deployment, simulated, options.seconds, options.releases)


def service_flags(options: DemoOptions, servers: str) -> dict[str, Any]:
    """Return the settings of the service."""
    by_device = options.unit == "subject"
    # On a cluster of somebody else, this run gets topics of its own.
    own = f"-demo-{os.urandom(3).hex()}" if os.environ.get(ADDRESS_VARIABLE) else ""
    return {
        "bootstrap_servers": servers,
        "input_topic": f"telemetry{own}",
        "features": FEATURES,
        "epsilon": options.epsilon,
        "delta": DELTA,
        "places" if by_device else "batch_size": options.size,
        "partition_refresh_s": 1,
        **(ROUNDS if by_device else {}),
    }


def sender_command(options: DemoOptions, servers: str, topic: str) -> list[str]:
    """Return the command that sends the records of the fleet."""
    given = {
        "bootstrap_servers": servers,
        "topic": topic,
        "rate": options.rate,
        "machines": DEVICES if options.unit == "subject" else MACHINES,
        "change_after": options.change_after(),
        "fault_after": options.fault_after(),
    }
    flags = as_flags({name: value for name, value in given.items() if value is not None})
    return [sys.executable, "-m", "demo.generator", *flags]

"""`make run`: telemetry, a real Kafka, the service, and the private component as it is learned.

    python -m demo                   # until Ctrl-C
    python -m demo --seconds 30      # for a while; or --releases 10
    python -m demo --unit subject    # privacy of a device, not of a record
    python -m demo --format otlp     # metrics of OpenTelemetry, gathered by host
    python -m demo --engine spark    # one model on a Spark cluster: `make cluster`

A broker is found or started (`demo.broker`), `demo.generator` sends records of
a simulated fleet to it, and `stream-dppca serve` learns from them; each is a process of its own, as
in production. The view is `stream-dppca watch`, which reads the output topic only. The true
direction, which is unknown in a real stream, is known from the simulation and drawn over it.

The settings are the defaults: nothing is said about means, units or scales. After a while the
cooling of one machine fails: `stream-dppca score` compares every record with the released limits,
and raises the flag. Half-way (`--change`) the whole fleet changes, and the view shows when, and how
the model notices and follows.

With `--engine spark` a master and two workers of Apache Spark are started, too. Their executors
read the topic and add up; the service plans, adds the noise and publishes.

With `--unit subject` thousands of devices send a few records each, and everything that one of them
sends in a round is protected together. Rounds last seconds, so that one can watch; in production
they last hours.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import threading
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

from pydantic import Field, model_validator
from rich.console import Console
from rich.text import Text

from consumers.cli.flags import Options, add_options, read_options
from consumers.cli.own import WatchOptions
from consumers.cli.screen import BAD, FLAG, LABEL
from consumers.cli.watch import watch
from consumers.errors import ClusterError, ConfigurationError
from consumers.model.describe import meaning, promise_in_words, status_in_words
from consumers.settings import MESSAGE_KEY, PREFIX, ConnectionSettings, ViewSettings, load_part

from .broker.base import ADDRESS_VARIABLE, Broker, BrokerError, BrokerUnavailable
from .broker.provide import provide_broker
from .deployments import DemoConfig, Deployment, as_flags, command
from .embedded import EmbeddedDeployment
from .generator import ROWS_PER_MESSAGE, service_format
from .standalone import StandaloneCluster, spark_home
from .telemetry import FEATURES
from .truth import Simulated

#: Batches between two changes of the fleet, in a run without an end.
CHANGE_BATCHES: Final = 120
NO_RELEASE: Final = "no release appeared"
NOTHING_LEARNED: Final = "nothing was learned: no release has a component"
#: Interval at which the parts of the deployment are looked at.
LOOK_SECONDS: Final = 0.5
#: With `--unit subject`: devices of the fleet, records per message, and the length of a round.
DEVICES: Final = 4000
DEVICE_ROWS: Final = 4
ROUND: Final = "2s"
#: Features to begin with, of metrics of OpenTelemetry.
OTLP_FEATURES: Final = 'system.memory.usage{state="used"},system.cpu.load_average.1m'
#: Records per second. Of OTLP a record is a message, and every device sends two in a round.
RATE: Final = {"packed": 20_000, "otlp": 4_000}
#: Records per release. A job of Spark takes a quarter of a second however small it is.
BATCH_SIZE: Final = {"local": 5_000, "spark": 20_000}

Running = Deployment | EmbeddedDeployment


class DemoOptions(Options):
    """Options of the demonstration."""

    unit: Literal["record", "subject"] = "record"
    """unit of privacy: one record, or everything that a device sends in a round"""
    engine: Literal["local", "spark"] = "local"
    """engine that adds up records: the service, or a Spark cluster started for it"""
    format: Literal["packed", "otlp"] = "packed"
    """format of the messages; otlp is with --unit subject"""
    seconds: float | None = None
    """duration; without it, until Ctrl-C"""
    releases: int | None = None
    """end after this number of releases"""
    rate: float = Field(default=0.0, gt=0)
    """records per second; without it, 20,000, or 4,000 with --format otlp"""
    batch_size: int = Field(default=0, gt=0)
    """records per release (devices per round); without it, 5,000, or 20,000 with --engine spark"""
    epsilon: float = Field(default=1.0, gt=0)
    """privacy guarantee of every record or device"""
    delta: float = 1e-6
    """small probability that epsilon does not cover"""
    change: int | None = Field(default=None, gt=0)
    """records after which the fleet changes, and changes back; without it, half-way, or every 120
    batches"""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        rate = RATE.get(data.get("format", "packed"))
        size = BATCH_SIZE.get(data.get("engine", "local"))
        more = {"unit": "subject"} if data.get("format") == "otlp" else {}
        return {"rate": rate, "batch_size": size, **data, **more}

    @model_validator(mode="after")
    def _possible(self) -> DemoOptions:
        if self.unit == "subject" and self.change is not None:
            raise ValueError("--change is for --unit record: the number of records is secret")
        if self.unit == "subject" and self.engine == "spark":
            raise ValueError("--engine spark does not work with --unit subject")
        return self

    def change_after(self) -> int | None:
        """Return the number of records after which the fleet changes; None if it never does."""
        if self.unit == "subject" or self.change is not None:
            return self.change  # a viewer does not know how many records of subjects there were
        half_way = [float(CHANGE_BATCHES * self.batch_size)]
        if self.seconds is not None:
            half_way.append(self.seconds * self.rate / 2)
        if self.releases is not None:
            half_way.append(self.releases * self.batch_size / 2)
        return max(int(min(half_way)), 1)

    def fault_after(self) -> int | None:
        """Return the number of records after which a machine fails, until the fleet changes."""
        change = self.change_after()
        return None if change is None else max(change * 2 // 3, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns its exit code."""
    parser = ArgumentParser(
        "python -m demo",
        description="Send simulated telemetry to a Kafka broker, learn its main direction "
        "privately, and show it as it is learned.",
    )
    add_options(parser, DemoOptions)
    options = read_options(parser, DemoOptions, vars(parser.parse_args(arguments)))
    simulated = Simulated(options.change_after(), options.fault_after())
    return present(
        lambda console: start(console, options), simulated, options.seconds, options.releases
    )


def present(
    begin: Callable[[Console], Running],
    simulated: Simulated | None,
    seconds: float | None,
    releases: int | None,
) -> int:
    """Start a deployment, show its model, and close everything; returns the exit code.

    Parameters
    ----------
    begin
        Starts the deployment.
    simulated
        The truth about the stream, if that is a simulation.
    seconds, releases
        Time, and number of releases, after which to end.
    """
    console = Console(highlight=False)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, _interrupt)
    _keep_connection_only()
    deployment: Running | None = None
    failure = None
    try:
        deployment = begin(console)
        _watch(console, deployment, simulated, seconds, releases)
        failure = deployment.failed()
    except KeyboardInterrupt:
        pass
    except (BrokerError, ClusterError, ConfigurationError) as error:
        failure = str(error)
    finally:
        if deployment is not None:
            deployment.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if deployment is not None and simulated is not None:
        _summary(console, simulated, deployment)
        if simulated.releases and not simulated.angles:
            failure = failure or NOTHING_LEARNED
    if failure:
        console.print(failure, style=BAD, soft_wrap=True, markup=False)
    return 1 if failure or (simulated and not simulated.releases) else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep_connection_only() -> None:
    """Forget the settings in the environment that belong to a model of somebody else."""
    kept = {PREFIX + name.upper() for name in ConnectionSettings.model_fields}
    for name in list(os.environ):
        if name.startswith(PREFIX) and name not in kept:
            del os.environ[name]


def start(console: Console, options: DemoOptions) -> Running:
    """Start everything, on the best broker that this machine can have."""
    on_spark = options.engine == "spark"
    if on_spark:
        spark_home()  # raises before a broker is started for nothing
    try:
        broker = find_broker(console, local=on_spark)
    except BrokerUnavailable as error:
        if on_spark or options.format == "otlp" or os.environ.get(ADDRESS_VARIABLE):
            raise
        console.print(f"{error}\nSo this runs on a broker in memory, inside this process.")
        rows = max(1, min(ROWS_PER_MESSAGE, int(options.rate / 10)))
        return EmbeddedDeployment(make_config(options, rows, input_topic="telemetry"))
    spark = None
    try:
        # On a cluster of somebody else, this run gets topics of its own.
        topic = f"telemetry-demo-{os.urandom(3).hex()}" if broker.kind == "env" else "telemetry"
        flags = {"bootstrap_servers": broker.bootstrap_servers, "input_topic": topic}
        if on_spark:
            with console.status("starting Apache Spark: a master and two workers"):
                spark = StandaloneCluster()
            flags |= {"engine": "spark", "spark_master": spark.master}
        return Deployment(make_config(options, ROWS_PER_MESSAGE, **flags), broker, spark)
    except BaseException:
        if spark is not None:
            spark.close()
        broker.close()
        raise


def make_config(options: DemoOptions, most_rows: int, **flags: Any) -> DemoConfig:
    """Return the options as a configuration, with at most `most_rows` records per message."""
    by_device = options.unit == "subject"
    # Of a batch, each message holds the same number of records.
    divisors = (n for n in range(1, most_rows + 1) if options.batch_size % n == 0)
    flags |= {
        "features": FEATURES,
        "epsilon": options.epsilon,
        "delta": options.delta,
        "places" if by_device else "batch_size": options.batch_size,
        "format": service_format("packed"),
        "rows_per_message": DEVICE_ROWS if by_device else max(divisors),
        "http_port": 0,
        "partition_refresh_s": 1,
    }
    if not by_device:
        return DemoConfig(flags, options.rate, options.change_after(), options.fault_after())
    flags |= {"subject": MESSAGE_KEY, "round": ROUND, "clock_slack": "500ms"}
    if options.format == "otlp":
        del flags["rows_per_message"]
        flags |= {"format": "otlp", "subject": "host.name"}
    return DemoConfig(flags, options.rate, None, machines=DEVICES, format=options.format)


def find_broker(console: Console, local: bool = False) -> Broker:
    """Find a broker or start one; on the local JVM if `local`, because Spark needs Java anyway."""
    kind = "local" if local and not os.environ.get(ADDRESS_VARIABLE) else None
    with console.status("looking for a Kafka broker, or starting one") as status:

        def tell(line: str) -> None:
            console.print(Text(line, style=LABEL), soft_wrap=True)
            status.update(Text(line))

        return provide_broker(tell, kind)


def _watch(
    console: Console,
    deployment: Running,
    simulated: Simulated | None,
    seconds: float | None,
    releases: int | None,
) -> None:
    """Show the model until Ctrl-C, for as long as was asked, or until a part fails."""
    stop = threading.Event()
    began = time.monotonic()
    end = math.inf if seconds is None else began + seconds
    if simulated is not None:
        simulated.began = began

    def look() -> None:
        told = console.is_terminal  # where a line would disturb the view
        while not stop.wait(max(min(LOOK_SECONDS, end - time.monotonic()), 0.0)):
            if time.monotonic() >= end or deployment.failed():
                stop.set()
            if not told and (port := deployment.port()) is not None:
                said = f"pages: http://127.0.0.1:{port}/; broker: {deployment.broker}"
                console.print(said, soft_wrap=True, markup=False)
                told = True
            if simulated is not None:
                simulated.facts = list(_facts(deployment))
                simulated.flagged = dict(simulated.facts).get(FLAG, simulated.flagged)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        view = load_part(ViewSettings, deployment.config.flags)
        watch(deployment.cluster(), view, WatchOptions(releases=releases), stop, simulated)
    finally:
        stop.set()
        looking.join()


def _facts(deployment: Running) -> Iterator[tuple[str, str]]:
    """Yield what there is to know about the parts of the deployment."""
    port, config = deployment.port(), deployment.config
    yield "the service", _get(port, "/readyz").strip() or "is starting"
    if not config.by_device:  # the lag counts records, so it is secret with privacy per device
        metrics = _get(port, "/metrics").splitlines()
        lags = [line.split()[-1] for line in metrics if line.startswith("dppca_lag_messages ")]
        lag = f"{float(lags[0]):,.0f} messages" if lags else "unknown"
        yield "the stream", f"{config.rate:,.0f} records/s are sent · lag {lag}"
    yield from _flags(deployment.port("scorer"))
    yield "the broker", deployment.broker
    if deployment.engine is not None:
        yield "the engine", deployment.engine
    if port is not None:
        yield "pages", f"http://127.0.0.1:{port}/  /component  /metrics  /livez  /readyz"


def _flags(port: int | None) -> Iterator[tuple[str, str]]:
    """Yield which machines `score` flags; this is about single records, so it is not private."""
    found = json.loads(_get(port, "/facts") or "{}").get("beyond")
    if found and found["share"] is not None:
        share = f"{found['share']:.1%} of the records are beyond a limit"
        yield "score", f"{share} · NOT PRIVATE · http://127.0.0.1:{port}/"
        for alarm in found["alarms"]:
            why = ", ".join(f"{name} {size:+.0f}" for name, size in alarm["contributions"][:2])
            part = f"{alarm['beyond']} of {alarm['seen']} records beyond a limit"
            yield FLAG, f"{alarm['key']}: {part}, by {why}"


def _get(port: int | None, path: str) -> str:
    if port is None:
        return ""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1.0) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except (OSError, ValueError):
        return ""


def _summary(console: Console, simulated: Simulated, deployment: Running) -> None:
    """Print what remains on the terminal: how far the model came, and what to do next."""
    say = partial(console.print, soft_wrap=not console.is_terminal, markup=False)
    config, release = deployment.config, simulated.release
    settings = config.settings()
    if release is None:
        service = dict(simulated.facts).get("the service", "is starting")
        say(f"{NO_RELEASE} (the service: {service}; broker: {deployment.broker})", style=BAD)
    else:
        if not console.is_terminal:  # `watch` leaves it on a terminal
            say(meaning(release) or status_in_words(release))
            say(promise_in_words(release.privacy))
        say(f"\n{simulated.releases} releases; broker: {deployment.broker}")
        if simulated.first_s is not None:
            angles = list(simulated.angles.values())
            say(
                f"The first component came after {simulated.first_s:.1f} s, {angles[0]:.1f}° from "
                f"the truth; the last one is {angles[-1]:.1f}° from the truth."
            )
        if simulated.faults:
            flagged = f"score flagged {simulated.flagged}" if simulated.flagged else "no flag"
            say(f"The fault: {simulated.fault_in_words()} (not private: {flagged}).")
        if simulated.changes:
            say(f"The fleet: {simulated.change_in_words()}.")
        if config.by_device:
            say("In production, rounds last hours: epsilon over longer times is smaller.")
        if "your cluster" in deployment.broker:
            names = (settings.input_topic, settings.output_topic, settings.state_topic)
            say(f"left on your cluster: {', '.join(names)}")
    say("\nThe same service on your own cluster, with your own features:\n")
    flags = {
        "bootstrap_servers": "HOST:9092",
        "input_topic": "YOUR_TOPIC",
        "features": "cpu,memory,disk.read" if config.format != "otlp" else OTLP_FEATURES,
        "epsilon": f"{settings.epsilon:g}",
        "delta": f"{settings.delta:g}",
        "places" if config.by_device else "batch_size": settings.places or settings.batch_size,
        "format": "json",
        **({"subject": "device_id", "round": "24h"} if config.by_device else {}),
        **({"format": "otlp", "subject": "host.name"} if config.format == "otlp" else {}),
    }
    serve = [_relative(word) for word in command("serve")]
    lines, words = [shlex.join(serve)], as_flags(flags)
    lines += [shlex.join(words[i : i + 4]) for i in range(0, len(words), 4)]
    say(" \\\n      ".join(["  " + lines[0], *lines[1:]]))


def _relative(word: str) -> str:
    """Return a path as one would type it here."""
    path = Path(word)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return word

"""`make run`: telemetry, a real Kafka, the service, and the private component as it is learned.

    python -m demo                   # until Ctrl-C
    python -m demo --seconds 30      # for a while; or --releases 10
    python -m demo --no-broker       # on an in-memory broker
    python -m demo --unit subject    # privacy of a device, not of a record
    python -m demo --format otlp     # metrics of OpenTelemetry, gathered by host
    python -m demo --engine spark    # one model on a Spark cluster: `make cluster`

A broker is found or started (`demo.broker`), `demo.generator` sends records of
a simulated fleet to it, and `stream-dppca serve` learns from them; each is a process of its own, as
in production. The view is `stream-dppca watch`, which reads the output topic only. The true
direction, which is unknown in a real stream, is known from the simulation and drawn over it.

The settings are the defaults: nothing is said about means, units or scales. Half-way (`--change`)
the fleet changes, and the view shows when, and how the model notices and follows.

With `--engine spark` a master and two workers of Apache Spark are started, too. Their executors
read the topic and add up; the service plans, adds the noise and publishes.

With `--unit subject` thousands of devices send a few records each, and everything that one of them
sends in a round is protected together. Rounds last seconds, so that one can watch; in production
they last hours.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from consumers.cli.own import WatchOptions
from consumers.cli.screen import BAD, LABEL
from consumers.cli.watch import watch
from consumers.errors import ClusterError, ConfigurationError
from consumers.model.describe import meaning, promise_in_words, status_in_words
from consumers.settings import MESSAGE_KEY, PREFIX, ConnectionSettings, ViewSettings, load_part

from . import broker as brokers
from .deployments import (
    DemoConfig,
    Deployment,
    ProcessDeployment,
    ThreadDeployment,
    as_flags,
    service_command,
)
from .generator import ROWS_PER_MESSAGE, service_format
from .standalone import StandaloneCluster, spark_home
from .telemetry import FEATURES
from .truth import Simulated

#: Batches between two changes of the fleet, in a run without an end.
CHANGE_BATCHES: Final = 60
NO_RELEASE: Final = "no release appeared"
#: Interval at which the parts of the deployment are looked at.
LOOK_SECONDS: Final = 0.5
#: With `--unit subject`: devices of the fleet, records per message, and the length of a round.
DEVICES: Final = 4000
DEVICE_ROWS: Final = 4
ROUND: Final = "2s"
#: Records per second.
RATE: Final = {"packed": 20_000, "otlp": 4_000}
#: Records per release. A job of Spark takes a quarter of a second however small it is.
BATCH_SIZE: Final = {"local": 5_000, "spark": 20_000}
#: Records per message without a broker: few messages, because their places are kept in memory.
MEMORY_ROWS_PER_MESSAGE: Final = 500


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns its exit code."""
    options = _options(arguments)
    console = Console(highlight=False)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, _interrupt)
    _keep_connection_only()
    simulated = Simulated(_change_after(options))
    deployment: Deployment | None = None
    failure = None
    try:
        deployment, config = _start(console, options)
        _watch(deployment, config, simulated, options)
        failure = deployment.failed()
    except KeyboardInterrupt:
        pass
    except (brokers.BrokerError, ClusterError, ConfigurationError) as error:
        failure = str(error)
    finally:
        if deployment is not None:
            deployment.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if deployment is not None:
        _summary(console, simulated, deployment, config)
    elif not failure:
        console.print("stopped before a broker was running")
    if failure:
        console.print(failure, style=BAD, soft_wrap=True, markup=False)
    return 1 if failure or not simulated.releases else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m demo",
        description="Send simulated telemetry to a Kafka broker, learn its main direction "
        "privately, and show it as it is learned.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--unit", choices=("record", "subject"), default="record",
        help="unit of privacy: one record, or everything that a device sends in a round",
    )  # fmt: skip
    parser.add_argument(
        "--engine", choices=("local", "spark"), default="local",
        help="engine that adds up records: the service, or a Spark cluster started for it",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=("packed", "otlp"), default="packed",
        help="format of the messages; otlp is with --unit subject",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, help="duration; without it, until Ctrl-C")
    parser.add_argument("--releases", type=int, help="end after this number of releases")
    parser.add_argument(
        "--rate", type=float, help=f"records per second; without it, {RATE['packed']:,}, or "
        f"{RATE['otlp']:,} with --format otlp",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=int,
        help=f"records per release (devices per round); without it, {BATCH_SIZE['local']}, or "
        f"{BATCH_SIZE['spark']} with --engine spark",
    )  # fmt: skip
    parser.add_argument(
        "--epsilon", type=float, default=1.0, help="privacy guarantee of every record or device"
    )
    parser.add_argument(
        "--delta", type=float, default=1e-6, help="small probability that epsilon does not cover"
    )
    parser.add_argument(
        "--no-broker", action="store_true", help="use an in-memory broker instead of Kafka"
    )
    parser.add_argument(
        "--change", type=int, metavar="N",
        help="records after which the fleet changes, and changes back; without it, half-way, or "
        f"every {CHANGE_BATCHES} batches",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.rate is None:
        options.rate = RATE[options.format]
    if options.format == "otlp":
        options.unit = "subject"
    if options.batch_size is None:
        options.batch_size = BATCH_SIZE[options.engine]
    for name in ("rate", "batch_size", "epsilon", "change"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    if options.unit == "subject" and options.change is not None:
        parser.error("--change is for --unit record: the number of records is secret otherwise")
    if options.engine == "spark":
        for name, value in (("unit", "record"), ("no_broker", False)):
            if getattr(options, name) != value:
                parser.error(f"--engine spark does not work with --{name.replace('_', '-')}")
    return options


def _change_after(options: argparse.Namespace) -> int | None:
    """Return the number of records after which the fleet changes; None if it never does."""
    if options.unit == "subject":
        return None  # a viewer does not know how many records there were
    if options.change is not None:
        return int(options.change)
    half_way = [CHANGE_BATCHES * options.batch_size]
    if options.seconds is not None:
        half_way.append(options.seconds * options.rate / 2)
    if options.releases is not None:
        half_way.append(options.releases * options.batch_size / 2)
    return max(int(min(half_way)), 1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep_connection_only() -> None:
    """Forget the settings in the environment that belong to a model of somebody else."""
    kept = {PREFIX + name.upper() for name in ConnectionSettings.model_fields}
    for name in list(os.environ):
        if name.startswith(PREFIX) and name not in kept:
            del os.environ[name]


def _start(console: Console, options: argparse.Namespace) -> tuple[Deployment, DemoConfig]:
    """Start everything, on the best broker that this machine can have."""
    if options.engine == "spark":
        spark_home()  # raises before a broker is started for nothing
    if not options.no_broker:
        try:
            broker = _find_broker(console, local=options.engine == "spark")
        except brokers.BrokerUnavailable as error:
            if os.environ.get(brokers.ADDRESS_VARIABLE) or options.engine == "spark":
                raise  # the address was binding, or executors need a broker that they can reach
            console.print(str(error), soft_wrap=True, markup=False)
            console.print("So this runs without Kafka, on an in-memory broker.\n")
        else:
            spark = None
            try:
                spark = _start_spark(console) if options.engine == "spark" else None
                engine = {} if spark is None else {"engine": "spark", "spark_master": spark.master}
                config = _config(
                    options, ROWS_PER_MESSAGE, bootstrap_servers=broker.bootstrap_servers,
                    # On a cluster of somebody else, this run gets topics of its own.
                    input_topic=f"telemetry-demo-{os.urandom(3).hex()}"
                    if broker.kind == "env" else "telemetry",
                    **engine,
                )  # fmt: skip
                return ProcessDeployment(config, broker, spark), config
            except BaseException:
                if spark is not None:
                    spark.close()
                broker.close()
                raise
    rows = max(1, min(MEMORY_ROWS_PER_MESSAGE, int(options.rate / 10)))
    config = _config(options, rows, input_topic="telemetry")
    return ThreadDeployment(config), config


def _config(options: argparse.Namespace, most_rows: int, **flags: Any) -> DemoConfig:
    """Return the options as a configuration, with at most `most_rows` records per message."""
    by_device = options.unit == "subject"
    rows = DEVICE_ROWS if by_device else _largest_divisor(options.batch_size, most_rows)
    flags |= {
        "features": FEATURES,
        "epsilon": options.epsilon,
        "delta": options.delta,
        "places" if by_device else "batch_size": options.batch_size,
        "format": service_format("packed"),
        "rows_per_message": rows,
        "http_port": 0,
        "partition_refresh_s": 1,
    }
    if not by_device:
        return DemoConfig(flags, options.rate, _change_after(options))
    flags |= {"subject": MESSAGE_KEY, "round": ROUND, "clock_slack": "500ms"}
    if options.format == "otlp":
        del flags["rows_per_message"]
        flags |= {"format": "otlp", "subject": "host.name"}
    return DemoConfig(flags, options.rate, None, machines=DEVICES, format=options.format)


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not above `most`.

    >>> [_largest_divisor(n, 64) for n in (5000, 5120, 97, 7)]
    [50, 64, 1, 7]
    """
    return max(divisor for divisor in range(1, most + 1) if number % divisor == 0)


def _find_broker(console: Console, local: bool) -> brokers.Broker:
    """Find a broker or start one; on the local JVM if `local`, because Spark needs Java anyway."""

    kind = "local" if local and not os.environ.get(brokers.ADDRESS_VARIABLE) else None
    with console.status("looking for a Kafka broker, or starting one") as status:

        def tell(line: str) -> None:
            console.print(Text(line, style=LABEL), soft_wrap=True)
            status.update(Text(line))

        return brokers.provide_broker(tell, kind)


def _start_spark(console: Console) -> StandaloneCluster:
    with console.status("starting Apache Spark: a master and two workers"):
        return StandaloneCluster()


def _watch(
    deployment: Deployment, config: DemoConfig, simulated: Simulated, options: argparse.Namespace
) -> None:
    """Show the model until Ctrl-C, for as long as was asked, or until a part fails."""
    stop = threading.Event()
    simulated.began = time.monotonic()
    end = math.inf if options.seconds is None else time.monotonic() + options.seconds

    def look() -> None:
        while not stop.wait(max(min(LOOK_SECONDS, end - time.monotonic()), 0.0)):
            if time.monotonic() >= end or deployment.failed():
                stop.set()
            deployment.tidy()
            simulated.facts = list(_facts(deployment, config))

    looking = threading.Thread(target=look)
    looking.start()
    shown = WatchOptions(releases=options.releases)
    try:
        view = load_part(ViewSettings, config.flags)
        watch(deployment.cluster(), view, shown, stop, simulated)
    finally:
        stop.set()
        looking.join()


def _facts(deployment: Deployment, config: DemoConfig) -> Iterator[tuple[str, str]]:
    """Yield what there is to know about the parts of the deployment."""
    port = deployment.port()
    yield "the service", _get(port, "/readyz").strip() or "is starting"
    if not config.by_device:  # the lag counts records, so it is secret with privacy per device
        metrics = _get(port, "/metrics").splitlines()
        lags = [line.split()[-1] for line in metrics if line.startswith("dppca_lag_messages{")]
        lag = f"{float(lags[0]):,.0f} messages" if lags else "unknown"
        yield "the stream", f"{config.rate:,.0f} records/s are sent · lag {lag}"
    yield "the broker", deployment.broker
    if deployment.engine is not None:
        yield "the engine", deployment.engine
    if port is not None:
        yield "pages", f"http://127.0.0.1:{port}/  /component  /metrics  /livez  /readyz"


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


def _summary(
    console: Console, simulated: Simulated, deployment: Deployment, config: DemoConfig
) -> None:
    """Print what remains on the terminal: how far the model came, and what to do next."""
    say = partial(console.print, soft_wrap=not console.is_terminal, markup=False)
    settings = config.settings()
    release = simulated.release
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
        "features": "cpu,memory,disk.read",
        "epsilon": f"{settings.epsilon:g}",
        "delta": f"{settings.delta:g}",
        "places" if config.by_device else "batch_size": settings.places or settings.batch_size,
        "format": "json",
        **({"subject": "device_id", "round": "24h"} if config.by_device else {}),
    }
    command = [_relative(word) for word in service_command()]
    lines, words = [shlex.join(command)], as_flags(flags)
    lines += [shlex.join(words[i : i + 4]) for i in range(0, len(words), 4)]
    say(" \\\n      ".join(["  " + lines[0], *lines[1:]]))


def _relative(word: str) -> str:
    """Return a path as one would type it here."""
    path = Path(word)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return word

"""What the demonstrations share: the scene, the view of the model, and the last words."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from rich.console import Console
from rich.text import Text

from consumers.cli.options import WatchOptions
from consumers.cli.screen import BAD, FLAG, LABEL
from consumers.cli.watch import watch
from consumers.errors import ClusterError, ConfigurationError
from consumers.model.describe import meaning, promise_in_words, status_in_words
from consumers.settings import PREFIX, ConnectionSettings, ViewSettings, load_part

from .broker.base import KAFKA_VERSION, BrokerError
from .broker.local import ADDRESS_VARIABLE, provide_broker
from .deployments import Deployment
from .truth import Simulated

NO_RELEASE: Final = "no release appeared"
NOTHING_LEARNED: Final = "nothing was learned: no release has a component"
#: Interval at which the parts of the deployment are looked at.
LOOK_SECONDS: Final = 0.5


def perform(play: Callable[[Console, ExitStack], int]) -> int:
    """Call a function, and end everything that it has started; returns its exit code."""
    console = Console(highlight=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    _keep_connection_only()
    try:
        with ExitStack() as stack:
            return play(console, stack)
    except KeyboardInterrupt:
        return 1
    except (BrokerError, ClusterError, ConfigurationError) as error:
        console.print(str(error), style=BAD, soft_wrap=True, markup=False)
        return 1


def _keep_connection_only() -> None:
    """Forget the settings in the environment that belong to a model of somebody else."""
    kept = {PREFIX + name.upper() for name in ConnectionSettings.model_fields}
    for name in list(os.environ):
        if name.startswith(PREFIX) and name not in kept:
            del os.environ[name]


def start_broker(console: Console, stack: ExitStack) -> str:
    """Return the address of a broker, which is closed with the stack if it was started here."""
    with console.status("starting a Kafka broker") as status:

        def tell(line: str) -> None:
            console.print(Text(line, style=LABEL), soft_wrap=True)
            status.update(Text(line))

        return stack.enter_context(provide_broker(tell))


def broker_in_words(servers: str) -> str:
    ours = f"Apache Kafka {KAFKA_VERSION} on a JVM of this machine"
    return f"{'your cluster' if os.environ.get(ADDRESS_VARIABLE) else ours} at {servers}"


def show(
    console: Console,
    deployment: Deployment,
    simulated: Simulated,
    seconds: float | None,
    releases: int | None,
) -> int:
    """Show the model of a deployment, and say what happened; returns the exit code.

    This ends on Ctrl-C, after the time or the number of releases, or when a part fails.

    Parameters
    ----------
    simulated
        What is known about the stream.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # an exception could come at any point of a wait
        signal.signal(number, lambda *_: stop.set())
    end = math.inf if seconds is None else time.monotonic() + seconds
    if not console.is_terminal:  # where a line does not disturb the view
        pages = deployment.address("service")
        broker = broker_in_words(deployment.settings.bootstrap_servers)
        console.print(f"pages: {pages}/; broker: {broker}", soft_wrap=True, markup=False)

    def look() -> None:
        while not stop.wait(max(min(LOOK_SECONDS, end - time.monotonic()), 0.0)):
            if time.monotonic() >= end or deployment.failed():
                stop.set()
            simulated.deployed = list(_facts(deployment))
            simulated.flagged = dict(simulated.deployed).get(FLAG, simulated.flagged)

    looking = threading.Thread(target=look)
    view = load_part(ViewSettings, deployment.flags)
    looking.start()
    try:
        watch(deployment.cluster(), view, WatchOptions(releases=releases), stop, simulated)
    finally:
        stop.set()
        looking.join()
    failure = deployment.failed()
    _summary(console, simulated, deployment)
    if simulated.known and simulated.first_s is None:
        failure = failure or (NOTHING_LEARNED if simulated.releases else NO_RELEASE)
    if failure:
        console.print(failure, style=BAD, soft_wrap=True, markup=False)
    return 1 if failure else 0


def _facts(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield what there is to know about the parts of the deployment."""
    yield "the service", deployment.get("service", "/readyz").strip() or "is starting"
    if not deployment.by_device:  # the lag counts records, so it is secret with privacy per device
        metrics = deployment.get("service", "/metrics").splitlines()
        lags = [line.split()[-1] for line in metrics if line.startswith("dppca_lag_messages ")]
        yield "the stream", f"lag {float(lags[0]):,.0f} messages" if lags else "lag unknown"
    yield from _flags(deployment)
    settings = deployment.settings
    yield "the broker", broker_in_words(settings.bootstrap_servers)
    if settings.engine == "spark":
        yield "the engine", f"Apache Spark, master at {settings.spark_master}"
    yield "pages", f"{deployment.address('service')}/  /component  /metrics  /livez  /readyz"


def _flags(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield which machines `score` flags; this is about single records, so it is not private."""
    found = json.loads(deployment.get("scorer", "/facts") or "{}").get("beyond")
    if found and found["share"] is not None:
        share = f"{found['share']:.1%} of the records are beyond a limit"
        yield "score", f"{share} · NOT PRIVATE · {deployment.address('scorer')}/"
        for alarm in found["alarms"]:
            why = ", ".join(f"{name} {size:+.0f}" for name, size in alarm["contributions"][:2])
            part = f"{alarm['beyond']} of {alarm['seen']} records beyond a limit"
            yield FLAG, f"{alarm['key']}: {part}, by {why}"


def _summary(console: Console, simulated: Simulated, deployment: Deployment) -> None:
    """Print what remains on the terminal: how far the model came, and what to do next."""
    say = partial(console.print, soft_wrap=not console.is_terminal, markup=False)
    settings, release = deployment.settings, simulated.release
    broker = broker_in_words(settings.bootstrap_servers)
    if release is None:
        service = dict(simulated.deployed).get("the service", "is starting")
        say(f"the service: {service}; broker: {broker}")
    else:
        if not console.is_terminal:  # `watch` leaves it on a terminal
            say(meaning(release) or status_in_words(release))
            say(promise_in_words(release.privacy))
        say(f"\n{simulated.releases} releases; broker: {broker}")
        if angles := list(simulated.angles.values()):
            say(
                f"The first component came after {simulated.first_s:.1f} s, {angles[0]:.1f}° from "
                f"the truth; the last one is {angles[-1]:.1f}° from the truth."
            )
        if simulated.faults:
            flagged = f"score flagged {simulated.flagged}" if simulated.flagged else "no flag"
            say(f"The fault: {simulated.fault_in_words()} (not private: {flagged}).")
        if simulated.changes:
            say(f"The fleet: {simulated.change_in_words()}.")
        if deployment.by_device:
            say("In production, rounds last hours: epsilon over longer times is smaller.")
        if os.environ.get(ADDRESS_VARIABLE):
            names = (settings.input_topic, settings.output_topic, settings.state_topic)
            say(f"left on your cluster: {', '.join(names)}")
    say("\nThe same service on your own cluster, with your own features: docs/service.md")

"""`make run`: telemetry, a real Kafka, the service, and the private component as it is learned.

    python -m consumers.demo                   # until Ctrl-C
    python -m consumers.demo --seconds 30      # for a while
    python -m consumers.demo --no-broker       # on a log inside this process

A broker is found or started (`consumers.broker`), `consumers.generator` sends records of a
simulated fleet to it, and `stream-dppca serve` learns from them: each a process of its own, as in
production. The view reads what everybody may read, the output topic and /metrics. Only the true
direction, which no real stream tells, it knows from the simulation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from ..errors import ClusterError
from ..events import set_up_logs
from ..kafka.cluster import KafkaCluster
from ..kafka.config import KafkaConfig
from ..kafka.memory import MemoryBroker, MemoryCluster
from ..protocols import Cluster, Reader
from ..service.loop import Service
from ..settings import PREFIX, Settings, load_settings
from . import broker as brokers
from .generator import ensure_topic, messages, produce
from .telemetry import FEATURES
from .view import BAD, LABEL, Stage, Story, bars, plain_line, promise, screen

__all__ = ["main"]

FloatArray = NDArray[np.float64]

#: From Ctrl-C to the end of the service and the generator, at most; then they are killed.
LEAVE_SECONDS: Final = 4.0
METRICS_SECONDS: Final = 0.5
#: The settings that the demonstration takes from the environment: how to reach a cluster.
CONNECTION: Final = ("SECURITY_PROTOCOL", "SSL_", "SASL_", "REQUEST_TIMEOUT_S")
FORMAT: Final = "float32"

NOTHING: Final = "no release appeared"


# What runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    flags: dict[str, Any]  #: settings of the service
    rate: float
    partitions: int

    def settings(self) -> Settings:
        return load_settings(self.flags)


class Processes:
    """Everything as in production: `stream-dppca serve` and the generator as processes."""

    WORDS: Final = {
        "env": "your cluster",
        "docker": f"Apache Kafka {brokers.KAFKA_VERSION} in Docker",
        "local": f"Apache Kafka {brokers.KAFKA_VERSION} on the local JVM",
    }

    def __init__(self, plan: Plan, broker: brokers.Broker) -> None:
        self._plan, self._broker = plan, broker
        self.broker = f"{self.WORDS[broker.way]} at {broker.bootstrap_servers}"
        self._settings = plan.settings()
        self._folder = Path(tempfile.mkdtemp(prefix="stream-dppca-demo-"))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        try:
            ensure_topic(self.log(), self._settings.input_topic, plan.partitions)
            for shard in range(self._settings.shards):
                self._start(f"service-{shard}", [*service_command(), *_as_flags(plan.flags)])
            self._start("generator", [
                sys.executable, "-m", "consumers.generator", "--format", "packed",
                "--bootstrap-servers", broker.bootstrap_servers, "--rate", f"{plan.rate}",
                "--topic", self._settings.input_topic,
            ])  # fmt: skip
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, command: list[str]) -> None:
        """Under the broker's supervisor: whatever happens to us, the child ends too."""
        orders = {"run": command, "last": [], "remove": str(self._folder)}
        with (self._folder / f"{name}.log").open("wb") as out:
            self._children[name] = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", str(brokers.SUPERVISOR), json.dumps(orders)],
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip

    def log(self) -> Cluster:
        s = self._settings
        return KafkaCluster(
            KafkaConfig(
                connection=s.connection(), group=s.group, input_topic=s.input_topic,
                state_topic=s.state_topic, output_topic=s.output_topic,
                request_timeout_s=s.request_timeout_s,
            )
        )  # fmt: skip

    def ports(self) -> list[int]:
        return [p for log in sorted(self._folder.glob("service-*.log")) for p in _ports(log)]

    def failed(self) -> str | None:
        for name, child in self._children.items():
            if (code := child.poll()) is not None:
                said = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()
                return "\n".join([f"the {name} ended with {code}; its last words:", *said[-8:]])
        return None

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        for child in self._children.values():
            child.terminate()
        deadline = time.monotonic() + LEAVE_SECONDS
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._broker.close()


class Threads:
    """The same parts on the in-process log, as threads."""

    ROWS: Final = 500  #: records a message; few messages, because the log keeps their places

    def __init__(self, plan: Plan) -> None:
        self.broker = "none: a log inside this process"
        self._settings = settings = plan.settings()
        self._cluster = MemoryBroker()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._folder = Path(tempfile.mkdtemp(prefix="stream-dppca-demo-"))
        self._out = (self._folder / "services.log").open("w", encoding="utf-8")
        set_up_logs(self._out, model=settings.model)
        ensure_topic(self.log(), settings.input_topic, plan.partitions)
        source = MemoryCluster(
            self._cluster, group="generator", state_topic="", input_topic="",
            output_topic=settings.input_topic,
        )  # fmt: skip
        rows = max(1, min(self.ROWS, int(plan.rate / 10)))

        def generate() -> None:
            records = messages("packed", rows)
            produce(source.publish, records, rows=rows, rate=plan.rate, stop=self._stop)

        def serve() -> None:
            Service(settings, self.log(), stop=self._stop, watched=False).run()

        work = [*[serve] * settings.shards, generate]
        self._threads = [threading.Thread(target=self._guarded, args=(run,)) for run in work]
        for thread in self._threads:
            thread.start()

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._errors.append(error)

    def log(self) -> Cluster:
        s = self._settings
        return MemoryCluster(
            self._cluster, group=s.group, state_topic=s.state_topic, input_topic=s.input_topic,
            output_topic=s.output_topic,
        )  # fmt: skip

    def ports(self) -> list[int]:
        return _ports(self._folder / "services.log")

    def failed(self) -> str | None:
        return f"{type(self._errors[0]).__name__}: {self._errors[0]}" if self._errors else None

    def tidy(self) -> None:
        """Let go of what has been used: no disk is behind this log."""
        with self._cluster.changed:
            group = self._cluster.groups.get(self._settings.group)
            for (topic, p), at in (group.offsets if group else {}).items():
                used = at
                partition = self._cluster.topics[topic].partitions[p]
                for entry in partition.entries[partition.first : used]:
                    entry.value = None
                self._cluster.trim(topic, p, max(used, partition.first))

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LEAVE_SECONDS)
        self._out.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def service_command() -> list[str]:
    """`stream-dppca serve`, of this environment."""
    script = Path(sys.executable).with_name("stream-dppca")
    found = [str(script)] if script.exists() else [sys.executable, "-m", "consumers.cli"]
    return [*found, "serve"]


def _as_flags(settings: dict[str, Any]) -> list[str]:
    pairs = (("--" + name.replace("_", "-"), value) for name, value in settings.items())
    return [word for flag, value in pairs for word in (flag, _as_word(value))]


def _as_word(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _ports(log: Path) -> list[int]:
    """The ports that services say, at the top of their log, that they listen at."""
    if not log.exists():
        return []
    with log.open("rb") as lines:
        head = lines.read(32 << 10).decode(errors="replace")
    ports = []
    for line in head.splitlines():
        if '"listening"' in line:
            with contextlib.suppress(ValueError, KeyError):
                ports.append(int(json.loads(line)["port"]))
    return ports


# Watching -----------------------------------------------------------------------------------------


class Watcher:
    """Reads the output topic, and the pages of the services."""

    def __init__(self, stage: Stage, topic: str, story: Story) -> None:
        self._stage, self._story = stage, story
        self._reader: Reader = stage.log().reader(topic)
        self._assigned = False
        self._pages_at = 0.0

    def look(self, on_release: Callable[[], None] = lambda: None) -> None:
        """Take in what has come; wait for it a tenth of a second at most."""
        try:
            if not self._assigned:
                bounds = self._reader.bounds(sorted(self._reader.partitions()))
                self._reader.assign({p: bound.first for p, bound in bounds.items()})
                self._assigned = bool(bounds)
            if self._assigned:
                for chunk in self._reader.read(0.1):
                    for value in chunk.values:
                        if self._story.take(value or b""):
                            on_release()
            else:
                time.sleep(0.2)
        except ClusterError:
            time.sleep(0.2)  # a broker that is away; the service says so, in its own log
        if time.monotonic() >= self._pages_at:
            self._pages()
            self._stage.tidy()
            self._pages_at = time.monotonic() + METRICS_SECONDS

    def _pages(self) -> None:
        lags = []
        for port in self._stage.ports():
            for line in _get(port, "/metrics").splitlines():
                if line.startswith("dppca_lag_messages{"):
                    lags.append(float(line.rsplit(" ", 1)[1]))
            if self._story.current is None:
                self._story.status = f"the service is {_get(port, '/readyz').strip() or 'starting'}"
        self._story.lag = int(sum(lags)) if lags else None

    def close(self) -> None:
        self._reader.close()


def _get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1.0) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except (OSError, ValueError):
        return ""


def watch(console: Console, stage: Stage, topic: str, story: Story, seconds: float | None) -> None:
    """Show what comes until Ctrl-C, the end of the time, or of something that must run."""
    watcher = Watcher(stage, topic, story)
    end = math.inf if seconds is None else time.monotonic() + seconds
    try:
        if not console.is_terminal:
            while time.monotonic() < end and not stage.failed():
                watcher.look(lambda: console.print(plain_line(story), soft_wrap=True))
            return

        def render() -> RenderableType:
            return screen(story, stage, *console.size)

        with Live(get_renderable=render, console=console, screen=True, refresh_per_second=8):
            while time.monotonic() < end and not stage.failed():
                watcher.look()
    finally:
        watcher.close()


# The whole ----------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(highlight=False)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, _interrupt)
    _keep_connection_only()
    story = Story("0" if options.shards == 1 else "merged")
    stage: Stage | None = None
    failure = None
    try:
        stage, plan = _set(console, options)
        story.began = time.monotonic()
        watch(console, stage, plan.settings().output_topic, story, options.seconds)
        failure = stage.failed()
    except KeyboardInterrupt:
        pass
    except (brokers.BrokerError, ClusterError) as error:
        failure = str(error)
    finally:
        if stage is not None:
            stage.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if stage is not None:
        _summary(console, story, stage, plan)
    elif not failure:
        console.print("left before there was a broker")
    if failure:
        console.print(failure, style=BAD, soft_wrap=True, markup=False)
    return 1 if failure or not story.releases else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m consumers.demo",
        description="Telemetry, a Kafka broker, the service, and the component as it is learned.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, help="how long; without it, until Ctrl-C")
    parser.add_argument("--rate", type=float, default=20_000, help="records a second")
    parser.add_argument("--batch-size", type=int, default=5_000, help="records a release")
    parser.add_argument("--epsilon", type=float, default=1.0, help="the promise to every record")
    parser.add_argument("--delta", type=float, default=1e-6, help="and its small probability")
    parser.add_argument("--shards", type=int, default=1, help="services that share the work")
    parser.add_argument("--no-broker", action="store_true", help="a log inside this process")
    options = parser.parse_args(arguments)
    for name in ("rate", "batch_size", "epsilon", "shards"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    return options


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep_connection_only() -> None:
    """Settings of the service in the environment belong to somebody's own model."""
    for name in list(os.environ):
        if name.startswith(PREFIX) and not name.removeprefix(PREFIX).startswith(CONNECTION):
            del os.environ[name]


def _set(console: Console, options: argparse.Namespace) -> tuple[Stage, Plan]:
    """Have everything started, on the best broker there is."""
    flags: dict[str, Any] = {
        "input_topic": "telemetry",
        "features": FEATURES,
        "epsilon": options.epsilon,
        "delta": options.delta,
        "batch_size": options.batch_size,
        "center": "pairs",
        "format": FORMAT,
        "shards": options.shards,
        "http_port": 0,
        "partition_refresh_s": 1,
    }
    plan = Plan(flags, options.rate, partitions=max(4, options.shards))
    if not options.no_broker:
        try:
            broker = _broker(console)
        except brokers.BrokerUnavailable as error:
            if os.environ.get(brokers.ADDRESS_VARIABLE):
                raise  # that was an order
            console.print(str(error), soft_wrap=True, markup=False)
            console.print("So this runs on a log inside this process, without Kafka.\n")
        else:
            flags["bootstrap_servers"] = broker.bootstrap_servers
            if broker.way == "env":  # topics of its own, on a cluster that is not ours
                flags["input_topic"] = f"telemetry-demo-{os.urandom(3).hex()}"
            try:
                return Processes(plan, broker), plan
            except BaseException:
                broker.close()
                raise
    return Threads(plan), plan


def _broker(console: Console) -> brokers.Broker:
    if not console.is_terminal:
        return brokers.provide_broker(lambda line: console.print(line, soft_wrap=True))
    with console.status("a Kafka broker: looking for one, or starting it") as status:

        def tell(line: str) -> None:
            console.print(Text(line, style=LABEL))
            status.update(Text(line))

        return brokers.provide_broker(tell)


def _summary(console: Console, story: Story, stage: Stage, plan: Plan) -> None:
    """What remains on the terminal: the last component, the promise, and what to do next."""
    say = partial(console.print, soft_wrap=not console.is_terminal)
    settings = plan.settings()
    release = story.current
    if release is None:
        say(f"[{BAD}]{NOTHING}[/] ({story.status}; broker: {stage.broker})")
    else:
        if console.is_terminal:
            say(bars(release, min(console.width, 100), len(FEATURES)))
        say()
        p = release.privacy
        say(
            f"[bold]{story.releases} releases[/bold] from {release.n_seen:,} records, the first "
            f"after {story.first_s or 0:.1f} s; broker: {stage.broker}"
        )
        say(
            f"sine of the angle to the truth: {story.sines[0]:.4f} at first, "
            f"{story.sines[-1]:.4f} at last"
        )
        say(Text("promise: ").append_text(promise(p)))
        if "your cluster" in stage.broker:
            names = (settings.input_topic, settings.output_topic, settings.state_topic)
            say(f"left on your cluster: {', '.join(names)}")
    say("\nThe same service on your own cluster, with your own features:\n")
    flags = {
        "bootstrap_servers": "HOST:9092",
        "input_topic": "YOUR_TOPIC",
        "features": "cpu,memory,disk.read",
        "epsilon": f"{settings.epsilon:g}",
        "delta": f"{settings.delta:g}",
        "batch_size": settings.batch_size,
        "center": settings.center,
        "format": "json",
    }
    command = [_relative(word) for word in service_command()]
    lines, words = [shlex.join(command)], _as_flags(flags)
    lines += [shlex.join(words[i : i + 4]) for i in range(0, len(words), 4)]
    say(" \\\n      ".join(["  " + lines[0], *lines[1:]]), markup=False)


def _relative(word: str) -> str:
    """A path as one would type it here."""
    path = Path(word)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return word

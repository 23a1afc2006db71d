"""One model on Apache Spark, against `stream-dppca serve` on the same cores and the same topics.

    python -m benchmarks.spark [--quick] [--only packed json jobs tasks recovery] [--out DIR]

Starts a broker, a master and two workers of one core each. Services run one after the other, the
local one (with the confluent reader) and the one on Spark in turn, so that ratios are of one run;
the best of several turns counts, because other work on the machine can only make a turn slower. In
addition to the time on the clock there is the processor time of the service and of all processes
that work for it, which other work does not change. Writes spark.json and spark.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer

from benchmarks.figures import table
from benchmarks.service import named
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.protocols import TopicInfo
from consumers.settings import Settings
from demo.broker.local import LocalBroker
from demo.standalone import StandaloneCluster
from stream_dppca import DPPCA
from stream_dppca.arrays import FloatArray
from stream_dppca.engine import EngineBatches, Group

RESULTS = Path(__file__).parent / "results"
D = 64
FEATURES = tuple(f"f{i}" for i in range(D))
ROWS_PER_MESSAGE = 50
PARTITIONS = 4
#: Records that are drawn; topics repeat them.
DRAWN = 10_000


@dataclass
class Row:
    """One line of the table. `value` is what `target` is about."""

    what: str
    value: float
    target: float
    at_most: bool = False
    unit: str = "x"
    detail: dict[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True)
class Measured:
    """A service over some batches after the first step."""

    seconds: float  #: per batch, on the clock
    cpu: float  #: seconds per batch on processors, of all processes that work for it


# Topics


def payloads(format: str) -> list[bytes]:
    X = np.random.default_rng(0).standard_normal((DRAWN, D)) * np.linspace(3.0, 0.5, D)
    if format == "float32":
        packed = X.astype("<f4")
        return [
            packed[i : i + ROWS_PER_MESSAGE].tobytes() for i in range(0, DRAWN, ROWS_PER_MESSAGE)
        ]
    return [json.dumps(dict(zip(FEATURES, row, strict=True))).encode() for row in X.tolist()]


def settings(servers: str, topic: str, format: str, **more: Any) -> Settings:
    rows = {"rows_per_message": ROWS_PER_MESSAGE} if format == "float32" else {}
    return Settings(
        **{
            "bootstrap_servers": servers,
            "input_topic": topic,
            "features": FEATURES,
            "format": format,
            "epsilon": 1.0,
            "delta": 1e-6,
            "batch_size": 20_000,
            "http_port": 0,
            **rows,
            **more,
        }
    )


def produce(servers: str, format: str, rows: int) -> str:
    """Fill a topic; return its name."""
    topic = f"spark-{format}-{uuid.uuid4().hex[:8]}"
    given = settings(servers, topic, format)
    KafkaCluster(kafka_config(given)).create_topic(topic, TopicInfo(PARTITIONS, {}), 1)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    messages = payloads(format)
    each = ROWS_PER_MESSAGE if format == "float32" else 1
    for i in range(rows // each):
        while True:
            try:
                producer.produce(topic, messages[i % len(messages)], partition=i % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


# Services


def serve(
    given: Settings, batches: int, environment: dict[str, str], spark: StandaloneCluster | None
) -> Measured:
    """Run a new model over this many batches; the first step is not measured."""
    model = f"m-{uuid.uuid4().hex[:8]}"
    said = given.model_dump(mode="json", exclude_unset=True) | named(model)
    process = subprocess.Popen(
        [sys.executable, "-m", "consumers.cli", "serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment}
        | {
            f"DPPCA_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in said.items()
        },
    )
    times: list[float] = []
    used: list[float] = []
    lines: list[str] = []
    try:
        for line in process.stdout or ():
            lines.append(line)
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "released":
                times.append(time.monotonic())
                used.append(processor_seconds(process.pid, spark))
                if event["batch"] == batches:
                    break
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # it leads a session, with the JVM of the driver
        process.communicate()
    if len(times) < 2:
        raise RuntimeError(f"the service ended early: {''.join(lines)[-3000:]}")
    n = len(times) - 1
    return Measured((times[-1] - times[0]) / n, (used[-1] - used[0]) / n)


def processor_seconds(leader: int, spark: StandaloneCluster | None) -> float:
    """Time on processors so far of a service, its children, and the executors of a cluster."""
    parents, seconds = {}, {}
    ticks = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        seconds[pid] = sum(int(x) for x in fields[11:15]) / ticks  # with children that ended
    roots = {leader, *(child.pid for child, _ in (() if spark is None else spark.children))}

    def ours(pid: int) -> bool:
        while pid > 1:
            if pid in roots:
                return True
            pid = parents.get(pid, 0)
        return False

    return sum(seconds[pid] for pid in parents if ours(pid))


def on_spark(cluster: StandaloneCluster) -> dict[str, str]:
    return cluster.environment() | {"DPPCA_ENGINE": "spark", "DPPCA_SPARK_MASTER": cluster.master}


def compared(
    cluster: StandaloneCluster, given: Settings, batches: int, turns: int
) -> tuple[Measured, Measured]:
    """The local service and the one on Spark, the best of each."""

    def best(runs: Sequence[Measured]) -> Measured:
        return Measured(min(run.seconds for run in runs), min(run.cpu for run in runs))

    local, spread = [], []
    for _ in range(turns):
        local.append(serve(given, batches, {"DPPCA_READER": "confluent"}, None))
        spread.append(serve(given, batches, on_spark(cluster), cluster))
    return best(local), best(spread)


def throughput(
    cluster: StandaloneCluster,
    servers: str,
    format: str,
    sizes: Sequence[tuple[int, int, float]],
    turns: int,
) -> Iterator[Row]:
    """Ratios of throughput by batch size, and the fixed cost of a batch."""
    topic = produce(servers, format, max(size * batches for size, batches, _ in sizes))
    found: dict[int, tuple[Measured, Measured]] = {}
    for size, batches, target in sizes:
        given = settings(servers, topic, format, batch_size=size)
        local, spread = found[size] = compared(cluster, given, batches, turns)
        detail = {
            "records/s": size / spread.seconds,
            "serve records/s": size / local.seconds,
            "s per batch": spread.seconds,
            "serve s per batch": local.seconds,
            "processor s per batch": spread.cpu,
            "serve processor s per batch": local.cpu,
        }
        if target:
            yield Row(
                f"{format}, B = {size:,}, d = {D}, against `serve`",
                local.seconds / spread.seconds,
                target,
                detail=detail,
            )
        else:
            yield Row(
                f"{format}, B = {size:,}: seconds per batch more than `serve`",
                spread.seconds - local.seconds,
                0.25,
                True,
                "s",
                detail,
            )
    for clock in ("cpu", "seconds"):
        yield from _modelled(
            format, clock, {size: getattr(spread, clock) for size, (_, spread) in found.items()}
        )


def _modelled(format: str, clock: str, took: dict[int, float]) -> Iterator[Row]:
    """The cost model a + c B from the two smallest batches, checked on the largest."""
    if len(took) < 3:
        return
    small, middle, *_, large = sorted(took)
    c = (took[middle] - took[small]) / (middle - small)
    a = took[small] - c * small
    predicted = a + c * large
    detail = {
        "a, s per batch": a,
        "c, us per record": c * 1e6,
        "predicted s": predicted,
        "measured s": took[large],
    }
    name = "processor time" if clock == "cpu" else "time"
    what = f"{format}: {name} a + c B from B = {small:,} and {middle:,}, error at B = {large:,}"
    yield Row(what, abs(predicted / took[large] - 1), 0.25, True, "", detail)


# The engine alone


@dataclass(frozen=True)
class DrawnSource:
    """Draws its records in the task, leaves the id of its process, and may wait for a file.

    Parameters
    ----------
    place
        Folder in which it waits for a file `go`; None if it does not wait.
    """

    seed: int
    place: str | None = None

    def read(self, group: Group) -> FloatArray:
        if self.place is not None:
            here = Path(self.place)
            (here / f"{os.getpid()}").touch()
            while not (here / "go").exists():
                time.sleep(0.01)
        rng = np.random.default_rng([self.seed, group.start])
        return rng.standard_normal((group.slots, D)) * np.linspace(3.0, 0.5, D)


def model(size: int, **how: Any) -> DPPCA:
    return DPPCA(features=range(D), epsilon=1.0, delta=1e-6, batch_size=size, **how)


class Counting:
    """An engine that counts its jobs."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.jobs = engine, 0

    def map(self, task: Callable[[Any], Any], groups: Sequence[Any]) -> list[Any]:
        self.jobs += 1
        found: list[Any] = self._engine.map(task, groups)
        return found


def jobs(engine: Any, quick: bool) -> Iterator[Row]:
    """Shares of batches after the first step that took one job."""
    for name, how in (
        ("learned centre and scales", {}),
        ("known centre and scales", {"center": "none", "scales": None}),
    ):
        estimator, counting = model(20_000, **how), Counting(engine)
        made = EngineBatches(counting, estimator, 2)
        took, seconds = [], []
        while len(took) < (20 if quick else 60):
            first = not estimator.n_batches
            before, start = counting.jobs, time.monotonic()
            estimator.learn_rows(made.rows(DrawnSource(estimator.n_batches)))
            if not first:
                took.append(counting.jobs - before)
                seconds.append(time.monotonic() - start)
        share = float(np.mean(np.array(took) == 1))
        detail = {"median s per batch, B = 20,000": float(np.median(seconds))}
        yield Row(f"batches with one job, {name}", share, 0.95, unit="", detail=detail)


def nothing(group: int) -> int:
    return group


def tasks(engine: Any) -> Iterator[Row]:
    """Cost of one more task: the slope of the time of a job that does nothing."""
    numbers = (2, 32, 128)
    seconds = {n: float("inf") for n in numbers}
    for _ in range(6):
        for n in numbers:
            start = time.monotonic()
            engine.map(nothing, range(n))
            seconds[n] = min(seconds[n], time.monotonic() - start)
    slope = (seconds[128] - seconds[2]) / 126
    detail = {f"s with {n} tasks": took for n, took in seconds.items()}
    yield Row("ms per task, on two cores", slope * 1e3, 10.0, True, "ms", detail)


def recovery(engine: Any) -> Iterator[Row]:
    """Time from SIGKILL to the end of the batch."""
    for what, name, target in (
        ("Python worker", "pyspark.daemon", 10.0),
        ("executor", "CoarseGrainedExecutorBackend", 30.0),
    ):
        estimator = model(20_000, center="none", scales=None)
        made = EngineBatches(engine, estimator, 2)
        estimator.learn_rows(made.rows(DrawnSource(0)))
        with tempfile.TemporaryDirectory() as place:
            rows = made.rows(DrawnSource(1, place))
            learning = threading.Thread(target=partial(estimator.learn_rows, rows))
            learning.start()
            while not (found := list(Path(place).iterdir())):
                time.sleep(0.01)
            victim = int(found[0].name)
            while name not in Path(f"/proc/{victim}/cmdline").read_text(errors="replace"):
                victim = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
            start = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            (Path(place) / "go").touch()
            learning.join()
        yield Row(f"recovery from a killed {what}", time.monotonic() - start, target, True, "s")


def on_session(cluster: StandaloneCluster, quick: bool, parts: Sequence[str]) -> Iterator[Row]:
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support")
    from pyspark.sql import SparkSession

    from stream_dppca.spark import SparkEngine

    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    builder = SparkSession.builder.master(cluster.master).appName("benchmark")
    here = {
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in (cluster.conf() | here).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        engine = SparkEngine(session)
        if "jobs" in parts:
            yield from jobs(engine, quick)
        if "tasks" in parts:
            yield from tasks(engine)
        if "recovery" in parts:
            yield from recovery(engine)
    finally:
        session.stop()


# The report

PARTS = ("packed", "json", "jobs", "tasks", "recovery")


def rows(quick: bool, parts: Sequence[str]) -> Iterator[Row]:
    turns = 1 if quick else 3
    large = (1_000_000, 4, 0.6)
    with LocalBroker() as broker, StandaloneCluster() as cluster:
        servers = broker.bootstrap_servers
        if "packed" in parts:
            sizes = [(20_000, 22, 0.0), (200_000, 8 if quick else 16, 0.5), large]
            yield from throughput(cluster, servers, "float32", sizes, turns)
        if "json" in parts:
            sizes = [(100_000, 4 if quick else 6, 0.6)]
            yield from throughput(cluster, servers, "json", sizes, turns)
        if {"jobs", "tasks", "recovery"} & set(parts):
            # The module is loaded by name on the executors, too.
            from benchmarks.spark import on_session as run

            yield from run(cluster, quick, parts)


def render(about: dict[str, Any], found: Sequence[Row]) -> str:
    def shown(row: Row) -> list[str]:
        bound = "at most" if row.at_most else "at least"
        detail = ", ".join(f"{name} {value:,.3g}" for name, value in row.detail.items())
        value = f"{row.value:.3g} {row.unit}".strip()
        return [row.what, value, f"{bound} {row.target:g}", "yes" if row.met else "**no**", detail]

    head = ["what", "measured", "target", "met", "detail"]
    busy = f"load average {about['load']} at the start"
    return (
        f"Measured {about['date']} on {about['cores']} cores, {about['cpu']}; {busy}.\n\n"
        + table(head, map(shown, found))
        + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer batches and turns")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for spark.json, spark.md")
    options = parser.parse_args()
    # So that everything is closed then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "cpu": platform.processor() or platform.machine(),
        "load": " ".join(f"{x:.1f}" for x in os.getloadavg()),
    }
    found = []
    for row in rows(options.quick, options.only):
        found.append(row)
        print(render(about, [row]).splitlines()[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    lines = [{**asdict(row), "met": row.met} for row in found]
    (options.out / "spark.json").write_text(json.dumps({"about": about, "rows": lines}, indent=1))
    (options.out / "spark.md").write_text(render(about, found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""One model on a real Spark cluster: the releases of the local estimator, whatever is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from pyspark.sql import functions as F

from consumers.kafka.configure import task_connection
from consumers.messages.recipe import MessageRecipe
from consumers.ranges import Range
from consumers.reading.remote_sums import TopicSource
from stream_dppca import DPPCA, ParameterError, PerSubject
from stream_dppca.engine import EngineBatches, EngineError, Group, LocalEngine
from stream_dppca.spark import SparkEngine, fit, refuse_exposed
from tests.engine.helpers import DrawnSource
from tests.engine.test_engine import FailingSource
from tests.integration import test_spread_rounds as rounds
from tests.integration.test_spread import BATCH, FEATURES, fill, settings
from tests.spark.cluster import DEADLINE_SECONDS, command, parent, wait_for
from tests.spark.waiting import WaitingSource
from tests.support.harness import close_readers
from tests.support.registry import registry

SIZE = 16_384
HOW: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "batch_size": 4096, "seed": 1}


def model(d: int, **how: Any) -> DPPCA:
    how = {"epsilon": 1.0, "delta": 1e-6, "batch_size": SIZE, "seed": 1} | how
    return DPPCA(features=range(d), **how)


@pytest.mark.parametrize(
    "d, how", [(20, {}), (1100, {"center": "none", "scales": None, "batch_size": 4096})], ids=repr
)
def test_seeded_releases_are_those_of_the_local_estimator(
    session: Any, d: int, how: dict[str, Any]
) -> None:
    local, remote = model(d, **how), model(d, **how)
    engine = SparkEngine(session)
    assert engine.parallelism == 2
    made, same = EngineBatches(engine, remote, 4), EngineBatches(LocalEngine(), local, 1)
    for i in range(3):
        source = DrawnSource(i, d, far=97, bad=89)
        remote.learn_rows(made.rows(source))
        local.learn_rows(same.rows(source))
        assert remote.components == pytest.approx(local.components, abs=1e-9)
    assert len(local.components)


@pytest.mark.parametrize("format", ["float32", "avro", "protobuf"])
def test_a_topic_gives_the_statistics_of_a_local_run(
    session: Any, servers: str, format: str
) -> None:
    """Packed rows, and formats whose schemas the executors fetch; JSON is below."""
    topic, packed = f"of-{format}", format == "float32"
    with registry() as served, closing_consumers():
        how = {} if packed else {"schema_registry_url": served.url}
        fill(servers, topic, format, None if packed else served)
        given = settings(servers, topic, format, **how)
        each = given.rows_per_message
        ranges = (Range(0, 0, 4500 // each), Range(1, 0, 4500 // each))
        source = TopicSource(
            task_connection(given), topic, ranges, MessageRecipe.of(given), len(FEATURES), 240.0
        )
        center = {"center": "none", "scales": None} if packed else {}
        local, remote = (
            DPPCA(features=FEATURES, **HOW | center | {"batch_size": BATCH}) for _ in range(2)
        )
        remote.learn_rows(EngineBatches(SparkEngine(session), remote, 2).rows(source))
        local.learn_rows(EngineBatches(LocalEngine(), local, 1).rows(source))
    one, other = local.last_release, remote.last_release
    assert one is not None and other is not None
    assert (one.status, one.range) == (other.status, other.range)
    assert local.components == pytest.approx(remote.components, abs=1e-9)


def test_a_round_gives_the_table_of_the_local_reader(session: Any, servers: str) -> None:
    """Tasks read pieces of a round; a subject's rows meet in the driver, and have one place."""
    rule, given = rounds.fill(servers, "rounds"), rounds.settings(servers, "rounds")
    round_, one, other = rounds.planned(servers, "rounds"), rounds.model(), rounds.model()
    read = rounds.local(given, rule, rounds.take(one))
    expected = rounds.table(read, one, round_)
    remote = rounds.on_engine(given, rule, SparkEngine(session), rounds.take(other))
    found = rounds.table(remote, other, round_)
    assert found[0].tobytes() == expected[0].tobytes()
    assert found[1].tobytes() == expected[1].tobytes()
    assert found[2] == pytest.approx(expected[2], abs=1e-9) and len(expected[2])


@pytest.mark.parametrize("what", ["python worker", "executor", "worker"])
def test_a_process_that_is_killed_changes_nothing(
    session: Any, cluster: Any, servers: str, telemetry: str, tmp_path: Path, what: str
) -> None:
    """It is killed while a task reads a topic; the state is that of a local run to the last bit."""
    given = settings(servers, telemetry, "json")
    records = TopicSource(
        task_connection(given),
        telemetry,
        (Range(0, 0, 4000), Range(1, 10, 5010)),
        MessageRecipe.of(given),
        len(FEATURES),
        240.0,
    )
    local, remote = (DPPCA(features=FEATURES, **HOW | {"batch_size": BATCH}) for _ in range(2))
    source = WaitingSource(records, tmp_path)
    made = EngineBatches(SparkEngine(session), remote, 2)
    learning = threading.Thread(target=lambda: remote.learn_rows(made.rows(source)))
    learning.start()
    wait_for("a task", lambda: bool(source.processes()))
    victim, name = source.processes()[0], VICTIMS[what]
    while name not in command(victim):
        victim = parent(victim)
    os.kill(victim, signal.SIGKILL)
    if what == "worker":
        cluster.add_worker()
    (tmp_path / "go").touch()
    learning.join(DEADLINE_SECONDS)
    assert not learning.is_alive()
    with closing_consumers():
        local.learn_rows(EngineBatches(LocalEngine(), local, 1).rows(records))
    assert local.state() == remote.state()


#: In the command line of a process.
VICTIMS = {
    "python worker": "pyspark.daemon",
    "executor": "CoarseGrainedExecutorBackend",
    "worker": "deploy.worker.Worker",
}


@contextmanager
def closing_consumers() -> Iterator[None]:
    try:
        yield
    finally:
        close_readers()


def test_errors_of_tasks_quote_no_record(session: Any) -> None:
    m = model(5)
    made = EngineBatches(SparkEngine(session), m, 2)
    with pytest.raises(EngineError) as failed:
        m.learn_rows(made.rows(FailingSource("raise")))
    text = str(failed.value)
    assert text.startswith("a job of Spark failed: slots ") and "ValueError in a task" in text
    assert "31337" not in text and failed.value.__cause__ is None


# Data frames


def frame_of(session: Any, X: Any, order: Any) -> Any:
    """A frame of whole slots in some order; NULL where a record has NaN."""
    names = [f"f.{i}" for i in range(X.shape[1])]
    rows = [(int(i), *(None if np.isnan(x) else float(x) for x in X[i].tolist())) for i in order]
    schema = ", ".join(["slot bigint", *(f"`{name}` double" for name in names)])
    return session.createDataFrame(rows, schema).repartition(3), names


def test_frames_with_slots_give_the_releases_of_the_local_estimator(session: Any) -> None:
    X = DrawnSource(3, 3, far=97, bad=89).read(Group(0, 3 * 4096 + 100))
    missing = np.random.default_rng(1).permutation(len(X))[50:]  # slots without a row are nulls
    frame, names = frame_of(session, X, missing)
    found = fit(frame, features=names, slot="slot", **HOW)
    local, holes = DPPCA(features=names, **HOW), np.full_like(X, np.nan)
    holes[missing] = X[missing]
    local.learn_array(holes)
    assert found.n_batches == local.n_batches == 3
    assert found.components == pytest.approx(local.components, abs=1e-9)
    batches = [
        frame.where((F.col("slot") >= i * 4096) & (F.col("slot") < (i + 1) * 4096)) for i in (0, 1)
    ]
    again = fit(batches, features=names, **HOW)
    assert again.n_batches == 2
    with pytest.raises(EngineError, match="a batch of 4096 slots had"):
        fit(frame, features=names, **HOW)


def test_frames_that_break_the_rules_are_refused(session: Any) -> None:
    frame, names = frame_of(session, np.zeros((10, 2)), range(10))
    text = frame.withColumn("f.0", F.lit("text"))
    for bad, how, why in (
        (frame.withColumn("slot", F.monotonically_increasing_id()), {}, "deterministic"),
        (frame, {"slot": "f.0"}, "whole numbers"),
        (frame, {"slot": "nowhere"}, "whole numbers"),
        (frame.withColumn("slot", F.col("slot") - 1), {}, "`slot` must"),
        ([frame], {}, "must be None if frames are batches"),
        (text, {"slot": None}, "columns of numbers"),
        (frame, {"unit": PerSubject("f.1", places=1000)}, "must be left out"),
    ):
        with pytest.raises(ParameterError, match=why):
            fit(bad, **({"features": names, "slot": "slot"} | HOW | how))


@pytest.mark.parametrize("master, safe", [("local[2]", True), ("spark://there:7077", False)])
def test_a_remote_master_without_encryption_is_refused(master: str, safe: bool) -> None:
    def session(**conf: str) -> Any:
        names = {name.replace("_", "."): value for name, value in conf.items()}
        context = SimpleNamespace(master=master, getConf=lambda: names)
        return SimpleNamespace(sparkContext=context)

    full = {
        "spark_authenticate": "true",
        "spark_network_crypto_enabled": "true",
        "spark_io_encryption_enabled": "true",
    }
    refuse_exposed(session(**full))
    refuse_exposed(session(), allow_insecure=True)
    for name in full:
        conf = {other: value for other, value in full.items() if other != name}
        if safe:
            refuse_exposed(session(**conf))
        else:
            with pytest.raises(ParameterError, match=name.replace("_", ".")):
                refuse_exposed(session(**conf))

"""`stream-dppca serve --engine spark` on a real Kafka and a real cluster."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from consumers.cli.exits import EXIT_CONFIGURATION
from consumers.settings.engine import SPARK_CONF_PREFIX
from tests.harness import read_topic
from tests.integration.test_spread import BATCH, BATCHES, FEATURES, agree
from tests.processes import PATIENT_LEAVING, SILENT, Instance, crash_at


def environment(servers: str, topic: str, model: str) -> dict[str, str]:
    given = {
        "bootstrap_servers": servers, "input_topic": topic, "model": model, "epsilon": 1,
        "features": ",".join(FEATURES), "delta": 1e-6, "batch_size": BATCH, "seed": 4,
        "http_port": 0, "session_timeout_s": 10,
    }  # fmt: skip
    return {f"DPPCA_{name.upper()}": str(value) for name, value in given.items()} | PATIENT_LEAVING


def on_spark(cluster: Any) -> dict[str, str]:
    return cluster.environment() | {"DPPCA_ENGINE": "spark", "DPPCA_SPARK_MASTER": cluster.master}


#: Where drivers die, one after the other: each begins where the one before it left the model.
#: `a task runs` is in the middle of a job. The points before the first job are those of the
#: local engine, which `tests/crash` goes through.
CRASHES = ("a task runs", "inside_transaction", "after_commit", "inside_publish", "after_publish")


def python_workers(cluster: Any) -> set[int]:
    """The processes of Python that executors of this cluster have started."""
    parents, found = {}, []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in path.with_name("cmdline").read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has just ended

    def ours(pid: int) -> bool:
        while pid not in cluster.pids and pid > 1:
            pid = parents.get(pid, 0)
        return pid in cluster.pids

    return {pid for pid in found if ours(pid)}


def crash(cluster: Any, environment: dict[str, str], point: str) -> Instance:
    """A driver that has died at a point."""
    if point != "a task runs":
        instance = Instance({**environment, **crash_at(point)})
    else:
        before = python_workers(cluster)
        instance = Instance(environment)
        instance.wait_until("a task", lambda: python_workers(cluster) - before)
        instance.signal(signal.SIGKILL)
    try:
        assert instance.wait() == -9, instance.text
    finally:
        instance.close()
    return instance


def finished(environment: dict[str, str]) -> None:
    """Let an instance of the local engine learn what is left."""
    last = Instance(environment)
    try:
        last.wait_for("released", batch=BATCHES)
        assert last.leave() == 0
    finally:
        last.close()


def payloads(servers: str, model: str) -> dict[int, set[bytes]]:
    """All that was ever published of each batch."""
    found: dict[int, set[bytes]] = {}
    for message in read_topic(servers, f"{model}.components"):
        found.setdefault(json.loads(message.value)["batch"], set()).add(message.value)
    return found


def test_drivers_that_are_killed_leave_one_payload_per_batch(
    servers: str, telemetry: str, cluster: Any
) -> None:
    """Each slot is in its batch once: without noise, the releases are those of a local run."""
    given = environment(servers, telemetry, "spread") | SILENT
    spread = given | on_spark(cluster)
    text = "".join(crash(cluster, spread, point).text for point in CRASHES)
    assert "Traceback" not in text and cluster.secret not in text
    finished(given)  # the model moves to the local engine
    local = environment(servers, telemetry, "local") | SILENT
    finished(local)
    found, expected = payloads(servers, "spread"), payloads(servers, "local")
    assert sorted(found) == list(range(1, BATCHES + 1))
    assert all(len(same) == 1 for same in found.values())
    agree(*([json.loads(of[batch].pop()) for batch in sorted(of)] for of in (expected, found)))


def test_a_cluster_without_encryption_is_refused(
    servers: str, telemetry: str, cluster: Any
) -> None:
    exposed = {f"{SPARK_CONF_PREFIX}spark.io.encryption.enabled": "false"}
    instance = Instance({**environment(servers, telemetry, "exposed"), **on_spark(cluster),
                         **exposed})  # fmt: skip
    try:
        assert instance.wait() == EXIT_CONFIGURATION
    finally:
        instance.close()
    assert "spark.io.encryption.enabled" in instance.text

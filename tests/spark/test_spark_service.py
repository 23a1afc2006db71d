"""`stream-dppca serve --engine spark` on a real Kafka and a real cluster."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from consumers.cli.exits import EXIT_CONFIGURATION
from consumers.settings.operation import SPARK_CONF_PREFIX
from tests.integration.test_spread import BATCH, BATCHES, FEATURES, agree
from tests.spark.cluster import descendants, stop_session
from tests.support.harness import EVICTED, read_topic, round_model
from tests.support.processes import PATIENT_LEAVING, SILENT, Instance, crash_at, wait_for


def environment(servers: str, topic: str, model: str) -> dict[str, str]:
    given = {
        "bootstrap_servers": servers,
        "input_topic": topic,
        "model": model,
        "epsilon": 1,
        "features": ",".join(FEATURES),
        "delta": 1e-6,
        "batch_size": BATCH,
        "seed": 4,
        "http_port": 0,
        **EVICTED,
    }
    return {f"DPPCA_{name.upper()}": str(value) for name, value in given.items()} | PATIENT_LEAVING


def on_spark(cluster: Any) -> dict[str, str]:
    return cluster.environment() | {"DPPCA_ENGINE": "spark", "DPPCA_SPARK_MASTER": cluster.master}


#: Where drivers die, one after the other: each begins where the one before it left the model. The
#: points before the first job are those of the local engine, which `tests/crash` goes through. A
#: driver takes 20 seconds, so points that differ little from their neighbours are optional.
POINTS = {
    "batch_full": True,
    "before_transaction": False,
    "inside_transaction": True,
    "offsets_sent": False,
    "after_commit": True,
    "inside_publish": False,
    "after_publish": True,
}
ALL = int(os.environ.get("STREAM_DPPCA_CRASHES", "0")) >= 50
CRASHES = [point for point, always in POINTS.items() if always or ALL]


def evict(servers: str, model: str) -> None:
    """End the sessions of drivers that are dead, as the broker does after a time."""
    group = f"stream-dppca.{model}"
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        [found] = admin.describe_groups([group]).values()
        members = [MemberToRemove(member["member_id"]) for member in found["members"]]
        admin.remove_group_members(group, members)


def ended(instance: Instance, code: int) -> str:
    """Wait for the end of an instance; returns its log."""
    assert instance.wait() == code, instance.text
    return instance.text


def wait_for_task(instance: Instance, cluster: Any, others: set[int]) -> None:
    """Wait until a task runs on the cluster, in a process of Python that is new."""
    instance.wait_until("a task", lambda: python_workers(cluster) - others)


def python_workers(cluster: Any) -> set[int]:
    return descendants(cluster.pids, "pyspark.daemon")


def finished(environment: dict[str, str]) -> None:
    """Let an instance of the local engine learn from the remaining records."""
    with closing(Instance(environment)) as last:
        last.wait_until(
            "the last batch",
            lambda: any(
                last.saw(event, batch=BATCHES) for event in ("released", "published_again")
            ),
        )
        assert last.leave() == 0


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
    logs = []
    # Another application has all cores: the driver waits until it gives them back.
    session = cluster.session()
    with closing(Instance(spread)) as driver:
        driver.wait_for("waiting_for_executors")
        assert driver.get("/livez")[0] == 200 and b"no executors" in driver.get("/readyz")[1]
        others = python_workers(cluster)
        session.stop()
        wait_for_task(driver, cluster, others)
        driver.signal(signal.SIGKILL)
        logs.append(ended(driver, -signal.SIGKILL))
    # The JVM of a driver dies: so does the driver, and its successor has a new one.
    evict(servers, "spread")
    wait_for("the end of its executors", lambda: not python_workers(cluster))
    with closing(Instance(spread)) as driver:
        wait_for_task(driver, cluster, set())
        [jvm] = descendants([driver.process.pid], "org.apache.spark.deploy.SparkSubmit")
        os.kill(jvm, signal.SIGKILL)
        assert "EngineLost" in ended(driver, 1)
    for point in CRASHES:
        with closing(Instance(spread | crash_at(point), fresh=False)) as driver:
            logs.append(ended(driver, -signal.SIGKILL))
        evict(servers, "spread")
    with closing(Instance(spread | crash_at("closing"), fresh=False)) as driver:
        driver.wait_for("task_started")
        driver.signal(signal.SIGTERM)
        logs.append(ended(driver, -signal.SIGKILL))
    evict(servers, "spread")
    text = "".join(logs)
    assert "Traceback" not in text and cluster.secret not in text
    finished(given)  # the model moves to the local engine
    local = environment(servers, telemetry, "local") | SILENT
    finished(local)
    found, expected = payloads(servers, "spread"), payloads(servers, "local")
    assert sorted(found) == list(range(1, BATCHES + 1))
    assert all(len(same) == 1 for same in found.values())
    agree(*([json.loads(of[batch].pop()) for batch in sorted(of)] for of in (expected, found)))


def test_rounds_of_subjects_are_those_of_the_local_engine(servers: str, cluster: Any) -> None:
    """Bit for bit without noise; no task clips, so where records lie makes no difference."""
    stop_session()
    with (
        round_model(servers, "devices", partitions=2, **EVICTED) as spread,
        round_model(servers, "local-devices", **EVICTED) as local,
    ):
        spread.produce_devices(70)
        driver = spread.start(**SILENT, **PATIENT_LEAVING, **on_spark(cluster))
        count = spread.finish_rounds(driver)
        assert driver.metric("dppca_slots_total") == 2 * 70  # tasks have read them
        assert driver.leave() == 0
        local.environment = spread.environment | {"DPPCA_MODEL": local.name}
        spread.finish_rounds(local.start(**SILENT))
        found, expected = (
            [{**m.releases()[n], "model": ""} for n in range(1, count + 1)] for m in (spread, local)
        )
    assert found == expected


def test_a_cluster_without_encryption_is_refused(
    servers: str, telemetry: str, cluster: Any
) -> None:
    exposed = {f"{SPARK_CONF_PREFIX}spark.io.encryption.enabled": "false"}
    given = environment(servers, telemetry, "exposed") | on_spark(cluster) | exposed
    with closing(Instance(given)) as instance:
        assert "spark.io.encryption.enabled" in ended(instance, EXIT_CONFIGURATION)

"""`stream-dppca serve --engine spark` on a real Kafka and a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from consumers.cli.exits import EXIT_CONFIGURATION
from consumers.demo.broker import BrokerUnavailable, LocalBroker
from consumers.settings.engine import SPARK_CONF_PREFIX
from tests.harness import read_topic
from tests.integration.test_spread import BATCH, BATCHES, FEATURES, agree, fill
from tests.processes import PATIENT_LEAVING, Instance, crash_at


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    broker = LocalBroker()
    try:
        broker.start()
    except BrokerUnavailable as error:
        pytest.skip(str(error))
    try:
        yield broker.bootstrap_servers
    finally:
        broker.close()


def environment(servers: str, topic: str, model: str) -> dict[str, str]:
    given = {
        "bootstrap_servers": servers, "input_topic": topic, "model": model, "epsilon": 1,
        "features": ",".join(FEATURES), "delta": 1e-6, "batch_size": BATCH, "seed": 4,
        "http_port": 0, "session_timeout_s": 30,
    }  # fmt: skip
    return {f"DPPCA_{name.upper()}": str(value) for name, value in given.items()} | PATIENT_LEAVING


def on_spark(cluster: Any) -> dict[str, str]:
    conf = {f"{SPARK_CONF_PREFIX}{name}": value for name, value in cluster.conf().items()}
    one = {f"{SPARK_CONF_PREFIX}spark.cores.max": "2", "SPARK_LOCAL_IP": "127.0.0.1"}
    return conf | one | {"DPPCA_ENGINE": "spark", "DPPCA_SPARK_MASTER": cluster.master}


def with_crashes(servers: str, topic: str, model: str, spark: dict[str, str]) -> Any:
    """Releases of a model whose first two drivers die: after a commit, and before another one.

    The third one is local. A model that is loaded begins its noise anew, so releases can be
    compared only with those of a model that was loaded as often.
    """
    base, text = environment(servers, topic, model), ""
    for crash in (crash_at("after_commit"), crash_at("before_transaction", 2)):
        instance = Instance({**base, **spark, **crash})
        try:
            assert instance.wait() == -9
        finally:
            instance.close()
        text += instance.text
    assert instance.saw("state_loaded", batch=1)  # the release of the second batch rode along
    last = Instance(base)
    try:
        last.wait_for("released", batch=BATCHES)
        assert last.leave() == 0
    finally:
        last.close()
    payloads: dict[int, set[bytes]] = {}
    for message in read_topic(servers, f"{model}.components"):
        payloads.setdefault(json.loads(message.value)["batch"], set()).add(message.value)
    assert sorted(payloads) == list(range(1, BATCHES + 1))
    assert all(len(same) == 1 for same in payloads.values())
    return [json.loads(payloads[batch].pop()) for batch in sorted(payloads)], text


def test_serve_on_spark_moves_from_engine_to_engine(servers: str, cluster: Any) -> None:
    fill(servers, "telemetry", "json")
    found, text = with_crashes(servers, "telemetry", "spread", on_spark(cluster))
    assert "Traceback" not in text and cluster.secret not in text
    agree(with_crashes(servers, "telemetry", "local", {})[0], found)


def test_a_cluster_without_encryption_is_refused(servers: str, cluster: Any) -> None:
    exposed = {f"{SPARK_CONF_PREFIX}spark.io.encryption.enabled": "false"}
    instance = Instance({**environment(servers, "telemetry", "exposed"), **on_spark(cluster),
                         **exposed})  # fmt: skip
    try:
        assert instance.wait() == EXIT_CONFIGURATION
    finally:
        instance.close()
    assert "spark.io.encryption.enabled" in instance.text

"""Batches of a real topic, read by the tasks of an engine: the releases of the local reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaProducer

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config, librdkafka_connection
from consumers.kafka.executor import close_consumers
from consumers.model.codecs import make_codec
from consumers.service.loop import Service
from consumers.service.plan import Range
from consumers.service.spread import Spread, TopicSource
from consumers.settings import Settings
from stream_dppca.engine import Group
from tests.consumers.helpers import in_thread
from tests.engine.helpers import PicklingEngine

from ..harness import read_topic
from ..processes import PATIENT_TRANSACTION, wait_for
from .conftest import RunningBroker

FEATURES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def no_consumer_is_left() -> Iterator[None]:
    yield
    close_consumers()


BATCH, BATCHES = 9000, 3


def fill(servers: str, topic: str, format: str) -> None:
    """Three partitions, one of them idle; nulls, garbage, and an aborted transaction."""
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}})
        admin.wait_for_topics([topic])
    rng = np.random.default_rng(3)
    packed = format == "float32"

    def value() -> bytes:
        rows = rng.standard_normal((3, 3)) * [30.0, 2.0, 0.5] + [100.0, -3.0, 0.0]
        if packed:
            return bytes(rows.astype("<f4").tobytes())
        return json.dumps(dict(zip(FEATURES, rows[0].tolist(), strict=True))).encode()

    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=topic, linger_ms=20,
                             **PATIENT_TRANSACTION)  # fmt: skip
    try:
        producer.init_transactions()
        slots = BATCH * BATCHES // (3 if packed else 1)
        for first in range(0, slots, 500):
            for committed in (False, True) if first == 1000 else (True,):
                producer.begin_transaction()
                for i in range(first, first + 500):
                    bad = {7: None, 8: b"not a record"}.get(i % 100, b"")
                    wanted = value() if bad == b"" else bad
                    producer.send(topic, wanted, key=b"k", partition=i % 2)
                if committed:
                    producer.commit_transaction()
                else:
                    producer.flush()  # an abort forgets what has not been sent yet
                    producer.abort_transaction()
    finally:
        producer.close()


def settings(servers: str, topic: str, format: str, **more: Any) -> Settings:
    rows = {"rows_per_message": 3} if format == "float32" else {}
    how = {"epsilon": 1.0, "delta": 1e-6, "batch_size": BATCH, "seed": 4, "http_port": 0} | more
    where = {"bootstrap_servers": servers, "input_topic": topic}
    return Settings(features=FEATURES, format=format, **where, **rows, **how)


def spread(given: Settings, engine: Any) -> Spread:
    rows = given.rows_per_message if given.format == "float32" else None
    codec = partial(make_codec, given.format, given.features, given.max_message_bytes, True, rows)
    return Spread(engine, 2, librdkafka_connection(given), codec)


def releases(given: Settings, on: Spread | None) -> list[dict[str, Any]]:
    service = Service(given, KafkaCluster(kafka_config(given)), watched=False, spread=on)
    with in_thread(service) as failed:

        def published() -> bool:
            done = service.metrics.batches.labels(task="0")._value.get() >= BATCHES
            return bool(failed) or done

        wait_for("all batches", published)
    found = [json.loads(m.value) for m in read_topic(given.bootstrap_servers, given.output_topic)]
    return sorted(found, key=lambda release: int(release["batch"]))


def agree(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Check that seeded releases are the same to 1e-9."""
    assert [r["status"] for r in one] == [r["status"] for r in other]
    assert {r["batch"] for r in one} == {r["batch"] for r in other}
    for a, b in zip(one, other, strict=True):
        assert len(a["components"]) == len(b["components"])
        for c, d in zip(a["components"], b["components"], strict=True):
            assert c["loadings"] == pytest.approx(d["loadings"], abs=1e-9)


@pytest.mark.parametrize(
    "format, how", [("json", {}), ("float32", {"center": "pairs", "scales": "none"})], ids=repr
)
def test_an_engine_gives_the_releases_of_the_local_reader(
    broker: RunningBroker, fresh_name: Any, format: str, how: dict[str, Any]
) -> None:
    servers, topic = broker.bootstrap_servers, fresh_name("spread")
    fill(servers, topic, format)
    local = settings(servers, topic, format, model=f"{topic}-local", **how)
    engine = settings(servers, topic, format, model=f"{topic}-engine", **how)
    expected = releases(local, None)
    asked = PicklingEngine()
    agree(expected, releases(engine, spread(engine, asked)))
    assert asked.jobs >= BATCHES and {r["status"] for r in expected} >= {"learned"}


def test_a_slot_is_the_same_whatever_the_split(broker: RunningBroker, fresh_name: Any) -> None:
    servers, topic = broker.bootstrap_servers, fresh_name("slots")
    fill(servers, topic, "float32")
    given = settings(servers, topic, "float32")
    on = spread(given, PicklingEngine())
    for mixed in (False, True):
        ranges = (Range(0, 100, 2100), Range(1, 50, 1050))
        source = TopicSource(on.connection, topic, ranges, on.codec, 3, mixed, 60.0)
        whole = source.read(Group(0, 9000))
        parts = [source.read(Group(a, b)) for a, b in ((0, 1000), (1000, 1004), (1004, 9000))]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
        valid = np.isfinite(whole).all(axis=1)
        assert 0.5 < valid.mean() < 0.97  # there were nulls, garbage and aborted records
    assert "password" not in repr(source) and servers not in repr(source)

"""Batches of a real topic, read by the tasks of an engine: the releases of the local reader."""

from __future__ import annotations

import base64
import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from kafka import KafkaAdminClient, KafkaProducer

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config, task_connection
from consumers.messages.recipe import MessageRecipe
from consumers.ranges import Range
from consumers.reading.remote import Remote
from consumers.reading.remote_sums import TopicSource
from consumers.service.loop import Service
from consumers.settings import Settings
from stream_dppca.batch import Reading
from stream_dppca.engine import Group, SourceAway
from stream_dppca.engine.partials import Present, answer
from tests.consumers.helpers import in_thread
from tests.engine.helpers import PicklingEngine

from ..support.harness import close_readers, read_topic
from ..support.processes import PATIENT_TRANSACTION, wait_for
from ..support.registry import Registry, registry
from .conftest import RunningBroker

FEATURES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def no_consumer_is_left() -> Iterator[None]:
    yield
    close_readers()


BATCH, BATCHES = 9000, 3


#: Two schemas of the same records: their fields stand in another order.
SCHEMAS = tuple(
    {"type": "record", "name": "R", "fields": [{"name": name, "type": "double"} for name in names]}
    for names in (FEATURES, FEATURES[::-1])
)


def _proto(names: Sequence[str]) -> str:
    """The file of a type with these fields, as a registry gives it."""
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    message, field = file.message_type.add(name="R"), descriptor_pb2.FieldDescriptorProto
    for number, name in enumerate(names, 1):
        message.field.add(
            name=name, number=number, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL
        )
    return base64.b64encode(file.SerializeToString()).decode()


PROTO_FILES = tuple(_proto(names) for names in (FEATURES, FEATURES[::-1]))


def framed(served: Registry, format: str, row: list[float], i: int) -> bytes:
    """A message; half of them have another schema, and some an unknown id."""
    turned = i % 4 < 2
    numbers = row[::-1] if turned else row
    if format == "avro":
        number = served.register("value", SCHEMAS[turned])
        body = struct.pack("<3d", *numbers)
    else:
        number = served.register("value", PROTO_FILES[turned], "PROTOBUF")
        fields = (struct.pack("<Bd", n << 3 | 1, x) for n, x in enumerate(numbers, 1))
        body = b"\0" + b"".join(fields)  # of the first type of the file
    return b"\0" + (7 if i % 100 == 9 else number).to_bytes(4) + body


def fill(servers: str, topic: str, format: str, served: Registry | None = None) -> None:
    """Three partitions, one of them idle; nulls, garbage, and an aborted transaction."""
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}})
        admin.wait_for_topics([topic])
    rng = np.random.default_rng(3)
    packed = format == "float32"

    def value(i: int) -> bytes:
        # Features that vary together: without a gap between the eigenvalues, the single precision
        # of states would turn the components.
        together = 2 * rng.standard_normal((3, 1)) * [1.0, 0.7, -0.4] + rng.standard_normal((3, 3))
        rows = together * [30.0, 2.0, 0.5] + [100.0, -3.0, 0.0]
        if packed:
            return bytes(rows.astype("<f4").tobytes())
        if served is not None:
            return framed(served, format, rows[0].tolist(), i)
        return json.dumps(dict(zip(FEATURES, rows[0].tolist(), strict=True))).encode()

    producer = KafkaProducer(
        bootstrap_servers=servers, transactional_id=topic, linger_ms=20, **PATIENT_TRANSACTION
    )
    try:
        producer.init_transactions()
        slots = BATCH * BATCHES // (3 if packed else 1)
        for first in range(0, slots, 500):
            for committed in (False, True) if first == 1000 else (True,):
                producer.begin_transaction()
                for i in range(first, first + 500):
                    bad = {7: None, 8: b"not a record"}.get(i % 100, b"")
                    wanted = value(i) if bad == b"" else bad
                    producer.send(topic, wanted, key=b"k", partition=i % 2)
                if committed:
                    producer.commit_transaction()
                else:
                    producer.flush()  # an abort drops messages that have not been sent yet
                    producer.abort_transaction()
    finally:
        producer.close()


def settings(servers: str, topic: str, format: str, **more: Any) -> Settings:
    rows = {"rows_per_message": 3} if format == "float32" else {}
    how = {"epsilon": 1.0, "delta": 1e-6, "batch_size": BATCH, "seed": 4, "http_port": 0} | more
    where = {"bootstrap_servers": servers, "input_topic": topic}
    return Settings(features=FEATURES, format=format, **where, **rows, **how)


def remote(given: Settings, engine: Any) -> Remote:
    tasks = itertools.cycle((2, 3)).__next__  # executors come and go
    return Remote(engine, tasks, task_connection(given), MessageRecipe.of(given))


def releases(given: Settings, on: Remote | None) -> list[dict[str, Any]]:
    service = Service(given, KafkaCluster(kafka_config(given)), watched=False, remote=on)
    with in_thread(service) as failed:

        def published() -> bool:
            done = service.metrics.batches._value.get() >= BATCHES
            return bool(failed) or done

        wait_for("all batches", published)
    found = [json.loads(m.value) for m in read_topic(given.bootstrap_servers, given.output_topic)]
    return sorted(found, key=lambda release: int(release["batch"]))


def agree(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Check that seeded releases are the same, to the single precision of states.

    One slot too many or too few would move a component ten times as far.
    """
    assert [r["status"] for r in one] == [r["status"] for r in other]
    assert {r["batch"] for r in one} == {r["batch"] for r in other}
    for a, b in zip(one, other, strict=True):
        assert len(a["components"]) == len(b["components"])
        for c, d in zip(a["components"], b["components"], strict=True):
            assert c == pytest.approx(d, abs=1e-6)


@pytest.mark.parametrize(
    "format, how",
    [
        ("json", {}),
        ("float32", {"center": "none", "scales": "none"}),
        ("avro", {}),
        ("protobuf", {}),
    ],
    ids=repr,
)
def test_an_engine_gives_the_releases_of_the_local_reader(
    broker: RunningBroker, fresh_name: Any, format: str, how: dict[str, Any]
) -> None:
    servers, topic = broker.bootstrap_servers, fresh_name("remote")
    with registry() as served:
        registered = format in ("avro", "protobuf")
        if registered:
            how = how | {"schema_registry_url": served.url}
        fill(servers, topic, format, served if registered else None)
        local = settings(servers, topic, format, model=f"{topic}-local", **how)
        engine = settings(servers, topic, format, model=f"{topic}-engine", **how)
        expected = releases(local, None)
        asked = PicklingEngine()
        agree(expected, releases(engine, remote(engine, asked)))
    assert asked.jobs >= BATCHES and {r["status"] for r in expected} >= {"learned"}


def test_a_slot_is_the_same_whatever_the_split(broker: RunningBroker, fresh_name: Any) -> None:
    servers, topic = broker.bootstrap_servers, fresh_name("slots")
    fill(servers, topic, "float32")
    given = settings(servers, topic, "float32")
    on = remote(given, PicklingEngine())
    ranges = (Range(0, 100, 2100), Range(1, 50, 1050))
    source = TopicSource(on.connection, topic, ranges, on.recipe, 3, 60.0)
    whole = source.read(Group(0, 9000))
    parts = [source.read(Group(a, b)) for a, b in ((0, 1000), (1000, 1004), (1004, 9000))]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    valid = np.isfinite(whole).all(axis=1)
    assert 0.5 < valid.mean() < 0.97  # there were nulls, garbage and aborted records
    assert "password" not in repr(source) and servers not in repr(source)


def test_a_service_waits_for_the_registry_with_its_plan(
    broker: RunningBroker, fresh_name: Any
) -> None:
    """If the task were dropped, a record that names a schema would decide when to plan anew."""
    servers, topic = broker.bootstrap_servers, fresh_name("waits")
    with registry() as served:
        fill(servers, topic, "avro", served)
        given = settings(servers, topic, "avro", schema_registry_url=served.url)
        served.status = 503
        cluster, on = KafkaCluster(kafka_config(given)), remote(given, PicklingEngine())
        service = Service(given, cluster, watched=False, remote=on)
        with in_thread(service) as failed:
            says = lambda: service.facts()["note"]  # noqa: E731
            wait_for("a word", lambda: failed or "registry has not answered" in says())
            served.status = None
            done = service.metrics.batches._value.get
            wait_for("all batches", lambda: failed or done() >= BATCHES)
        assert service.metrics.dropped._value.get() == 0 and not failed
        assert not service.metrics.registry_away


def test_a_registry_that_is_away_fails_the_task_and_not_the_record(
    broker: RunningBroker, fresh_name: Any
) -> None:
    servers, topic = broker.bootstrap_servers, fresh_name("away")
    with registry() as served:
        fill(servers, topic, "avro", served)
        given = settings(servers, topic, "avro", schema_registry_url=served.url)
        on = remote(given, PicklingEngine())
        ranges = (Range(0, 0, 1000),)
        source = TopicSource(on.connection, topic, ranges, on.recipe, 3, 60.0)
        question = Present()
        served.status = 503
        with pytest.raises(SourceAway) as failed:
            answer(question, source, Reading(1e18), Group(0, 1000))
        assert str(failed.value) == "the schema registry answers with status 503"  # of no group
        assert failed.value.__cause__ is None and failed.value.__suppress_context__
        served.status = None
        found = answer(question, source, Reading(1e18), Group(0, 1000))
        # 250 are of the aborted transaction, 3 in 100 are bad, and there are control records.
        assert 700 < found.total[0] < 750
        served.asked.clear()
        answer(question, source, Reading(1e18), Group(0, 1000))
        known = [path for path in served.asked if path != "/schemas/ids/7"]
        assert known == [], "schemas are fetched once per process"
    assert "password" not in repr(on.recipe) and served.url not in repr(on.recipe)

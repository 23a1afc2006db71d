"""Rounds of a real topic, read by the tasks of an engine: the table of the local reader."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from consumers.errors import ClusterError, ConfigurationError, StateRefused
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config, task_connection
from consumers.messages.recipe import MessageRecipe
from consumers.monitoring.metrics import Metrics
from consumers.planning.round_planner import PlannedRound
from consumers.protocols import Bounds
from consumers.ranges import Range
from consumers.reading import remote_rows
from consumers.reading.remote import Remote
from consumers.reading.remote_rows import RemoteRows
from consumers.reading.round_reader import RoundReader
from consumers.settings import RoundRule, Settings
from stream_dppca import DPPCA, PerSubject
from tests.consumers.otlp import message, resource
from tests.engine.helpers import PicklingEngine

from ..support.harness import close_readers
from ..support.processes import wait_for
from .conftest import RunningBroker

FEATURES = ("a", "b", "c")
PLACES, RECORDS = 300, 3
PARTITIONS = 3


@pytest.fixture(autouse=True)
def no_consumer_is_left() -> Iterator[None]:
    yield
    close_readers()


def fill(servers: str, topic: str, by_broker: bool = True) -> RoundRule:
    """A topic whose first round, and what follows it: more subjects than places, garbage, some
    without an id, busy ones all over the partitions. Returns the rule of its rounds."""
    kind = "LogAppendTime" if by_broker else "CreateTime"
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics(
            {
                topic: {
                    "num_partitions": PARTITIONS,
                    "replication_factor": 1,
                    "configs": {"message.timestamp.type": kind},
                }
            }
        )
        admin.wait_for_topics([topic])
    rng = np.random.default_rng(4)
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=20)
    last = 0
    try:
        for count in (4000, 500):
            wait_for("the next round", lambda last=last: time.time() * 1000 > last + 1)
            sent = []
            for i in range(count):
                who = "busy" if i % 7 == 0 else f"device {rng.zipf(1.3) % 600}"
                row = (rng.standard_normal(3) * [30.0, 2.0, 0.5] + [100.0, -3.0, 0.0]).tolist()
                record = {"id": who, **dict(zip(FEATURES, row, strict=True))}
                if i % 31 == 0:
                    del record["id"]
                value = b"not a record" if i % 50 == 3 else json.dumps(record).encode()
                sent.append(producer.send(topic, value, partition=i % PARTITIONS))
            producer.flush()
            stamps = [future.get(60).timestamp for future in sent]
            last = last or max(stamps)
    finally:
        producer.close()
    return RoundRule("id", last + 1, 1)


def planned(servers: str, topic: str) -> PlannedRound:
    """The first round, among all that there is; partitions in the order 1, 2, 0."""
    consumer = KafkaConsumer(bootstrap_servers=servers)
    try:
        ends = consumer.end_offsets([TopicPartition(topic, p) for p in range(PARTITIONS)])
    finally:
        consumer.close()
    ranges = tuple(Range(p, 0, ends[TopicPartition(topic, p)]) for p in (1, 2, 0))
    return PlannedRound(0, ranges, {r.partition: r.end for r in ranges})


def settings(servers: str, topic: str) -> Settings:
    return Settings(
        features=FEATURES,
        bootstrap_servers=servers,
        input_topic=topic,
        epsilon=1.0,
        delta=1e-6,
        places=PLACES,
        unit="subject",
        subject="id",
        round="1h",
        period="1h",
        records=RECORDS,
        http_port=0,
    )


def model() -> DPPCA:
    return DPPCA(
        features=FEATURES,
        epsilon=8.0,
        delta=1e-3,
        unit=PerSubject("id", places=PLACES, records=RECORDS),
        center="none",
        scales=None,
        seed=3,
    )


def on_engine(given: Settings, rule: RoundRule, engine: Any, take: Any) -> RemoteRows:
    on = Remote(engine, lambda: 2, task_connection(given), MessageRecipe.of(given))
    return RemoteRows(
        on,
        given.input_topic,
        rule,
        Metrics(),
        width=len(given.features),
        stall_s=240.0,
        bounds=bounds_of(given),
        take=take,
    )


def bounds_of(given: Settings) -> Any:
    def bounds(partitions: list[int]) -> dict[int, Bounds]:
        cluster = KafkaCluster(kafka_config(given))
        with closing(cluster.offsets(given.input_topic)) as offsets:
            return offsets.bounds(partitions)

    return bounds


def local(given: Settings, rule: RoundRule, take: Any) -> RoundReader:
    cluster, topic = KafkaCluster(kafka_config(given)), given.input_topic
    codec = MessageRecipe.of(given).subject_codec(None)
    reader = cluster.reader(topic, stamped=True)
    return RoundReader(reader, topic, codec, rule, Metrics(), stall_s=240.0, take=take)


def table(reader: RoundReader | RemoteRows, of: DPPCA, round_: PlannedRound) -> tuple[Any, ...]:
    """Read a round to its end; return the content of the model's table, and its seeded release."""
    reader.start(round_)
    wait_for("the round", lambda: (reader.read(0.1) and False) or reader.complete)
    reader.finish()
    reader.close()
    places = of._slots
    rows, place = places._rows[: places._fill].copy(), places._place[: places._fill].copy()
    of.close_round()
    return rows, place, of.components


def take(of: DPPCA) -> Any:
    return lambda rows, subjects: of.learn_array(rows, subjects=subjects)


def test_an_engine_fills_the_table_of_the_local_reader(
    broker: RunningBroker, fresh_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, in one job or in many: all subjects have their places in a full table."""
    servers, topic = broker.bootstrap_servers, fresh_name("rounds")
    rule, given = fill(servers, topic), settings(servers, topic)
    round_, one = planned(servers, topic), model()
    rows, places, components = table(local(given, rule, take(one)), one, round_)
    assert len(set(places.tolist())) == PLACES < len(places) and len(components)
    offsets = sum(end - start for _, start, end in round_.ranges)
    for most, jobs in ((2**24, 1), (3 * 100, -(-offsets // 100))):
        monkeypatch.setattr(remote_rows, "MOST_NUMBERS", most)
        engine, other = PicklingEngine(), model()
        found = table(on_engine(given, rule, engine, take(other)), other, round_)
        assert engine.jobs == jobs
        assert found[0].tobytes() == rows.tobytes() and found[1].tobytes() == places.tobytes()
        assert found[2] == pytest.approx(components, abs=1e-9)


def points(servers: str, topic: str) -> RoundRule:
    """A topic of hosts that share messages, more of them than places, all over the partitions."""
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics(
            {
                topic: {
                    "num_partitions": PARTITIONS,
                    "replication_factor": 1,
                    "configs": {"message.timestamp.type": "LogAppendTime"},
                }
            }
        )
        admin.wait_for_topics([topic])
    rng = np.random.default_rng(4)
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=20)
    sent = []
    for i in range(600):
        hosts = [
            resource(
                {"host.name": f"h{rng.zipf(1.2) % 500}"},
                *(
                    {
                        "name": name,
                        "time": int(rng.integers(1, 1000)),
                        "start": int(rng.integers(3)),
                        "value": float(rng.standard_normal() * 10.0 ** rng.integers(-6, 6)),
                        "attributes": {"s": int(rng.integers(50))},
                    }
                    for name in ("m", "n")
                    for _ in range(3)
                ),
            )
            for _ in range(4)
        ]
        value = b"not a message" if i % 50 == 3 else message(*hosts)
        sent.append(producer.send(topic, value, partition=i % PARTITIONS))
    producer.flush()
    last = max(future.get(60).timestamp for future in sent)
    producer.close()
    return RoundRule("host.name", last + 1, 1)


@pytest.mark.parametrize("parts", [1, 2])
def test_points_become_the_same_rows_on_an_engine(
    broker: RunningBroker, fresh_name: Any, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """To the last bit, however a round is cut into pieces."""
    servers, topic = broker.bootstrap_servers, fresh_name("points")
    rule = points(servers, topic)
    given = Settings(
        features=("m", "rate(m)", "last(n)", "count(n)", "max(n)"),
        bootstrap_servers=servers,
        input_topic=topic,
        epsilon=1.0,
        delta=1e-6,
        places=200,
        unit="subject",
        subject="host.name",
        round="1h",
        period="1h",
        format="otlp",
        parts=parts,
        http_port=0,
    )
    round_ = planned(servers, topic)

    def rows(make: Any) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        reader = make(
            lambda X, who: found.extend(
                (subject, row.tobytes()) for subject, row in zip(who, X, strict=True)
            )
        )
        reader.start(round_)
        wait_for("the round", lambda: (reader.read(0.1) and False) or reader.complete)
        reader.finish()
        reader.close()
        return found

    wanted = rows(lambda take: local(given, rule, take))
    assert len({who for who, _ in wanted}) == 200
    for most in (2**24, 5 * 32 * 100):
        monkeypatch.setattr(remote_rows, "MOST_NUMBERS", most)
        engine = PicklingEngine()
        assert rows(lambda take, e=engine: on_engine(given, rule, e, take)) == wanted


def broken(*_: Any, **__: Any) -> Any:
    raise ValueError("31337")


def test_what_an_engine_refuses(
    broker: RunningBroker, fresh_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times that senders set, and a topic that is shorter than before; no error says more."""
    servers, topic = broker.bootstrap_servers, fresh_name("sender-time")
    rule, given = fill(servers, topic, by_broker=False), settings(servers, topic)
    round_ = planned(servers, topic)
    reader = on_engine(given, rule, PicklingEngine(), None)
    reader.start(round_)
    with pytest.raises(ConfigurationError, match="CreateTime"):
        reader.read(0.1)
    longer = tuple(Range(p, start, end + 1) for p, start, end in round_.ranges)
    with pytest.raises(StateRefused, match="ends before the offset"):
        reader.start(PlannedRound(0, longer, {}))
    monkeypatch.setattr(remote_rows, "read_ranges", broken)
    reader.start(round_)
    with pytest.raises(ClusterError) as failed:
        reader.read(0.1)
    assert str(failed.value) == "a piece of a round: ValueError in a task"

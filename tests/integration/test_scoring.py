"""`stream-dppca score` on a real Kafka: at least once under SIGKILL, shared by two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.kafka.confluent import MessageProducer
from consumers.model.releases import PublishedRelease, release_message
from consumers.protocols import Message, TopicInfo
from consumers.settings import ClusterSettings, RoundRule
from stream_dppca import Limit, PerSubject, PrivacyStatement, Projector, SubjectStatement

from ..support.harness import read_topic
from ..support.launch import CRASH_AT
from ..support.processes import PATIENCE_SECONDS, ROOT, wait_for
from .conftest import RunningBroker

FEATURES = ("cpu", "memory", "disk")


def release(model: str, batch: int) -> PublishedRelease:
    limits = {"spe": (Limit(rate=0.01, value=9.2, sd=0.1),)}
    return PublishedRelease(
        model=model,
        status="learned",
        batch=batch,
        n_seen=1000,
        features=FEATURES,
        components=((0.6, 0.8, 0.0),),
        center=(0.0,) * 3,
        scale=(1.0,) * 3,
        clamp=(5.0,) * 3,
        mean=(0.0,) * 3,
        deviation=(1.0,) * 3,
        spread=(1.0,),
        limits=limits,
        privacy=PrivacyStatement(epsilon=1, delta=1e-6, method="adaptive", private=True),
    )


def start(
    servers: str, topic: str, log: Path, *more: str, crash_at: str = ""
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "tests.support.launch",
        "score",
        "--input-topic",
        topic,
        "--bootstrap-servers",
        servers,
        "--http-port",
        "0",
        "--session-timeout-s",
        "6",
        "--log-format",
        "json",
        *more,
    ]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    if crash_at:
        environment[CRASH_AT] = crash_at
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=environment)


def facts(log: Path) -> dict[str, Any]:
    lines = [line for line in log.read_text().splitlines() if '"listening"' in line]
    address = f"http://127.0.0.1:{json.loads(lines[0])['port']}/facts"
    with urllib.request.urlopen(address, timeout=5) as answer:
        found: dict[str, Any] = json.loads(answer.read())["beyond"]
        return found


def test_at_least_once(broker: RunningBroker, fresh_name: Any, tmp_path: Path) -> None:
    servers, topic = broker.bootstrap_servers, fresh_name("scored")
    settings = ClusterSettings(bootstrap_servers=servers, input_topic=topic)
    config = kafka_config(settings)
    cluster = KafkaCluster(config)
    scores_topic, partitions = f"{topic}.scores", 2
    for name, count in ((topic, partitions), (settings.output_topic, 1)):
        cluster.create_topic(name, TopicInfo(count, {}), 1)
    X = np.random.default_rng(0).standard_normal((40_000, 3)).round(4)
    X[::40, 2] = 8.0  # one machine of forty
    records = [
        Message(
            b"machine-%02d" % (i % 40), json.dumps(dict(zip(FEATURES, row, strict=True))).encode()
        )
        for i, row in enumerate(X.tolist())
    ]
    producer = MessageProducer(config, topic)
    producer.send(records[:20_000])
    log = tmp_path / "first.log"
    # It dies when the brokers have the scores, and the group does not know that yet.
    first = start(servers, topic, log, crash_at="scores_written:3")
    try:
        wait_for(
            "that it waits",
            lambda: (
                b"does not exist" in log.read_bytes() or b"waiting_for_model" in log.read_bytes()
            ),
        )
        MessageProducer(config, settings.output_topic).send([release_message(release(topic, 7))])
        sent = 20_000
        while first.poll() is None and sent < 30_000:
            producer.send(records[sent : sent + 100])
            sent += 100
            time.sleep(0.1)
        assert first.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    finally:
        first.kill()
        first.wait()
    producer.send(records[sent:])
    # Two share the rest; one of them leaves in order.
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    both = [start(servers, topic, log) for log in logs]
    try:
        wait_for(
            "all",
            lambda: len({(m.value, m.key) for m in read_topic(servers, scores_topic)}) >= 40_000,
        )
        shown = [alarm for log in logs for alarm in facts(log)["alarms"]]
        assert {alarm["key"] for alarm in shown} == {"machine-00"}
        assert all(alarm["contributions"][0][0] == "disk" for alarm in shown)
    finally:
        for one in both:
            one.terminate()
        codes = [one.wait(PATIENCE_SECONDS) for one in both]
    assert codes == [0, 0]
    found = defaultdict(list)
    for message in read_topic(servers, scores_topic):
        score = json.loads(message.value)
        found[score["partition"], score["offset"]].append((message.key, score))
    inputs = read_topic(servers, topic)
    assert {(m.partition, m.offset) for m in inputs} == set(found)  # each at least once
    again = sum(len(copies) - 1 for copies in found.values())
    assert 0 < again < 20_000  # those of a second, once
    projector = Projector.from_release(release(topic, 7))
    for message in inputs[::97]:
        record = json.loads(message.value)
        for key, score in found[message.partition, message.offset]:
            assert key == message.key and abs(score["spe"] - projector.spe(record)) < 1e-5
            assert score["anomaly"] is projector.is_anomaly(record) and score["private"] is False
    # What is done stays done: there is nothing left for the next one.
    done = start(servers, topic, tmp_path / "last.log", "--once")
    assert done.wait(PATIENCE_SECONDS) == 0
    assert b"\n0 scores written" in (tmp_path / "last.log").read_bytes()


def test_rounds_of_subjects(broker: RunningBroker, fresh_name: Any, tmp_path: Path) -> None:
    """A row is all that a host sent in a round; the group remembers the round, not offsets.

    A new group begins with the oldest round, not with that of the newest release.
    """
    servers, topic, length_ms = broker.bootstrap_servers, fresh_name("rounds"), 4000
    settings = ClusterSettings(bootstrap_servers=servers, input_topic=topic)
    config = kafka_config(settings)
    cluster = KafkaCluster(config)
    cluster.create_topic(topic, TopicInfo(2, {"message.timestamp.type": "LogAppendTime"}), 1)
    cluster.create_topic(settings.output_topic, TopicInfo(1, {}), 1)
    rule = RoundRule("host", length_ms, 24)
    unit = PerSubject("host", places=20, period=24, records=1)
    said = SubjectStatement.of(unit, epsilon=1.0, delta=1e-6, method="adaptive", private=True)
    number = rule.first_from(int(time.time() * 1000))
    made = release(topic, 1).model_copy(update={"privacy": said, "n_seen": None, "subjects": 20.0})
    made = PublishedRelease.of(made, topic, rule, number + 1)
    X = np.random.default_rng(0).standard_normal((20, 2, 3)).round(3)  # two points of each
    producer = MessageProducer(config, topic)
    for later in range(2):  # ten hosts in each round

        def value(name: str, h: int, value: float) -> bytes:
            return json.dumps({"host": f"h{h}", "metric": name, "value": value}).encode()

        begins = rule.start_ms(number + later)
        wait_for("a round", lambda begins=begins: time.time() * 1000 > begins)
        producer.send(
            Message(None, value(name, h, float(x)))
            for h in range(10 * later, 10 * later + 10)
            for point in X[h]
            for name, x in zip(FEATURES, point, strict=True)
        )
    MessageProducer(config, settings.output_topic).send([release_message(made)])
    wait_for("its end", lambda: time.time() * 1000 > rule.end_ms(number + 1) + 1000)
    more = ("--once", "--format", "long", "--clock-slack", "500ms")
    for log in (tmp_path / "one.log", tmp_path / "two.log"):
        assert start(servers, topic, log, *more).wait(PATIENCE_SECONDS) == 0, log.read_text()
    found = [json.loads(message.value) for message in read_topic(servers, f"{topic}.scores")]
    assert made.round is not None
    assert {score["subject"] for score in found if score["round"] == made.round.start} == {
        f"h{h}" for h in range(10, 20)
    }
    assert sorted(score["subject"] for score in found) == sorted(f"h{h}" for h in range(20))
    projector = Projector.from_release(made)
    for score in found:
        row = X[int(score["subject"][1:])].mean(axis=0)
        assert abs(score["spe"] - projector.spe(row[np.newaxis])[0]) < 1e-5
        assert not {"partition", "offset"} & score.keys()

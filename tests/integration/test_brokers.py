"""Each way to a broker gives a real one: topics, records, groups, transactions, restarts."""

from __future__ import annotations

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

from demo.broker.base import ADDRESS_VARIABLE, KAFKA_VERSION, BrokerFailed, BrokerUnavailable
from demo.broker.docker import DockerBroker
from demo.broker.jars import ensure_jars
from demo.broker.local import LocalBroker
from demo.broker.node import free_port, listed_brokers
from demo.broker.provide import provide_broker

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
        source, bootstrap_servers=servers, group_id=group, enable_auto_commit=False,
        session_timeout_ms=int(PATIENCE_SECONDS * 1000),  # a busy machine ends none
    )  # fmt: skip
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
    if os.environ.get(ADDRESS_VARIABLE) and broker.kind == "env":
        pytest.skip("a broker of somebody else may serve where it likes")
    host, _, port = broker.bootstrap_servers.partition(":")
    found = wait_for("a broker on the list", lambda: listed_brokers(int(port)))
    assert found == [(host, int(port))]
    with socket.socket() as elsewhere:  # free on the other addresses, so not bound there
        elsewhere.bind(("127.0.0.2", int(port)))


def test_the_ways_of_the_variable(broker: RunningBroker) -> None:
    chosen = os.environ.get(WAYS_VARIABLE, "auto").split(",")
    assert chosen == ["auto"] or broker.kind in chosen


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[LocalBroker | DockerBroker]:
    """A broker that the test may stop and kill."""
    broker = {"local": LocalBroker, "docker": DockerBroker}[request.param](settings=QUICK)
    try:
        with broker:
            yield broker
    except BrokerUnavailable as error:
        refuse(str(error))


@pytest.mark.parametrize("own", [by("local", MODULE), by("docker", MODULE)], indirect=True)
def test_restart_and_crash_keep_data_and_address(
    own: LocalBroker | DockerBroker, fresh_name: FreshName
) -> None:
    address, topic = own.bootstrap_servers, fresh_name("kept")
    make_topic(address, topic)

    def produce(value: bytes) -> None:
        with KafkaProducer(bootstrap_servers=address) as producer:
            producer.send(topic, value=value, partition=0).get(timeout=PATIENCE_SECONDS)

    produce(b"first")
    thread = threading.Thread(target=own.restart)  # it must outlive the thread that started it
    thread.start()
    thread.join()
    assert own.bootstrap_servers == address
    produce(b"second")
    own.kill()
    assert not listed_brokers(own.port)
    own.start()
    assert own.bootstrap_servers == address
    assert read_all(address, topic) == [b"first", b"second"]
    folder = own.data_dir
    own.close()
    assert not folder.exists()


@pytest.mark.parametrize("way", [by("local", MODULE), by("docker", MODULE)])
def test_ends_with_a_parent_that_is_killed(way: str, brokers: Brokers) -> None:
    try:
        brokers.get(way)
    except BrokerUnavailable as error:
        refuse(str(error))
    command = [sys.executable, "-m", "demo.broker", "run", "--kind", way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline().rpartition(":")[2])
        assert wait_for("a broker on the list", lambda: listed_brokers(port))
        parent.send_signal(signal.SIGKILL)

    wait_for("the broker to end with its parent", lambda: not listed_brokers(port))


@pytest.mark.broker
@group("local", MODULE)
def test_topics_on_demand_for_producers_only(fresh_name: FreshName) -> None:
    """A newcomer's producer does not wait, and the service still says which topic is missing."""
    try:
        provided = provide_broker(kind="local")
    except BrokerUnavailable as error:
        refuse(str(error))
    with provided as broker:
        topic = fresh_name("new")
        flags = f"--bootstrap-servers {broker.bootstrap_servers} --input-topic {topic} "
        flags += "--features a,b --epsilon 1 --delta 1e-6 --batch-size 1000"

        def run(command: str) -> subprocess.CompletedProcess[str]:
            words = [sys.executable, "-m", "consumers.cli", command, *flags.split()]
            return subprocess.run(words, capture_output=True, text=True)

        for command in ("check-config", "serve", "check-config"):  # none of them creates it
            done = run(command)
            assert done.returncode == 78
            assert f"input_topic {topic!r} does not exist" in done.stderr + done.stdout
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send(topic, value=b"first").get(timeout=PATIENCE_SECONDS)
        assert read_all(broker.bootstrap_servers, topic) == [b"first"]
        assert run("check-config").returncode == 0


@pytest.mark.broker
@group("local", MODULE)
def test_the_variable_comes_first(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        address = brokers.get("local").bootstrap_servers
    except BrokerUnavailable as error:
        refuse(str(error))
    monkeypatch.setenv(ADDRESS_VARIABLE, address)
    with provide_broker() as broker:
        assert (broker.kind, broker.bootstrap_servers) == ("env", address)


def test_a_variable_that_leads_nowhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, f"127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnavailable, match=r"does not answer .*refused"):
        provide_broker()


def test_no_way_at_all_names_every_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerUnavailable) as caught:
        provide_broker()
    for reason in (f"{ADDRESS_VARIABLE} is not set", "no docker command", "no java command"):
        assert reason in str(caught.value)


def test_java_without_maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerUnavailable, match="no mvn command"):
        ensure_jars()


def test_a_failed_download_leaves_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mvn = tmp_path / "mvn"
    mvn.write_text("#!/bin/sh\necho '[ERROR] no route to the registry'\nexit 1\n")
    mvn.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    said: list[str] = []
    with pytest.raises(BrokerUnavailable, match="no route to the registry"):
        ensure_jars(said.append)
    assert any("fetching Apache Kafka" in line for line in said)
    left = [path.name for path in (tmp_path / "cache" / "stream-dppca").iterdir()]
    assert left == [f"kafka-{KAFKA_VERSION}.lock"]


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

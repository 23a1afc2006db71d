"""The contracts of `consumers.protocols`, checked for every implementation."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from kafka.errors import KafkaConnectionError

from consumers import crashpoints
from consumers.errors import ClusterError, Fenced, OffsetsGone
from consumers.kafka.client import close_client
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.config import MAX_RECORD_BYTES, KafkaConfig
from consumers.planning.timeline import cuts
from consumers.protocols import Claim, Cluster, Membership, Message, Reader, TopicInfo
from stream_dppca.method.memory import RunningMoments
from stream_dppca.method.parameters import MOST_FEATURES
from tests.support.memory import MemoryBroker, MemoryCluster

from ..support.harness import READERS
from ..support.processes import PATIENCE_SECONDS, PATIENT_TRANSACTION, wait_for
from .helpers import settled

COMPACT = {"cleanup.policy": "compact"}
RELEASES = [Message(b"k", b"release 1"), Message(b"k", b"release 2")]


class Case:
    """A log with fresh topics, and a second instance of everything on request."""

    def __init__(
        self, make: Callable[[], Cluster], produce: Callable[..., None], names: Any
    ) -> None:
        self.make, self.produce, self.names = make, produce, names
        self.log = make()
        self._open: list[Any] = []
        self.log.create_topic(names["input_topic"], TopicInfo(2, {}), 1)
        self.log.create_topic(names["state_topic"], TopicInfo(1, COMPACT), 1)
        self.log.create_topic(names["output_topic"], TopicInfo(1, COMPACT), 1)

    def kept(self, part: Any) -> Any:
        self._open.append(part)
        return part

    def few(self) -> Cluster:
        """The same log, of which a reader reads few messages at a time."""
        few = self.make()
        if isinstance(few, KafkaCluster):
            few.config = replace(few.config, fetch={"max_poll_records": 5})
        elif isinstance(few, MemoryCluster):
            few.max_records = 5
        return few

    def close(self) -> None:
        for part in reversed(self._open):
            part.close()


def names(fresh: Callable[[str], str]) -> dict[str, str]:
    kinds = ("input_topic", "state_topic", "output_topic", "group")
    return {kind: fresh(kind) for kind in kinds}


@pytest.fixture(params=READERS)
def kafka_case(
    broker: Any, fresh_name: Callable[[str], str], request: pytest.FixtureRequest
) -> Iterator[Case]:
    from kafka import KafkaProducer

    named = names(fresh_name)
    connection = {"bootstrap_servers": broker.bootstrap_servers}
    fast = {"bootstrap.servers": broker.bootstrap_servers}
    config = KafkaConfig(
        connection=connection,
        session_timeout_s=12.0,
        **named,  # a busy machine ends none
        librdkafka=fast if request.param == "confluent" else None,
    )
    producer = KafkaProducer(**connection)

    def produce(topic: str, value: bytes | None, partition: int = 0) -> None:
        producer.send(topic, value, key=b"k", partition=partition).get(PATIENCE_SECONDS)

    case = Case(lambda: KafkaCluster(config), produce, named)
    yield case
    case.close()
    producer.close()


@pytest.fixture
def unverified(broker: Any) -> Iterator[None]:
    """The broker does not ask the coordinator whether a partition is part of a transaction."""
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)

    nodes = [str(node["broker_id"]) for node in admin.describe_cluster()["brokers"]]

    def verify(value: str) -> None:
        change = {"transaction.partition.verification.enable": value}
        admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, n, change) for n in nodes])

    verify("false")
    yield
    verify("true")
    admin.close()


@pytest.fixture
def memory_case(fresh_name: Callable[[str], str]) -> Iterator[Case]:
    cluster, named = MemoryBroker(), names(fresh_name)

    def produce(topic: str, value: bytes | None, partition: int = 0) -> None:
        cluster.produce(topic, value, partition, b"k")

    case = Case(lambda: MemoryCluster(cluster, **named), produce, named)
    yield case
    case.close()


def read_once(reader: Reader) -> list[tuple[int, int, bytes | None]]:
    """Messages of one read, as (partition, offset, value)."""
    found: list[tuple[int, int, bytes | None]] = []
    for chunk in reader.read(0.2):
        assert len(chunk.offsets) == len(chunk.values)
        pairs = zip(chunk.offsets, chunk.values, strict=True)
        found.extend((chunk.partition, offset, value) for offset, value in pairs)
    return found


def read_all(reader: Reader, n: int) -> list[tuple[int, int, bytes | None]]:
    """Read n messages as (partition, offset, value)."""
    found: list[tuple[int, int, bytes | None]] = []

    def enough() -> bool:
        found.extend(read_once(reader))
        return len(found) >= n

    wait_for(f"{n} messages", enough)
    return found


class Contract:
    """The same tests for each kind of log."""

    @pytest.fixture
    def case(self) -> Case:
        raise NotImplementedError("see the subclasses")

    def test_topics(self, case: Case) -> None:
        info = case.log.topic(case.names["state_topic"])
        assert info is not None and info.partitions == 1
        assert info.configs is not None and info.configs["cleanup.policy"] == "compact"
        assert case.log.topic("no-such-topic") is None
        case.log.create_topic(case.names["state_topic"], TopicInfo(5, COMPACT), 1)
        again = case.log.topic(case.names["state_topic"])
        assert again is not None and again.partitions == 1

    def test_reading(self, case: Case) -> None:
        topic = case.names["input_topic"]
        for i in range(4):
            case.produce(topic, b"%d" % i, i % 2)
        case.produce(topic, None, 0)
        reader = case.kept(case.log.reader(topic))
        assert reader.partitions() == {0, 1}
        assert {p: tuple(b) for p, b in reader.bounds([0, 1]).items()} == {0: (0, 3), 1: (0, 2)}
        reader.assign({0: 0, 1: 1})
        wanted = [(0, 0, b"0"), (0, 1, b"2"), (0, 2, None), (1, 1, b"3")]
        assert sorted(read_all(reader, 4)) == wanted
        assert reader.read(0.0) == []
        assert reader.positions() == {0: 3, 1: 2}
        reader.assign({1: 0})
        assert read_all(reader, 2) == [(1, 0, b"1"), (1, 1, b"3")]

    def test_offsets_that_are_not_there(self, case: Case) -> None:
        reader = case.kept(case.log.reader(case.names["input_topic"]))
        reader.assign({0: 7})
        with pytest.raises(OffsetsGone):
            read_all(reader, 1)

    def test_a_transaction_is_state_and_offsets(self, case: Case) -> None:
        member = case.kept(case.log.join())
        claim = settled(member)
        ledger = case.kept(case.log.ledger(claim))
        assert ledger.load() == []
        assert member.committed(case.names["input_topic"], [0, 1]) == {}
        for i in range(1, 4):
            ledger.commit(b"state %d" % i, {0: 10 * i, 1: i})
        assert ledger.load()[-1] == b"state 3"
        assert member.committed(case.names["input_topic"], [0, 1]) == {0: 30, 1: 3}
        assert case.log.scan(case.names["output_topic"]) == []
        assert case.kept(case.log.ledger(claim)).load()[-1] == b"state 3"

    def test_a_state_and_messages_are_one_transaction(self, case: Case) -> None:
        """Releases that are durable already may become visible with the next state."""
        member = case.kept(case.log.join())
        ledger = case.kept(case.log.ledger(settled(member)))
        ledger.commit(b"2", {0: 2})
        ledger.commit(b"3", {0: 3}, RELEASES)
        assert ledger.load() == [b"2", b"3"]
        assert member.committed(case.names["input_topic"], [0]) == {0: 3}
        assert case.log.scan(case.names["output_topic"]) == RELEASES

    def test_a_topic_that_is_not_there_cannot_be_scanned(self, case: Case) -> None:
        """An empty answer would hide releases whose states are lost."""
        with pytest.raises(ClusterError, match="does not exist"):
            case.log.scan(f"{case.names['output_topic']}-missing")

    def test_a_stale_owner_takes_no_message_along(self, case: Case) -> None:
        claim = settled(case.kept(case.log.join()))
        old = case.kept(case.log.ledger(claim))
        old.commit(b"1", {0: 1})
        new = case.kept(case.log.ledger(claim))
        with pytest.raises(ClusterError):
            old.commit(b"2", {0: 2}, RELEASES)
        assert new.load() == [b"1"]
        assert case.log.scan(case.names["output_topic"]) == []

    def test_a_plan_is_kept_beside_the_states(self, case: Case) -> None:
        """The last one counts; it is no state, moves no offset back, and is fenced like a state."""
        topic, membership = case.names["state_topic"], case.kept(case.log.join())
        claim = settled(membership)
        old = case.kept(case.log.ledger(claim))
        assert old.load() == [] and old.load_plan() is None
        old.keep_plan(b"plan 1", {0: 0, 1: 0})
        old.commit(b"1", {0: 3, 1: 1})
        old.keep_plan(b"plan 2", {0: 0, 1: 0})
        old.commit(b"2", {0: 5, 1: 1})
        old.keep_plan(b"plan 3", {0: 3, 1: 1})
        assert membership.committed(case.names["input_topic"], [0, 1]) == {0: 5, 1: 1}
        assert case.log.tail(topic) == [b"1", b"2"] and case.log.unfinished(topic) == []
        new = case.kept(case.log.ledger(claim))
        with pytest.raises(ClusterError):
            old.keep_plan(b"stale", {0: 5, 1: 1})
        assert new.load() == [b"1", b"2"] and new.unfinished() == []
        assert new.load_plan() == b"plan 3"
        new.commit(b"3", {0: 6, 1: 1})
        assert new.load_plan() == b"plan 3" and new.load() == [b"1", b"2", b"3"]

    def test_what_was_written_and_not_committed_is_found(self, case: Case) -> None:
        """Whoever reads uncommitted records has seen it. It can be committed as it is."""
        claim = settled(case.kept(case.log.join()))
        topic = case.names["state_topic"]
        assert case.log.unfinished(topic) == []
        self.die_inside(case, claim, b"1")
        first = case.kept(case.log.ledger(claim))
        assert first.load() == [] and first.unfinished() == [b"1"]
        first.commit(b"1", {0: 1})
        assert first.load() == [b"1"] and first.unfinished() == []
        for state in (b"2", b"another 2", b"2"):
            self.die_inside(case, claim, state)
        ledger = case.kept(case.log.ledger(claim))
        ledger.confirm_owned()
        assert ledger.load() == [b"1"] and ledger.unfinished() == [b"2", b"another 2"]
        assert case.make().unfinished(topic) == [b"2", b"another 2"]
        assert case.log.scan(case.names["output_topic"]) == []
        ledger = case.kept(case.log.ledger(claim))
        ledger.load()
        ledger.commit(b"2", {0: 2}, RELEASES)
        assert ledger.load() == [b"1", b"2"] and ledger.unfinished() == []

    def die_inside(self, case: Case, claim: Claim, state: bytes) -> None:
        def die(point: str) -> None:
            if point == "inside_transaction":
                raise InterruptedError

        crashpoints.on_reach.append(die)
        try:
            ledger = case.kept(case.log.ledger(claim))
            ledger.load()
            with pytest.raises(InterruptedError):
                ledger.commit(state, {0: 9}, RELEASES)
        finally:
            crashpoints.on_reach.remove(die)

    def test_pausing(self, case: Case) -> None:
        topic = case.names["input_topic"]
        for i in range(6):
            case.produce(topic, b"%d" % i, i % 2)
        reader = case.kept(case.log.reader(topic))
        reader.assign({0: 0, 1: 0})
        reader.pause([1])
        assert read_all(reader, 3) == [(0, 0, b"0"), (0, 1, b"2"), (0, 2, b"4")]
        assert reader.read(0.3) == []
        reader.pause([0])
        case.produce(topic, b"6", 0)
        assert read_all(reader, 3) == [(1, 0, b"1"), (1, 1, b"3"), (1, 2, b"5")]
        assert reader.read(0.3) == []
        reader.pause([])
        assert read_all(reader, 1) == [(0, 3, b"6")]
        assert reader.positions() == {0: 4, 1: 3}

    def test_a_paused_partition_resumes_where_it_was(self, case: Case) -> None:
        """Whatever the client had read ahead comes once, and in order."""
        topic = case.names["input_topic"]
        for i in range(40):
            case.produce(topic, b"%d" % i, i % 2)
        reader = case.kept(case.log.reader(topic))
        reader.assign({0: 0, 1: 0})
        found: list[tuple[int, int, bytes | None]] = []
        turns = count(1)

        def all_came() -> bool:
            # A turn may find nothing: what is left may be in the partition that is paused.
            found.extend(read_once(reader))
            turn = next(turns)
            reader.pause([turn % 2] if turn % 3 else [])
            return len(found) >= 40

        wait_for("40 messages", all_came)
        assert sorted(found) == sorted((i % 2, i // 2, b"%d" % i) for i in range(40))

    def test_a_partition_that_was_paused_while_parsed_is_read_to_its_end(self, case: Case) -> None:
        """kafka-python sets the parsed messages aside, and did not find them again once all other
        partitions were at their ends: the reader stood still for good."""
        topic = case.names["input_topic"]
        for i in range(40):
            case.produce(topic, b"%d" % i, i % 2)
        reader = case.kept(case.few().reader(topic))
        reader.assign({0: 0, 1: 0})
        found = read_all(reader, 1)
        paused = found[-1][0]
        reader.pause([paused])

        def other_came() -> bool:
            found.extend(read_once(reader))
            return sum(p != paused for p, *_ in found) == 20

        wait_for("the other partition", other_came)
        assert len(found) < 40
        assert read_once(reader) == []
        reader.pause([])
        found += read_all(reader, 40 - len(found))
        assert sorted(found) == sorted((i % 2, i // 2, b"%d" % i) for i in range(40))

    def test_a_partition_that_is_assigned_again_is_not_paused(self, case: Case) -> None:
        """As when a partition is added, or retention removes what is not read yet."""
        topic = case.names["input_topic"]
        for i in range(4):
            case.produce(topic, b"%d" % i, i % 2)
        reader = case.kept(case.log.reader(topic))
        reader.assign({0: 0, 1: 0})
        reader.pause([0, 1])
        assert read_once(reader) == []
        reader.assign({0: 1})
        assert read_all(reader, 1) == [(0, 1, b"2")]
        reader.assign({})
        assert read_once(reader) == [] and reader.positions() == {}
        reader.assign({0: 1, 1: 0})
        assert sorted(read_all(reader, 3)) == [(0, 1, b"2"), (1, 0, b"1"), (1, 1, b"3")]

    def test_going_back(self, case: Case) -> None:
        """A reader that was at the end and is assigned an earlier offset is at that offset.

        The end that it knew before must not count: messages would be skipped.
        """
        topic = case.names["input_topic"]
        for i in range(20):
            case.produce(topic, b"%d" % i, 0)
        reader = case.kept(case.log.reader(topic))
        for start in (0, 15, 3, 19, 7, 0):
            reader.assign({0: start})
            found: list[int] = []

            def at_the_end(found: list[int] = found, start: int = start) -> bool:
                for chunk in reader.read(0.2):
                    found.extend(chunk.offsets)
                at = reader.positions()[0]
                assert at <= (found[-1] + 1 if found else start)
                return at == 20

            wait_for("the end", at_the_end)
            assert found == list(range(start, 20))
            assert reader.read(0.1) == []  # and here it learns where the end is

    def test_offsets_without_a_reader(self, case: Case) -> None:
        topic = case.names["input_topic"]
        case.produce(topic, b"x", 1)
        offsets = case.kept(case.log.offsets(topic))
        assert offsets.partitions() == {0, 1}
        assert {p: tuple(b) for p, b in offsets.bounds([0, 1]).items()} == {0: (0, 0), 1: (0, 1)}
        assert offsets.ends([1]) == {1: 1} and offsets.ends([]) == {}

    def test_times_and_cuts(self, case: Case) -> None:
        """The broker's own times, with keys; and where a time begins in each partition."""
        topic, sender = f"{case.names['input_topic']}-stamped", case.names["input_topic"]
        case.log.create_topic(topic, TopicInfo(2, {"message.timestamp.type": "LogAppendTime"}), 1)
        assert case.log.timestamp_type(topic) == "LogAppendTime"
        assert case.log.timestamp_type(sender) == "CreateTime"
        offsets = case.kept(case.log.offsets(topic))
        before = int(time.time() * 1000) - 60_000
        assert offsets.first_at([0, 1], before) == {0: None, 1: None}
        assert offsets.first_at([], before) == offsets.log_ends([]) == {}
        for i in range(3):
            case.produce(topic, b"%d" % i, 0)
            time.sleep(0.01)  # so that no two have the same time
        reader = case.kept(case.log.reader(topic, stamped=True))
        reader.assign({0: 0})
        found: list[Any] = []

        def enough() -> bool:
            for chunk in reader.read(0.2):
                parts = (chunk.offsets, chunk.values, chunk.times, chunk.keys)
                found.extend(zip(*parts, strict=True))
            return len(found) == 3

        wait_for("three messages", enough)
        times = [when for _, _, when, _ in found]
        assert [(o, v, k) for o, v, _, k in found] == [(i, b"%d" % i, b"k") for i in range(3)]
        assert times == sorted(set(times)) and abs(times[0] - time.time() * 1000) < 600_000
        for i, when in enumerate(times):
            assert offsets.first_at([0, 1], when) == {0: i, 1: None}
            assert offsets.first_at([0], when + 1) == {0: i + 1 if i < 2 else None}
            assert cuts(offsets, [0, 1], when + 1) == {0: i + 1, 1: 0}
        case.produce(sender, b"x", 0)
        reader = case.kept(case.log.reader(sender, stamped=True))
        reader.assign({0: 0})
        [chunk] = wait_for("a message", lambda: reader.read(0.2))
        assert list(chunk.times) == [None] and list(chunk.keys) == [b"k"]

    def test_publishing(self, case: Case) -> None:
        claim = settled(case.kept(case.log.join()))
        ledger = case.kept(case.log.ledger(claim))
        made = [Message(b"k", b"1", (("h", b"x"),)), Message(b"k", b"2")]
        ledger.publish(made[:1], {0: 1})
        ledger.publish(made[1:], {0: 1})
        assert case.log.scan(case.names["output_topic"]) == made

    def test_following_a_topic(self, case: Case) -> None:
        topic = case.names["output_topic"]
        feed = case.kept(case.log.follow(topic))
        assert feed.read(0.1) == []
        sent = [Message(b"k", b"%d" % i, (("ce_id", b"%d" % i),)) for i in range(5)]
        sent += [Message(b"k", b"5"), Message(b"k", b"6")]
        ledger = case.kept(case.log.ledger(settled(case.kept(case.log.join()))))
        ledger.publish(sent[:5], {0: 1})
        found: list[Message] = []

        def has(n: int) -> bool:
            found.extend(feed.read(0.2))
            return len(found) >= n

        wait_for("five messages", lambda: has(5))
        for message in sent[5:]:  # not in a transaction, whose end takes an offset
            case.produce(topic, message.value, 0)
        wait_for("two more", lambda: has(7))
        assert found == sent
        late = case.kept(case.log.follow(topic, 2))
        found = []
        wait_for("the last two", lambda: found.extend(late.read(0.2)) or len(found) >= 2)
        assert found == sent[5:]
        nothing = case.kept(case.log.follow("no-such-topic"))
        assert nothing.read(0.1) == []

    def test_looking_at_states_fences_nobody(self, case: Case) -> None:
        topic = case.names["state_topic"]
        assert case.log.tail(topic) == []
        claim = settled(case.kept(case.log.join()))
        ledger = case.kept(case.log.ledger(claim))
        ledger.commit(b"one", {0: 3})
        assert case.make().tail(topic) == [b"one"]
        ledger.commit(b"two", {0: 6})
        assert case.make().tail(topic)[-1] == b"two"
        assert case.names["group"] in (case.log.groups_of(case.names["input_topic"]) or [])
        assert case.log.groups_of(case.names["output_topic"]) == []

    def test_an_earlier_owner_is_fenced(self, case: Case) -> None:
        claim = settled(case.kept(case.log.join()))
        old = case.kept(case.log.ledger(claim))
        old.commit(b"1", {0: 1})
        old.confirm_owned()
        new = case.kept(case.log.ledger(claim))
        assert new.load() == [b"1"]
        with pytest.raises(Fenced):
            old.confirm_owned()
        with pytest.raises(ClusterError):
            old.commit(b"2 of the old", {0: 2})
        with pytest.raises(ClusterError):
            old.publish([Message(b"k", b"of the old")], {0: 1})
        new.commit(b"2 of the new", {0: 2})
        assert new.load() == [b"1", b"2 of the new"]
        assert case.log.scan(case.names["output_topic"]) == []

    def test_an_earlier_owner_cannot_publish_first_thing(self, case: Case) -> None:
        """The zombie that was stopped between its commit and its publish."""
        claim = settled(case.kept(case.log.join()))
        old = case.kept(case.log.ledger(claim))
        old.commit(b"1", {0: 1})
        case.kept(case.log.ledger(claim))
        with pytest.raises(Fenced):
            old.publish([Message(b"k", b"of the old")], {0: 1})
        assert case.log.scan(case.names["output_topic"]) == []

    def test_a_left_generation_cannot_commit(self, case: Case) -> None:
        first = case.kept(case.log.join())
        claim = settled(first)
        ledger = case.kept(case.log.ledger(claim))
        second = case.kept(case.make().join())

        def claimed_again() -> Claim | None:
            second.poll(0.1)
            now = first.poll(0.1)
            return now if now is not claim else None

        now = wait_for("a new generation", claimed_again)
        with pytest.raises(Fenced):
            ledger.commit(b"stale", {0: 1})
        assert case.log.unfinished(case.names["state_topic"]) == []
        # Nor publish, not even with an epoch of its own: the zombie that starts over.
        again = case.kept(case.log.ledger(claim))
        with pytest.raises(Fenced):
            again.publish([Message(b"k", b"stale")], {0: 1})
        assert case.kept(case.log.ledger(now)).load() == []
        assert case.log.scan(case.names["output_topic"]) == []

    def test_one_member_owns_the_model_and_hands_it_over(self, case: Case) -> None:
        members = [case.make().join() for _ in range(3)]

        def settled_owner() -> Membership | None:
            claims = [member.poll(0.1) for member in members]
            owners = [m for m, c in zip(members, claims, strict=True) if c is not None and c.owner]
            return owners[0] if None not in claims and len(owners) == 1 else None

        while members:
            owner = wait_for("one owner, and standbys", settled_owner)
            owner.close()
            members.remove(owner)


class TestMemory(Contract):
    @pytest.fixture
    def case(self, memory_case: Case) -> Case:
        return memory_case


def transactional(broker: Any, name: str) -> Any:
    """A producer of transactions that is not the service."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=name, **PATIENT_TRANSACTION
    )
    producer.init_transactions()
    return producer


class TestKafka(Contract):
    @pytest.fixture
    def case(self, kafka_case: Case) -> Case:
        return kafka_case

    def test_positions_pass_what_cannot_be_read(
        self, case: Case, broker: Any, fresh_name: Callable[[str], str]
    ) -> None:
        """Otherwise a range that ends in an aborted transaction would never be complete."""
        topic = case.names["input_topic"]
        producer = transactional(broker, fresh_name("txn"))
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send(topic, b"x", partition=0).get(PATIENCE_SECONDS)
            end()
        # One that stays open: the last stable offset lies before it.
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).get(PATIENCE_SECONDS)
        reader = case.kept(case.log.reader(topic))
        reader.assign({0: 0})
        assert read_all(reader, 1) == [(0, 0, b"x")]

        def passed() -> bool:
            assert reader.read(0.2) == []
            return reader.positions()[0] >= reader.bounds([0])[0].end

        wait_for("the end to be passed", passed)
        assert reader.positions()[0] == reader.bounds([0])[0].end == 4
        producer.abort_transaction()
        producer.close()

    def test_offsets_that_retention_removed(self, case: Case, broker: Any) -> None:
        """The plan still contains them, so the reader must report that they are gone."""
        from kafka import KafkaAdminClient, TopicPartition

        topic = case.names["input_topic"]
        for i in range(5):
            case.produce(topic, b"%d" % i, 0)
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.delete_records({TopicPartition(topic, 0): 3})
        reader = case.kept(case.log.reader(topic))
        assert tuple(reader.bounds([0])[0]) == (3, 5)
        reader.assign({0: 1})
        with pytest.raises(OffsetsGone):
            read_all(reader, 1)
        reader.assign({0: 3})
        assert read_all(reader, 2) == [(0, 3, b"3"), (0, 4, b"4")]

    def test_a_cut_is_not_held_back_by_a_transaction(
        self, case: Case, broker: Any, fresh_name: Callable[[str], str]
    ) -> None:
        """The last stable offset is held back, and a round waits for it."""
        topic = case.names["input_topic"]
        producer = transactional(broker, fresh_name("open"))
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).get(PATIENCE_SECONDS)
        case.produce(topic, b"after it", 0)
        offsets = case.kept(case.log.offsets(topic))
        now = int(time.time() * 1000)
        assert offsets.first_at([0], now - 600_000) == {0: 0}
        assert offsets.first_at([0], now + 600_000) == {0: None}
        assert offsets.log_ends([0]) == {0: 2}
        assert offsets.ends([0]) == {0: 0}
        producer.abort_transaction()
        producer.close()
        wait_for("the end of the transaction", lambda: offsets.ends([0]) == {0: 3})

    def test_a_release_is_dated_to_the_second(self, case: Case, broker: Any) -> None:
        from kafka import KafkaConsumer
        from kafka.structs import TopicPartition

        claim = settled(case.kept(case.log.join()))
        ledger = case.kept(case.log.ledger(claim))
        ledger.commit(b"1", {0: 1}, [Message(b"k", b"rode along")])
        ledger.publish([Message(b"k", b"of a task")], {0: 1})
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        place = TopicPartition(case.names["output_topic"], 0)
        consumer.assign([place])
        found: list[Any] = []

        def enough() -> bool:
            found.extend(consumer.poll(timeout_ms=200).get(place, []))
            return len(found) == 2

        wait_for("the releases", enough)
        consumer.close()
        assert [m.value for m in found] == [b"rode along", b"of a task"]
        assert all(m.timestamp % 1000 == 0 for m in found)
        assert all(abs(m.timestamp / 1000 - time.time()) < 600 for m in found)

    def test_a_transaction_that_the_brokers_left_open_is_ended(
        self, case: Case, broker: Any, unverified: None
    ) -> None:
        """A broker that was stopped can lose the marker of a state that it has committed.

        If the next owner did not see that state, it would compute the batch again, and its own
        commit would make both visible.
        """
        from kafka.structs import TopicPartition

        claim = settled(case.kept(case.log.join()))
        old = case.kept(case.log.ledger(claim))
        old.commit(b"1", {0: 1})
        place = TopicPartition(case.names["state_topic"], 0)
        old._producer.begin_transaction()
        # The coordinator does not know of this partition, so nobody will end what is sent there.
        old._producer._transaction_manager._partitions_in_transaction.add(place)
        left = old._producer.send(place.topic, b"2", key=old._key, partition=0)
        left.get(PATIENCE_SECONDS)
        assert case.log.tail(place.topic) == [b"1"]
        new = case.kept(case.log.ledger(claim))
        assert new.load() == [b"1", b"2"]
        new.commit(b"3", {0: 3})
        assert new.load() == case.log.tail(place.topic) == [b"1", b"2", b"3"]

    def test_a_state_that_hung_and_was_aborted_is_found(self, case: Case, unverified: None) -> None:
        """The owner that was about to make it visible has died, and its tombstone was aborted."""
        from kafka import KafkaProducer
        from kafka.structs import TopicPartition

        claim = settled(case.kept(case.log.join()))
        old = case.kept(case.log.ledger(claim))
        old.commit(b"1", {0: 1})
        place = TopicPartition(case.names["state_topic"], 0)
        old._producer.begin_transaction()
        old._producer._transaction_manager._partitions_in_transaction.add(place)
        left = old._producer.send(place.topic, b"2", key=old._key, partition=0)
        left.get(PATIENCE_SECONDS)
        died = KafkaProducer(
            **case.log.config.connection,
            **PATIENT_TRANSACTION,
            transactional_id=f"stream-dppca.{case.names['group']}",
        )
        died.init_transactions()
        died.begin_transaction()
        died.send(place.topic, None, key=b"mark", partition=0).get(PATIENCE_SECONDS)
        died.abort_transaction()
        died.close()
        new = case.kept(case.log.ledger(claim))
        assert new.load() == [b"1"] and new.unfinished() == [b"2"]
        new.commit(b"2", {0: 2})
        assert new.load() == [b"1", b"2"] and new.unfinished() == []

    def test_starts_that_fail_hide_no_fork(self, case: Case) -> None:
        """Each may leave a mark, and the states before the last one must be seen all the same."""
        claim = settled(case.kept(case.log.join()))
        ledger = case.kept(case.log.ledger(claim))
        ledger.commit(b"1", {0: 1})
        ledger.commit(b"2", {0: 2})
        for _ in range(31):  # with its marker, each takes two of the offsets that are read first
            ledger.confirm_owned()
        assert case.log.tail(case.names["state_topic"]) == [b"1", b"2"]

    def test_an_open_transaction_of_somebody_else_is_named(
        self, case: Case, broker: Any, fresh_name: Callable[[str], str]
    ) -> None:
        claim = settled(case.kept(case.log.join()))
        other = transactional(broker, fresh_name("other"))
        other.begin_transaction()
        topic = case.names["state_topic"]
        other.send(topic, b"not ours", key=b"x", partition=0).get(PATIENCE_SECONDS)
        hurried = KafkaCluster(replace(case.log.config, request_timeout_s=3.0))
        with pytest.raises(ClusterError, match=f"a transaction on {topic}:0 does not end"):
            hurried.ledger(claim)
        other.abort_transaction()
        other.close()
        assert case.kept(case.log.ledger(claim)).load() == []

    def test_offsets_in_an_open_transaction_are_not_waited_for(
        self, case: Case, broker: Any, fresh_name: Callable[[str], str]
    ) -> None:
        """An owner would not start until it ends, and after a crash of a broker some never end."""
        from kafka import OffsetAndMetadata, TopicPartition

        topic = case.names["input_topic"]
        member = case.kept(case.log.join())
        claim = settled(member)
        ledger = case.kept(case.log.ledger(claim))
        ledger.commit(b"1", {0: 5})
        other = transactional(broker, fresh_name("open"))
        other.begin_transaction()
        other.send_offsets_to_transaction(
            {TopicPartition(topic, 0): OffsetAndMetadata(9, "", -1)}, claim.token
        )
        assert member.committed(topic, [0]) == {0: 5}
        other.abort_transaction()
        other.close()

    def test_a_producer_is_closed_though_its_records_cannot_be_sent(
        self, case: Case, broker: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise a dropped owner would continue to send in the background."""
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        assert producer.partitions_for(case.names["input_topic"])
        sender = producer._sender
        monkeypatch.setattr(sender, "run_once", lambda: threading.Event().wait(0.01))
        producer.send(case.names["input_topic"], b"x", partition=0)
        close_client(producer)
        wait_for("the end of its thread", lambda: not sender.is_alive())

    def test_a_member_whose_client_fails_keeps_its_place(
        self, case: Case, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The group does not change when a client fails once, as when a broker crashes: a member
        that waits for a change is never ready again."""
        member = case.kept(case.log.join())
        claim = settled(member)
        poll = member._consumer.poll
        failures = [KafkaConnectionError("the broker has hung up")]

        def fail_once(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return poll(*arguments, **options)

        monkeypatch.setattr(member._consumer, "poll", fail_once)
        with pytest.raises(ClusterError):
            wait_for("the failure", lambda: member.poll(0.1) is None)
        again = settled(member)
        assert again is not claim and again.token.generation_id == claim.token.generation_id


def test_the_largest_state_fits_a_message() -> None:
    """Of as many features as can be learned with centre and scales: two sums of second moments."""
    moments = RunningMoments(MOST_FEATURES)
    moments.total = np.random.default_rng(0).standard_normal(moments.total.shape)
    assert 2 * len(json.dumps(moments.state())) < 0.8 * MAX_RECORD_BYTES

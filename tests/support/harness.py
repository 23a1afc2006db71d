"""A model on a real broker, its processes, and the guarantees about its topics.

`Model.check` reads the topics with a client of its own, not through the service's code, and knows
from what was produced how many slots every message takes.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, get_args

import numpy as np
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import MemberToRemove
from kafka.structs import TopicPartition

from consumers.kafka.task_readers import readers
from consumers.settings import Settings

from .processes import Instance, wait_for

FEATURES = ("cpu", "memory", "disk.read")
BATCH = 100
READERS: tuple[str, ...] = get_args(Settings.model_fields["reader"].annotation)
#: Brokers allow sessions this short only with a setting, as in `tests/crash/conftest.py`.
SESSION_SECONDS = 1.5
#: For a model whose sessions are ended by `Model.evict`: a busy machine ends none.
EVICTED = {"session_timeout_s": 30}

Fresh = Callable[[str], str]


def stored_releases(states: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The releases that the states hold, by number."""
    found: dict[int, dict[str, Any]] = {}
    for state in states:
        messages = [*state.get("earlier", []), state["release"]]
        for number, message in enumerate(messages, state["batch"] - len(messages) + 1):
            assert found.setdefault(number, message) == message, f"batch {number} has two releases"
    return found


def check_numbers(states: list[dict[str, Any]]) -> None:
    """Check that the states hold the releases of all batches, in order."""
    last = 0
    for state in states:
        first = state["batch"] - len(state.get("earlier", []))
        assert 1 <= first <= last + 1 <= state["batch"]
        last = state["batch"]


def close_readers() -> None:
    """Close the readers of this process; new ones are made when they are needed."""
    while readers:
        readers.popitem()[1].close()


def read_topic(servers: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Read every message of a topic, partition by partition, in order."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        isolation_level=isolation,
        enable_auto_commit=False,
        max_partition_fetch_bytes=32 << 20,
    )
    try:
        places = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: dict[Any, list[Any]] = defaultdict(list)

        def read() -> bool:
            for place, messages in consumer.poll(timeout_ms=100).items():
                found[place] += messages
            return all(consumer.position(place) >= ends[place] for place in places)

        wait_for(f"{topic} to be read", read)
        return [message for place in places for message in found[place]]
    finally:
        consumer.close()


class Model:
    """Topics of its own, the producer of its input, and its instances."""

    def __init__(
        self,
        servers: str,
        name: str,
        *,
        partitions: int = 1,
        batch: int = BATCH,
        topic_configs: dict[str, str] | None = None,
        rows_per_message: int = 1,
        replication: int = 1,
        **settings: Any,
    ) -> None:
        self.servers, self.name = servers, name
        self.partitions, self.batch = partitions, batch
        self.rows_per_message, self.replication = rows_per_message, replication
        self.environment = {
            f"DPPCA_{key.upper()}": str(value)
            for key, value in {
                "bootstrap_servers": servers,
                "input_topic": name,
                "features": ",".join(FEATURES),
                "epsilon": 50,
                "delta": 0.1,
                "center": "none",
                "scales": "none",
                "places" if "subject" in settings else "batch_size": batch,
                "rows_per_message": rows_per_message,
                "http_port": 0,
                "session_timeout_s": SESSION_SECONDS,
                "partition_refresh_s": 0.5,
                "max_poll_records": 60,
                "reader": os.environ.get("STREAM_DPPCA_READER", READERS[0]),
                **settings,
            }.items()
            if value is not None  # the default of the service
        }
        self.group = f"stream-dppca.{name}"
        self.state_topic, self.output_topic = f"{name}.dppca-state", f"{name}.components"
        self.create(name, partitions, **(topic_configs or {}))
        self._new_producer()
        self.instances: list[Instance] = []
        self.sent = [0] * partitions  #: messages, for each partition
        self._rng = np.random.default_rng(7)
        self.first_batches = 1  # that the first step takes at once

    # Topics

    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.servers)

    def create(self, topic: str, partitions: int, **configs: str) -> None:
        made = {
            "num_partitions": partitions,
            "replication_factor": self.replication,
            "configs": configs,
        }
        with self.admin() as admin:
            admin.create_topics({topic: made})
            admin.wait_for_topics([topic])

    def widen(self, partitions: int) -> None:
        """Add partitions to the input topic."""
        with self.admin() as admin:
            admin.create_partitions({self.name: partitions})
        self.sent += [0] * (partitions - self.partitions)
        self.partitions = partitions
        self.producer.close()

        def known() -> bool:
            self._new_producer()
            if len(self.producer.partitions_for(self.name)) == partitions:
                return True
            self.producer.close()
            return False

        wait_for("the new partitions", known)

    def _new_producer(self) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=self.servers, linger_ms=5, max_request_size=32 << 20
        )

    # Input

    def rows(self, n: int) -> np.ndarray[Any, Any]:
        return self._rng.standard_normal((n, 3)) * [3.0, 1.0, 0.3]

    def send(self, value: bytes | None, partition: int | None = None, **more: Any) -> None:
        if partition is None:
            partition = sum(self.sent) % self.partitions
        self.producer.send(self.name, value, key=b"k", partition=partition, **more)
        self.sent[partition] += 1

    def produce(self, n: int, *, flush: bool = True) -> None:
        """Send n JSON objects."""
        for cpu, memory, read in self.rows(n).tolist():
            text = json.dumps({"cpu": cpu, "memory": memory, "disk": {"read": read}})
            self.send(text.encode())
        if flush:
            self.producer.flush()

    def produce_packed(self, n: int) -> None:
        """Send at least n rows, `rows_per_message` in each message. Some messages hold more, which
        are ignored, or fewer, which leaves nulls: each takes the same number of slots."""
        for _ in range(-(-n // self.rows_per_message)):
            change = int(self._rng.choice([0, 0, 0, 0, 0, 0, 0, 0, -1, 1]))
            rows = self.rows(max(1, self.rows_per_message + change))
            self.send(rows.astype("<f4").tobytes())
        self.producer.flush()

    def full_batches(self) -> int:
        """The number of releases that can have been made by now: one for the first step."""
        batches = sum(self.sent) * self.rows_per_message // self.batch
        return max(0, batches - self.first_batches + 1)

    # Processes

    def start(self, *, fresh: bool = False, **environment: str) -> Instance:
        """Start an instance: a fork, which starts a second faster, or a `fresh` interpreter."""
        instance = Instance({**self.environment, **environment}, fresh=fresh)
        self.instances.append(instance)
        return instance

    def finish(self, *instances: Instance) -> None:
        """Wait until one of the instances reports that everything has been released.

        There is no limit for the whole, which grows with the number of batches; only standing
        still for long is a failure.
        """
        last = self.full_batches()
        wanted = {last} if last else set()

        def said() -> set[int]:
            return {
                event["batch"]
                for instance in instances
                for event in list(instance.events)
                if event.get("event") in ("released", "published_again")
            }

        while not wanted <= (before := said()):
            try:
                wait_for(
                    f"{sorted(wanted - before)} or any batch",
                    lambda before=before: said() != before,
                )
            except AssertionError as error:
                there = f"{self.ends()} of {self.sent} messages are there"
                logs = "\n".join(f"{i.text[:1500]}\n...\n{i.text[-5000:]}" for i in instances)
                raise AssertionError(f"{error}; {there}; the logs:\n{logs}") from None

    @contextmanager
    def loaded(self, produce: Callable[[], None], pause_s: float = 0.1) -> Iterator[None]:
        """Produce again and again in a thread, until the block ends."""
        enough = threading.Event()

        def load() -> None:
            while not enough.wait(pause_s):
                produce()

        thread = threading.Thread(target=load)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()
            self.producer.flush()

    def close(self) -> None:
        for instance in self.instances:
            instance.close()
        self.producer.close()

    def members(self) -> set[str]:
        """The ids of all members of the group."""
        with self.admin() as admin:
            [group] = admin.describe_groups([self.group]).values()
        return {member["member_id"] for member in group["members"]}

    def evict(self, members: Iterable[str] | None = None) -> None:
        """End the sessions of some members, by default of all, as the broker does after a time:
        tests neither wait for killed members nor depend on a timer."""
        found = self.members() if members is None else members
        with self.admin() as admin:
            admin.remove_group_members(self.group, [MemberToRemove(one) for one in found])

    # What is on the topics

    def ends(self) -> list[int]:
        """The end of each partition of the input."""
        places = [TopicPartition(self.name, p) for p in range(self.partitions)]
        consumer = KafkaConsumer(bootstrap_servers=self.servers)
        try:
            ends = consumer.end_offsets(places)
            return [ends[place] for place in places]
        finally:
            consumer.close()

    def outputs(self) -> list[Any]:
        return read_topic(self.servers, self.output_topic)

    def states(self) -> list[dict[str, Any]]:
        return [json.loads(m.value) for m in self.stored()]

    def stored(self) -> list[Any]:
        """The states on their topic, without plans and the tombstones that end what hangs."""
        found = read_topic(self.servers, self.state_topic)
        return [m for m in found if m.value is not None and m.key == self.group.encode()]

    def plans(self) -> list[dict[str, Any]]:
        """The plans by samples, in order."""
        found = read_topic(self.servers, self.state_topic)
        return [json.loads(m.value) for m in found if m.key == f"{self.group}.plan".encode()]

    def written(self) -> list[dict[str, Any]]:
        """All states that have reached the log, also those of transactions that were aborted."""
        found = read_topic(self.servers, self.state_topic, "read_uncommitted")
        return [json.loads(m.value) for m in found if m.key == self.group.encode()]

    def durable(self) -> int:
        """The number of batches that the states are of."""
        return max((state["batch"] for state in self.states()), default=0)

    def releases(self) -> dict[int, dict[str, Any]]:
        """The releases by number, without the name of the model."""
        found = [json.loads(message.value) for message in self.outputs()]
        return {r["batch"]: {**r, "model": ""} for r in found}

    def slots_of(self, release: int) -> int:
        """The number of slots that a release, by its number, and all before it have used."""
        return (release + self.first_batches - 1) * self.batch

    def slots_before(self, positions: dict[str, int]) -> int:
        """The number of slots before these positions."""
        for p, offset in positions.items():
            assert offset <= self.sent[int(p)], f"partition {p} has no offset {offset}"
        return sum(positions.values()) * self.rows_per_message

    def check(self, *, complete: bool = True) -> int:
        """Check the guarantees of docs/service-design.md; returns the last batch."""
        states = self.states()
        self._check_states(states)
        self._check_group_offsets(states)
        committed = stored_releases(states)
        last = self._check_outputs(self.outputs(), committed)
        if complete:
            assert last == self.full_batches()
            assert set(committed) == set(range(1, last + 1))
        return last

    def _check_states(self, states: list[dict[str, Any]]) -> None:
        """Check that numbers are in order, that positions only move forward, and that every slot is
        in exactly one batch."""
        check_numbers(states)
        for state in states:
            assert self.slots_before(state["positions"]) == self.slots_of(state["batch"])
        for before, after in itertools.pairwise(states):
            for p, at in before["positions"].items():
                assert at <= after["positions"][p], f"partition {p} went back"

    def _check_group_offsets(self, states: list[dict[str, Any]]) -> None:
        """Check that the offsets of the group are those of the last state."""
        last = states[-1]["positions"] if states else {}
        consumer = KafkaConsumer(bootstrap_servers=self.servers, group_id=self.group)
        try:
            for p, offset in last.items():
                assert consumer.committed(TopicPartition(self.name, int(p))) == offset
        finally:
            consumer.close()

    def _check_outputs(self, messages: list[Any], committed: dict[int, dict[str, Any]]) -> int:
        """Check that each number has one payload, the committed one; that there are no gaps; and
        that an older release never follows a newer one."""
        last = 0
        for message in messages:
            release = json.loads(message.value)
            batch = release["batch"]
            state = committed[batch]  # a KeyError: published and never committed
            assert message.value.decode() == state["value"], f"another payload of {batch}"
            assert message.key.decode() == state["key"]
            assert [[k, v.decode()] for k, v in message.headers] == state["headers"]
            assert batch in (last, last + 1)
            assert "round" in release or release["n_seen"] == self.slots_of(batch)
            last = batch
        return last


class RoundModel(Model):
    """A model with privacy per subject: JSON objects of devices, in short rounds."""

    ROUND_MS = 3000

    def __init__(self, servers: str, name: str, **settings: Any) -> None:
        now_ms = int(time.time() * 1000)
        #: The round in which it begins; its beginning is over.
        self.first = now_ms // self.ROUND_MS
        start = datetime.datetime.fromtimestamp(self.first * self.ROUND_MS / 1000, datetime.UTC)
        super().__init__(
            servers,
            name,
            topic_configs={"message.timestamp.type": "LogAppendTime"},
            **{
                "subject": "device",
                "round": f"{self.ROUND_MS}ms",
                "clock_slack": "2s",
                "start": start.isoformat(),
                **settings,
            },
        )

    def produce_devices(self, devices: int, records: int = 2) -> None:
        """Send some records of each of some devices, each device to its own partition."""
        for i, row in enumerate(self.rows(devices * records).tolist()):
            fields = dict(zip(("cpu", "memory"), row, strict=False))
            device = i % devices
            text = json.dumps({**fields, "disk": {"read": row[2]}, "device": f"d{device}"})
            self.send(text.encode(), device % self.partitions)
        self.producer.flush()

    def by_round(self) -> dict[int, list[Any]]:
        """The messages of the input by the round of their own time, partition by partition."""
        found = defaultdict(list)
        for message in read_topic(self.servers, self.name):
            assert message.timestamp_type == 1  # LogAppendTime
            found[message.timestamp // self.ROUND_MS].append(message)
        return dict(found)

    def finish_rounds(self, instance: Instance) -> int:
        """Wait until every round that has records is released; returns how many rounds that is."""
        wanted = max(self.by_round()) - self.first + 1

        def said() -> int:
            events = ("released", "published_again")
            return max(
                (e["batch"] for e in list(instance.events) if e.get("event") in events), default=0
            )

        while (before := said()) < wanted:
            instance.wait_until("another round", lambda before=before: said() > before)
        return wanted

    def _check_states(self, states: list[dict[str, Any]]) -> None:
        """Check that every round is there once and in order, and positions never go back."""
        check_numbers(states)
        assert all(s["last_round"] == self.first + s["batch"] - 1 for s in states)
        for before, after in itertools.pairwise(states):
            for p, at in before["positions"].items():
                assert at <= after["positions"][p], f"partition {p} went back"


def round_model(servers: str, name: str, **settings: Any) -> closing[RoundModel]:
    return closing(RoundModel(servers, name, **settings))


def model(servers: str, name: str, **settings: Any) -> closing[Model]:
    return closing(Model(servers, name, **settings))

"""A model on a real broker, its processes, and what must be true of its topics afterwards.

`Model.check` reads the topics with a client of its own, not through the service's code, and knows
from what was produced how many slots every message takes.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from ..consumers.processes import READERS, Instance, wait_for
from ..launch import CRASH_AT, NOISE, STOP_AT

FEATURES = ("cpu", "memory", "disk.read")
BATCH = 100
#: Of the broker that these tests run on: see `conftest.py`.
SESSION_SECONDS = 1.5
QUIET = {NOISE: "off"}

__all__ = ["BATCH", "FEATURES", "QUIET", "READERS", "SESSION_SECONDS", "Instance", "Model",
           "crash_at", "model", "read_topic", "stop_at", "stopped", "wait_for"]  # fmt: skip


def crash_at(point: str, times: int = 1) -> dict[str, str]:
    return {CRASH_AT: f"{point}:{times}"}


def stop_at(point: str, times: int = 1) -> dict[str, str]:
    """SIGSTOP, where `crash_at` has SIGKILL."""
    return {STOP_AT: f"{point}:{times}"}


def stopped(instance: Instance) -> bool:
    stat = Path(f"/proc/{instance.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def read_topic(servers: str, topic: str) -> list[Any]:
    """Every committed message of a topic, partition by partition, in order."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False,
        max_partition_fetch_bytes=32 << 20,
    )  # fmt: skip
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

    def __init__(self, servers: str, name: str, *, partitions: int = 1, shards: int = 1,
                 batch: int = BATCH, topic_configs: dict[str, str] | None = None,
                 **settings: Any) -> None:  # fmt: skip
        self.servers, self.name = servers, name
        self.partitions, self.shards, self.batch = partitions, shards, batch
        self.environment = {
            f"DPPCA_{key.upper()}": str(value)
            for key, value in {
                "bootstrap_servers": servers,
                "input_topic": name,
                "features": ",".join(FEATURES),
                "epsilon": 50,
                "delta": 0.1,
                "batch_size": batch,
                "shards": shards,
                "http_port": 0,
                "session_timeout_s": SESSION_SECONDS,
                "partition_refresh_s": 0.5,
                "max_poll_records": 60,
                "reader": os.environ.get("STREAM_DPPCA_READER", READERS[0]),
                "rows_per_message": 1,
                **settings,
            }.items()
        }
        self.group = f"stream-dppca.{name}"
        self.state_topic, self.output_topic = f"{name}.dppca-state", f"{name}.components"
        self.create(name, partitions, **(topic_configs or {}))
        self._new_producer()
        self.instances: list[Instance] = []
        #: For each partition, the slots that each message takes.
        self.slots: list[list[int]] = [[] for _ in range(partitions)]
        self._before: dict[int, np.ndarray[Any, Any]] = {}  # their sums
        self._rng = np.random.default_rng(7)

    # Topics

    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.servers)

    def create(self, topic: str, partitions: int, **configs: str) -> None:
        made = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        with self.admin() as admin:
            admin.create_topics({topic: made})
            admin.wait_for_topics([topic])

    def widen(self, partitions: int) -> None:
        """Add partitions to the input topic."""
        with self.admin() as admin:
            admin.create_partitions({self.name: partitions})
        self.slots += [[] for _ in range(partitions - self.partitions)]
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

    def send(
        self, value: bytes | None, slots: int = 1, partition: int | None = None, **more: Any
    ) -> None:
        if partition is None:
            partition = sum(map(len, self.slots)) % self.partitions
        self.producer.send(self.name, value, key=b"k", partition=partition, **more)
        self.slots[partition].append(slots)

    def produce(self, n: int, *, flush: bool = True) -> None:
        """So many JSON objects."""
        for cpu, memory, read in self.rows(n).tolist():
            text = json.dumps({"cpu": cpu, "memory": memory, "disk": {"read": read}})
            self.send(text.encode())
        if flush:
            self.producer.flush()

    def produce_packed(self, n: int, largest: int = 0) -> None:
        """About n rows in packed messages of 1 to `largest` (two batches): batches end inside."""
        while n > 0:
            rows = int(self._rng.integers(1, (largest or 2 * self.batch) + 1))
            self.send(self.rows(rows).astype("<f4").tobytes(), rows)
            n -= rows
        self.producer.flush()

    def full_batches(self) -> dict[int, int]:
        """How many batches each task can have released by now."""
        return {
            task: sum(sum(self.slots[p]) for p in range(task, self.partitions, self.shards))
            // self.batch
            for task in range(self.shards)
        }

    # Processes

    def start(self, **environment: str) -> Instance:
        instance = Instance({**self.environment, **environment})
        self.instances.append(instance)
        return instance

    def finish(self, instance: Instance) -> None:
        """Wait until the instance says that all there is has been released."""
        for task, batch in self.full_batches().items():
            done = {"task": task, "batch": batch}
            timeout_s = 60 + batch / 5

            def out(done: dict[str, Any] = done) -> bool:
                return any(instance.saw(e, **done) for e in ("released", "published_again"))

            try:
                wait_for(f"release {done}", out, timeout_s)
            except AssertionError as error:
                raise AssertionError(f"{error}; the log:\n{instance.text[-5000:]}") from None

    def close(self) -> None:
        for instance in self.instances:
            instance.close()
        self.producer.close()

    # What is on the topics

    def ends(self) -> list[int]:
        """Where each partition of the input ends."""
        places = [TopicPartition(self.name, p) for p in range(self.partitions)]
        consumer = KafkaConsumer(bootstrap_servers=self.servers)
        try:
            ends = consumer.end_offsets(places)
            return [ends[place] for place in places]
        finally:
            consumer.close()

    def outputs(self) -> list[Any]:
        return read_topic(self.servers, self.output_topic)

    def states(self, task: int = 0) -> list[dict[str, Any]]:
        found = read_topic(self.servers, self.state_topic)
        return [json.loads(m.value) for m in found if m.partition == task and m.value is not None]

    def releases(self) -> dict[int, dict[str, Any]]:
        """Task 0's releases by number, without the name of the model."""
        found = [json.loads(message.value) for message in self.outputs()]
        return {r["batch"]: {**r, "model": ""} for r in found if r["task"] == 0}

    def slots_before(self, positions: dict[str, Sequence[int]]) -> int:
        """The slots that lie before these positions."""
        total = 0
        for p, (offset, row) in positions.items():
            counts = self.slots[int(p)]
            assert offset <= len(counts), f"partition {p} has no offset {offset}"
            assert row == 0 or row < counts[offset], f"row {row} of partition {p}:{offset}"
            before = self._before.get(int(p))
            if before is None or len(before) != len(counts) + 1:
                before = self._before[int(p)] = np.cumsum([0, *counts])
            total += int(before[offset]) + row
        return total

    def check(self, *, complete: bool = True) -> dict[Any, int]:
        """The guarantees of docs/service.md. Returns the last batch of each task."""
        stored = read_topic(self.servers, self.state_topic)
        committed: dict[tuple[int, int], dict[str, Any]] = {}
        for task in range(self.shards):
            states = [json.loads(m.value) for m in stored if m.partition == task]
            self._check_states(task, states)
            committed |= {(task, state["batch"]): state["release"] for state in states}
        self._check_group_offsets(stored)
        last = self._check_outputs(self.outputs(), committed)
        if complete:
            numbers = {task: number for task, number in last.items() if task != "merged"}
            assert numbers == {t: n for t, n in self.full_batches().items() if n}
            assert set(committed) == {(t, b) for t, n in numbers.items() for b in range(1, n + 1)}
        return last

    def _check_states(self, task: int, states: list[dict[str, Any]]) -> None:
        """Numbers in order, positions forward only, every slot in exactly one batch."""
        assert [s["batch"] for s in states] == list(range(1, len(states) + 1))
        for state in states:
            assert self.slots_before(state["positions"]) == state["batch"] * self.batch
            assert all(int(p) % self.shards == task for p in state["positions"])
        for before, after in itertools.pairwise(states):
            for p, at in before["positions"].items():
                assert at <= after["positions"][p], f"partition {p} went back"

    def _check_group_offsets(self, stored: list[Any]) -> None:
        """What the group says it has used is what the last states say."""
        last: dict[str, int] = {}
        for message in stored:
            for p, (offset, _) in json.loads(message.value)["positions"].items():
                last[p] = max(last.get(p, 0), offset)
        consumer = KafkaConsumer(bootstrap_servers=self.servers, group_id=self.group)
        try:
            for p, offset in last.items():
                assert consumer.committed(TopicPartition(self.name, int(p))) == offset
        finally:
            consumer.close()

    def _check_outputs(
        self, messages: list[Any], committed: dict[tuple[int, int], dict[str, Any]]
    ) -> dict[Any, int]:
        """One payload a number, the committed one; no gaps; never an older one after a newer."""
        last: dict[Any, int] = {}
        merged: dict[int, bytes] = {}
        newest: dict[int, int] = {}  # of the tasks in the last merged release
        for message in messages:
            release = json.loads(message.value)
            task, batch = release["task"], release["batch"]
            if task == "merged":
                sources = {source["task"]: source["batch"] for source in release["sources"]}
                assert merged.setdefault(batch, message.value) == message.value
                assert all(sources[t] >= b for t, b in newest.items()), "an older merged one"
                newest = sources
                last[task] = batch
                continue
            state = committed[task, batch]  # a KeyError: published and never committed
            assert message.value.decode() == state["value"], f"another payload of {task}/{batch}"
            assert message.key.decode() == state["key"]
            assert [[k, v.decode()] for k, v in message.headers] == state["headers"]
            assert batch in (last.get(task, 0), last.get(task, 0) + 1), f"{batch} of task {task}"
            assert release["n_seen"] == batch * self.batch
            last[task] = batch
        return last


def model(servers: str, name: str, **settings: Any) -> closing[Model]:
    return closing(Model(servers, name, **settings))


def leave(instance: Instance) -> int:
    """SIGTERM, and wait."""
    instance.signal(signal.SIGTERM)
    return instance.wait(10)


Fresh = Callable[[str], str]

"""A log inside this process, with the rules of Kafka's that the service relies on.

Transactions become visible whole or not at all; to open a ledger raises the epoch of its task, and
whoever holds an older one is refused, open transaction and all; a transaction of a generation
that the group has left behind is refused too; readers see committed messages only. For unit tests
and for runs without a broker; nothing outlives the process.

Tests reach inside through `MemoryBroker`: `expire` makes a zombie of a member, `trim` is retention,
`on_commit` stands between a transaction and its caller.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .. import crashpoints
from ..errors import Fenced, OffsetsGone, Unavailable
from ..protocols import Bounds, Chunk, Claim, Message, Position, TopicInfo

__all__ = ["MemoryBroker", "MemoryCluster"]


@dataclass
class _Entry:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    status: Literal["open", "committed", "aborted"] = "committed"


@dataclass
class _Partition:
    entries: list[_Entry] = field(default_factory=list)
    first: int = 0

    def end(self) -> int:
        """One past the last entry before the first that is still open."""
        for offset, entry in enumerate(self.entries):
            if entry.status == "open":
                return offset
        return len(self.entries)


@dataclass
class _Topic:
    partitions: list[_Partition]
    configs: Mapping[str, str]


@dataclass
class _Group:
    members: list[int] = field(default_factory=list)
    generation: int = 0
    owners: dict[int, int] = field(default_factory=dict)  # task -> member
    offsets: dict[tuple[str, int], Position] = field(default_factory=dict)

    def rebalance(self, tasks: int) -> None:
        """A new generation. Owners keep what is their fair share; the rest goes round."""
        self.generation += 1
        if not self.members:
            self.owners = {}
            return
        most = -(-tasks // len(self.members))
        load = dict.fromkeys(self.members, 0)
        owners = {}
        for task in range(tasks):
            owner = self.owners.get(task)
            if owner in load and load[owner] < most:
                owners[task] = owner
                load[owner] += 1
        for task in range(tasks):
            if task not in owners:
                owners[task] = min(load, key=lambda member: load[member])
                load[owners[task]] += 1
        self.owners = owners


class MemoryBroker:
    """What all instances share."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.topics: dict[str, _Topic] = {}
        self.groups: dict[str, _Group] = {}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, list[_Entry]] = {}
        self.next_member = 0
        #: Called with "before" and "after" the end of each transaction; may raise.
        self.on_commit: Callable[[str], None] = lambda moment: None

    def produce(
        self,
        topic: str,
        value: bytes | None,
        partition: int = 0,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        with self.changed:
            self._topic(topic).partitions[partition].entries.append(_Entry(key, value, headers))
            self.changed.notify_all()

    def create(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        with self.changed:
            if topic not in self.topics:
                made = [_Partition() for _ in range(partitions)]
                self.topics[topic] = _Topic(made, dict(configs or {}))

    def add_partitions(self, topic: str, partitions: int) -> None:
        with self.changed:
            self._topic(topic).partitions += [_Partition() for _ in range(partitions)]

    def trim(self, topic: str, partition: int, first: int) -> None:
        with self.changed:
            self._topic(topic).partitions[partition].first = first

    def expire(self, group: str, member: int, tasks: int) -> None:
        """The member's session ends: it does not know yet."""
        with self.changed:
            state = self.groups[group]
            if member in state.members:
                state.members.remove(member)
                state.rebalance(tasks)

    def _topic(self, name: str) -> _Topic:
        if name not in self.topics:
            raise Unavailable(f"topic {name!r} does not exist")
        return self.topics[name]


@dataclass(frozen=True)
class _Token:
    member: int
    generation: int


class MemoryCluster:
    """One instance's view of a `MemoryBroker`."""

    def __init__(self, cluster: MemoryBroker, *, group: str, state_topic: str, input_topic: str,
                 output_topic: str, max_records: int = 1000) -> None:  # fmt: skip
        self.cluster = cluster
        self.group, self.state_topic = group, state_topic
        self.input_topic, self.output_topic = input_topic, output_topic
        self.max_records = max_records

    def topic(self, name: str) -> TopicInfo | None:
        with self.cluster.changed:
            topic = self.cluster.topics.get(name)
            return None if topic is None else TopicInfo(len(topic.partitions), topic.configs)

    def create_topic(self, name: str, info: TopicInfo, replication: int) -> None:
        self.cluster.create(name, info.partitions, info.configs)

    def join(self) -> KafkaMembership:
        return KafkaMembership(self)

    def reader(self, topic: str) -> _Reader:
        return _Reader(self, topic)

    def ledger(self, task: int, claim: Claim) -> KafkaLedger:
        return KafkaLedger(self, task, claim)

    def scan(self, topic: str) -> list[Message]:
        with self.cluster.changed:
            return [
                Message(entry.key or b"", entry.value or b"", entry.headers)
                for partition in self.cluster._topic(topic).partitions
                for entry in partition.entries[partition.first : partition.end()]
                if entry.status == "committed"
            ]

    def publish(self, records: Sequence[Message]) -> None:
        for record in records:
            at = self._output_partition(record.key)
            self.cluster.produce(self.output_topic, record.value, at, record.key, record.headers)

    def _output_partition(self, key: bytes) -> int:
        return zlib.crc32(key) % len(self.cluster._topic(self.output_topic).partitions)

    def close(self) -> None:
        pass


class KafkaMembership:
    def __init__(self, log: MemoryCluster) -> None:
        self._log = log
        cluster = log.cluster
        with cluster.changed:
            self.member = cluster.next_member
            cluster.next_member += 1
        self._claim: Claim | None = None
        self._generation = -1

    @property
    def _tasks(self) -> int:
        info = self._log.topic(self._log.state_topic)
        return 0 if info is None else info.partitions

    def poll(self, timeout_s: float) -> Claim | None:
        cluster = self._log.cluster
        with cluster.changed:
            group = cluster.groups.setdefault(self._log.group, _Group())
            if self.member not in group.members:
                group.members.append(self.member)
                group.rebalance(self._tasks)
            if group.generation != self._generation:
                self._generation = group.generation
                mine = frozenset(t for t, owner in group.owners.items() if owner == self.member)
                self._claim = Claim(mine, _Token(self.member, group.generation))
            elif timeout_s:
                cluster.changed.wait(timeout_s)
            return self._claim

    def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, Position]:
        with self._log.cluster.changed:
            group = self._log.cluster.groups.get(self._log.group, _Group())
            found = {p: group.offsets.get((topic, p)) for p in partitions}
            return {p: position for p, position in found.items() if position is not None}

    def close(self) -> None:
        self._log.cluster.expire(self._log.group, self.member, self._tasks)


class _Reader:
    def __init__(self, log: MemoryCluster, topic: str) -> None:
        self._log, self._topic = log, topic
        self._at: dict[int, int] = {}

    def partitions(self) -> frozenset[int]:
        info = self._log.topic(self._topic)
        return frozenset() if info is None else frozenset(range(info.partitions))

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        with self._log.cluster.changed:
            made = self._log.cluster._topic(self._topic).partitions
            return {p: Bounds(made[p].first, made[p].end()) for p in partitions}

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._at = dict(offsets)

    def read(self, timeout_s: float) -> list[Chunk]:
        deadline = time.monotonic() + timeout_s
        with self._log.cluster.changed:
            while True:
                chunks = self._take()
                wait = deadline - time.monotonic()
                if chunks or wait <= 0:
                    return chunks
                self._log.cluster.changed.wait(wait)

    def _take(self) -> list[Chunk]:
        chunks, room = [], self._log.max_records
        made = self._log.cluster._topic(self._topic).partitions
        for p, at in self._at.items():
            partition = made[p]
            if at < partition.first or at > len(partition.entries):
                raise OffsetsGone(f"offset {at} of partition {p} is not in the log")
            end = min(partition.end(), at + room)
            kept = [o for o in range(at, end) if partition.entries[o].status == "committed"]
            self._at[p] = end
            room -= len(kept)
            if kept:
                chunks.append(Chunk(p, kept, [partition.entries[o].value for o in kept]))
        return chunks

    def positions(self) -> dict[int, int]:
        return dict(self._at)

    def close(self) -> None:
        self._at = {}


class KafkaLedger:
    def __init__(self, log: MemoryCluster, task: int, claim: Claim) -> None:
        self._log, self._task, self._claim = log, task, claim
        self._id = f"{log.group}.{task}"
        cluster = log.cluster
        with cluster.changed:
            self._epoch = cluster.epochs[self._id] = cluster.epochs.get(self._id, -1) + 1
            for entry in cluster.open.pop(self._id, []):
                entry.status = "aborted"
            cluster.changed.notify_all()

    def load(self) -> list[bytes]:
        with self._log.cluster.changed:
            partition = self._log.cluster._topic(self._log.state_topic).partitions[self._task]
            committed = [e for e in partition.entries if e.status == "committed"]
            return [e.value for e in committed if e.value is not None]

    def commit(self, state: bytes, positions: Mapping[int, Position]) -> None:
        self._add(self._log.state_topic, self._task, _Entry(self._id.encode(), state))
        crashpoints.reach("inside_transaction")
        self._commit(positions)

    def publish(self, records: Sequence[Message], positions: Mapping[int, Position]) -> None:
        for record in records:
            at = self._log._output_partition(record.key)
            entry = _Entry(record.key, record.value, record.headers)
            self._add(self._log.output_topic, at, entry)
        self._commit(positions)

    def _commit(self, positions: Mapping[int, Position]) -> None:
        token = self._claim.token
        if not isinstance(token, _Token):
            raise TypeError("a claim of another log")
        with self._log.cluster.changed:
            group = self._log.cluster.groups[self._log.group]
            if group.generation != token.generation or token.member not in group.members:
                self._end("aborted")
                raise Fenced("the group has moved on to another generation")
            self._end("committed")
            for p, position in positions.items():
                group.offsets[self._log.input_topic, p] = position
        self._log.cluster.on_commit("after")

    def close(self) -> None:
        with self._log.cluster.changed:
            if self._log.cluster.epochs[self._id] == self._epoch:
                self._end("aborted")

    def _add(self, topic: str, partition: int, entry: _Entry) -> None:
        cluster = self._log.cluster
        with cluster.changed:
            self._check()
            entry.status = "open"
            cluster._topic(topic).partitions[partition].entries.append(entry)
            cluster.open.setdefault(self._id, []).append(entry)

    def _end(self, status: Literal["committed", "aborted"]) -> None:
        cluster = self._log.cluster
        with cluster.changed:
            self._check()
            if status == "committed":
                cluster.on_commit("before")
            for entry in cluster.open.pop(self._id, []):
                entry.status = status
            cluster.changed.notify_all()

    def _check(self) -> None:
        if self._log.cluster.epochs[self._id] != self._epoch:
            raise Fenced(f"task {self._task} has another owner")

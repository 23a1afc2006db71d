"""A cluster inside this process, with those rules of Kafka that the service relies on.

Transactions become visible whole or not at all. Opening a ledger raises the epoch of its model, and
an owner with an older epoch is refused, its open transaction included. A transaction of an old
generation of the group is refused, too, before anything is written. Readers see committed messages
only; what was aborted stays in the log. Nothing outlives the process.

Tests reach inside through `MemoryBroker`: `expire` turns a member into a zombie, `trim` is
retention, `remove` is compaction, and `on_commit` runs between a transaction and its caller.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from consumers import crashpoints
from consumers.errors import Fenced, OffsetsGone, Unavailable
from consumers.protocols import Bounds, Chunk, Claim, Message, Positions, TopicInfo


@dataclass
class _Entry:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    status: Literal["open", "committed", "aborted", "removed"] = "committed"
    time_ms: int = 0  #: time of appending, or the time that the sender gives (CreateTime)


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

    @property
    def timestamp_type(self) -> str:
        return self.configs.get("message.timestamp.type", "CreateTime")


@dataclass
class _Group:
    members: list[int] = field(default_factory=list)
    generation: int = 0
    owner: int | None = None  # the first member, until it leaves
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    def rebalance(self) -> None:
        """Begin a new generation. The owner stays the owner as long as it is a member."""
        self.generation += 1
        if self.owner not in self.members:
            self.owner = next(iter(self.members), None)


class MemoryBroker:
    """The state that all instances share."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.topics: dict[str, _Topic] = {}
        self.groups: dict[str, _Group] = {}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, list[_Entry]] = {}
        self.next_member = 0
        self.clock: Callable[[], float] = time.time  #: in seconds
        #: Called with "before" and "after" the end of each transaction; may raise.
        self.on_commit: Callable[[str], None] = lambda moment: None

    def produce(
        self,
        topic: str,
        value: bytes | None,
        partition: int = 0,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
        status: Literal["open", "committed"] = "committed",
    ) -> None:
        with self.changed:
            entry = _Entry(key, value, headers, status, int(self.clock() * 1000))
            self._topic(topic).partitions[partition].entries.append(entry)
            self.changed.notify_all()

    def create(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        with self.changed:
            if topic not in self.topics:
                made = [_Partition() for _ in range(partitions)]
                self.topics[topic] = _Topic(made, dict(configs or {}))

    def add_partitions(self, topic: str, partitions: int) -> None:
        with self.changed:
            self._topic(topic).partitions += [_Partition() for _ in range(partitions)]

    def remove(self, topic: str, partition: int, offset: int) -> None:
        """Remove a message as compaction does: its offset stays empty."""
        with self.changed:
            self._topic(topic).partitions[partition].entries[offset].status = "removed"

    def trim(self, topic: str, partition: int, first: int) -> None:
        with self.changed:
            self._topic(topic).partitions[partition].first = first

    def expire(self, group: str, member: int) -> None:
        """End the session of a member, which does not know that yet."""
        with self.changed:
            state = self.groups[group]
            if member in state.members:
                state.members.remove(member)
                state.rebalance()

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

    def __init__(
        self,
        broker: MemoryBroker,
        *,
        group: str,
        state_topic: str,
        input_topic: str,
        output_topic: str,
        max_records: int = 1000,
        max_bytes: int = 1 << 20,
    ) -> None:
        self.broker = broker
        self.group, self.state_topic = group, state_topic
        self.input_topic, self.output_topic = input_topic, output_topic
        #: One read ends after this many messages, or before this many bytes, as a fetch does.
        self.max_records, self.max_bytes = max_records, max_bytes

    def topic(self, name: str) -> TopicInfo | None:
        with self.broker.changed:
            topic = self.broker.topics.get(name)
            return None if topic is None else TopicInfo(len(topic.partitions), topic.configs)

    def timestamp_type(self, topic: str) -> str | None:
        with self.broker.changed:
            return self.broker._topic(topic).timestamp_type

    def create_topic(self, name: str, info: TopicInfo, replication: int) -> None:
        self.broker.create(name, info.partitions, info.configs)

    def join(self) -> MemoryMembership:
        return MemoryMembership(self)

    def offsets(self, topic: str) -> MemoryReader:
        return MemoryReader(self, topic)

    def sampler(self, topic: str, interval_s: float, refresh_s: float) -> None:
        return None

    def reader(self, topic: str, *, stamped: bool = False) -> MemoryReader:
        return MemoryReader(self, topic, stamped=stamped)

    def ledger(self, claim: Claim) -> MemoryLedger:
        return MemoryLedger(self, claim)

    def scan(self, topic: str) -> list[Message]:
        with self.broker.changed:
            return [
                Message(entry.key or b"", entry.value or b"", entry.headers)
                for partition in self.broker._topic(topic).partitions
                for entry in partition.entries[partition.first : partition.end()]
                if entry.status == "committed"
            ]

    def tail(self, topic: str) -> list[bytes]:
        with self.broker.changed:
            at = self.broker._topic(topic).partitions[0]
            entries = at.entries[at.first : at.end()]
            plan = f"{self.group}.plan".encode()
            states = [e for e in entries if e.status == "committed" and e.key != plan]
            return [e.value for e in states if e.value is not None]

    def unfinished(self, topic: str) -> list[bytes]:
        found: list[bytes] = []
        with self.broker.changed:
            partition = self.broker._topic(topic).partitions[0]
            for entry in partition.entries[partition.first :]:
                if entry.key != self.group.encode() or entry.value is None:
                    continue
                if entry.status == "committed":
                    found.clear()
                elif entry.status != "removed":
                    found.append(entry.value)
        return list(dict.fromkeys(found))

    def groups_of(self, topic: str) -> list[str] | None:
        with self.broker.changed:
            groups = self.broker.groups.items()
            used = {name: {t for (t, _), at in g.offsets.items() if at} for name, g in groups}
            return sorted(name for name, topics in used.items() if topic in topics)

    def follow(self, topic: str, back: int | None = None) -> MemoryFeed:
        return MemoryFeed(self, topic, back)

    def _output_partition(self, key: bytes) -> int:
        return zlib.crc32(key) % len(self.broker._topic(self.output_topic).partitions)


class MemoryMembership:
    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster, self._broker = cluster, cluster.broker
        with self._broker.changed:
            self.member = self._broker.next_member
            self._broker.next_member += 1
        self._claim: Claim | None = None
        self._generation = -1

    def poll(self, timeout_s: float) -> Claim | None:
        with self._broker.changed:
            group = self._broker.groups.setdefault(self._cluster.group, _Group())
            if self.member not in group.members:
                group.members.append(self.member)
                group.rebalance()
            if group.generation != self._generation:
                self._generation = group.generation
                owner = group.owner == self.member
                self._claim = Claim(owner, _Token(self.member, group.generation))
            elif timeout_s:
                self._broker.changed.wait(timeout_s)
            return self._claim

    def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        with self._broker.changed:
            group = self._broker.groups.get(self._cluster.group, _Group())
            found = {p: group.offsets.get((topic, p)) for p in partitions}
            return {p: offset for p, offset in found.items() if offset is not None}

    def close(self) -> None:
        self._broker.expire(self._cluster.group, self.member)


class MemoryReader:
    def __init__(self, cluster: MemoryCluster, topic: str, *, stamped: bool = False) -> None:
        self._cluster, self._broker, self._topic = cluster, cluster.broker, topic
        self._stamped = stamped
        self._at: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._turn = 0

    def partitions(self) -> frozenset[int]:
        info = self._cluster.topic(self._topic)
        return frozenset() if info is None else frozenset(range(info.partitions))

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        with self._broker.changed:
            made = self._broker._topic(self._topic).partitions
            return {p: Bounds(made[p].first, made[p].end()) for p in partitions}

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        return {p: end for p, (_, end) in self.bounds(partitions).items()}

    def log_ends(self, partitions: Sequence[int]) -> dict[int, int]:
        with self._broker.changed:
            made = self._broker._topic(self._topic).partitions
            return {p: len(made[p].entries) for p in partitions}

    def first_at(self, partitions: Sequence[int], time_ms: int) -> dict[int, int | None]:
        with self._broker.changed:
            made = self._broker._topic(self._topic).partitions
            return {p: _first_at(made[p], time_ms) for p in partitions}

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._at = dict(offsets)
        self._paused = frozenset()

    def pause(self, partitions: Collection[int]) -> None:
        self._paused = frozenset(partitions)

    def read(self, timeout_s: float) -> list[Chunk]:
        deadline = time.monotonic() + timeout_s
        with self._broker.changed:
            while True:
                chunks = self._take()
                wait = deadline - time.monotonic()
                if chunks or wait <= 0:
                    return chunks
                self._broker.changed.wait(wait)

    def _take(self) -> list[Chunk]:
        """One fetch: from each partition in turn, as much as still fits."""
        chunks: list[Chunk] = []
        records, size = self._cluster.max_records, self._cluster.max_bytes
        made = self._broker._topic(self._topic).partitions
        order = [p for p in self._at if p not in self._paused]
        self._turn += 1
        for i in range(len(order)):
            p = order[(i + self._turn) % len(order)]
            partition, at = made[p], self._at[p]
            if at < partition.first or at > len(partition.entries):
                raise OffsetsGone(f"offset {at} of partition {p} is not in the log")
            offsets: list[int] = []
            values: list[bytes | None] = []
            for offset in range(at, partition.end()):
                entry = partition.entries[offset]
                if entry.status == "committed":
                    length = len(entry.value or b"")
                    # The first message is sent whatever its size, or nobody could get past it.
                    if records == 0 or (length > size and (chunks or offsets)):
                        break
                    records, size = records - 1, size - length
                    offsets.append(offset)
                    values.append(entry.value)
                self._at[p] = offset + 1
            if offsets:
                chunks.append(Chunk(p, offsets, values, *self._stamps(p, offsets)))
        return chunks

    def _stamps(self, partition: int, offsets: Sequence[int]) -> tuple[Sequence[Any], ...]:
        if not self._stamped:
            return ()
        topic = self._broker._topic(self._topic)
        entries = [topic.partitions[partition].entries[offset] for offset in offsets]
        by_broker = topic.timestamp_type == "LogAppendTime"
        times = [entry.time_ms if by_broker else None for entry in entries]
        return times, [entry.key for entry in entries]

    def positions(self) -> dict[int, int]:
        return dict(self._at)

    def close(self) -> None:
        self._at = {}


def _first_at(partition: _Partition, time_ms: int) -> int | None:
    for offset in range(partition.first, len(partition.entries)):
        if partition.entries[offset].time_ms >= time_ms:
            return offset
    return None


class MemoryFeed:
    def __init__(self, cluster: MemoryCluster, topic: str, back: int | None) -> None:
        self._broker, self._topic, self._back = cluster.broker, topic, back
        self._at: dict[int, int] = {}

    def read(self, timeout_s: float) -> list[Message]:
        with self._broker.changed:
            if not (found := self._take()):
                self._broker.changed.wait(timeout_s)
                found = self._take()
            return found

    def _take(self) -> list[Message]:
        topic = self._broker.topics.get(self._topic)
        found: list[Message] = []
        for p, partition in enumerate(topic.partitions if topic else ()):
            first, end = partition.first, partition.end()
            start = first if self._back is None else max(first, end - self._back)
            at = self._at.setdefault(p, start)
            entries = [e for e in partition.entries[at:end] if e.status == "committed"]
            found += [Message(e.key or b"", e.value or b"", e.headers) for e in entries]
            self._at[p] = max(at, end)
        return found

    def close(self) -> None:
        pass


class MemoryLedger:
    def __init__(self, cluster: MemoryCluster, claim: Claim) -> None:
        self._cluster, self._broker, self._claim = cluster, cluster.broker, claim
        self._id = cluster.group
        self._plan_key = f"{self._id}.plan".encode()
        self._lock = threading.Lock()
        self._last: Positions = {}
        with self._broker.changed:
            self._epoch = self._broker.epochs.get(self._id, -1) + 1
            self._broker.epochs[self._id] = self._epoch
            for entry in self._broker.open.pop(self._id, []):
                entry.status = "aborted"
            self._broker.changed.notify_all()

    def load(self) -> list[bytes]:
        return self._cluster.tail(self._cluster.state_topic)

    def unfinished(self) -> list[bytes]:
        return self._cluster.unfinished(self._cluster.state_topic)

    def load_plan(self) -> bytes | None:
        with self._broker.changed:
            partition = self._broker._topic(self._cluster.state_topic).partitions[0]
            committed = [e for e in partition.entries if e.status == "committed"]
            plans = [e.value for e in committed if e.key == self._plan_key]
            return plans[-1] if plans else None

    def commit(self, state: bytes, positions: Positions, messages: Sequence[Message] = ()) -> None:
        with self._lock:
            self._check_generation()
            self._add(self._cluster.state_topic, 0, _Entry(self._id.encode(), state))
            self._send(messages)
            crashpoints.reach("inside_transaction")
            self._commit(positions)

    def keep_plan(self, plan: bytes, positions: Positions) -> None:
        with self._lock:
            self._check_generation()
            self._add(self._cluster.state_topic, 0, _Entry(self._plan_key, plan))
            self._commit({**positions, **self._last})

    def publish(self, messages: Sequence[Message], positions: Positions) -> None:
        with self._lock:
            self._send(messages)
            self._commit(positions)

    def confirm_owned(self) -> None:
        with self._broker.changed:
            self._check()

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            at = self._cluster._output_partition(message.key)
            entry = _Entry(message.key, message.value, message.headers)
            self._add(self._cluster.output_topic, at, entry)

    def _check_generation(self) -> None:
        token = self._claim.token
        if not isinstance(token, _Token):
            raise TypeError("the claim is of another cluster")
        with self._broker.changed:
            group = self._broker.groups[self._cluster.group]
            if group.generation != token.generation or token.member not in group.members:
                self._end("aborted")
                raise Fenced("the group has moved on to another generation")

    def _commit(self, positions: Positions) -> None:
        with self._broker.changed:
            self._check_generation()
            self._end("committed")
            group = self._broker.groups[self._cluster.group]
            for p, offset in positions.items():
                group.offsets[self._cluster.input_topic, p] = offset
            self._last = positions
        self._broker.on_commit("after")

    def close(self) -> None:
        with self._broker.changed:
            if self._broker.epochs[self._id] == self._epoch:
                self._end("aborted")
            self._epoch = -1  # whatever is still sent with it is refused

    def _add(self, topic: str, partition: int, entry: _Entry) -> None:
        with self._broker.changed:
            self._check()
            entry.status = "open"
            self._broker._topic(topic).partitions[partition].entries.append(entry)
            self._broker.open.setdefault(self._id, []).append(entry)

    def _end(self, status: Literal["committed", "aborted"]) -> None:
        with self._broker.changed:
            self._check()
            if status == "committed":
                self._broker.on_commit("before")
            for entry in self._broker.open.pop(self._id, []):
                entry.status = status
            self._broker.changed.notify_all()

    def _check(self) -> None:
        if self._broker.epochs[self._id] != self._epoch:
            raise Fenced("the model has another owner")

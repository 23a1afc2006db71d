"""What the service asks of a log, as small Protocols of our own.

Two things implement them: `consumers.kafka` for Apache Kafka and `consumers.kafka.memory` for
tests and runs without a broker. The same contract tests run on both.

The life of a task on a log:

    claim = membership.poll(...)            # the group says which tasks are ours
    ledger = log.ledger(task, claim)        # fences every earlier owner, before anything is read
    ledger.load()                           # the last committed states
    ledger.commit(state, positions)         # state and offsets in one transaction, confirmed
    ledger.publish([release], positions)    # fenced too: a zombie publishes nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

__all__ = [
    "Bounds",
    "Chunk",
    "Claim",
    "Cluster",
    "Ledger",
    "Membership",
    "Message",
    "Position",
    "Reader",
    "TopicInfo",
    "following",
]


class Position(NamedTuple):
    """Where to go on in a partition: the next message, and the next row inside it."""

    offset: int
    row: int = 0


def following(offset: int) -> Position:
    """The position after a whole message. The only place that says offset + 1."""
    return Position(offset + 1, 0)


class Chunk(NamedTuple):
    """Messages of one partition, in order."""

    partition: int
    offsets: Sequence[int]
    values: Sequence[bytes | None]


class Bounds(NamedTuple):
    """The offsets a partition can be read at: the first, and one past the last committed."""

    first: int
    end: int


@dataclass(frozen=True)
class Message:
    """A message with its key and headers."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class TopicInfo:
    """What is there."""

    partitions: int
    #: Settings that differ from the cluster's; None if we may not see them.
    configs: Mapping[str, str] | None = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Claim:
    """The tasks that a settled group gives us, in one generation. Another generation, another
    object: compare with `is`."""

    tasks: frozenset[int]
    token: object  #: what the log needs to tell this generation from any other


class Membership(Protocol):
    """Our place in the group that shares the partitions of the state topic."""

    def poll(self, timeout_s: float) -> Claim | None:
        """Take part in the group; call it often. None while the group is not settled."""
        ...

    def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, Position]:
        """The positions that the group has committed, where it has."""
        ...

    def close(self) -> None:
        """Leave the group, so that a standby takes over at once."""
        ...


class Reader(Protocol):
    """Reads committed messages of chosen partitions of a topic, without a group."""

    def partitions(self) -> frozenset[int]:
        """The partitions there are now, asked afresh."""
        ...

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]: ...

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets, and no others."""
        ...

    def read(self, timeout_s: float) -> list[Chunk]:
        """What has come, or nothing. Raises `OffsetsGone` if an offset is not in the log."""
        ...

    def positions(self) -> dict[int, int]:
        """The next offset of each assigned partition, past what can never be read."""
        ...

    def close(self) -> None: ...


class Ledger(Protocol):
    """The one writer of a task's state and releases. To open one fences all earlier ones."""

    def load(self) -> list[bytes]:
        """The newest committed states, oldest first, read to the end; the last one counts."""
        ...

    def commit(self, state: bytes, positions: Mapping[int, Position]) -> None:
        """Write the state and the group's offsets in one transaction.

        Returns only after the state has been read back as committed. Whatever is raised means that
        nothing is known: drop everything, open another ledger, load.
        """
        ...

    def publish(self, records: Sequence[Message], positions: Mapping[int, Position]) -> None:
        """Write to the output topic, all or nothing; raises `Fenced` for a stale owner.

        The offsets of the last commit go with it: that is how the group says that we are not.
        """
        ...

    def close(self) -> None: ...


class Cluster(Protocol):
    """A cluster, with the topics and the group of one model."""

    def topic(self, name: str) -> TopicInfo | None: ...

    def create_topic(self, name: str, info: TopicInfo, replication: int) -> None:
        """Create a topic; one that is there already is no error."""
        ...

    def join(self) -> Membership: ...

    def reader(self, topic: str) -> Reader: ...

    def ledger(self, task: int, claim: Claim) -> Ledger: ...

    def scan(self, topic: str) -> list[Message]:
        """Every committed record of a topic, in the order of its partitions."""
        ...

    def publish(self, records: Sequence[Message]) -> None:
        """Write to the output topic without a task: for what is made of releases alone."""
        ...

    def close(self) -> None: ...

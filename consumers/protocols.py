"""Small Protocols of our own for all that the service needs of a cluster and of a store.

`consumers.kafka` implements them for Apache Kafka, `tests/support/memory.py` inside one process;
`consumers.files` implements the store as a state file. The same contract tests run on all of them.

The life of a model on a cluster:

    claim = membership.poll(...)            # the group says whether this process owns the model
    store = cluster.ledger(claim)           # fences every earlier owner, before anything is read
    store.load()                            # the last committed states
    store.unfinished()                      # and what was written after them: committed again
    store.commit(state, positions)          # state and offsets in one transaction, confirmed
    store.publish([batch.message], ...)     # fenced too: a stale owner publishes nothing
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

#: Most states that may follow a plan that is still needed.
PLAN_STATES: Final = 64

#: For each partition, the offset at which to resume. A file has one partition, 0, of rows.
Positions = Mapping[int, int]


class Chunk(NamedTuple):
    """Messages of one partition, in order."""

    partition: int
    offsets: Sequence[int]
    values: Sequence[bytes | None]
    #: With a reader of stamped messages: the time in milliseconds at which the broker appended each
    #: message, or None for one whose time its sender has set (CreateTime).
    times: Sequence[int | None] = ()
    keys: Sequence[bytes | None] = ()  #: with a reader of stamped messages


class Bounds(NamedTuple):
    """The offsets at which a partition can be read: the first, and one past the last stable one."""

    first: int
    end: int


@dataclass(frozen=True)
class Message:
    """A message with its key and headers."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class FinishedBatch:
    """Everything that is kept of a batch: its result is fixed, and nobody has seen it yet."""

    number: int
    writer: str  #: the name of its state
    #: Encodes all that a successor needs to resume after this batch. It is given the writer of the
    #: last committed state, and the releases of the batches before it that become durable with it,
    #: which the successor publishes, too.
    state: Callable[[str, Sequence[Message]], bytes]
    message: Message  #: the release, exactly as it is to be published
    positions: Positions  #: after this batch
    status: str = "learned"  #: of the model after it, as in the release
    reason: str | None = None  #: reason why nothing was learned from it
    drift: bool = False  #: the stream has changed and the past was dropped


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the cluster describes it."""

    partitions: int
    #: Settings of the topic; None without permission to see them.
    configs: Mapping[str, str] | None = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Claim:
    """The role that a settled group gives to this process, in one generation.

    Each generation has an object of its own: compare with `is`.
    """

    owner: bool  #: of the model; False for a standby
    token: object  #: by which the cluster recognises this generation


class Membership(Protocol):
    """Membership of this process in the group that has the state topic: one member owns it."""

    def poll(self, timeout_s: float) -> Claim | None:
        """Take part in the group; call it often. None while the group is not settled."""

    def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The offsets that the group has committed, for partitions that have any."""

    def close(self) -> None:
        """Leave the group, so that a standby takes over at once."""


class TopicOffsets(Protocol):
    """Lists the partitions of a topic, with their first offsets and their ends."""

    def partitions(self) -> frozenset[int]:
        """The partitions that exist now, never from a cache."""

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]: ...

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """The ends alone, which takes half the time."""

    def log_ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """The ends of the log, messages of open transactions included."""

    def first_at(self, partitions: Sequence[int], time_ms: int) -> dict[int, int | None]:
        """For each partition, the first offset whose message has this time or a later one.

        None if there is none. Messages of open transactions count.
        """

    def close(self) -> None: ...


class Reader(TopicOffsets, Protocol):
    """Reads committed messages of chosen partitions of a topic, without a group."""

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets, and no others; none of them is paused."""

    def pause(self, partitions: Collection[int]) -> None:
        """Stop reading these partitions for now, and resume all others."""

    def read(self, timeout_s: float) -> list[Chunk]:
        """New messages, or nothing. Raises `OffsetsGone` if an offset does not exist."""

    def positions(self) -> dict[int, int]:
        """The next offset of each assigned partition, past messages that can never be read."""


class Store(Protocol):
    """The one writer of a model's states and releases. Opening a store fences all earlier ones."""

    def load(self) -> list[bytes]:
        """The newest committed states, oldest first, read to the end; the last one counts."""

    def commit(self, state: bytes, positions: Positions, messages: Sequence[Message] = ()) -> None:
        """Make a state and its positions durable, and publish messages together with them.

        A successor resumes there. The messages are releases that an *earlier* commit has made
        durable: only such may become visible.

        Returns only when the state is known to be durable. Any error means that nothing is
        known: drop everything, open another store, load.
        """

    def publish(self, messages: Sequence[Message], positions: Positions) -> None:
        """Make releases visible, all or none; raises `Fenced` for a stale owner.

        The positions are those of the last commit. They go with the messages so that the brokers
        reject a stale owner.
        """

    def close(self) -> None: ...


class Sampler(Protocol):
    """Samples the ends of all partitions of a topic on a fixed clock, in a process of its own."""

    def samples(self, timeout_s: float) -> list[dict[int, int]]:
        """The samples since the last call, in order; waits for some, or until time is up."""

    def close(self) -> None: ...


class Ledger(Store, Protocol):
    """A store that other processes may take over. Plans and states may come from two threads."""

    def load_plan(self) -> bytes | None:
        """The last committed plan, if it is not older than the last `PLAN_STATES` states."""

    def keep_plan(self, plan: bytes, positions: Positions) -> None:
        """Make a plan durable, which replaces the one before it.

        The positions are those of the last state, unless this ledger has committed later ones.
        """

    def unfinished(self) -> list[bytes]:
        """States that were written after the last one that `load` has returned.

        The oldest comes first, and each of them once, however many copies there are. They are of
        transactions that were aborted. Whoever reads uncommitted records may have seen them, so the
        batch of such a state must not get another result.
        """

    def confirm_owned(self) -> None:
        """Raise `Fenced` if the model has been taken over since this ledger was opened."""


class Feed(Protocol):
    """Committed messages of a whole topic with keys and headers, as they come, without a group."""

    def read(self, timeout_s: float) -> list[Message]:
        """New messages, or nothing; also nothing while the topic does not exist."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of a Schema Registry, with everything that it refers to, directly or not."""

    kind: str  #: "avro", "protobuf" or "json"
    text: str  #: JSON for Avro; for Protobuf the serialized file descriptor, in base64
    #: By the names of their imports, without references of their own. What others need comes first.
    references: tuple[tuple[str, RegisteredSchema], ...] = ()

    def each(self) -> Iterator[RegisteredSchema]:
        """The schemas that it refers to, and then the schema itself."""
        yield from (reference for _, reference in self.references)
        yield self


class SchemaSource(Protocol):
    """A registry of schemas. The schema of an id never changes; new ids may be added."""

    def schema(self, number: int) -> RegisteredSchema | None:
        """The schema with this id; None if the registry does not have it or denies access to it.

        Raises `RegistryAway` if the registry as a whole does not answer.
        """


class Cluster(Protocol):
    """A cluster, with the topics and the group of one model."""

    def topic(self, name: str) -> TopicInfo | None: ...

    def timestamp_type(self, topic: str) -> str | None:
        """Source of the times of messages: `LogAppendTime` or `CreateTime`; None if unknown."""

    def create_topic(self, name: str, info: TopicInfo, replication: int) -> None:
        """Create a topic; if it exists already, do nothing."""

    def join(self) -> Membership: ...

    def offsets(self, topic: str) -> TopicOffsets: ...

    def sampler(self, topic: str, interval_s: float, refresh_s: float) -> Sampler | None:
        """A sampler that looks for new partitions after `refresh_s`; None inside one process."""

    def reader(self, topic: str, *, stamped: bool = False) -> Reader:
        """A reader; a stamped one also gives the times and the keys of messages."""

    def ledger(self, claim: Claim) -> Ledger: ...

    def scan(self, topic: str) -> list[Message]:
        """Every committed message of a topic, in the order of its partitions."""

    def tail(self, topic: str) -> list[bytes]:
        """The newest committed values of a topic of one partition, oldest first, read to its end.

        These are at least the last one, if there is any. Nobody is fenced.
        """

    def unfinished(self, topic: str) -> list[bytes]:
        """States of this group that were written after those, and are not committed."""

    def groups_of(self, topic: str) -> list[str] | None:
        """The consumer groups that have read of a topic; None without permission.

        A group whose committed offsets are all 0 has read nothing.
        """

    def follow(self, topic: str, back: int | None = None) -> Feed:
        """Follow a topic from `back` offsets before its end; by default from its beginning."""

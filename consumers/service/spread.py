"""Batches of a topic on an engine: tasks read the planned ranges, the driver never sees a message.

`TopicSource` goes to the tasks. `EngineRanges` takes the place of `RangeReader` in a task of the
service, and gives sums over the rows of a batch instead of the rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_dppca.arrays import FloatArray, aligned
from stream_dppca.engine import (
    Engine,
    EngineBatches,
    EngineError,
    EngineRows,
    Group,
    SourceAway,
)

from ..errors import ClusterError, EngineLost, RegistryAway
from ..events import log_event
from ..kafka.config import TaskConnection
from ..kafka.configure import connect_registry, registry_options
from ..kafka.executor import read_ranges
from ..messages.codecs import Codec, SubjectCodec
from ..messages.gathered import Gathering
from ..messages.recipe import MessageRecipe
from ..protocols import SchemaSource, TopicOffsets
from ..settings import Settings
from .cores import CoreWatch
from .metrics import Metrics
from .plan import Range
from .planner import refuse_truncated
from .registry_wait import RegistryWait

__all__ = ["CodecRecipe", "EngineRanges", "GuardedEngine", "Spread", "TopicSource"]

G = TypeVar("G")
R = TypeVar("R")

#: Pause before a job that needed the registry runs again.
ASK_AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, repr=False)  # the registry may have a password
class CodecRecipe:
    """Makes the codec of a topic where it is needed, and once per process.

    With a Schema Registry, tasks fetch schemas themselves, each process once per schema: the
    schemas are known when messages are read, and the driver reads none. An id that is unknown makes
    its own message a null and is not remembered (`model.registered`), so how a message is read
    depends on no other message, in any process. While the registry is away, tasks fail and are run
    again (`GuardedEngine`).
    """

    messages: MessageRecipe
    registry: tuple[tuple[str, str], ...] | None = None  #: options of its client

    @classmethod
    def of(cls, settings: Settings) -> CodecRecipe:
        """The recipe of the codec of a service with these settings."""
        options = registry_options(settings)
        known = None if options is None else tuple(sorted(options.items()))
        return cls(MessageRecipe.of(settings), known)

    def connect(self) -> SchemaSource | None:
        """The Schema Registry, if the format needs one."""
        if self.registry is None:
            return None
        return connect_registry(self.messages.format, dict(self.registry))

    def __call__(self) -> Codec:
        return _made(self)

    def for_subjects(self) -> SubjectCodec | Gathering:
        """Make the codec for privacy per subject."""
        return _made_for_subjects(self)

    @property
    def rows_per_message(self) -> int:
        """Most rows of a subject that are decoded of one message."""
        return min(self.messages.rows_per_message or 1, self.messages.records)


@lru_cache(maxsize=8)
def _made(recipe: CodecRecipe) -> Codec:
    """The codec of a recipe, with the schemas that it has fetched."""
    return recipe.messages.codec(recipe.connect())


@lru_cache(maxsize=8)
def _made_for_subjects(recipe: CodecRecipe) -> SubjectCodec | Gathering:
    return recipe.messages.subject_codec(recipe.connect())


@contextlib.contextmanager
def later_if_away() -> Iterator[None]:
    """Turn the error of a registry that is away into one that lets the job run again."""
    try:
        yield
    except RegistryAway as error:
        raise SourceAway(str(error)) from None


@dataclass(frozen=True, repr=False)  # the connection holds passwords
class TopicSource:
    """Reads the slots of a planned batch from a topic, in any process.

    Ranges take their places one after the other, so that a group reads few partitions.
    """

    connection: TaskConnection
    topic: str
    ranges: tuple[Range, ...]
    codec: Callable[[], Codec]  #: makes the codec where it is needed
    width: int
    stall_s: float

    def read(self, group: Group) -> FloatArray:
        """The rows in these slots, nulls all NaN."""
        codec = self.codec()
        each = codec.rows_per_message
        first, last = group.start // each, -(-group.stop // each)  # places of whole messages
        rows = aligned(last - first, each, self.width)
        rows[:] = np.nan
        wanted, place_of = self._window(first, last)
        for chunk in read_ranges(self.connection, self.topic, wanted, self.stall_s):
            place = place_of(chunk.partition, np.array(chunk.offsets, dtype=np.int64))
            with later_if_away():
                decoded = codec.decode(chunk.values).reshape(len(place), each, self.width)
            here = (place >= first) & (place < last)
            rows[place[here] - first] = decoded[here]
        flat = rows.reshape(-1, self.width)
        return flat[group.start - first * each : group.stop - first * each]

    def _window(
        self, first: int, last: int
    ) -> tuple[list[Range], Callable[[int, NDArray[np.int64]], NDArray[np.int64]]]:
        """The offsets with places from `first` to `last`, and a function from offset to place."""
        begins = np.cumsum([0, *(end - start for _, start, end in self.ranges)]).tolist()
        wanted = []
        at = dict(zip((r.partition for r in self.ranges), begins, strict=False))
        starts = {r.partition: r.start for r in self.ranges}
        for (p, start, end), begin in zip(self.ranges, begins, strict=False):
            low, high = max(first - begin, 0), min(last - begin, end - start)
            if low < high:
                wanted.append(Range(p, start + low, start + high))
        return wanted, lambda p, offsets: at[p] + offsets - starts[p]


@dataclass(frozen=True)
class Spread:
    """Everything that is needed to read batches on an engine."""

    engine: Engine
    tasks: Callable[[], int]  #: approximate number of groups of the next batch
    connection: TaskConnection
    codec: Callable[[], Codec]
    cores: CoreWatch | None = None  #: watches whether the engine has executors
    lost: Callable[[], bool] = lambda: False  #: True if no job can ever run on the engine again
    #: Called again and again while a job waits for the registry; False ends the wait.
    may_wait: Callable[[], bool] = lambda: True
    subjects: CodecRecipe | None = None  #: with privacy per subject


class GuardedEngine:
    """An engine whose failures drop the task: the successor begins at the last state.

    A lost engine ends the process, whose successor has a new engine. A job that needs a schema
    registry that is away is run again, and the plan stays as it is: if the task of the service were
    dropped, a record that names a schema of its own choice would decide when the plan begins anew.
    """

    def __init__(self, spread: Spread, metrics: Metrics) -> None:
        self._spread, self._registry_wait = spread, RegistryWait(metrics)
        self._progress = metrics.progress

    def map(self, task: Callable[[G], R], groups: Sequence[G]) -> list[R]:
        cores = self._spread.cores
        try:
            while True:
                try:
                    with contextlib.nullcontext() if cores is None else cores.job():
                        found = self._spread.engine.map(task, groups)
                    self._progress.moved()
                    return found
                except SourceAway as error:
                    self._registry_wait.note(error)
                    if not self._spread.may_wait():
                        raise ClusterError(str(error)) from None
                    time.sleep(ASK_AGAIN_SECONDS)
        except EngineError as error:
            if self._spread.lost():
                raise EngineLost("the driver of the engine has ended: start again") from None
            raise ClusterError(str(error)) from None
        finally:
            self._registry_wait.end()


class EngineRanges:
    """Gives batch after batch: `start`, then `take`. There is nothing to read in between."""

    full = True  #: nothing is read ahead
    waits_for = None  #: the tasks read

    def __init__(
        self,
        spread: Spread,
        batches: Callable[[Engine, int], EngineBatches],
        offsets: TopicOffsets,
        topic: str,
        metrics: Metrics,
        *,
        width: int,
        slots: int,
        stall_s: float,
    ) -> None:
        """
        Parameters
        ----------
        batches
            Makes the batches of the model on an engine, in about this many groups.
        offsets
            Returns the current first offsets and ends of partitions. It is closed with this.
        width
            Number of features.
        slots
            Slots per batch.
        """
        self._spread, self._topic, self._metrics = spread, topic, metrics
        self._batches = batches(GuardedEngine(spread, metrics), spread.tasks())
        self._width, self._slots, self._stall_s = width, slots, stall_s
        self._offsets = offsets
        self._ranges: tuple[Range, ...] | None = None

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Do nothing: the tasks get their offsets with each batch."""

    def start(self, ranges: Sequence[Range]) -> None:
        """Begin a batch; log what retention removed of it, and refuse a truncated topic."""
        found = self._offsets.bounds(sorted(r.partition for r in ranges))
        for p, start, end in ranges:
            if end > found[p].end:
                refuse_truncated(self._topic, p, end, found[p].end)
            if start < found[p].first:
                log_event("offsets_lost", level="warning", topic=self._topic, partition=p,
                          offset=start, resumed_at=found[p].first)  # fmt: skip
                self._metrics.offsets_lost.inc(min(end, found[p].first) - start)
        self._ranges = tuple(ranges)

    def read(self, timeout_s: float) -> bool:
        return False

    @property
    def complete(self) -> bool:
        return self._ranges is not None

    def take(self) -> EngineRows:
        """The batch, whose rows stay in the tasks."""
        if self._ranges is None:
            raise RuntimeError("the batch is not complete")
        source = TopicSource(
            self._spread.connection, self._topic, self._ranges, self._spread.codec, self._width,
            self._stall_s,
        )  # fmt: skip
        self._ranges = None
        self._metrics.slots.inc(self._slots)
        self._batches.split(self._spread.tasks())
        return self._batches.rows(source)

    def close(self) -> None:
        self._ranges = None
        self._offsets.close()

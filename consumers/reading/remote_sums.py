"""Batches whose rows stay in the tasks of an engine: the driver gets sums, and sees no message.

`TopicSource` goes to the tasks. `RemoteSums` takes the place of `BatchReader`, and gives an object
that answers questions about the rows of a batch instead of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from stream_dppca.arrays import FloatArray, aligned
from stream_dppca.engine import Engine, EngineBatches, EngineRows, Group

from ..kafka.config import TaskConnection
from ..kafka.task_readers import reader_of
from ..messages.recipe import MessageRecipe
from ..monitoring.metrics import Metrics
from ..planning.guard import TopicGuard
from ..protocols import TopicOffsets
from ..ranges import Range, read_ranges
from .remote import GuardedEngine, Remote, codec_of, later_if_away


@dataclass(frozen=True, repr=False)  # the connection holds passwords
class TopicSource:
    """Reads the slots of a planned batch from a topic, in any process.

    Ranges take their slots one after the other, so that a group reads few partitions.
    """

    connection: TaskConnection
    topic: str
    ranges: tuple[Range, ...]
    recipe: MessageRecipe  #: makes the codec where it is needed
    width: int
    stall_s: float

    def read(self, group: Group) -> FloatArray:
        """The rows in these slots, nulls all NaN."""
        codec = codec_of(self.recipe)
        each = codec.rows_per_message
        first, last = group.start // each, -(-group.stop // each)  # slots of whole messages
        rows = aligned(last - first, each, self.width)
        rows[:] = np.nan
        # The slot of an offset is the offset plus the shift of its partition.
        begins = np.cumsum([0, *(r.end - r.start for r in self.ranges)]).tolist()
        shift = {r.partition: at - r.start for r, at in zip(self.ranges, begins, strict=False)}
        wanted = [
            Range(p, max(start, first - shift[p]), min(end, last - shift[p]))
            for p, start, end in self.ranges
        ]
        reader = reader_of(self.connection, self.topic)
        for chunk in chain.from_iterable(read_ranges(reader, self.topic, wanted, self.stall_s)):
            slot = np.array(chunk.offsets, dtype=np.int64) + shift[chunk.partition]
            with later_if_away():
                decoded = codec.decode(chunk.values)
            rows[slot - first] = decoded.reshape(len(slot), each, self.width)
        flat = rows.reshape(-1, self.width)
        return flat[group.start - first * each : group.stop - first * each]


class RemoteSums:
    """Gives batch after batch: `start`, then `take`. There is nothing to read in between."""

    full = True  #: nothing is read ahead
    waits_for = None  #: the tasks read

    def __init__(
        self,
        remote: Remote,
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
        self._remote, self._topic, self._metrics = remote, topic, metrics
        self._batches = batches(GuardedEngine(remote, metrics), remote.tasks())
        self._width, self._slots, self._stall_s = width, slots, stall_s
        self._offsets, self._guard = offsets, TopicGuard(topic, metrics)
        self._ranges: tuple[Range, ...] | None = None
        self._reached: dict[int, int] = {}

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Begin at these offsets. The tasks get theirs with each batch."""
        self._reached = dict(offsets)

    def start(self, ranges: Sequence[Range]) -> None:
        """Begin a batch; log what retention removed of it, and refuse a truncated topic."""
        found = self._offsets.bounds(sorted(r.partition for r in ranges))
        for p, _, end in ranges:  # batches of which nothing is left were passed over
            self._guard.skip_lost(Range(p, self._reached.get(p, 0), end), found[p])
            self._reached[p] = end
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
        connection, recipe = self._remote.connection, self._remote.recipe
        source = TopicSource(
            connection, self._topic, self._ranges, recipe, self._width, self._stall_s
        )
        self._ranges = None
        self._metrics.slots.inc(self._slots)
        self._batches.split(self._remote.tasks())
        return self._batches.rows(source)

    def close(self) -> None:
        self._ranges = None
        self._offsets.close()

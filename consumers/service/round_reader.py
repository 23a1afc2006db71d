"""Reads the records of a planned round, partition after partition, each by its own timestamp.

One range is read at a time, to its end, before the next one begins: the order in which records come
is the order of the partitions and of the offsets in them. It does not depend on the sizes of
messages, on how they are divided into fetches, or on the time that they take.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ClusterError, ConfigurationError, OffsetsGone
from ..messages.codecs import Subject, SubjectCodec
from ..messages.gathered import Gatherer, Gathering
from ..protocols import Bounds, Chunk, Reader
from ..settings import RoundRule
from .guard import TopicGuard
from .metrics import Metrics
from .plan import Range
from .round_planner import PlannedRound
from .timeline import LOG_APPEND_TIME

#: Time between requests for the position of the reader, while messages come.
ASK_SECONDS: Final = 0.05

Left = TypeVar("Left", bound=Sequence[Any])
#: Takes rows, and the subject of each.
Take = Callable[[NDArray[np.floating[Any]], Sequence[Subject]], None]


def refuse_sender_time(topic: str, partition: int) -> None:
    raise ConfigurationError(
        f"partition {partition} of {topic!r} holds messages whose senders have set the "
        f"time (CreateTime): they are from before message.timestamp.type={LOG_APPEND_TIME} "
        "was set, or this is no longer set. Start a new model with start=latest, which begins "
        "with the next round."
    )


def of_window(times: Sequence[int | None], window: tuple[int, int]) -> list[int]:
    """Which of these times are in a round.

    >>> of_window([4, 5, 9, 10], (5, 10))
    [1, 2]
    """
    at, (start_ms, end_ms) = np.array(times, dtype=np.int64), window
    return np.flatnonzero((at >= start_ms) & (at < end_ms)).tolist()


class RoundTaker(Generic[Left]):
    """The round that is being read: what is left of it, and where its rows go.

    Parameters
    ----------
    take
        Called with the rows of the round, in order, in pieces.
    """

    def __init__(self, rule: RoundRule, take: Take) -> None:
        self._rule, self._take = rule, take
        self._left: Left | None = None
        self._window = 0, 0  # in milliseconds
        self._gatherer: Gatherer | None = None  # if points become rows

    def _begin(self, number: int, codec: SubjectCodec | Gathering, left: Left) -> None:
        self._window = self._rule.start_ms(number), self._rule.end_ms(number)
        self._gatherer = codec.begin(self._window) if isinstance(codec, Gathering) else None
        self._left = left

    @property
    def complete(self) -> bool:
        """True if all of the current round has been read."""
        return self._left is not None and not self._left

    def finish(self) -> None:
        """End the complete round."""
        if not self.complete:
            raise RuntimeError("the round is not complete")
        self._left = None
        if self._gatherer is not None:
            self._take(*self._gatherer.fold.rows())
            self._gatherer = None

    def close(self) -> None:
        self._left = self._gatherer = None


class RoundReader(RoundTaker[deque[Range]]):
    """Reads round after round: `start`, then `read` until `complete`."""

    def __init__(
        self,
        reader: Reader,
        topic: str,
        codec: SubjectCodec | Gathering,
        rule: RoundRule,
        metrics: Metrics,
        *,
        stall_s: float,
        bounds: Callable[[list[int]], dict[int, Bounds]],
        take: Take,
    ) -> None:
        """
        Parameters
        ----------
        reader
            A reader of stamped messages.
        stall_s
            Longest wait for planned messages before reading fails.
        bounds
            Returns the current first offsets and ends of partitions.
        take
            Called with the rows of the round, in order, in pieces.
        """
        super().__init__(rule, take)
        self._reader, self._topic, self._codec, self._metrics = reader, topic, codec, metrics
        self._stall_s, self._bounds = stall_s, bounds
        self._guard = TopicGuard(topic, metrics, secret=True)
        self._reached = 0  # in the partition that is being read
        self._waited_s = self._ask_at = 0.0

    def start(self, planned: PlannedRound) -> None:
        """Begin a round."""
        self._begin(planned.number, self._codec, deque(planned.ranges))
        self._begin_range()

    def _begin_range(self) -> None:
        if self._left:
            self._reached, self._waited_s = self._left[0].start, 0.0
            self._assign()

    def _assign(self) -> None:
        if self._left:
            self._reader.assign({self._left[0].partition: self._reached})

    def read(self, timeout_s: float) -> bool:
        """Read once. True if anything came."""
        if not self._left:
            return False
        partition, _, end = self._left[0]
        began = time.monotonic()
        try:
            chunks = self._reader.read(timeout_s)
        except OffsetsGone:
            self._pass_removed()
            self._watch(False, time.monotonic() - began)
            return False
        before = self._reached
        for chunk in chunks:
            if chunk.partition == partition:  # not a late fetch of the partition before
                self._put(chunk, end)
        # A range may end with offsets that can never be read. A request for the position takes
        # time, so it is not made after each read.
        if self._reached < end and (not chunks or began >= self._ask_at):
            self._ask_at = began + ASK_SECONDS
            self._reached = max(self._reached, self._reader.positions().get(partition, 0))
        progress = self._reached > before
        self._watch(progress, time.monotonic() - began)
        if self._reached >= end:
            self._left.popleft()
            self._begin_range()
        return progress

    def _put(self, chunk: Chunk, end: int) -> None:
        """Pass on the records of this round; those of other rounds are read with their own."""
        a = bisect_left(chunk.offsets, self._reached)  # the reader may repeat earlier messages
        b = bisect_left(chunk.offsets, end)
        if a >= b:
            if chunk.offsets[-1] >= end:
                self._reached = end
            return
        times = chunk.times[a:b]
        if None in times:
            refuse_sender_time(self._topic, chunk.partition)
        if mine := of_window(times, self._window):
            self._use(chunk, [a + i for i in mine])
        self._reached = end if b < len(chunk.offsets) else int(chunk.offsets[b - 1]) + 1

    def _use(self, chunk: Chunk, which: Sequence[int]) -> None:
        """Use these messages of a chunk."""
        values, keys = [chunk.values[i] for i in which], [chunk.keys[i] for i in which]
        if self._gatherer is not None:
            offsets, times = [chunk.offsets[i] for i in which], [chunk.times[i] for i in which]
            self._gatherer.add(chunk.partition, offsets, times, values, keys)
            self._metrics.slots.inc(len(values))
        elif not isinstance(self._codec, Gathering):
            rows, subjects = self._codec.decode(values, keys)
            self._metrics.slots.inc(len(rows))
            self._take(rows, subjects)

    def _watch(self, progress: bool, seconds: float) -> None:
        """Raise if the round waits too long: planned messages exist, so the reader is broken."""
        self._waited_s = 0.0 if progress else self._waited_s + seconds
        if progress:
            self._metrics.progress.moved()
        if self._waited_s > self._stall_s and self._left:
            partition = self._left[0].partition
            raise ClusterError(f"partition {partition} of {self._topic!r} stands still")

    def _pass_removed(self) -> None:
        """Resume at the first offset that exists: messages that are gone are lost."""
        if not self._left:
            return
        partition, _, end = self._left[0]
        wanted = Range(partition, self._reached, end)
        self._reached = self._guard.first_left(wanted, self._bounds([partition])[partition])
        if self._reached >= end:
            self._left.popleft()
            self._begin_range()
        else:
            self._assign()

    def close(self) -> None:
        super().close()
        self._reader.close()

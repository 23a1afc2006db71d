"""Reads the records of a planned round, partition after partition, each by its own timestamp.

One range is read at a time, to its end, before the next one begins: the order in which records come
is the order of the partitions and of the offsets in them. It does not depend on the sizes of
messages, on how they are divided into fetches, or on the time that they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from ..messages.codecs import Subject, SubjectCodec
from ..messages.fold import Fold
from ..messages.gathered import Gathering
from ..monitoring.metrics import Metrics
from ..planning.guard import TopicGuard
from ..planning.round_planner import PlannedRound
from ..planning.timeline import LOG_APPEND_TIME
from ..protocols import Chunk, Reader
from ..ranges import Range, read_ranges
from ..settings import RoundRule

#: Takes rows, and the subject of each.
Take = Callable[[NDArray[np.floating[Any]], Sequence[Subject]], None]


class SenderTime(ConfigurationError):
    """A message of the input has a time that its sender has set."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(
            f"partition {partition} of {topic!r} holds messages whose senders have set the time "
            f"(CreateTime): they are older than message.timestamp.type={LOG_APPEND_TIME}, or that "
            "is no longer set. Start a new model with start=latest: it begins with the next round."
        )


class RoundDecoder:
    """Takes the records of one round out of messages, each by its own time.

    Parameters
    ----------
    window
        The round: from, and up to, in milliseconds.
    whole
        True if all messages of the round come here.
    """

    def __init__(
        self,
        topic: str,
        codec: SubjectCodec | Gathering,
        window: tuple[int, int],
        *,
        whole: bool = True,
    ) -> None:
        self._topic, self._codec, self._window = topic, codec, window
        self.counted = 0  #: rows or messages of the round so far
        #: Where points are gathered, if rows are made of them.
        self.fold: Fold | None = None
        if isinstance(codec, Gathering):
            self._gatherer = codec.begin(window, whole)
            self.fold = self._gatherer.fold

    def rows(self, chunk: Chunk) -> tuple[NDArray[np.floating[Any]], Sequence[Subject]] | None:
        """The rows of the round in these messages, and their subjects; points are gathered."""
        if None in chunk.times:
            raise SenderTime(self._topic, chunk.partition)
        at, (start_ms, end_ms) = np.array(chunk.times, dtype=np.int64), self._window
        mine = np.flatnonzero((at >= start_ms) & (at < end_ms)).tolist()
        values, keys = [chunk.values[i] for i in mine], [chunk.keys[i] for i in mine]
        if isinstance(self._codec, Gathering):
            offsets, times = [chunk.offsets[i] for i in mine], [chunk.times[i] for i in mine]
            self._gatherer.add(chunk.partition, offsets, times, values, keys)
            self.counted += len(values)
            return None
        if not mine:
            return None
        rows, subjects = self._codec.decode(values, keys)
        self.counted += len(rows)
        return rows, subjects


class RoundTaker:
    """Reads round after round: `start`, then `read` until `complete`, then `finish`.

    Parameters
    ----------
    codec
        Decodes the messages.
    take
        Called with the rows of the round, in order, in pieces.
    """

    def __init__(
        self,
        topic: str,
        codec: SubjectCodec | Gathering,
        rule: RoundRule,
        metrics: Metrics,
        take: Take,
    ) -> None:
        self._topic, self._codec, self._rule, self._metrics = topic, codec, rule, metrics
        self._take = take
        self._guard = TopicGuard(topic, metrics, secret=True)
        self._steps: Iterator[None] = iter(())
        self._decoder: RoundDecoder | None = None
        self.complete = False  #: all of the current round has been read

    def start(self, planned: PlannedRound) -> None:
        """Begin a round."""
        self._window = self._rule.start_ms(planned.number), self._rule.end_ms(planned.number)
        self._decoder = RoundDecoder(self._topic, self._codec, self._window)
        self._steps = self._read(planned, self._decoder)
        self.complete = not planned.ranges

    def _read(self, planned: PlannedRound, decoder: RoundDecoder) -> Iterator[None]:
        """Read the round, a part at each step."""
        raise NotImplementedError

    def read(self, timeout_s: float) -> bool:
        """Read once, or find that the round is complete. False if there is no round."""
        for _ in self._steps:
            return True
        self.complete = self._decoder is not None
        return self.complete

    def finish(self) -> None:
        """End the complete round."""
        if not self.complete or self._decoder is None:
            raise RuntimeError("the round is not complete")
        decoder, self._decoder, self.complete = self._decoder, None, False
        if decoder.fold is not None:
            self._take(*decoder.fold.rows())

    def close(self) -> None:
        self._decoder, self._steps = None, iter(())


class RoundReader(RoundTaker):
    """Reads rounds in this process.

    Parameters
    ----------
    reader
        A reader of stamped messages.
    stall_s
        Longest wait for planned messages before reading fails.
    """

    def __init__(
        self,
        reader: Reader,
        topic: str,
        codec: SubjectCodec | Gathering,
        rule: RoundRule,
        metrics: Metrics,
        *,
        stall_s: float,
        take: Take,
    ) -> None:
        super().__init__(topic, codec, rule, metrics, take)
        self._reader, self._stall_s = reader, stall_s

    def _read(self, planned: PlannedRound, decoder: RoundDecoder) -> Iterator[None]:
        for wanted in planned.ranges:
            yield from self._read_ranges([wanted], decoder)

    def _read_ranges(self, ranges: Sequence[Range], decoder: RoundDecoder) -> Iterator[None]:
        skip, moved = self._guard.skip_lost, self._metrics.progress.moved
        for chunks in read_ranges(
            self._reader, self._topic, ranges, self._stall_s, resume=skip, moved=moved
        ):
            for chunk in chunks:
                before = decoder.counted
                if (found := decoder.rows(chunk)) is not None:
                    self._take(*found)
                self._metrics.slots.inc(decoder.counted - before)
            yield

    def close(self) -> None:
        super().close()
        self._reader.close()

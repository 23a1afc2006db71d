"""Rounds that the tasks of an engine read and decode: the subjects' rows meet in the driver.

A round is cut into pieces, one per task. A task reads its piece, decodes it, and drops the records
of other rounds and, for each subject, all rows after the first `records` of the piece: those could
not count. The driver gives the remaining rows to the table of the round, piece after piece in the
order of reading, so that the table is that of the local engine to the last bit, however the round
was cut. A subject has one place and is clipped once, because its rows are counted, averaged and
clipped in one process only. At most `records` rows per subject and piece cross the network; they
are records, and secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dppca.engine import EngineError, SourceAway
from stream_dppca.subjects import first_rows

from ..errors import ConfigurationError
from ..kafka.config import TaskConnection
from ..kafka.task_readers import reader_of
from ..messages.codecs import Subject
from ..messages.fold import MOST_SERIES, Fold
from ..messages.recipe import MessageRecipe
from ..monitoring.metrics import Metrics
from ..planning.round_planner import PlannedRound
from ..protocols import Bounds
from ..ranges import Range, read_ranges
from ..settings import RoundRule
from .remote import GuardedEngine, Remote, later_if_away, subject_codec_of
from .round_reader import RoundDecoder, RoundTaker, SenderTime, Take

#: Most numbers that the tasks of one job return: 128 MB of float64.
MOST_NUMBERS: Final = 2**24

TaskRanges = tuple[Range, ...]


@dataclass(frozen=True, repr=False)  # it holds records
class TaskRows:
    """The rows that a task found in its piece of a round."""

    rows: NDArray[np.floating[Any]]
    subjects: list[Subject]
    counted: int  #: rows or messages of the round, those without a subject included
    fold: Fold | None = None  #: in place of rows, if points become rows


@dataclass(frozen=True, repr=False)  # the connection holds passwords
class RoundSource:
    """Reads pieces of one round, in any process."""

    connection: TaskConnection
    topic: str
    recipe: MessageRecipe
    window: tuple[int, int]  #: the round: from, and up to, in milliseconds
    width: int
    stall_s: float

    def read(self, piece: TaskRanges) -> TaskRows:
        """The rows of a piece that may count, in the order of reading."""
        records, reader = self.recipe.records, reader_of(self.connection, self.topic, stamped=True)
        codec = subject_codec_of(self.recipe)
        decoder = RoundDecoder(self.topic, codec, self.window, whole=False)
        rows: list[NDArray[np.floating[Any]]] = [np.empty((0, self.width))]
        subjects: list[Subject] = []
        for part in piece:  # one after the other, which fixes their order
            for chunk in chain.from_iterable(read_ranges(reader, self.topic, [part], self.stall_s)):
                with later_if_away():
                    found = decoder.rows(chunk)
                if found is not None:
                    decoded, whose = found
                    kept = first_rows(whose, records)
                    rows.append(decoded[kept])
                    subjects += [whose[i] for i in kept]
        # Once more: the rows kept of each chunk may be too many for the piece.
        kept = first_rows(subjects, records)
        whose = [subjects[i] for i in kept]
        return TaskRows(np.concatenate(rows)[kept], whose, decoder.counted, decoder.fold)


def read_task(source: RoundSource, piece: TaskRanges) -> TaskRows | str:
    """Run a task, and return its rows, or why the topic cannot be used.

    Whatever goes wrong, no error quotes a record or an offset.
    """
    try:
        with np.errstate(all="ignore"):  # a warning would say something about the records
            return source.read(piece)
    except SenderTime as error:
        return str(error)
    except SourceAway:
        raise
    except Exception as error:
        problem = type(error).__name__
    raise EngineError(f"a piece of a round: {problem} in a task") from None


def task_ranges(ranges: Sequence[Range], tasks: int, most: int) -> list[list[TaskRanges]]:
    """Cut the ranges of a round into jobs of at most `most` offsets, and those into pieces.

    Examples
    --------
    >>> jobs = task_ranges([Range(1, 0, 5), Range(0, 7, 10)], tasks=2, most=6)
    >>> [[[tuple(part) for part in piece] for piece in job] for job in jobs]
    [[[(1, 0, 3)], [(1, 3, 5), (0, 7, 8)]], [[(0, 8, 10)]]]
    """
    each = max(most // tasks, 1)
    cut: list[TaskRanges] = []
    piece: list[Range] = []
    room = each
    for p, start, end in ranges:
        while start < end:
            stop = min(end, start + room)
            piece.append(Range(p, start, stop))
            room, start = room - (stop - start), stop
            if not room:
                cut.append(tuple(piece))
                piece, room = [], each
    if piece:
        cut.append(tuple(piece))
    return [cut[i : i + tasks] for i in range(0, len(cut), tasks)]


class RemoteRows(RoundTaker):
    """Reads rounds in the tasks of an engine.

    Parameters
    ----------
    width
        Number of features.
    stall_s
        Longest wait of a task for planned messages before it fails.
    bounds
        Returns the current first offsets and ends of partitions.
    """

    def __init__(
        self,
        remote: Remote,
        topic: str,
        rule: RoundRule,
        metrics: Metrics,
        *,
        width: int,
        stall_s: float,
        bounds: Callable[[list[int]], dict[int, Bounds]],
        take: Take,
    ) -> None:
        super().__init__(topic, subject_codec_of(remote.recipe), rule, metrics, take)
        self._remote, self._width, self._stall_s, self._bounds = remote, width, stall_s, bounds
        self._engine = GuardedEngine(remote, metrics)

    def start(self, planned: PlannedRound) -> None:
        """Begin a round; log that retention removed some of it, and refuse a truncated topic."""
        found = self._bounds([r.partition for r in planned.ranges]) if planned.ranges else {}
        for wanted in planned.ranges:
            self._guard.skip_lost(wanted, found[wanted.partition])
        super().start(planned)

    def _read(self, planned: PlannedRound, decoder: RoundDecoder) -> Iterator[None]:
        recipe, tasks = self._remote.recipe, self._remote.tasks()
        # Rows that one message stands for in the memory of a task, about.
        rows = min(recipe.rows_per_message or 1, recipe.records)
        if recipe.grouping is not None:
            rows = MOST_SERIES
        most = max(MOST_NUMBERS // (self._width * rows), tasks)
        source = RoundSource(
            self._remote.connection, self._topic, recipe, self._window, self._width, self._stall_s
        )
        for job in task_ranges(planned.ranges, tasks, most):
            for kept in self._engine.map(partial(read_task, source), job):
                if isinstance(kept, str):
                    raise ConfigurationError(kept)
                self._metrics.slots.inc(kept.counted)
                if decoder.fold is not None and kept.fold is not None:
                    decoder.fold.merge(kept.fold)
                else:
                    self._take(kept.rows, kept.subjects)
            yield

"""Reads the ranges of a planned batch, and puts every row into its slot.

Messages come in any order between partitions, in pieces of any size, and more of them than were
requested. Each is decoded by itself when it comes. Its slot follows from its offset and the plan,
so the array of a batch does not depend on how its messages came. Messages of a later batch wait in
memory, and partitions that are far ahead are paused. An offset at which nothing can be read (a
control record, an aborted transaction, a message that compaction or retention removed) leaves
nulls.

Messages whose schemas cannot be fetched now wait here, and nothing more is read until the schemas
have been fetched: the task stays, and with it all that is planned. If the task were dropped, a
record that names a schema of its own choice would decide when a new plan begins.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dppca.arrays import BoolArray, FloatArray, IntArray, aligned

from ..errors import ClusterError, OffsetsGone, RegistryAway
from ..messages.codecs import Codec
from ..monitoring.metrics import Metrics
from ..planning.guard import TopicGuard
from ..planning.plan import slots_of
from ..protocols import Chunk, Reader
from ..ranges import ASK_SECONDS, Range
from .registry_wait import RegistryWait

#: No offset is as large.
LAST: Final = 2**63 - 1
#: Rows that may wait in memory for later batches, unless one batch has more.
AHEAD_ROWS: Final = 1 << 16
#: Time that one read may spend on schemas; the loop has other work to do.
SCHEMA_SECONDS: Final = 0.5


class _Decoded(NamedTuple):
    """Decoded messages of one partition, in order."""

    offsets: IntArray
    #: messages x rows per message x features, in the precision of the messages
    rows: NDArray[np.floating[Any]]

    def cut(self, start: int, end: int = LAST) -> _Decoded:
        a, b = np.searchsorted(self.offsets, (start, end)).tolist()
        return _Decoded(self.offsets[a:b], self.rows[a:b])


class BatchReader:
    """Reads batch after batch: `start`, then `read` until `complete`, then `take`."""

    def __init__(
        self,
        reader: Reader,
        topic: str,
        codec: Codec,
        metrics: Metrics,
        *,
        width: int,
        size: int,
        stall_s: float,
    ) -> None:
        """
        Parameters
        ----------
        width
            Number of features.
        size
            Offsets per batch.
        stall_s
            Longest wait for planned messages before reading fails.
        """
        self._reader, self._topic, self._codec, self._metrics = reader, topic, codec, metrics
        self._shape = size, codec.rows_per_message, width
        self._most_ahead = max(size, AHEAD_ROWS // codec.rows_per_message)
        self._stall_s, self._guard = stall_s, TopicGuard(topic, metrics)
        self._reached: dict[int, int] = {}  # the offset up to which each partition was read
        self._ahead: dict[int, deque[_Decoded]] = {}
        self._n_ahead = 0
        self._paused: frozenset[int] = frozenset()
        self._waited_s = self._ask_at = 0.0
        # Messages that wait for schemas, and the schemas of the first chunk that the registry does
        # not know.
        self._undecoded: deque[Chunk] = deque()
        self._unknown: set[bytes] = set()
        self._registry_wait = RegistryWait(metrics)
        # The current batch: the messages that have come, the ranges that are not complete, and
        # their slots. Its rows lie in memory that all batches use, one after the other.
        self._memory: FloatArray | None = None
        self._there: BoolArray | None = None
        self._open: dict[int, Range] = {}
        self._slots: dict[int, IntArray] = {}

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets."""
        self._reached = dict(offsets)
        self._assign()

    def _assign(self) -> None:
        self._paused = frozenset()
        if self._reached:
            self._reader.assign(self._reached)

    # One batch

    def start(self, ranges: Sequence[Range]) -> None:
        """Begin a batch with the messages that have been read ahead."""
        self._there = np.zeros(self._shape[0], dtype=np.bool_)
        if self._memory is None:
            self._memory = aligned(*self._shape)
        self._open = {r.partition: r for r in ranges}
        at = slots_of(ranges)
        ends = np.cumsum([r.end - r.start for r in ranges])
        self._slots = dict(zip(self._open, np.split(at, ends[:-1]), strict=True))
        self._waited_s = 0.0
        new = {p: r.start for p, r in self._open.items() if p not in self._reached}
        if new:
            self._reached |= new
            self._assign()
        for p in self._open:
            several = self._ahead.pop(p, deque())
            self._n_ahead -= sum(len(decoded.offsets) for decoded in several)
            for decoded in several:
                self._put(p, decoded)
        self._settle()

    @property
    def complete(self) -> bool:
        """True if the current batch has every message that it will ever have."""
        return self._there is not None and not self._open

    @property
    def waits_for(self) -> int | None:
        """The first partition of which messages of the batch are missing."""
        return min(self._open, default=None)

    def take(self) -> FloatArray:
        """The rows of the complete batch: one per slot, nulls all NaN.

        They are overwritten when the next batch begins.
        """
        if self._there is None or self._memory is None or self._open:
            raise RuntimeError("the batch is not complete")
        size, per_message, width = self._shape
        self._memory[~self._there] = np.nan
        self._there = None
        self._metrics.slots.inc(size * per_message)
        return self._memory.reshape(size * per_message, width)

    # Messages

    @property
    def full(self) -> bool:
        """True if enough has been read ahead, so that nothing more should be read."""
        return self._n_ahead >= self._most_ahead and not self._open

    def read(self, timeout_s: float) -> bool:
        """Read once. True if anything came."""
        self._pause()
        began = time.monotonic()
        missing = {p: self._reached[p] for p in self._open}
        try:
            chunks = [] if self._undecoded else self._reader.read(timeout_s)
        except OffsetsGone:
            self._pass_removed()
            self._watch(False, time.monotonic() - began)
            return False
        self._undecoded.extend(chunks)
        progress = self._decode_all(timeout_s)
        self._settle()
        if self._undecoded:  # the position of the reader is ahead of the decoded messages
            self._waited_s = 0.0
            self._got_further(missing)
            return progress
        # Ranges may end with offsets that can never be read. A request for positions takes time,
        # so it is not made after each read.
        if self._open and (not chunks or began >= self._ask_at):
            self._ask_at = began + ASK_SECONDS
            for p, at in self._reader.positions().items():
                if at > self._reached[p]:
                    self._reached[p], progress = at, True
            self._settle()
        self._watch(self._got_further(missing), time.monotonic() - began)
        return progress

    def _got_further(self, missing: Mapping[int, int]) -> bool:
        """Tell whether anything came that the batch waits for, and not only for later ones."""
        further = any(self._reached[p] > at for p, at in missing.items())
        if further:
            self._metrics.progress.moved()
        return further

    def _decode_all(self, timeout_s: float) -> bool:
        """Decode new messages as far as their schemas are available. True if there were any."""
        progress = False
        until = time.monotonic() + SCHEMA_SECONDS
        while self._undecoded:
            chunk = self._undecoded[0]
            try:
                left = max(0.0, until - time.monotonic())
                ready = self._codec.prepare(chunk.values, self._unknown, left)
            except RegistryAway as error:
                self._registry_wait.note(error)
                time.sleep(timeout_s)  # as long as a read that finds nothing
                return progress
            self._registry_wait.end()
            if ready == 0:  # time is up
                return True
            self._decode(_part(chunk, slice(ready)))
            if ready < len(chunk.values):
                self._undecoded[0] = _part(chunk, slice(ready, None))
            else:
                self._undecoded.popleft()
                self._unknown = set()
            progress = True
        return progress

    def _decode(self, chunk: Chunk) -> None:
        offsets = np.array(chunk.offsets, dtype=np.int64)
        _, per_message, width = self._shape
        rows = self._codec.read(chunk.values).reshape(len(offsets), per_message, width)
        # A reader that was assigned again may return messages that have been read before.
        decoded = _Decoded(offsets, rows).cut(self._reached[chunk.partition])
        reached = max(self._reached[chunk.partition], int(offsets[-1]) + 1)
        self._reached[chunk.partition] = reached
        self._put(chunk.partition, decoded)

    def _put(self, partition: int, decoded: _Decoded) -> None:
        """Put rows of the current batch into their slots; keep later ones."""
        current = self._open.get(partition)
        if current is not None and self._there is not None and self._memory is not None:
            _, start, end = current
            mine = decoded.cut(start, end)
            slots = _compact(self._slots[partition][mine.offsets - start])
            with np.errstate(all="ignore"):  # a warning would say something about the records
                self._memory[slots] = mine.rows
            self._there[slots] = True
            decoded = decoded.cut(end)
        if len(decoded.offsets):
            self._ahead.setdefault(partition, deque()).append(decoded)
            self._n_ahead += len(decoded.offsets)

    def _settle(self) -> None:
        """Close the ranges that are complete."""
        self._open = {p: r for p, r in self._open.items() if self._reached[p] < r.end}

    def _pause(self) -> None:
        """Pause the partitions that the batch does not wait for, if too much was read ahead."""
        too_much = self._n_ahead >= self._most_ahead
        wanted = frozenset(self._reached.keys() - self._open.keys()) if too_much else frozenset()
        if wanted != self._paused:
            self._reader.pause(wanted)
            self._paused = wanted

    def _watch(self, progress: bool, seconds: float) -> None:
        """Raise if the batch waits too long: planned messages exist, so the reader is broken."""
        self._waited_s = 0.0 if progress or not self._open else self._waited_s + seconds
        if self._waited_s > self._stall_s:
            p = min(self._open)
            raise ClusterError(
                f"partition {p} of {self._topic!r} stands still at offset {self._reached[p]}"
            )

    # Messages that retention removed

    def _pass_removed(self) -> None:
        """Resume at the first offsets that exist: messages that are gone leave nulls."""
        for p, bounds in self._reader.bounds(sorted(self._reached)).items():
            at = self._reached[p]
            wanted = Range(p, at, max(at, bounds.first))
            self._reached[p] = self._guard.skip_lost(wanted, bounds)
        self._settle()
        self._assign()

    def close(self) -> None:
        self._registry_wait.end()
        self._ahead.clear()
        self._undecoded.clear()
        self._memory = self._there = None
        self._reader.close()


def _part(chunk: Chunk, which: slice) -> Chunk:
    return Chunk(chunk.partition, chunk.offsets[which], chunk.values[which])


def _compact(slots: IntArray) -> IntArray | slice:
    """The same slots as a slice, which is faster, if they are neighbours in order."""
    if len(slots) and (np.diff(slots) == 1).all():
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return slots

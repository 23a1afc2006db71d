"""A task's share of the input: which partitions, from where, and up to which row.

Rows are handed out in the order in which they are read, and `positions` says at any moment where
to go on after the rows handed out so far. What has been read and not handed out is only in memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from ..errors import ClusterError, OffsetsGone, StateRefused, Unavailable
from ..events import log_event
from ..model.codecs import Block, Codec
from ..protocols import Chunk, Cluster, Position, Reader, following
from .metrics import Metrics

__all__ = ["Intake", "Segment"]


class Segment:
    """Decoded messages of one partition, and how many of their rows have been taken."""

    def __init__(self, chunk: Chunk, block: Block, skip: int = 0) -> None:
        self.partition = chunk.partition
        self._offsets = chunk.offsets
        self._rows, self._ends = block.rows, block.ends
        # `skip` rows of the first message have been used before. All of it, if it has no more: a
        # row is never used twice, whatever the settings are now.
        first = 1 if self._ends is None else int(self._ends[0])
        self.taken = min(skip, first)

    def __len__(self) -> int:
        return len(self._rows) - self.taken

    def take(self, n: int) -> np.ndarray[Any, Any]:
        rows = self._rows[self.taken : self.taken + n]
        self.taken += len(rows)
        return rows

    def position(self) -> Position:
        """Where to go on."""
        if self._ends is None:
            return following(self._offsets[self.taken - 1])
        done = int(np.searchsorted(self._ends, self.taken, side="right"))  # whole messages
        used = self.taken - (int(self._ends[done - 1]) if done else 0)
        return Position(self._offsets[done], used) if used else following(self._offsets[done - 1])


class Intake:
    """Reads the partitions p of a topic with p mod shards = task."""

    def __init__(
        self,
        log: Cluster,
        topic: str,
        codec: Codec,
        metrics: Metrics,
        *,
        task: int,
        shards: int,
        refresh_s: float,
        stall_s: float,
    ) -> None:
        self._topic, self._codec, self._metrics = topic, codec, metrics
        self._task, self._shards = task, shards
        self._refresh_s, self._stall_s = refresh_s, stall_s
        self.positions: dict[int, Position] = {}
        self._pending: deque[Segment] = deque()
        self._read_at: dict[int, int] = {}  # the next offset to read, ahead of `positions`
        self._skip: dict[int, Position] = {}
        self._moved: dict[int, tuple[int, float]] = {}
        self._refresh_at = 0.0
        self._reader: Reader = log.reader(topic)

    # Where

    def share(self) -> list[int]:
        """The partitions that are ours."""
        return sorted(p for p in self._reader.partitions() if p % self._shards == self._task)

    def begin(self, positions: Mapping[int, Position], new: Literal["earliest", "latest"]) -> None:
        """Go on at these positions; partitions that are not among them begin as `new` says."""
        self.positions = dict(positions)
        self._read_at = {p: at.offset for p, at in positions.items()}
        self._skip = {p: at for p, at in positions.items() if at.row}
        self._add_new(new)
        self._seek()

    def _add_new(self, start: Literal["earliest", "latest"]) -> list[int]:
        """Take in partitions that we do not know."""
        new = [p for p in self.share() if p not in self._read_at]
        for p, (first, end) in self._reader.bounds(new).items():
            self._read_at[p] = end if start == "latest" else first
            self.positions[p] = Position(self._read_at[p])
        return new

    def _seek(self) -> None:
        """Read on where we are, or at the earliest offset there is."""
        for p, (first, end) in self._reader.bounds(sorted(self._read_at)).items():
            at = self._read_at[p]
            if at < first:
                log_event("offsets_lost", level="warning", topic=self._topic, partition=p,
                          offset=at, resumed_at=first)  # fmt: skip
                self._metrics.offsets_lost.inc(first - at)
                self._read_at[p] = first
            elif at > end:
                # Records below may have been used: to read them again would spend twice.
                raise StateRefused(
                    f"partition {p} of {self._topic!r} ends at offset {end}, before offset {at} up "
                    "to which it was read: it was truncated or made anew. Give the new topic "
                    "another name, or the model its own name, group and state topic."
                )
        if self._read_at:
            self._reader.assign(self._read_at)

    def _refresh(self) -> None:
        """Take in new partitions; see how far behind we are, and that no partition stands still."""
        if new := self._add_new("earliest"):
            log_event("partitions_added", task=self._task, partitions=new)
            self._seek()
        ends = {p: bounds.end for p, bounds in self._reader.bounds(sorted(self._read_at)).items()}
        at = self._reader.positions()
        now = time.monotonic()
        for p, end in ends.items():
            before, since = self._moved.get(p, (-1, now))
            if at[p] != before or at[p] >= end:
                self._moved[p] = at[p], now
            elif now - since > self._stall_s:
                raise ClusterError(
                    f"partition {p} of {self._topic!r} stands still at offset {at[p]}"
                )
        label = str(self._task)
        lag = sum(max(0, end - at[p]) for p, end in ends.items())
        self._metrics.lag.labels(task=label).set(lag)
        self._metrics.partitions.labels(task=label).set(len(ends))

    # What

    def read(self, timeout_s: float) -> bool:
        """Read more if all has been taken. True if there are rows to take."""
        if self._pending:
            return True
        if time.monotonic() >= self._refresh_at:
            self._refresh_at = time.monotonic() + self._refresh_s
            with suppress(Unavailable):  # brokers that are away come back, or the read says so
                self._refresh()
        try:
            chunks = self._reader.read(timeout_s)
        except OffsetsGone:
            self._seek()
            return False
        for chunk in chunks:
            skip = self._skip.pop(chunk.partition, None)
            row = skip.row if skip is not None and skip.offset == chunk.offsets[0] else 0
            segment = Segment(chunk, self._codec.decode(chunk.values), row)
            self._read_at[chunk.partition] = following(chunk.offsets[-1]).offset
            if segment:
                self._pending.append(segment)
        return self.waiting

    @property
    def waiting(self) -> bool:
        """Whether there are rows to take."""
        return bool(self._pending)

    def take(self, n: int) -> np.ndarray[Any, Any]:
        """At most n rows, all of one partition, and at least one."""
        segment = self._pending[0]
        rows = segment.take(n)
        self.positions[segment.partition] = segment.position()
        self._metrics.slots.inc(len(rows))
        if not segment:
            self._pending.popleft()
        return rows

    def close(self) -> None:
        self._pending.clear()
        self._reader.close()

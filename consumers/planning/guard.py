"""Refuses topics that were truncated, and reports what retention has removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from ..errors import StateRefused
from ..events import log_event
from ..monitoring.metrics import Metrics
from ..protocols import Bounds, Positions
from ..ranges import Range


class TopicGuard:
    """Compares what is to be read of a topic with what is still there.

    Parameters
    ----------
    secret
        With privacy per subject: offsets count records, so errors and events do not hold them.
    """

    def __init__(self, topic: str, metrics: Metrics, *, secret: bool = False) -> None:
        self._topic, self._metrics, self._secret = topic, metrics, secret

    def check_positions(self, positions: Positions, found: Mapping[int, Bounds]) -> None:
        """Refuse a partition that ends before a position.

        Its records may have been used already, and reading them again would use them twice.
        """
        for p, at in positions.items():
            if p not in found or at > found[p].end:
                self._refuse_truncated(p, at, found[p].end if p in found else 0)

    def skip_lost(self, wanted: Range, found: Bounds) -> int:
        """Return the first offset of a range that retention has left.

        Log and count the offsets before it, and refuse a partition that ends before the range.
        """
        p, start, end = wanted
        if end > found.end:
            self._refuse_truncated(p, end, found.end)
        if start < found.first:
            where = {} if self._secret else {"offset": start, "resumed_at": found.first}
            log_event("offsets_lost", level="warning", topic=self._topic, partition=p, **where)
            self._metrics.offsets_lost.inc(min(end, found.first) - start)
        return max(start, found.first)

    def unknown_use(self, known: Positions, used: Positions) -> str | None:
        """Say which records were used that a state does not know; None if there are none."""
        for p, at in used.items():
            if at > known.get(p, 0):
                where = f"the group has used partition {p} of {self._topic!r}"
                if self._secret:
                    return f"{where} further than the state says"
                return f"{where} up to offset {at}, the state only up to {known.get(p, 0)}"
        return None

    def _refuse_truncated(self, partition: int, at: int, end: int) -> NoReturn:
        where = f"at offset {end}, but it was read up to offset {at}"
        if self._secret:
            where = "before the offset up to which it was read"
        raise StateRefused(
            f"partition {partition} of {self._topic!r} ends {where}: it was truncated or "
            "recreated. Give the new topic another name, or the model its own name, group and "
            "state topic."
        )

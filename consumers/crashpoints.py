"""Named points that a batch passes between reading and publishing.

Reaching a point does nothing unless somebody listens. Tests listen, to raise an error, to wait or
to kill the process there; see `tests/support/launch.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: The points that every batch passes, from a topic or a file. Kafka has more: `claimed`, `fenced`
#: and `loaded` when a task starts, `offsets_sent` and `inside_publish` inside its transactions;
#: `score` has `scores_written`, before it commits.
#: A batch of a first step that needs more of them reaches `batch_taken`, and nothing after it.
POINTS: Final = (
    "polling",
    "batch_full",
    "before_transaction",
    "inside_transaction",
    "after_commit",
    "after_publish",
    "closing",
)

#: Called with the name of every point that is reached.
on_reach: list[Callable[[str], None]] = []


def reach(point: str) -> None:
    """Tell the listeners that a point has been reached."""
    for listener in on_reach:
        listener(point)

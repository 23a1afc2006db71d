"""Named points that a batch passes between reading and publishing.

Reaching a point does nothing unless somebody listens. Tests listen, to raise an error, to wait or
to kill the process there; see `tests/support/launch.py`.

| point | reached |
|---|---|
| `claimed`, `fenced`, `loaded` | when a task of the service starts |
| `polling` | before each read, of a topic or a file |
| `inside_plan` | in the transaction of a plan by samples |
| `batch_taken` | with a batch after which the first step needs more; nothing else follows it |
| `batch_full` | with the last batch of a step |
| `before_transaction`, `inside_transaction`, `after_commit` | around the commit of a state |
| `inside_publish`, `after_publish` | around the publication of releases |
| `offsets_sent` | at the beginning of every transaction on Kafka |
| `closing` | when a run ends |
| `scores_written` | by `score`, before it commits |
"""

from __future__ import annotations

from collections.abc import Callable

#: Called with the name of every point that is reached.
on_reach: list[Callable[[str], None]] = []


def reach(point: str) -> None:
    """Tell the listeners that a point has been reached."""
    for listener in on_reach:
        listener(point)

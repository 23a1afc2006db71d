"""Splits a batch into groups of slots, by public numbers alone.

The content of a record must not decide which records share a task: the last digits of their sums
would reveal it. So a split is a function of the batch size, the number of features and the number
of tasks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from ..batch import block_size
from ..checks import whole

#: Most numbers in the rows of a group: 128 MB of float64.
MOST_NUMBERS: Final = 2**24


class Group(NamedTuple):
    """The slots of a batch from `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def slots(self) -> int:
        return self.stop - self.start


def split(slots: int, features: int, tasks: int) -> tuple[Group, ...]:
    """Groups that cover all slots of a batch, in order.

    Groups begin at the same slots as blocks of a batch in memory, so that every unit has the same
    place in its block.

    Parameters
    ----------
    slots
        Records per batch.
    features
        Numbers per record.
    tasks
        Number of groups that are wanted. There are fewer if there are fewer blocks, and more if a
        group would hold over 128 MB.

    Examples
    --------
    >>> split(20_000, 10, 2)
    (Group(start=0, stop=8192), Group(start=8192, stop=20000))
    >>> len(split(2**22, 64, 8))
    16
    """
    whole("tasks", tasks, 1, 2**20)
    each = block_size(features)
    blocks = -(-slots // each)
    most = max(MOST_NUMBERS // (each * features), 1)
    groups = min(max(tasks, -(-blocks // most)), blocks)
    edges = [min(i * blocks // groups * each, slots) for i in range(groups)] + [slots]
    return tuple(Group(a, b) for a, b in pairwise(edges))

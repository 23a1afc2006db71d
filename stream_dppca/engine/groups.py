"""Splits a batch into groups of slots, by public numbers alone.

Whatever a record holds, it must not decide which records share a task: a pair of records would be
torn apart, and last digits would tell. So a split is a function of the batch size, the number of
features, the reading and the number of tasks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from ..batch import Reading, block_size
from ..checks import whole

__all__ = ["Group", "split"]

#: Memory for the rows of a group, at most: 128 MB of float64.
MOST_NUMBERS: Final = 2**24


class Group(NamedTuple):
    """The slots of a batch from `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def slots(self) -> int:
        return self.stop - self.start


def split(slots: int, features: int, reading: Reading, tasks: int) -> tuple[Group, ...]:
    """Groups that cover all slots of a batch, in order.

    Groups begin where blocks of a batch in memory do, so that every unit stands in a block where it
    stands there, and pairs stay together.

    Parameters
    ----------
    slots
        Records per batch.
    features
        Numbers per record.
    reading
        How records become units.
    tasks
        How many groups are wanted. There are fewer if there are not so many blocks, and more where
        a group would hold over 128 MB.

    Examples
    --------
    >>> split(20_000, 10, Reading(1e18), 2)
    (Group(start=0, stop=8192), Group(start=8192, stop=20000))
    >>> len(split(2**22, 64, Reading(1e18), 8))
    16
    """
    whole("tasks", tasks, 1, 2**20)
    each = block_size(features, long=True) * reading.records_per_unit
    blocks = -(-slots // each)
    most = max(MOST_NUMBERS // (each * features), 1)
    groups = min(max(tasks, -(-blocks // most)), blocks)
    edges = [min(i * blocks // groups * each, slots) for i in range(groups)] + [slots]
    return tuple(Group(a, b) for a, b in pairwise(edges))

"""Decides which offsets share a batch, from public numbers alone.

A *sample* holds the ends of all partitions of a topic at one moment. The plan is a function of
earlier positions and of samples, in order; nothing in it depends on the content or the size of a
message, or on the time that it took to read one. So the records that share a batch, and the slot of
each, are the same whatever any one of them holds.

Nor does the plan depend on the first offset of a partition. Retention moves that offset, and
retention is a matter of sizes: it deletes what exceeds `retention.bytes`, in segments that are cut
by size. So offsets that are gone are planned like all others, and leave nulls. Only batches of
which nothing at all is left are skipped, which changes no other batch.

1. `whole_batches`: the offsets that a sample adds to the plan, as many as fill whole batches.
2. `skip_removed`: where the batches end of which nothing is left, and the rest.
3. `split_batch`: the first batch of the rest.
4. `slots_of`: the slot of each offset in its batch.

The first three divide a number of offsets among the partitions in proportion to what each has to
offer, so that partitions advance together in time, and a partition without new messages does not
hold up others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..ranges import Range

#: Most offsets by which a record may be moved when partitions are mixed: enough that neighbours are
#: as good as drawn at random, but few compared with any batch.
MIXED: Final = 16


def apportion(counts: Sequence[int], total: int) -> list[int]:
    """Divide `total`, at most sum(counts), in proportion to `counts`, by largest remainders.

    No share is larger than its count. Of equal remainders the first one wins.

    Examples
    --------
    >>> apportion([10, 20, 10], 20)
    [5, 10, 5]
    >>> apportion([1, 1, 1], 2)
    [1, 1, 0]
    >>> apportion([0, 7, 1], 4)
    [0, 4, 0]
    """
    available = sum(counts)
    if not 0 <= total <= available:
        raise ValueError(f"`total` must be between 0 and {available}. Found {total}.")
    if total == 0:
        return [0] * len(counts)
    shares = [total * count // available for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda i: (-(total * counts[i] % available), i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares


def whole_batches(positions: Mapping[int, int], ends: Mapping[int, int], size: int) -> list[Range]:
    """Offsets that a sample adds to the plan: as many as fill whole batches of `size` offsets.

    A partition that ends before its position offers nothing.

    Parameters
    ----------
    positions
        For each partition, the offset up to which it is planned.
    ends
        The ends of these partitions at one moment; partitions without a position are ignored.
    size
        Offsets per batch.

    Returns
    -------
    list of Range
        In the order of the partitions; their lengths add up to a multiple of `size`. Empty if
        the sample does not allow a whole batch.

    Examples
    --------
    >>> whole_batches({0: 0, 1: 5}, {0: 12, 1: 9}, 5)
    [Range(partition=0, start=0, end=11), Range(partition=1, start=5, end=9)]
    >>> whole_batches({0: 0, 1: 5}, {0: 3, 1: 6}, 5)
    []
    """
    offered = [
        Range(p, positions[p], ends[p])
        for p in sorted(positions.keys() & ends.keys())
        if ends[p] > positions[p]
    ]
    lengths = [end - start for _, start, end in offered]
    return split_batch(offered, sum(lengths) // size * size)[0]


def split_batch(ranges: Sequence[Range], size: int) -> tuple[list[Range], list[Range]]:
    """Split off the first `size` offsets, a batch or several; return them and the rest.

    Examples
    --------
    >>> split_batch([Range(0, 0, 6), Range(1, 5, 9)], 5)
    ([Range(partition=0, start=0, end=3), Range(partition=1, start=5, end=7)],
     [Range(partition=0, start=3, end=6), Range(partition=1, start=7, end=9)])
    """
    shares = apportion([end - start for _, start, end in ranges], size)
    taken, rest = [], []
    for (partition, start, end), share in zip(ranges, shares, strict=True):
        if share:
            taken.append(Range(partition, start, start + share))
        if start + share < end:
            rest.append(Range(partition, start + share, end))
    return taken, rest


def skip_removed(
    ranges: Sequence[Range], first: Mapping[int, int], size: int
) -> tuple[dict[int, int], list[Range]]:
    """Skip the first batches of which nothing is left; return where they end, and the rest.

    The rest has the same batches as if nothing were gone: a batch of which a single offset is left
    stays whole.

    Parameters
    ----------
    ranges
        Whole batches of `size` offsets.
    first
        For each partition, the first offset that can still be read.

    Examples
    --------
    >>> skip_removed([Range(0, 0, 20)], {0: 12}, 5)
    ({0: 10}, [Range(partition=0, start=10, end=20)])
    >>> skip_removed([Range(0, 0, 6), Range(1, 5, 9)], {0: 6, 1: 6}, 5)
    ({}, [Range(partition=0, start=0, end=6), Range(partition=1, start=5, end=9)])
    """
    skipped: dict[int, int] = {}
    rest = list(ranges)
    while rest:
        batch, after = split_batch(rest, size)
        if any(end > first[p] for p, _, end in batch):
            break
        skipped |= {p: end for p, _, end in batch}
        rest = after
    return skipped, rest


def slots_of(ranges: Sequence[Range]) -> NDArray[np.int64]:
    """Slot of each offset in its batch: 0, 1, ..., for the offsets of each range in turn.

    A single range keeps its order. Several ranges are mixed as if they had advanced
    together: `PaperDPPCA` looks at halves of a batch and at pairs of neighbours, and if partitions
    differ (messages are keyed by device, say), each half should hold records of all of them, and
    neighbours should come from the same partition as often as two records drawn at random do. So
    offset i of a range of length m stands at the time (i + 16 u) / m, where u in [0, 1) is a fixed
    public sequence: without it, two ranges of equal length would alternate strictly.

    Examples
    --------
    >>> slots_of([Range(0, 40, 44)]).tolist()
    [0, 1, 2, 3]
    >>> sorted(slots_of([Range(0, 0, 3), Range(1, 7, 9)]).tolist())
    [0, 1, 2, 3, 4]
    """
    if len(ranges) == 1:
        return np.arange(ranges[0].end - ranges[0].start)
    lengths = [end - start for _, start, end in ranges]
    within = np.concatenate([np.arange(length) for length in lengths])
    times = (within + MIXED * _fixed_uniform(len(within))) / np.repeat(lengths, lengths)
    found = np.empty(len(within), dtype=np.int64)
    found[np.argsort(times, kind="stable")] = np.arange(len(within))
    return found


def _fixed_uniform(n: int) -> NDArray[np.float64]:
    """The first n numbers of a public sequence in [0, 1): splitmix64 (a bit mixer) of 1, 2, ..."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53

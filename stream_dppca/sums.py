"""Sums of many terms that go through few roundings.

A sum over the units of a batch is made in two steps: the units of a block or of several, at most
`LARGEST_BLOCK` of them, are added up by products of matrices, in an unknown order; then these sums
are added in pairs, pairs of pairs, and so on (`pairwise`).

**The bound.** Let u = 2^-53. A computed sum is the exact sum of terms t_i (1 + e_i), entry by
entry, and |e_i| <= k u / (1 - k u) if no term goes through more than k roundings. So with terms of
norm at most M, a sum of n terms is off by at most about n k u M in norm. A term goes through

- 8 roundings at most while it is made, and when the sum is divided and centred;
- at most m additions in its block of m units, whatever the order;
- at most floor(log2 b) + 1 additions among b sums of blocks, see `pairwise`.

A batch that is spread over groups has the last step up to three times: blocks, pieces of a group,
groups. With b <= 2^26 each of them is at most 27 additions, and the up to 16 batches of a first
step are 5 more, so k <= min(n, 16,384) + 96. Adding one term after the other would have k = n + 8.

At n = 2^26 the whole rounding is 4 x 10^-4 of the sensitivity of a second moment
(`tests/test_sums.py`); with k = n + 8 it would be 1.4 times the sensitivity itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from .arrays import FloatArray

T = TypeVar("T")

#: Most units that are added up in an unknown order.
LARGEST_BLOCK = 16_384
_BEYOND_A_BLOCK = 96


def roundings(terms: int) -> int:
    """Most roundings that a term goes through in a sum of this many terms.

    Examples
    --------
    >>> roundings(1000), roundings(2**26)
    (1096, 16480)
    """
    return min(terms, LARGEST_BLOCK) + _BEYOND_A_BLOCK


def pairwise(parts: Iterable[T], add: Callable[[T, T], T]) -> T:
    """The sum of one part or more, added as they come in pairs, pairs of pairs, and so on.

    Of b parts, none goes through more than floor(log2 b) + 1 additions, and at most that many sums
    are held at a time. The order depends on the number of parts alone.
    """
    # Sums of 2^r parts, with r falling strictly: the binary digits of the number of parts so far.
    # A part of the ith sum (i = 1, 2, ...) has r additions behind it and at most i before it, and
    # r is at most floor(log2 b) - (i - 1).
    sums: list[tuple[int, T]] = []
    for part in parts:
        rank, total = 0, part
        while sums and sums[-1][0] == rank:
            total = add(sums.pop()[1], total)
            rank += 1
        sums.append((rank, total))
    if not sums:
        raise ValueError("`parts` must hold at least one")
    total = sums.pop()[1]
    while sums:
        total = add(sums.pop()[1], total)
    return total


def pairwise_sum(parts: Iterable[FloatArray]) -> FloatArray:
    """The sum of one array or more by `pairwise`; the memory of the parts is overwritten.

    Examples
    --------
    >>> pairwise_sum(np.array([float(i)]) for i in range(5)).tolist()
    [10.0]
    """
    return pairwise(parts, lambda a, b: np.add(a, b, out=a))

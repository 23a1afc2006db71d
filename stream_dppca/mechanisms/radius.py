"""A clip radius by noisy binary search over a public grid: no threshold, no delta, no bottom.

Adjacency: one unit is replaced, or turns null.
Sensitivity: each step of the search asks how many units lie beyond a radius; one unit changes
    each answer by at most 1, all m of them together by sqrt(m).
Noise: N(0, m / mu^2) on each count.
Delta: none beyond that of mu.

The grid is public: radii 2^(j/8). A distance here is of second order in the data, so the grid
from 2^-128 to 2^128 covers records of norm 2^-64 to 2^64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..noise import Noise

__all__ = ["FIRST", "LAST", "count_of_counts", "noisy_radius", "radius"]

FIRST, LAST = -1024, 1023  #: first and last index of the grid


def radius(j: int) -> float:
    """The radius with index j.

    Examples
    --------
    >>> radius(0), radius(-8), radius(8)
    (1.0, 0.5, 2.0)
    """
    return float(2.0 ** (j / 8))


def count_of_counts(low: int, high: int) -> int:
    """Number of counts that a search from `low` to `high` makes, whatever the data."""
    return max(math.ceil(math.log2(high - low + 1)), 1)


def noisy_radius(
    count: Callable[[int], int],
    *,
    beyond: float,
    mu: float,
    noise: Noise,
    low: int = FIRST,
    high: int = LAST,
) -> int:
    """The smallest index on a grid beyond which lie at most `beyond` units.

    Parameters
    ----------
    count
        Number of units beyond the radius with an index. A null is never beyond.
    beyond
        Number of units that may lie beyond, not a fraction.
    low, high
        The stretch of the grid to search.

    Examples
    --------
    >>> from stream_dppca.noise import SeededNoise
    >>> import numpy as np
    >>> lengths = np.linspace(0, 10, 10_001)
    >>> j = noisy_radius(
    ...     lambda j: np.count_nonzero(lengths > radius(j)),
    ...     beyond=3000, mu=1.0, noise=SeededNoise(3),
    ... )
    >>> radius(j - 1) < 7 <= radius(j)
    True
    """
    counts = count_of_counts(low, high)
    mu_count = mu / math.sqrt(counts)
    release = noise.gaussian_each(counts, sensitivity=1.0, mu=mu_count)
    for _ in range(counts):  # the same number whatever the answers
        middle = (low + high) // 2
        if release(count(middle)) > beyond:
            low = min(middle + 1, high)
        else:
            high = middle
    return low

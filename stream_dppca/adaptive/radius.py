"""A clip radius by noisy binary search over a public grid: no threshold, no delta, no bottom.

Adjacency: one record is replaced, or turns null.
Sensitivity: each step of the search asks how many records lie beyond a radius; one record changes
    each answer by at most 1, all m of them together by sqrt(m).
Noise: N(0, m / mu^2) on each count.
Delta: none beyond that of mu.

The grid is public: radii 2^(j/8). A distance here is of second order in the data, so the grid
from 2^-128 to 2^128 covers records of norm 2^-64 to 2^64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..noise import Noise

__all__ = ["FIRST", "LAST", "count_of_counts", "noisy_radius", "radius"]

FloatArray = NDArray[np.float64]

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
    """How many counts a search from `low` to `high` asks for, whatever the data."""
    return max(math.ceil(math.log2(high - low + 1)), 1)


def noisy_radius(
    sq_distance: FloatArray,
    *,
    beyond: float,
    mu: float,
    noise: Noise,
    low: int = FIRST,
    high: int = LAST,
) -> int:
    """Index of the smallest radius on the grid beyond which lie at most `beyond` records.

    Parameters
    ----------
    sq_distance
        Squared distance of each record, zero for nulls: a null is never beyond.
    beyond
        How many records may lie beyond, a number and not a fraction.
    low, high
        The stretch of the grid to search.

    Examples
    --------
    >>> from stream_dppca.noise import SeededNoise
    >>> distances = np.linspace(0, 10, 10_001)
    >>> j = noisy_radius(distances**2, beyond=3000, mu=1.0, noise=SeededNoise(3))
    >>> radius(j - 1) < 7 <= radius(j)
    True
    """
    counts = count_of_counts(low, high)
    mu_count = mu / math.sqrt(counts)
    release = noise.gaussian_each(counts, sensitivity=1.0, mu=mu_count)
    for _ in range(counts):
        middle = (low + high) // 2
        count = int(np.count_nonzero(sq_distance > radius(middle) ** 2))
        if release(count) > beyond:
            low = min(middle + 1, high)
        else:
            high = middle
    return low

"""Decides the clip radius in a first step, from noisy counts of lengths: post-processing.

A longer radius lets more noise into every release, and a shorter one cuts off the longest records,
which turns the components. The radius is where both cost about as much.
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays import FloatArray

#: Units that may be longer than the clip radius: `_CUT` sqrt(d)/mu of all that the radius is for.
#: What clipping cuts off then turns the component about as far as the noise does, whose sd after n
#: records is sqrt 2 R/(n mu) in each coordinate. The factor was chosen on half of the real data.
_CUT = 6.0
#: Sds of the noise by which a count beyond a length may be too high: up to the first length that is
#: long enough, and after it. In one of twenty first steps, noise exceeds 2 sds at some length.
_FORGIVEN, _RISES = 2.0, 4.0
#: A radius is for this many batches, or for the first step if that has more.
_BATCHES = 8
#: Edges of `LengthCounts` over d: half an octave each, from 1/16 to 16. The noise of narrower bins
#: would add up.
_LENGTHS = 2.0 ** (np.arange(-8, 9) / 2)


def length_grid(d: int) -> FloatArray:
    """Squared lengths between which the radius is chosen."""
    return np.asarray(_LENGTHS * d)


def share_beyond(*, d: int, mu: float, units: int, batch: int) -> float:
    """Share of the units that may be longer than the radius.

    Parameters
    ----------
    mu
        Budget of a later batch.
    units, batch
        Units of the first step, and of a later batch.
    """
    return _CUT * math.sqrt(d) / (mu * max(units, _BATCHES * batch))


def clip_radius(counts: FloatArray, sd: float, *, d: int, allowed: float) -> float:
    """The smallest squared length beyond which no more than the allowed number of units lie.

    Noise adds up in the counts beyond a length, so the tolerance grows with the number of bins: in
    doubt the radius is smaller, and so is the noise in every later batch. The first length within
    the tolerance counts, even if noise lets some counts beyond it rise again, unless such a count
    is `_RISES` sds above zero: then there are long units.

    Parameters
    ----------
    counts, sd
        Noisy numbers of units between the lengths of `length_grid`, and the sd of their noise.
    allowed
        Number of units that may be longer.
    """
    beyond = np.cumsum(counts[::-1])[::-1][1:]  # longer than each edge
    excess, noise = beyond - allowed, sd * np.sqrt(np.arange(len(beyond), 0, -1))
    first = np.minimum.accumulate(excess - _FORGIVEN * noise)
    last = np.maximum.accumulate((excess - _RISES * noise)[::-1])[::-1]
    return _crossing(length_grid(d), np.maximum(first, last))


def _crossing(grid: FloatArray, excess: FloatArray) -> float:
    """The place on a geometric grid where an excess that falls reaches zero, interpolated.

    Examples
    --------
    >>> _crossing(np.array([1.0, 4.0, 16.0]), np.array([5.0, 3.0, -3.0]))
    8.0
    """
    above = int(np.count_nonzero(excess > 0))
    if above in (0, len(grid)):
        return float(grid[max(above - 1, 0)])
    part = excess[above - 1] / (excess[above - 1] - excess[above])
    return float(grid[above - 1] ** (1 - part) * grid[above] ** part)

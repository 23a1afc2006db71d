"""Reads noisy histograms: location and spread of the mass. All post-processing.

Every count comes with noise of a known sd. A bin counts as occupied if it is `SURE` sds above zero.
If no single bin is occupied, sums of neighbouring bins may be: their mass adds up faster than their
noise.

**Isolated octaves need more evidence.** An empty bin is 5 sds above zero once in 3.5 million times,
and 100 features have 50,000 bins and pairs: one model in 70 would take an empty octave for an
occupied one, and choose a scale that is off by any power of 2. But nearly all data fills octaves
that lie side by side. So an octave that is not within `NEAR` of one that is trusted already must be
`FAR` sds higher: with 1000 features this goes wrong once in 25,000 times.
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays import BoolArray, FloatArray, IntArray
from .statistics import OCTAVES, octave_edges

#: An occupied bin is this many sds above zero.
SURE = 5.0
#: It must be this many sds higher if no octave within `NEAR` of it is trusted.
FAR, NEAR = 1.5, 3
#: Share of the records that the cells by which a feature is located must hold.
COVER = 0.6
#: Octaves below the highest occupied one that still count for the spread: 4^-5 is below 0.1 %.
_DEEP = 5
_ZERO = OCTAVES // 2


def hull(counts: FloatArray, sd: float) -> tuple[float, float, float] | None:
    """The stretch of values from the lowest to the highest occupied octave, and its mass.

    Returns None if no octave is occupied. The mass is that of octaves within `NEAR` of occupied
    ones: around zero there are more than a hundred empty ones, whose noise would add up.

    Examples
    --------
    >>> counts = np.zeros(OCTAVES)
    >>> counts[_ZERO + 65 : _ZERO + 67] = 500.0  # 2^0 to 2^2
    >>> hull(counts, sd=10.0)
    (1.0, 4.0, 1000.0)
    """
    high = counts / sd
    two = (high[:-1] + high[1:]) / math.sqrt(2)
    occupied = high > SURE
    lonely = (two > SURE) & ~(occupied[:-1] | occupied[1:])  # neither bin alone, but both together
    for side in (slice(None, -1), slice(1, None)):
        high[side] = np.where(lonely, np.maximum(high[side], two), high[side])
    # x and -x are side by side. Zero is not an octave: its distance to the others does not count.
    zero, high[_ZERO] = high[_ZERO] > SURE, 0.0
    occupied = _trusted(high, SURE, np.abs(np.arange(OCTAVES) - _ZERO))
    occupied[_ZERO] = zero
    if not occupied.any():
        return None
    first, last = np.flatnonzero(occupied)[[0, -1]].tolist()
    near = np.convolve(occupied, np.ones(2 * NEAR + 1), "same") > 0
    near[:first] = near[last + 1 :] = False
    return (*octave_edges(first, last), float(counts[near].sum()))


def locate(counts: FloatArray, sd: float, mass: float) -> tuple[float, float | None]:
    """Location of the middle of a feature on a grid, in cells from its lower end.

    The grid is coarsened until occupied cells hold most of the mass. The second number is the
    width in cells to which the middle is known if single cells sufficed, None if the feature is
    spread over the grid.

    Examples
    --------
    >>> counts = np.zeros(64)
    >>> counts[20] = 900.0
    >>> locate(counts, sd=10.0, mass=1000.0)
    (20.5, 1.0)
    """
    best: tuple[float, int, FloatArray] | None = None
    for merged in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        if 8 * merged > len(counts):
            break
        cells = counts.reshape(-1, merged).sum(axis=1)
        cells = np.where(cells > SURE * math.sqrt(merged) * sd, cells, 0.0)
        held = float(cells.sum())
        if held > 0 and (best is None or held > best[0]):
            best = held, merged, cells
        if held >= COVER * mass and held > 0:
            break
    if best is None:
        return len(counts) / 2, None
    held, merged, cells = best
    middle = int(np.searchsorted(np.cumsum(cells), held / 2))
    return (middle + 0.5) * merged, float(merged) if merged == 1 else None


def spread(
    counts: FloatArray, sd: float, mass: float, resolution: float, sure: float = SURE
) -> float | None:
    """Root mean square distance from the centre, by octaves of |x - centre|; None if not seen.

    Octaves within the resolution of the centre do not count: values there may be at the centre.

    Examples
    --------
    >>> counts = np.zeros(OCTAVES - _ZERO)
    >>> counts[64] = 500.0  # distances from 1/2 to 1
    >>> round(spread(counts, 10.0, 1000.0, resolution=0.0), 3)
    0.53
    """
    distance = counts.copy()
    distance[0] = 0.0
    if resolution > 0:
        distance[: max(1, math.frexp(resolution)[1] + 66)] = 0.0
    high = distance / sd
    for together in (2, 3):
        sums = np.convolve(distance, np.ones(together), "valid") / (math.sqrt(together) * sd)
        middle = high[together // 2 :][: len(sums)]
        np.maximum(middle, sums, out=middle)
    occupied = np.flatnonzero(_trusted(high, sure, np.arange(len(high))))
    if not occupied.size:
        return None
    top = int(occupied[-1])
    exponents = np.arange(max(top - _DEEP + 1, 0), top + 1)
    # In the octave from h/2 to h, the root mean square is about 3 h/4.
    squares = (0.75 * 2.0 ** (exponents - 64.0)) ** 2
    square = float(np.maximum(distance[exponents], 0.0) @ squares) / max(mass, 1.0)
    return math.sqrt(max(square, 0.02 * float(squares[-1])))


def _trusted(high: FloatArray, sure: float, octave: IntArray) -> BoolArray:
    """The bins that count as occupied.

    Parameters
    ----------
    high
        Sds above zero.
    sure
        This many sds are enough for the highest bin, and for bins near trusted ones.
    octave
        Positions of the bins.

    Examples
    --------
    >>> high = np.array([0.0, 5.5, 0.0, 0.0, 0.0, 9.0, 5.5, 0.0])
    >>> np.flatnonzero(_trusted(high, 5.0, np.arange(8))).tolist()
    [5, 6]
    """
    enough = high > sure
    trusted = high > sure + FAR
    highest = np.argmax(high)
    trusted[highest] |= enough[highest]
    while True:
        reached = np.abs(octave[:, np.newaxis] - octave[trusted]).min(axis=1, initial=NEAR + 1)
        more = enough & ~trusted & (reached <= NEAR)
        if not more.any():
            return np.asarray(trusted)
        trusted |= more

"""Reading noisy histograms: where the mass is, how far it spreads. All post-processing.

Every count comes with noise of a known sd. A bin counts as occupied if it is so many sds above
zero that among all bins of all features an empty one hardly ever is. Where no single bin is, sums
of neighbouring bins may be: their mass adds up faster than their noise.
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays import FloatArray
from .statistics import OCTAVES, octave_edges

__all__ = ["SURE", "hull", "locate", "spread"]

#: An empty bin is this many sds above zero once in 3.5 million times: a histogram of 100 features
#: has 26,000 bins.
SURE = 5.0
#: Share of the records that the cells by which a feature is located must hold.
COVER = 0.6
#: Octaves below the highest occupied one that still count for the spread: 4^-5 is below 0.1 %.
_DEEP = 5
_ZERO = OCTAVES // 2


def hull(counts: FloatArray, sd: float) -> tuple[float, float, float] | None:
    """The stretch of values from the lowest to the highest occupied octave, and its mass.

    Returns None if no octave is occupied.

    Examples
    --------
    >>> counts = np.zeros(OCTAVES)
    >>> counts[_ZERO + 65 : _ZERO + 67] = 500.0  # 2^0 to 2^2
    >>> hull(counts, sd=10.0)
    (1.0, 4.0, 1000.0)
    """
    occupied = counts > SURE * sd
    two = counts[:-1] + counts[1:] > SURE * math.sqrt(2) * sd
    lonely = two & ~(occupied[:-1] | occupied[1:])  # neither bin is sure, both together are
    occupied[:-1] |= lonely
    occupied[1:] |= lonely
    if not occupied.any():
        return None
    first, last = np.flatnonzero(occupied)[[0, -1]].tolist()
    return (*octave_edges(first, last), float(counts[first : last + 1].sum()))


def locate(counts: FloatArray, sd: float, mass: float) -> tuple[float, float | None]:
    """Where the middle of a feature lies on a grid, in cells from its lower end.

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
    for merged in (1, 2, 4, 8):
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

    Octaves within the resolution of the centre do not count: what is there may be at the centre.

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
    top = -1
    for together in (1, 2, 3):
        sums = np.convolve(distance, np.ones(together), "valid")
        occupied = np.flatnonzero(sums > sure * math.sqrt(together) * sd)
        if occupied.size:
            top = max(top, int(occupied[-1]) + together // 2)
    if top < 0:
        return None
    exponents = np.arange(max(top - _DEEP + 1, 0), top + 1)
    # In the octave from h/2 to h, the root mean square is about 3 h/4.
    squares = (0.75 * 2.0 ** (exponents - 64.0)) ** 2
    square = float(np.maximum(distance[exponents], 0.0) @ squares) / max(mass, 1.0)
    return math.sqrt(max(square, 0.02 * float(squares[-1])))

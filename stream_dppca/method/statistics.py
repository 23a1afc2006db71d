"""Bounded statistics of raw records: counts, clipped moments, second moments.

**Private**: every class here states how far one unit moves its sum. A null adds nothing; a single
value that is not finite (`missing="center"`) is in no bin, and counts as the centre in moments.
All parameters are public numbers or earlier releases. Distances and clip factors are computed row
by row, so no unit changes the digits of another.

A unit of several rows (a subject) adds the mean over its rows of what a record adds: its counts of
a feature are then a vector of shares h with sum at most 1, and |h - h'|^2 <= |h|^2 + |h'|^2 <= 2
is the bound of a single record. Vectors and moments are averaged first and clipped after that.
Shares are not whole numbers; `count_slack` is the rounding of their sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..arrays import ROUNDOFF, BoolArray, FloatArray, IntArray
from ..mechanisms.packing import pack
from ..statistics import BUFFER, Block
from ..sums import roundings

#: Bins of `OctaveCounts`: zero in the middle, 128 octaves on either side.
OCTAVES = 257
_ZERO = OCTAVES // 2
#: Octaves from 2^-64 to 2^64; beyond them the last bin.
_LOWEST = -64


@dataclass(frozen=True, eq=False)
class OctaveCounts:
    """Number of units in each octave of each feature, where 2^(e-1) <= |x - centre| < 2^e.

    With signs there are `OCTAVES` bins per feature, zero in the middle; without them the bins
    begin with zero.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: a unit is in at most one bin of each feature, so one count of each feature falls
        by 1 and another rises by 1: sqrt(2 d) for d features. Counts are exact.
    """

    columns: tuple[int, ...]
    center: tuple[float, ...]
    signs: bool = True

    def __call__(self, block: Block) -> FloatArray:
        values = block.X[:, list(self.columns)] - np.array(self.center)
        exponent = np.clip(np.frexp(np.abs(values))[1], _LOWEST + 1, -_LOWEST)
        steps = np.where(np.abs(values) < 2.0**_LOWEST, 0, exponent - _LOWEST)
        outside = _in_no_bin(block, values)
        if not self.signs:
            return bin_counts(steps.astype(np.int64), OCTAVES - _ZERO, outside) / block.each
        bins = np.where(values < 0, -steps, steps) + _ZERO
        return bin_counts(bins.astype(np.int64), OCTAVES, outside) / block.each

    @property
    def sensitivity(self) -> float:
        return math.sqrt(2 * len(self.columns))


def octave_edges(low: int, high: int) -> tuple[float, float]:
    """The stretch of values that the bins `low` to `high` of `OctaveCounts` cover.

    Examples
    --------
    >>> octave_edges(_ZERO + 65, _ZERO + 66)  # 2^0 to 2^2
    (1.0, 4.0)
    >>> octave_edges(_ZERO - 66, _ZERO + 66)
    (-4.0, 4.0)
    """

    def magnitude(step: int) -> float:  # upper edge of the bin `step` away from zero
        return 2.0 ** (step + _LOWEST)

    below, above = low - _ZERO, high - _ZERO
    first = magnitude(below - 1) if below > 0 else -magnitude(-below)
    last = magnitude(above) if above >= 0 else -magnitude(-above - 1)
    return first, last


@dataclass(frozen=True, eq=False)
class GridCounts:
    """Number of units in each cell of a grid, feature by feature; values outside are in the ends.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: as for `OctaveCounts`, sqrt(2 d).
    """

    columns: tuple[int, ...]
    low: tuple[float, ...]
    width: tuple[float, ...]  #: of a cell
    cells: int

    def __call__(self, block: Block) -> FloatArray:
        values = block.X[:, list(self.columns)]
        cells = np.floor((values - np.array(self.low)) / np.array(self.width))
        outside = _in_no_bin(block, values)
        # No parameter, however small a width, may make a record raise: 0/0 is in the first cell.
        cells = np.where(outside | np.isnan(cells), 0.0, np.clip(cells, 0, self.cells - 1))
        return bin_counts(cells.astype(np.int64), self.cells, outside) / block.each

    @property
    def sensitivity(self) -> float:
        return math.sqrt(2 * len(self.columns))


@dataclass(frozen=True, eq=False)
class LengthCounts:
    """Number of units by squared length of the standardised record: one bin per unit.

    Of a unit with several rows it is the length |A|_F of the mean A of z z^T.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: one count falls and one rises by 1: sqrt 2.
    """

    center: tuple[float, ...]
    scale: tuple[float, ...]
    clamp: tuple[float, ...]
    edges: tuple[float, ...]  #: of the bins; longer units are in a last bin

    def __call__(self, block: Block) -> FloatArray:
        Z = standardised(block, rule(self.center, self.scale, self.clamp))
        bins = np.searchsorted(np.array(self.edges), block.moment_norms(Z))
        outside = block.null_units[:, np.newaxis]
        return np.asarray(bin_counts(bins[:, np.newaxis], len(self.edges) + 1, outside)[0])

    @property
    def sensitivity(self) -> float:
        return math.sqrt(2)


@dataclass(frozen=True, eq=False)
class MomentsInBall:
    """Sum of (z, (z^2 - 1)/2, 1) over units, each vector clipped to a ball: means and variances.

    The 1 shows the share of valid units and the effect of clipping.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: every term lies in a ball of radius R around 0, so the sum moves by at most 2 R,
        plus the rounding of the sum (see `sums`) on both neighbours. The clip factor
        comes from an over-estimate of the length.
    """

    center: tuple[float, ...]
    scale: tuple[float, ...]
    clamp: tuple[float, ...]
    radius: float

    def __call__(self, block: Block) -> FloatArray:
        Z = standardised(block, rule(self.center, self.scale, self.clamp))
        terms = np.concatenate([Z, (Z * Z - 1) / 2, np.ones((len(Z), 1))], axis=1)
        return sum_in_ball(block, block.means(terms), self.radius)

    def sensitivity(self, units: int) -> float:
        return ball_sensitivity(self.radius, units)


@dataclass(frozen=True, eq=False)
class AugmentedMoments:
    """Sum of y y^T over units, y = (z, b) clipped to |y|^2 <= rho: mean and covariance in one.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: |y y^T - y' y'^T|_F^2 = |y|^4 + |y'|^4 - 2 (y.y')^2 is at most 2 rho^2, so the sum
        moves by at most sqrt 2 rho, plus its rounding on both neighbours. The clip factor comes
        from an over-estimate of |y|^2. With several rows per unit the mean A of y y^T is clipped,
        to |A|_F <= rho: the same bound, because <A, A'> is not negative for matrices without
        negative eigenvalues.
    """

    center: tuple[float, ...]
    scale: tuple[float, ...]
    clamp: tuple[float, ...]
    constant: float  #: b
    radius: float  #: rho
    each: int = 1  #: rows per unit, at most

    def __call__(self, block: Block) -> FloatArray:
        return self.over([block])

    def over(self, blocks: Iterable[Block]) -> FloatArray:
        """The sum over the units of several blocks, packed."""
        products, how = Products(len(self.center)), rule(self.center, self.scale, self.clamp)
        for block in blocks:
            Z = standardised(block, how)
            self.add(products, block, Z, squared(block, Z)[:, 0])
        return products.packed()

    def add(self, products: Products, block: Block, Z: FloatArray, sq_lengths: FloatArray) -> None:
        """Add the units of a block: standardised rows, which are overwritten, and their lengths."""
        products.add(Z, clip_rows(block, Z, sq_lengths, self.constant, self.radius))

    def sensitivity(self, units: int) -> float:
        return moments_sensitivity(self.radius, units, self.each)


def clip_rows(
    block: Block, rows: FloatArray, sq_lengths: FloatArray, constant: float, radius: float
) -> FloatArray:
    """Clip y = (row, b) to |y|^2 <= rho, in place, with 0 for nulls. Returns the last number of y.

    The clip factor comes from an over-estimate of |y|^2, which for units of several rows is the
    length |A|_F of the mean A of y y^T.
    """
    d = rows.shape[1]
    slack = 1 + 8 * (d + 9) * block.each * ROUNDOFF
    if block.each == 1:
        sq = sq_lengths + constant**2
    else:
        sq = block.moment_norms(np.append(rows, np.full((len(rows), 1), constant), axis=1))
    factor = np.where(block.null_units, 0.0, np.sqrt(np.minimum(1.0, radius / (sq * slack))))
    weights = block.row_weights(factor)
    rows *= weights[:, np.newaxis]
    return weights * constant


class Products:
    """The sum of y y^T, y = (row, last), over at most `sums.LARGEST_BLOCK` rows.

    BLAS adds block after block to one triangle of one matrix, so blocks can be as short as the
    cache wants, and no sums of blocks are added up.
    """

    def __init__(self, d: int) -> None:
        self._square = np.zeros((d, d), order="F")  # the upper triangle
        self._last = np.zeros(d + 1)

    def add(self, rows: FloatArray, last: FloatArray) -> None:
        from scipy.linalg.blas import dsyrk  # takes time: only if needed

        if len(rows):
            self._square = dsyrk(1.0, rows.T, beta=1.0, c=self._square, overwrite_c=True)
            self._last[:-1] += last @ rows
            self._last[-1] += last @ last

    def packed(self) -> FloatArray:
        """The sum as `mechanisms.packing.pack` packs a matrix."""
        self._last[:-1] *= math.sqrt(2)
        return np.concatenate([pack(self._square.T), self._last])


def moments_sensitivity(radius: float, units: int, each: int = 1) -> float:
    """Sensitivity of `AugmentedMoments`: sqrt 2 rho, plus the rounding of the sum, twice.

    Rounding: a term goes through k = `sums.roundings` of all rows at most, so a sum of n terms of
    norm at most M is off by at most about n k u M with u = 2^-53. A unit's term is the sum of
    `each` products y y^T of which it is the trace: together they are at most sqrt(each) times as
    long as the term. Twice the bound is paid for, on both neighbours.
    """
    rounding = 2 * units * each * roundings(units * each) * math.sqrt(each) * ROUNDOFF
    return math.sqrt(2) * radius + 2 * rounding * radius


def sum_in_ball(block: Block, terms: FloatArray, radius: float) -> FloatArray:
    """Sum of one vector per unit, each clipped to a ball around 0; that of a null is 0.

    The clip factor comes from an over-estimate of the length of the vector as computed.
    """
    slack = 1 + (terms.shape[1] + 8) * ROUNDOFF
    length = np.sqrt(block.sq_lengths(terms)) * slack
    factor = np.where(block.null_units, 0.0, np.minimum(1.0, radius / length))
    return np.asarray(np.einsum("i,ij->j", factor, terms))


def ball_sensitivity(radius: float, units: int) -> float:
    """Sensitivity of `sum_in_ball`: 2 R, plus the rounding of the sum, twice."""
    rounding = 2 * units * roundings(units) * ROUNDOFF * radius
    return 2 * radius + 2 * rounding


def count_slack(units: int, each: int) -> float:
    """Factor for the sensitivity of counts: 1 for whole numbers, more for sums of shares.

    A count is at most the number of units, and adding it up takes at most units x each roundings.
    So the counts of a feature are off by at most units (units x each + 8) u in length, on both
    neighbours, whose sensitivity is sqrt 2. Twice that is paid for.
    """
    return 1.0 if each == 1 else 1 + 3 * units * (units * each + 8) * ROUNDOFF


def standardised(block: Block, how: Rule) -> FloatArray:
    """clamp((x - c)/s) in the scratch memory; zero for nulls and for values that are not finite."""
    Z = block.scratch[0]
    # Several rows as a long one, see `BUFFER`.
    width = math.gcd(len(Z), how.tiled.shape[1] // Z.shape[1]) * Z.shape[1]
    long, (center, factor) = Z.reshape(-1, width), how.tiled[:, :width]
    np.subtract(block.X.reshape(-1, width), center, out=long)
    long *= factor
    if block.partial:
        Z[~np.isfinite(Z)] = 0.0
    Z[block.null] = 0.0
    return np.asarray(np.clip(Z, -how.edge, how.edge, out=Z))


def squared(block: Block, Z: FloatArray, weights: FloatArray | float = 1.0) -> FloatArray:
    """Two sums over each row: of z^2, and of z^2 times weights.

    The squares stay in the second scratch array.
    """
    columns = np.column_stack(np.broadcast_arrays(np.ones(Z.shape[1]), weights))
    return block.along(columns, np.multiply(Z, Z, out=block.scratch[1]))


class Rule(NamedTuple):
    """The rule by which rows are standardised, as arrays."""

    center: FloatArray
    factor: FloatArray  #: 1/s
    clamp: FloatArray
    edge: FloatArray | float  #: the clamp, as a number if all features have the same
    tiled: FloatArray  #: centres and factors of several rows, one after the other


@lru_cache(maxsize=4)
def rule(center: tuple[float, ...], scale: tuple[float, ...], clamp: tuple[float, ...]) -> Rule:
    """The arrays of these numbers. To find them takes time: once for many blocks."""
    arrays, edges = np.array([center, 1 / np.array(scale)]), np.array(clamp)
    tiled = np.tile(arrays, 2 ** (BUFFER // len(center)).bit_length())
    edge = clamp[0] if len(set(clamp)) == 1 else edges
    return Rule(arrays[0], arrays[1], edges, edge, tiled)


def _in_no_bin(block: Block, values: FloatArray) -> BoolArray:
    return np.asarray(block.null[:, np.newaxis] | ~np.isfinite(values))


def bin_counts(bins: IntArray, size: int, outside: BoolArray) -> FloatArray:
    """Histogram of every column, one row each; values marked `outside` are in no bin."""
    d = bins.shape[1]
    flat = np.where(outside, d * size, bins + np.arange(d) * size)
    counts = np.bincount(flat.ravel(), minlength=d * size + 1)[: d * size]
    return counts.reshape(d, size).astype(np.float64)

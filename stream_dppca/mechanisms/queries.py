"""Clipped gradients, which a batch of many features is asked for, and packed second moments.

Each is a sum of one bounded term per unit, in float64. A term goes through k = `sums.roundings(n)`
roundings at most, so a sum of n terms of norm at most M is off by at most about n k u M with
u = 2^-53. Twice that is paid for, on both neighbours, and is part of the sensitivity. The clip
factor comes from an *over*-estimate of each length, so a term never exceeds its bound by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..arrays import ROUNDOFF, FloatArray, IntArray
from ..statistics import Block
from ..sums import roundings

__all__ = [
    "Gradients",
    "length_slack",
    "moment_rounding",
    "pack",
    "times",
    "unpack",
]

#: Weight of the mean clip factor in the query; it costs sqrt(1 + SIDE^2/4) - 1 = 0.3 % more noise.
SIDE = 0.15
_TILE = 64
#: Up to this size, indexing a triangle by its places is faster than row by row.
_SMALL = 64


def length_slack(d: int, k: int) -> float:
    """Rounding of the squared length of a gradient, relative to (|x| |p| + |L|)^2.

    With u = 2^-53 and p the computed W^T x: |x|^2 |p|^2 is off by (d + k + 2) u of itself. p
    differs from W^T x by d sqrt(k) u |x|, so 2 p^T L p is off by d sqrt(k) u / 2 of the square
    above, and by 3 k u more when it is added up. Together this is below 4 (d + k + 8) sqrt(k) u.
    The other half is for W^T W, which may differ from the identity by as much in norm
    (`method.checked_basis`): |W L|^2 then differs from |L|^2 by that times |L|^2.
    """
    return 8 * (d + k + 8) * math.sqrt(k) * ROUNDOFF


@dataclass(frozen=True, eq=False)
class Gradients:
    """Clipped, centred gradients s_i (x_i (x_i^T W) - W L), and the s_i.

    The clip factors s_i = min(1, rho/r_i) ride along as a (d+1)th row, times `SIDE` rho: they tell
    which part of the centre was subtracted and must be added back.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: each term lies in a ball of radius rho and each s_i in [0, 1], so the sum moves by
        at most sqrt((2 rho)^2 + (SIDE rho)^2), plus rounding; the mean by that over the units. W
        and L come from earlier releases, rho from a noisy search.
    Cost: two passes over the rows, without a temporary array of their size: the distance of a
        gradient to the centre is r_i^2 = |x_i|^2 |p_i|^2 - 2 p_i^T L p_i + |L|^2 with
        p_i = W^T x_i.
    """

    W: FloatArray  #: d x k, orthonormal columns
    L: FloatArray  #: k x k, symmetric: the centre is W L

    def measure(self, block: Block) -> FloatArray:
        """p_i as computed: the gradients are x_i p_i^T with exactly this p_i."""
        return block.along(self.W)

    def sq_length(self, sq_norm: FloatArray, measured: FloatArray) -> FloatArray:
        """r_i^2 from above."""
        return self._sq_length(sq_norm, measured, measured)

    def _sq_length(self, sq_norm: FloatArray, P: FloatArray, Q: FloatArray) -> FloatArray:
        """|x q^T - W L|^2 from above, row by row, with p = W^T x."""
        norm_l = float(np.linalg.norm(self.L))
        sq = sq_norm * np.vecdot(Q, Q)
        slack = length_slack(*self.W.shape) * (np.sqrt(sq) + norm_l) ** 2
        if norm_l > 0:
            sq = sq - 2 * np.vecdot(times(Q, self.L), P) + norm_l**2
        return np.asarray(np.maximum(sq, 0.0) + slack)

    def clipped_sum(self, block: Block, measured: FloatArray, factors: FloatArray) -> FloatArray:
        """(d+1) x k: the sum of s_i x_i p_i^T, and that of the s_i at the start of the last row."""
        return self._sum(block.clean(), measured, factors)

    def _sum(self, rows: FloatArray, Q: FloatArray, factors: FloatArray) -> FloatArray:
        d, k = self.W.shape
        total = np.zeros((d + 1, k))
        np.matmul(rows.T, Q * factors[:, np.newaxis], out=total[:d])
        total[d, 0] = factors.sum()
        return total

    def mean(self, total: FloatArray, radius: float, units: int) -> FloatArray:
        """(d+1) x k: the mean gradient, and the mean factor times `SIDE` rho."""
        mean = total.copy()
        mean[:-1] -= (self.W @ self.L) * total[-1, 0]
        mean[-1] *= SIDE * radius
        return mean / units

    def sensitivity(self, radius: float, units: int) -> float:
        largest = 2 * radius + 2 * float(np.linalg.norm(self.L))
        rounding = 2 * units * roundings(units) * ROUNDOFF * largest
        return (math.hypot(2 * radius, SIDE * radius) + 2 * rounding) / units

    @staticmethod
    def mean_factor(side: float, sensitivity: float, units: int) -> float:
        """The mean of the s_i from the noisy entry in the last row, kept in [0, 1]."""
        rho = sensitivity * units / math.hypot(2, SIDE)
        return min(max(side / (SIDE * rho), 0.0), 1.0)


def times(P: FloatArray, L: FloatArray) -> FloatArray:
    """P L, number by number: a matrix product may round a row according to its place."""
    total = P[:, :1] * L[0]
    for i in range(1, len(L)):
        total += P[:, i : i + 1] * L[i]
    return np.asarray(total)


def moment_rounding(units: int, each: int) -> float:
    """Rounding of a sum of clipped second moments, over the radius: twice the bound.

    A unit's term is the sum of `each` products y y^T of which it is the trace: together they are at
    most sqrt(each) times as long as the term, and each goes through `sums.roundings` of all rows.
    """
    return 2 * units * each * roundings(units * each) * math.sqrt(each) * ROUNDOFF


def pack(S: FloatArray) -> FloatArray:
    """The upper triangle of a symmetric matrix as a vector of the same length.

    Examples
    --------
    >>> S = np.array([[1.0, 2.0], [2.0, 5.0]])
    >>> bool(np.isclose(np.linalg.norm(pack(S)), np.linalg.norm(S)))
    True
    >>> unpack(pack(S)).round(12).tolist()
    [[1.0, 2.0], [2.0, 5.0]]
    """
    d = len(S)
    if d <= _SMALL:
        place, scale = _triangle(d)
        return np.asarray(S[place] * scale)
    packed = np.empty(d * (d + 1) // 2)
    for i, row in enumerate(_rows(packed, d)):
        np.multiply(S[i, i:], math.sqrt(2), out=row)
        row[0] = S[i, i]
    return packed


def unpack(v: FloatArray) -> FloatArray:
    """The symmetric matrix of a packed vector."""
    d = math.isqrt(2 * len(v))
    S = np.zeros((d, d))
    if d <= _SMALL:
        place, scale = _triangle(d)
        S[place] = S.T[place] = v / scale
        return S
    for i, row in enumerate(_rows(v, d)):
        np.divide(row, math.sqrt(2), out=S[i, i:])
        S[i, i] = row[0]
    for start in range(0, d, _TILE):  # transposed by tiles, which fit into the cache
        rows, rest = slice(start, start + _TILE), slice(start + _TILE, None)
        S[rest, rows] = S[rows, rest].T
        S[rows, rows] += np.triu(S[rows, rows], 1).T
    return S


@lru_cache(maxsize=8)
def _triangle(d: int) -> tuple[tuple[IntArray, IntArray], FloatArray]:
    """Places of the upper triangle, row by row, and the factors of its entries."""
    rows, columns = np.triu_indices(d)
    return (rows, columns), np.where(rows == columns, 1.0, math.sqrt(2))


def _rows(packed: FloatArray, d: int) -> Iterator[FloatArray]:
    """The rows of the triangle, each from the diagonal on: views of the packed vector."""
    start = 0
    for length in range(d, 0, -1):
        yield packed[start : start + length]
        start += length

"""The two batch queries: means of clipped gradients, means of clipped second moments.

Both are sums of one bounded term a record, in float64. A sum of n terms of norm at most M, added up
in whatever order, is off by at most about n^2 u M with u = 2^-53; the bounds below are generous,
are paid on both neighbours, and are part of the sensitivity that is returned. The clip factor comes
from an *over*-estimate of each distance, so a term never exceeds its bound by rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..slots import Batch

__all__ = ["GradientQuery", "MomentQuery", "pack", "unpack"]

FloatArray = NDArray[np.float64]

_U = 2.0**-53  # unit roundoff of float64
_CHUNK = 1024  # rows scaled at a time: the temporary stays in the cache

#: How loudly the mean clip factor is measured; it costs sqrt(1 + SIDE^2/4) - 1 = 0.3 % more noise.
SIDE = 0.15


@dataclass(frozen=True, repr=False)  # it holds records
class GradientQuery:
    """Mean of clipped, centred gradients s_i (x_i (x_i^T W) - W L) over a batch, and of the s_i.

    The clip factors s_i = min(1, rho/r_i) ride along as a (d+1)th row, times `SIDE` rho: what part
    of the centre has been subtracted must be known to add it back.

    Adjacency: one record is replaced, or turns null.
    Sensitivity: each term lies in a ball of radius rho and each s_i in [0, 1], so the sum moves by
        at most sqrt((2 rho)^2 + (SIDE rho)^2), plus rounding; the mean by that over the slots. W
        and L come from earlier releases, rho from a noisy search.
    Cost: two passes over X. No B x d temporary: the distance of a gradient to the centre is
        r_i^2 = |x_i|^2 |p_i|^2 - 2 p_i^T L p_i + |L|^2 with p_i = W^T x_i.
    """

    batch: Batch
    W: FloatArray  #: d x k, orthonormal columns
    L: FloatArray  #: k x k, symmetric: the centre is W L
    P: FloatArray  #: X W, as computed: the gradients are x_i p_i^T with exactly this p_i
    sq_distance: FloatArray  #: over-estimates of r_i^2, zero for nulls

    @classmethod
    def of(cls, batch: Batch, W: FloatArray, L: FloatArray) -> GradientQuery:
        P = batch.X @ W
        norm_p = np.einsum("ij,ij->i", P, P)
        norm_l = float(np.linalg.norm(L))
        sq = batch.sq_norm * norm_p
        # Rounding of |x|^2, of p against x^T W, and of W^T W against I, relative to the square of
        # the largest the distance can be.
        slack = 8 * (sum(W.shape) + 8) * math.sqrt(W.shape[1]) * _U * (np.sqrt(sq) + norm_l) ** 2
        if norm_l > 0:
            sq = sq - 2 * np.einsum("ij,ij->i", P @ L, P) + norm_l**2
        sq = np.maximum(sq, 0.0) + slack
        sq[batch.null] = 0.0
        return cls(batch, W, L, P, sq)

    def clipped_mean(self, rho: float) -> tuple[FloatArray, float]:
        """The (d+1) x k mean and its sensitivity."""
        n, (d, k) = len(self.batch), self.W.shape
        s = np.minimum(1.0, rho / np.sqrt(np.maximum(self.sq_distance, 1e-300)))
        s[self.batch.null] = 0.0
        total = np.zeros((d + 1, k))
        total[:d] = self.batch.X.T @ (self.P * s[:, None]) - (self.W @ self.L) * s.sum()
        total[d, 0] = SIDE * rho * s.sum()
        rounding = 2 * n * (n + 8) * _U * (2 * rho + 2 * float(np.linalg.norm(self.L)))
        return total / n, (math.hypot(2 * rho, SIDE * rho) + 2 * rounding) / n

    @staticmethod
    def mean_factor(side: float, sensitivity: float, slots: int) -> float:
        """The mean of the s_i from the noisy entry that rides along, kept in [0, 1]."""
        rho = sensitivity * slots / math.hypot(2, SIDE)
        return min(max(side / (SIDE * rho), 0.0), 1.0)


@dataclass(frozen=True, repr=False)  # it holds records
class MomentQuery:
    """Mean of clipped second moments x_i x_i^T over a batch, as a vector of d(d+1)/2 numbers.

    Off-diagonal entries are multiplied by sqrt 2, so that lengths are Frobenius norms and the
    same noise in every coordinate is isotropic on symmetric matrices.

    Adjacency: one record is replaced, or turns null.
    Sensitivity: x_i is clipped to |x_i|^2 <= rho. |y y^T - z z^T|_F^2 = |y|^4 + |z|^4 - 2 (y.z)^2
        is at most 2 rho^2, so the sum moves by at most sqrt 2 rho, plus rounding; the mean by that
        over the slots.
    """

    batch: Batch
    sq_distance: FloatArray  #: over-estimates of (|x_i|^2)^2, zero for nulls

    @classmethod
    def of(cls, batch: Batch) -> MomentQuery:
        d = batch.X.shape[1]
        return cls(batch, (batch.sq_norm * (1 + 8 * (d + 8) * _U)) ** 2)

    def clipped_mean(self, rho: float) -> tuple[FloatArray, float]:
        """The vector and its sensitivity."""
        X, n = self.batch.X, len(self.batch)
        factor = np.minimum(1.0, rho / np.sqrt(np.maximum(self.sq_distance, 1e-300)))
        total = np.zeros((X.shape[1], X.shape[1]))
        for start in range(0, n, _CHUNK):
            rows = X[start : start + _CHUNK]
            total += (rows * factor[start : start + _CHUNK, None]).T @ rows
        rounding = 2 * n * (n + 8) * _U * rho
        return pack(total) / n, (math.sqrt(2) * rho + 2 * rounding) / n


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
    i, j = np.triu_indices(len(S))
    return np.asarray(S[i, j] * np.where(i == j, 1.0, math.sqrt(2)))


def unpack(v: FloatArray) -> FloatArray:
    """The symmetric matrix of a packed vector."""
    d = math.isqrt(2 * len(v))
    i, j = np.triu_indices(d)
    S = np.zeros((d, d))
    S[i, j] = S[j, i] = v / np.where(i == j, 1.0, math.sqrt(2))
    return S

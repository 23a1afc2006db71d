"""Gradients of standardised records with a learned centre: the sums with many features.

The covariance of z times W is the mean of z (W^T z - p)^T with p = W^T m: only k numbers of the
mean m enter, and they can be released by themselves (`MomentsAlong`), with little noise.
Subtracting a noisy mean from the records would be much worse. If m^ = m + e, the second moment of
z - m^ is the covariance plus e e^T, a false component of variance |e|^2, which is the noise of
*all* d numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import FloatArray
from ..mechanisms.queries import Gradients, times
from ..statistics import Block, vecdots
from .statistics import clipped_moments, moments_sensitivity, standardised

__all__ = ["CenteredGradients", "MomentsAlong"]


@dataclass(frozen=True, eq=False)
class MomentsAlong:
    """Sum of y y^T over units, y = (T (W^T z - p), l |z|, b) clipped to |y|^2 <= rho.

    It holds the share of valid units, the mean along W, the second moment along W and the mean
    square length at once, as `AugmentedMoments` does for all features. T makes the k numbers about
    equally large; clipping keeps the direction of y, so its factor divides out.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: that of `AugmentedMoments` for k numbers in place of d: the sum moves by at most
        sqrt 2 rho, plus the rounding of the sum on both neighbours. The clip factor comes from an
        over-estimate of the length of y as computed. W, p, T, l, rho, the centre, scales and clamps
        are public numbers or earlier releases, and so finite.
    Rounding: W^T z, T times it and |z| are computed row by row and number by number, so that the
        digits of a unit depend on no other, wherever it stands.
    Delta: none beyond that of the noise that is added.
    """

    W: FloatArray  #: d x k
    center: tuple[float, ...]
    scale: tuple[float, ...]
    clamp: tuple[float, ...]
    along: FloatArray  #: p
    whiten: FloatArray  #: T, symmetric
    length: float  #: l
    constant: float  #: b
    radius: float  #: rho

    long_blocks: ClassVar[bool] = False

    def __call__(self, block: Block) -> FloatArray:
        Z = standardised(block, self.center, self.scale, self.clamp)
        whitened = times(vecdots(Z, self.W) - self.along, self.whiten)
        length = self.length * np.sqrt(np.vecdot(Z, Z))
        rows = np.concatenate([whitened, length[:, np.newaxis]], axis=1)
        return clipped_moments(block, rows, self.constant, self.radius)

    def sensitivity(self, units: int) -> float:
        return moments_sensitivity(self.radius, units)


@dataclass(frozen=True, eq=False)
class CenteredGradients(Gradients):
    """Clipped gradients s_i (z_i q_i^T - W L), q_i = W^T z_i - p, and the s_i.

    z = clamp((x - c)/s) - m is computed from one record and released numbers, value by value; a
    null has s = 0. The clip factors s_i ride along as in `Gradients`.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: that of `Gradients`. Its proof uses that a term before clipping is some d x k
        matrix T(x) - W L, that it is shrunk to a length of at most rho by a factor in [0, 1], and
        that a null adds nothing; here T(x) = z q^T. So the sum of the terms moves by at most 2 rho,
        that of the factors, times `SIDE` rho, by at most `SIDE` rho, and the mean by
        sqrt(2^2 + `SIDE`^2) rho over the units, plus rounding. W, L, c, s, m, the clamps and p
        are public numbers or functions of earlier releases, rho comes from a noisy search.
    Rounding: with P = W^T z as computed and q = P - p as computed, the term is z q^T with exactly
        this q. Its squared length |z|^2 |q|^2 - 2 q^T L W^T z + |L|^2 is computed with P in place
        of W^T z, which differs by at most d sqrt(k) u |z|: 2 d sqrt(k) u |z| |q| |L| is at most
        d sqrt(k) u / 2 of (|z| |q| + |L|)^2, as in `length_slack`. |z|^2 is a sum of d squares, off
        by (d + 1) u of itself. All else is as there. The sums are those of `Gradients`: a term,
        its centre added back, has a norm of at most rho + |L|.
    Delta: none beyond that of the noise that is added.
    """

    center: tuple[float, ...]
    scale: tuple[float, ...]
    clamp: tuple[float, ...]
    along: FloatArray  #: p
    offset: FloatArray  #: m

    def measure(self, block: Block) -> FloatArray:
        """W^T z_i and |z_i|^2."""
        Z = self._standardised(block)
        return np.concatenate([block.along(self.W, Z), np.vecdot(Z, Z)[:, np.newaxis]], axis=1)

    def sq_length(self, sq_norm: FloatArray, measured: FloatArray) -> FloatArray:
        """r_i^2 from above."""
        return self._sq_length(measured[:, -1], measured[:, :-1], self._centred(measured))

    def clipped_sum(self, block: Block, measured: FloatArray, factors: FloatArray) -> FloatArray:
        """(d+1) x k: the sum of s_i z_i q_i^T, and that of the s_i at the start of the last row."""
        return self._sum(self._standardised(block), self._centred(measured), factors)

    def _centred(self, measured: FloatArray) -> FloatArray:
        return np.asarray(measured[:, :-1] - self.along)

    def _standardised(self, block: Block) -> FloatArray:
        """Rows of z in the scratch memory, whose alignment is public; all finite."""
        Z = standardised(block, self.center, self.scale, self.clamp)
        return np.subtract(Z, self.offset, out=block.scratch)

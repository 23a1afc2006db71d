"""Mean and variance along the components from releases of `MomentsAlong`: post-processing.

Gradients are clipped so tightly that their estimate of the *size* of a variance is too low: by 40 %
on Gaussian records. So the variance along the components comes from moments of its own. It is
measured against the mean square length of the same records, clipped by the same factors: long
records count for less in both.

Batch s has released the second moment M_s of records along its basis V_s, around the mean of all
batches before it. The variance along the current basis V_t is wanted. Assume that the covariance is
a level rest and an excess along a few directions, and that V_t knows these better than V_s did.
Then the excess along V_s is

    X_s = M_s - level I = O E O^T,    O = V_s^T V_t,

with E the excess along V_t: V_s holds a part of the directions only through V_t. So whenever the
basis turns by O, the excess so far becomes O^-1 E O^-T, and its weight is multiplied by s(O)^4,
with s(O) the largest singular value: for one component these are the weights of least squares. A
basis that has hardly anything in common with the new one says nothing about it.

**Uncertainty.** The noise in a batch's variance is known. It is not known how level the rest is: a
basis that turns leaves one part of it for another. So the share of a direction h that the bases of
earlier batches did not hold, 1 - |O h|^2 in the mean, adds to the uncertainty of its variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import FloatArray
from ..mechanisms.queries import unpack

__all__ = ["LENGTH", "Along", "RunningExcess", "clip_radius", "constant", "within"]

#: l |z| of a record of the expected length. Twice a standard deviation along a component costs 13 %
#: more noise, and measures the length four times as well as a variance along.
LENGTH = 2.0

#: Numbers along the components are not clipped within this many sds beyond the typical length.
_WITHIN = 4.0
#: A batch counts if its second moment is at most this many times the expected one, plus this many
#: sds of its noise. Beyond that, clipping may have taken too much. The moment of the batch is then
#: expected of the next one, and batches before it count for half.
_EXPECTED, _EXPECTED_SDS = 2.5, 4.0
#: A turn that leaves less of a direction than this leaves nothing to convert.
_OLD = 0.5
#: Variances in a saved state are at most this.
_LARGEST = 2.0**160
#: No variance is reported before the batches have this much weight together, and their bases have
#: held this much of some direction in the mean: while a component is being found, the basis turns
#: too fast.
_ENOUGH, _HELD = 0.5, 0.6


def within(k: int) -> float:
    """Squared length up to which k numbers of variance 1 are not clipped."""
    return (math.sqrt(k) + _WITHIN) ** 2


def constant(k: int) -> float:
    """b of y: with b^2 a quarter of `within`, the mean is measured well for 25 % more noise."""
    return math.sqrt(within(k)) / 2


def clip_radius(k: int) -> float:
    """rho of y: the sum of the squares of its parts."""
    return within(k) + LENGTH**2 + constant(k) ** 2


@dataclass(frozen=True, eq=False)
class Along:
    """A batch's moments along the basis, as released."""

    shift: FloatArray  #: of the mean, from p
    second: FloatArray  #: k x k: the second moment around p, of records of the expected length
    expected: FloatArray  #: k x k: the expected value of `second`
    noise: float  #: sd in one variance, in units of `expected`
    shift_sd: FloatArray  #: sd of the noise and the sampling error in `shift`

    @classmethod
    def read(
        cls, packed: FloatArray, sd: float, *, expected: FloatArray, whiten: FloatArray, units: int
    ) -> Along:
        """Read the moments from the noisy sum of y y^T and the sd of its noise."""
        k = len(expected)
        b = constant(k)
        M = unpack(packed) / units
        valid = min(max(float(M[-1, -1]) / b**2, 0.05), 1.0)
        square = max(float(M[k, k]) / LENGTH**2, 0.05 * valid)  # of the length
        colour = np.linalg.inv(whiten)
        noise = sd / (units * valid)
        second = colour @ M[:k, :k] @ colour / square
        # The variance may be larger than expected, and so may the sampling error.
        variance = np.diag(expected)
        of_noise = variance * (noise / (math.sqrt(2) * b)) ** 2
        of_sampling = np.maximum(variance, np.diag(second)) / (units * valid)
        return cls(
            shift=colour @ M[:k, -1] / (b * valid),
            second=second,
            expected=expected,
            noise=noise * math.hypot(1.0, 1 / LENGTH**2),
            shift_sd=np.sqrt(of_noise + of_sampling),
        )

    @property
    def surprising(self) -> bool:
        """True if the second moment is far beyond the expected one."""
        largest = np.max(np.linalg.eigvals(np.linalg.solve(self.expected, self.second)).real)
        return bool(largest > _EXPECTED + _EXPECTED_SDS * self.noise)


class RunningExcess:
    """The variance along the basis beyond that of the rest, from all batches so far.

    Parameters
    ----------
    k
        Number of components.
    """

    def __init__(self, k: int) -> None:
        self.excess = np.zeros((k, k))
        self.expected = np.zeros((k, k))  #: of the next second moment, beyond the rest
        self.weight = 0.0  #: batches
        self.held = np.zeros((k, k))  #: the weighted sum of their O^T O
        self.noise = 0.0  #: sd in one variance in one batch, in units of `scale`
        self.scale = np.zeros((k, k))  #: the expected moments of the batches that count

    @property
    def known(self) -> bool:
        if self.weight < _ENOUGH:
            return False
        return float(np.linalg.eigvalsh(self.held)[-1]) >= _HELD * self.weight

    def sd(self, H: FloatArray, values: FloatArray) -> FloatArray:
        """Sd of the variances along H E H^T, which are `values` with that of the rest."""
        noise = self.noise / math.sqrt(self.weight) * np.diag(H @ self.scale @ H.T)
        held = np.diag(H @ self.held @ H.T) / (self.weight * np.sum(H**2, axis=1))
        return np.asarray(np.hypot(noise, np.clip(1 - held, 0.0, 1.0) * values))

    def add(self, along: Along, second: FloatArray, level: float, keep: float) -> None:
        """Add the moments of a batch.

        Parameters
        ----------
        second
            Contribution of the batch to the second moment around the mean of all batches.
        level
            Variance of the rest in each direction.
        keep
            Share of the past that is kept.
        """
        excess = second - level * np.eye(len(second))
        if along.surprising:
            self.weight, self.held = self.weight / 2, self.held / 2
            self.expected = excess
            return
        self.noise = along.noise
        self.weight = keep * self.weight + 1.0
        self.held = keep * self.held + np.eye(len(second))
        self.excess = self.excess + (excess - self.excess) / self.weight
        self.scale = self.scale + (along.expected - self.scale) / self.weight
        self.expected = self.excess

    def forget(self) -> None:
        self.weight, self.held = 0.0, np.zeros_like(self.held)

    def turn(self, overlap: FloatArray) -> None:
        """Convert to a new basis; O is (the old one)^T (the new one)."""
        U, s, Vt = np.linalg.svd(overlap)
        s = np.minimum(s, 1.0)
        self.weight *= float(s[0]) ** 4
        self.held = float(s[0]) ** 4 * overlap.T @ self.held @ overlap
        if self.weight < 1e-3:  # too little is left to be worth converting
            self.forget()
            return
        # A direction of which the old basis held next to nothing is taken to be like the rest.
        old = s >= _OLD
        grown, noisier = np.where(old, 1 / np.maximum(s, _OLD), s), np.where(old, s[0] / s, 1.0)
        to_excess, to_scale = (U * grown) @ Vt, (U * noisier) @ Vt
        self.excess = to_excess.T @ self.excess @ to_excess
        self.scale = to_scale.T @ self.scale @ to_scale
        self.expected = to_excess.T @ self.expected @ to_excess

    def rescale(self, K: FloatArray) -> None:
        """Convert to other units, K = (the new basis)^T (factors) (the old basis)."""
        self.excess, self.expected, self.scale = (
            K @ matrix @ K.T for matrix in (self.excess, self.expected, self.scale)
        )

    def state(self) -> dict[str, Any]:
        return {
            "excess": self.excess.tolist(),
            "expected": self.expected.tolist(),
            "scale": self.scale.tolist(),
            "weight": self.weight,
            "held": self.held.tolist(),
            "noise": self.noise,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`, or raise a ValueError."""
        names = ("excess", "expected", "scale", "held")
        matrices = [np.array(state[name], dtype=np.float64) for name in names]
        shape = self.excess.shape
        # NaN is not below it either, and lengths of numbers like these do not overflow.
        if not all(M.shape == shape and (np.abs(M) <= _LARGEST).all() for M in matrices):
            raise ValueError("not a state of this method")
        weight, noise = float(state["weight"]), float(state["noise"])
        if not (0 <= weight < math.inf and 0 <= noise < math.inf):
            raise ValueError("not a state of this method")
        self.excess, self.expected, self.scale, self.held = matrices
        self.weight, self.noise = weight, noise

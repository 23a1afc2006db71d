"""Mean and variance along the components from what `MomentsAlong` released: post-processing.

Gradients are clipped so tightly that what they say about the *size* of a variance is too low: by
40 % on Gaussian records. So the variance along the components is read off moments of their own.

Batch s has told the second moment M_s of records along its basis V_s, around the mean of all
batches before it. What is wanted is the variance along the basis V_t of now. Take the covariance to
be a level rest and an excess along some few directions, and V_t to know these better than V_s did.
Then the excess along V_s is

    X_s = M_s - level I = O E O^T,    O = V_s^T V_t,

with E the excess along V_t: what V_s holds of the directions, it holds through V_t. So whenever the
basis turns by O, the excess so far becomes O^-1 E O^-T, and counts for s(O)^4 of what it counted,
with s(O) the least singular value: for one component these are the weights of least squares. A
basis that has hardly anything in common with the new one says nothing about it.

**Uncertainty.** The noise in a batch's variance is known. What is not known is how level the rest
is: a basis that turns leaves one part of it for another. So the share of a direction h that the
bases of earlier batches did not hold, 1 - |O h|^2 in the mean, is an uncertainty of its variance as
well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..adaptive.queries import unpack
from ..arrays import FloatArray

__all__ = ["Along", "RunningExcess", "clip_radius", "constant"]

#: Numbers along the components are taken as they are within so many sds beyond the typical length.
_WITHIN = 4.0
#: A batch counts if its second moment is at most this many times what was expected of it, and so
#: many sds of its noise. Beyond that clipping may have taken more than it should; what the batch
#: says is then expected of the next one.
_EXPECTED, _EXPECTED_SDS = 2.5, 4.0
#: Nothing is said before the batches count for so much together.
_ENOUGH = 0.5


def clip_radius(k: int) -> float:
    """Squared length of k numbers of variance 1 beyond which they are clipped."""
    return (math.sqrt(k) + _WITHIN) ** 2


def constant(k: int) -> float:
    """b of y: b^2 = R/4 costs the second moment 25 % of noise, and measures the mean well."""
    return math.sqrt(clip_radius(k)) / 2


@dataclass(frozen=True, eq=False)
class Along:
    """A batch's moments along the basis, as released."""

    shift: FloatArray  #: of the mean, from p
    second: FloatArray  #: k x k: the second moment around p
    expected: FloatArray  #: k x k: what it was expected to be
    noise: float  #: sd in one variance, in units of `expected`
    shift_sd: FloatArray  #: of the noise and the sampling error in `shift`

    @classmethod
    def read(
        cls, packed: FloatArray, sd: float, *, expected: FloatArray, whiten: FloatArray, units: int
    ) -> Along:
        """From the noisy sum of y y^T, and the sd of its noise."""
        k = len(expected)
        b = constant(k)
        M = unpack(packed) / units
        valid = min(max(float(M[k, k]) / b**2, 0.05), 1.0)
        colour = np.linalg.inv(whiten)
        noise = sd / (units * valid)
        shift_sd = math.hypot(noise / (math.sqrt(2) * b), 1 / math.sqrt(units * valid))
        return cls(
            shift=colour @ M[:k, k] / (b * valid),
            second=colour @ M[:k, :k] @ colour / valid,
            expected=expected,
            noise=noise * math.hypot(1.0, 1 / b**2),
            shift_sd=np.sqrt(np.diag(expected)) * shift_sd,
        )

    @property
    def surprising(self) -> bool:
        """True if the second moment is far beyond what was expected."""
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
        self.held = np.zeros((k, k))  #: the sum of their O^T O, each as it counts
        self.noise = 0.0  #: sd in one variance in one batch, in units of `scale`
        self.scale = np.zeros((k, k))  #: what was expected of the batches that count

    @property
    def known(self) -> bool:
        return self.weight >= _ENOUGH

    def sd(self, H: FloatArray, values: FloatArray) -> FloatArray:
        """Of the variances along H E H^T, which are `values` with that of the rest."""
        noise = self.noise / math.sqrt(self.weight) * np.diag(H @ self.scale @ H.T)
        held = np.diag(H @ self.held @ H.T) / (self.weight * np.sum(H**2, axis=1))
        return np.asarray(np.hypot(noise, np.clip(1 - held, 0.0, 1.0) * values))

    def add(self, along: Along, second: FloatArray, level: float, keep: float) -> None:
        """Add what a batch says.

        Parameters
        ----------
        second
            What it adds to the second moment around the mean of all batches.
        level
            Variance of the rest in each direction.
        keep
            Share of the past that is kept.
        """
        excess = second - level * np.eye(len(second))
        if along.surprising:
            self.forget()
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
        least = min(float(s[-1]), 1.0)
        self.weight *= least**4
        self.held = least**4 * overlap.T @ self.held @ overlap
        if self.weight < 1e-3:  # what is left of it is not worth converting
            self.forget()
            return
        self.scale = (U @ Vt).T @ self.scale @ (U @ Vt)
        inverse = np.linalg.inv(overlap)
        self.excess = inverse @ self.excess @ inverse.T
        self.expected = self.excess

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
        """Resume from what `state` returned, or raise a ValueError."""
        names = ("excess", "expected", "scale", "held")
        matrices = [np.array(state[name], dtype=np.float64) for name in names]
        if not all(M.shape == self.excess.shape and np.isfinite(M).all() for M in matrices):
            raise ValueError("not a state of this method")
        weight, noise = float(state["weight"]), float(state["noise"])
        if not (0 <= weight < math.inf and 0 <= noise < math.inf):
            raise ValueError("not a state of this method")
        self.excess, self.expected, self.scale, self.held = matrices
        self.weight, self.noise = weight, noise

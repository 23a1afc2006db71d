"""One step with gradients: range, mean, step, each part of the paper made tight.

1. **Range.** A clip radius by noisy binary search (`mechanisms.radius`), on all records of a batch.
2. **Mean.** The clipped mean of the gradients, with noise that cancels over batches
   (`mechanisms.correlated`).
3. **Step.** The releases so far are combined with the weights of least squares (`whitening`,
   `estimate`), and the components are read off.

1 and 2 use the same records and share mu^2. Everything else, the centre, the weights and the step
included, is post-processing of the releases of 1 and 2.

theta is A W less its bulk, a few directions times their strength. Model of a release:
(A - bulk I) V_{t-1} = gain_t theta, where gain_t is the part of the components that V_{t-1} already
holds. Releases made while V was poor count little, but none is thrown away.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import FloatArray
from ..mechanisms.correlated import DECAYS, CorrelatedRelease, Released
from ..mechanisms.queries import Gradients
from ..mechanisms.radius import FIRST, LAST, count_of_counts, noisy_radius, radius
from ..noise import Noise
from ..oja import column_signs, orthonormal
from ..outcome import Outcome, checked_basis
from ..statistics import Rows
from .estimate import GuidedEstimate
from .gradients import CenteredGradients
from .whitening import Whitener

__all__ = ["GradientStep", "range_share", "smallest_range_batch"]

#: Weights of a batch in later releases fall as (1 + age)^-power.
_POWER = 0.65
#: Eigenvalues in a saved state are at most this: those of records of norm 1e18 are below 2^120.
_LARGEST = 2.0**160
#: At least this many sds of the noise of a count may lie beyond the radius. With 2 of them, a count
#: of zero is taken for too many once in 44 times, several counts are near zero, and the radius is
#: then octaves too large: in 8 % of all batches with 3 features, B = 1000 and epsilon 4.
_SURE_OF_RADIUS = 4.0
_COUNTS = count_of_counts(FIRST, LAST)


def range_share(rows: int, mu: float) -> float:
    """Share of mu^2 for the range: counts with sd 3 % of the batch, for 0.5 to 20 %."""
    return min(0.2, max(0.005, _COUNTS / (0.03 * rows * mu) ** 2))


def smallest_range_batch(mu: float) -> int:
    """Rows with which a count of the range search has sd 10 % of the batch at the largest share."""
    return math.ceil(math.sqrt(_COUNTS / 0.2) / (0.1 * mu))


class GradientStep:
    """Range and mean gradient of standardised records, and the step that follows from them.

    Parameters
    ----------
    W
        d x k, the start.
    mu
        Budget of range and mean in every batch.
    rows
        Rows per batch.
    memory
        As for `DPPCA`.
    """

    def __init__(self, *, W: FloatArray, mu: float, rows: int, memory: str | float) -> None:
        d, k = W.shape
        self.W, self.rows, self.mu = W, rows, mu
        self.quantile = min(0.7, 0.15 + 0.35 * rows * mu**2 / d)
        share = range_share(rows, mu)
        self.mu_range = mu * math.sqrt(share)
        self.mu_mean = mu * math.sqrt(1 - share)
        self.correlated = CorrelatedRelease(mu=self.mu_mean, decays=DECAYS)
        # A public guess of sampling variance over privacy variance of one batch and coordinate.
        sampling = rows * mu**2 * (1 - 0.7 * self.quantile) / (4 * d * k)
        self.whitener = Whitener(sampling=sampling, decays=DECAYS)
        self.estimate = GuidedEstimate(d * k, memory)
        self.V = W  # the iterate; W is V turned so that its columns are components
        self.L = np.zeros((k, k))  # noisy V^T A V: the centre is V L
        self.bulk = 0.0  # noisy mean eigenvalue
        self.first_sensitivity = 0.0
        self.gain = math.sqrt(k / d)
        self.place = FIRST  # of the radius on its grid
        #: Rule by which records are standardised; the mean subtracted from them, and then along V.
        self.standard: dict[str, tuple[float, ...]] = {}
        self.mean, self.along = np.zeros(d), np.zeros(k)

    def step(self, rows: Rows, noise: Noise) -> Outcome:
        """Learn from one batch."""
        form = CenteredGradients(
            self.V, self.L, **self.standard, along=self.along, offset=self.mean
        )
        answers = rows.ranged(form)
        # 1. Range.
        count_sd = math.sqrt(_COUNTS) / self.mu_range
        sure = min(_SURE_OF_RADIUS * count_sd, self.rows / 2)
        j = noisy_radius(
            lambda j: answers.beyond(radius(j)),
            beyond=max((1 - self.quantile) * self.rows, sure),
            mu=self.mu_range,
            noise=noise,
        )
        if j == FIRST:
            return Outcome.skip("no spread: almost all records seem to be zero, or nulls")
        # The radius never falls while the past is kept.
        self.place = max(self.place, j)
        rho = radius(self.place)
        # 2. Mean.
        mean = form.mean(answers.clipped_sum(rho), rho, self.rows)
        sensitivity = form.sensitivity(rho, self.rows)
        # The more accurate V is, the more later releases measure the same quantity.
        released = self.correlated.release(
            mean, sensitivity=sensitivity, power=_POWER + 1 - self.gain**2, noise=noise
        )
        # 3. Step. From here on, post-processing.
        if released.first:
            self.whitener.forget()
        unit = self.mu_mean / sensitivity
        weight_before = self.estimate.weight
        spread = self._learn(released, sensitivity, unit)
        gained = self.estimate.weight - weight_before
        return Outcome(
            spread=spread,
            range=rho,
            step=min(max(gained / self.estimate.weight, 0.0), 1.0),
            sigma=1 / unit,
            drift=self.estimate.dropped,
        )

    def _learn(self, released: Released, sensitivity: float, unit: float) -> FloatArray:
        """Update the estimate and W. Returns the noisy spread along each component.

        Parameters
        ----------
        unit
            Unit of the release: 1 over the sd of the noise in the mean.
        """
        d, k = self.V.shape
        rayleigh = self.V.T @ released.alone[:d] / unit
        if self.first_sensitivity == 0.0:
            self.first_sensitivity = sensitivity
            if self.estimate.weight == 0.0:  # V is random, so V^T A V is the mean eigenvalue
                self.bulk = max(0.0, float(np.trace(rayleigh)) / k)
        # Add the subtracted centre back, less the level that would be there without any signal.
        factor = Gradients.mean_factor(released.alone[d, 0] / unit, sensitivity, self.rows)
        bulk = self.bulk * min(1.0, sensitivity / self.first_sensitivity)
        offset = self.V @ (factor * self.L - bulk * np.eye(k)) * unit
        self.L = self.L + (rayleigh + rayleigh.T) / 2

        white = self.whitener(
            released.weights, released.y[:d], offset=offset, gain=self.gain * unit
        )
        if self.estimate.take(white, self.whitener):
            self.gain = math.sqrt(k / d)
        cosine = math.sqrt(max(1 - 1 / self.estimate.signal, 0.0))
        self.gain = max(self.gain, min(2 * self.gain, (2 / (d * k)) ** 0.25), cosine)
        if k == 1:
            V = orthonormal(self.estimate.theta, like=self.V)
            self.V = V * column_signs(V, self.estimate.theta)
            self.W = V * column_signs(V, self.W)
            return np.asarray(self.L[0])
        U, _, Vt = np.linalg.svd(self.estimate.theta, full_matrices=False)
        self.V = U @ Vt
        values, turn = np.linalg.eigh(self.L)
        self.W = orthonormal(self.V @ turn[:, ::-1], like=self.W)
        return np.asarray(values[::-1])

    def rescale(self, factor: FloatArray) -> None:
        """Turn z_j into factor_j z_j."""
        self.estimate.rescale(factor)
        U, _, Vt = np.linalg.svd(self.V * factor[:, np.newaxis], full_matrices=False)
        self.V = orthonormal(U, like=self.V) if self.V.shape[1] == 1 else U @ Vt

    # State

    def state(self) -> dict[str, Any]:
        return {
            "W": self.W.tolist(),
            "estimate": self.estimate.state(),
            "V": self.V.tolist(),
            "L": self.L.tolist(),
            "bulk": self.bulk,
            "first_sensitivity": self.first_sensitivity,
            "gain": self.gain,
            "place": self.place,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.W = checked_basis(state["W"], like=self.W)
        self.estimate.load(state["estimate"], shape=self.V.shape)
        self.correlated.forget()
        self.whitener.forget()
        self.V = checked_basis(state["V"], like=self.V)
        L = np.array(state["L"], dtype=np.float64).reshape(self.L.shape)
        scalars = [float(state[name]) for name in ("bulk", "first_sensitivity", "gain")]
        # With numbers up to this size, lengths of gradients stay far from overflow. Otherwise a
        # valid record could have a length of NaN, which would pass the clip.
        if not (np.abs([*L.ravel(), *scalars]) <= _LARGEST).all():  # true for NaN
            raise ValueError("not a state of this method")
        if not (np.array_equal(L, L.T) and min(scalars) >= 0 and 0 < scalars[-1] <= 2):
            raise ValueError("not a state of this method")
        self.L = L
        self.bulk, self.first_sensitivity, self.gain = scalars
        self.place = int(state["place"])
        if not FIRST <= self.place <= LAST:
            raise ValueError("not a state of this method")

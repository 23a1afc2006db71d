"""Algorithm 5: private mean estimation.

Adjacency: one gradient is replaced, or turns null.
Histograms: one record moves one count in each of d coordinates, L2 = sqrt(2 d), and can be alone
    in at most d bins. All (coordinate, bin) counts get N(0, 2 d / mu_h^2) and a bin is released
    above `calibration.gaussian_threshold`, so that a lone bin surfaces with probability at most
    delta_T.
Mean: the truncated gradients lie in a box of half-width R, so their mean over n slots has L2
    sensitivity 2 R sqrt(d) / n; it gets N(0, (that / mu_m)^2).
Total: mu^2 = mu_h^2 + mu_m^2 and delta <= delta_T + delta_G(epsilon + ln(1 - delta_T); mu).

The paper composes d Laplace histograms by advanced composition, valid for epsilon <= 0.9 only;
one Gaussian budget is tighter and valid for all. n is the number of slots of *this* input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..arrays import ROUNDOFF, BoolArray, FloatArray
from ..calibration import gaussian_threshold, mu_with_threshold
from ..noise import Noise

#: Bin indices are clamped here: int64 and float64 both count to 2^52 exactly.
_LAST_BIN = 2.0**52

#: Share of mu^2 for the histograms; the mean has the rest.
HISTOGRAM = 0.1


@dataclass(frozen=True)
class MeanBudget:
    """(epsilon, delta) divided between the histograms, their threshold and the mean.

    Examples
    --------
    >>> budget = MeanBudget.split(1.0, 1e-6)
    >>> round(1 / budget.mu_mean, 2)
    4.6
    """

    mu_histogram: float
    mu_mean: float
    delta_threshold: float

    @classmethod
    def split(cls, epsilon: float, delta: float) -> MeanBudget:
        mu = mu_with_threshold(epsilon, delta, delta / 2)
        return cls(
            mu_histogram=mu * math.sqrt(HISTOGRAM),
            mu_mean=mu * math.sqrt(1 - HISTOGRAM),
            delta_threshold=delta / 2,
        )

    def threshold(self, dimension: int) -> float:
        """Threshold above which noisy counts are released, for the sd of the noise that is drawn.

        Counts are compared after rounding to the grid, so two units of the grid are added.
        """
        sigma = Noise.gaussian_sd(sensitivity=math.sqrt(2 * dimension), mu=self.mu_histogram)
        return gaussian_threshold(sigma, self.delta_threshold, dimension) + sigma * 2.0**-27


@dataclass(frozen=True)
class PrivateMean:
    """The result of Algorithm 5."""

    mean: FloatArray
    sigma: float  #: sd of the noise in one coordinate


def private_mean(
    G: FloatArray,
    null: BoolArray,
    *,
    eigenvalue: float,
    budget: MeanBudget,
    K: float = 4.0,
    a: float = 1.0,
    zeta: float = 0.01,
    noise: Noise,
) -> PrivateMean | None:
    """The mean of the rows of G, or None if some coordinate has no released bin.

    Parameters
    ----------
    G
        Gradients, one row each.
    null
        Mask of the rows that count in no histogram and add zero after centring.
    eigenvalue
        Upper estimate of the top eigenvalue of their covariance, from *other* records.
    K, a
        The tail of Assumption A.4; K = 4, a = 1 for Gaussian data.
    zeta
        With probability 1 - zeta no gradient is truncated, if the tail is as assumed.
    """
    n, d = G.shape
    # Line 1: the bin width.
    tau = 2**0.25 * K * math.sqrt(eigenvalue) * math.log(25) ** a
    # Lines 2 to 5: in each coordinate, the left edge of the fullest released bin.
    center = _fullest_bins(G[~null], tau, budget, noise)
    if center is None:
        return None
    # Lines 6 and 7: truncate.
    R = 3 * K * math.sqrt(eigenvalue) * math.log(n * d / zeta) ** a
    truncated = np.clip(G - center, -R, R)
    truncated[null] = 0.0
    # Line 8: mean and noise. A float64 sum of n terms of norm <= R sqrt(d) is off by at most
    # n^2 u R sqrt(d), in whatever order, and that on both of two neighbours.
    M = R * math.sqrt(d)
    sensitivity = (2 * M + 2 * n**2 * ROUNDOFF * M) / n
    mean = truncated.sum(axis=0) / n
    noisy = noise.gaussian(mean, sensitivity=sensitivity, mu=budget.mu_mean)
    sigma = noise.gaussian_sd(sensitivity=sensitivity, mu=budget.mu_mean)
    # Line 9.
    return PrivateMean(center + noisy, sigma)


def _fullest_bins(G: FloatArray, tau: float, budget: MeanBudget, noise: Noise) -> FloatArray | None:
    """Left edges l tau of the fullest released bins (l tau, (l+1) tau], or None."""
    n, d = G.shape
    if n == 0:
        return None
    bins = np.clip(np.ceil(G / tau) - 1, -_LAST_BIN, _LAST_BIN).astype(np.int64)
    # Occupied (coordinate, bin) pairs and their counts: runs of equal values in sorted columns.
    ordered = np.ascontiguousarray(np.sort(bins, axis=0).T)
    starts_run = np.ones((d, n), dtype=bool)
    starts_run[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = np.flatnonzero(starts_run)
    counts = np.diff(starts, append=d * n).astype(np.float64)
    coordinate, bin_ = starts // n, ordered.ravel()[starts]

    noisy = noise.gaussian(counts, sensitivity=math.sqrt(2 * d), mu=budget.mu_histogram)
    released = noisy > budget.threshold(d)
    coordinate, bin_, noisy = coordinate[released], bin_[released], noisy[released]
    # By coordinate, then fullest first, then lowest bin; take the first of each coordinate.
    order = np.lexsort((bin_, -noisy, coordinate))
    found, first = np.unique(coordinate[order], return_index=True)
    if len(found) < d:
        return None
    return np.asarray(bin_[order][first] * tau, dtype=np.float64)

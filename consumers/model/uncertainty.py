"""Estimates, from a release alone, how much of its component is error.

These are first-order approximations for people who look at a component, not part of a guarantee.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stream_dppca import Release

FloatArray = NDArray[np.float64]

#: Eigenvalues that are closer than this share of the total cannot be distinguished.
_SMALLEST_GAP = 1e-9


def angle(w: FloatArray, v: FloatArray) -> float:
    """Return the angle between two directions in degrees, accurate when it is small."""
    along = abs(float(v @ w))
    return math.degrees(math.atan2(float(np.linalg.norm(w - v * (v @ w))), along))


def movement(before: Release, release: Release) -> float | None:
    """The angle by which a release moved the first component; None if it did not learn."""
    learned = release.status == "learned" and before.features == release.features
    if not (learned and before.components and release.components):
        return None
    return angle(np.array(release.components[0]), np.array(before.components[0]))


def noise_movement(release: Release) -> float | None:
    """Estimate how far the noise of this batch alone moves the component, in degrees.

    To first order in the noise: sigma in each coordinate of the second moment, across the
    component, over the spread along it, times the weight that the batch has.
    """
    spread = release.spread[0] if release.spread else None
    if not spread or release.sigma is None or release.step is None:
        return None
    across = math.sqrt((len(release.features) - 1) / 2)
    return math.degrees(release.step * release.sigma * across / spread)


def loading_noise(release: Release) -> FloatArray | None:
    """Estimate the standard deviation of each loading, k x d; None if not known.

    An error E in the second moment moves the component v by sum_j u_j (u_j' E v)/(l - l_j) to first
    order, over all other eigenvectors u_j. Two errors are in it: the noise, whose sd in u_j' E v is
    sigma sqrt(step/2), and that of sampling, sqrt(l l_j/n) for n normal records. The eigenvalues
    beyond the released ones are taken to be equal; if the largest of them is larger, so is the
    error.
    """
    d, k = len(release.features), len(release.components)
    numbers = (release.spread, release.explained_variance_ratio)
    if release.sigma is None or not release.step or not all(numbers):
        return None
    values, ratio = (np.array(column, dtype=np.float64) for column in numbers)
    if not (values.all() and ratio.all()):
        return None
    total = float(values[0] / ratio[0])
    rest = max(total - float(values.sum()), 0.0) / (d - k) if d > k else 0.0
    seen = release.n_seen or 1
    batches = release.batch - 1 + release.first_batches
    rows = max(seen / batches if release.subjects is None else release.subjects, 1.0) / release.step
    noise = release.sigma**2 * release.step / 2
    squares = np.array(release.components) ** 2
    beyond = np.maximum(1 - squares.sum(axis=0), 0.0)  # share of each feature in the other vectors

    def moved(j: int, other: float) -> float:
        """The variance of the part of component j along a vector with another eigenvalue."""
        gap = max(abs(float(values[j]) - other), _SMALLEST_GAP * total)
        return float((noise + values[j] * max(other, 0.0) / rows) / gap**2)

    variance = np.array([beyond * moved(j, rest) for j in range(k)])
    for j in range(k):
        for other in range(k):
            if other != j:
                variance[j] += squares[other] * moved(j, float(values[other]))
    # A loading is at most 1: beyond that the approximation says only that nothing is known.
    return np.asarray(np.minimum(np.sqrt(variance), 1.0))

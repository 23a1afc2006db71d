"""Estimates, from a release alone, how much of its component is error.

These are first-order approximations for people who look at a component, not part of a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from stream_dppca import Release
from stream_dppca.arrays import FloatArray
from stream_dppca.method.memory import constant

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


def _errors(release: Release) -> tuple[float, float]:
    """The variance of the noise beside the diagonal of the second moment, and its records."""
    seen, step = release.n_seen or 1, release.step or 1.0
    batches = release.batch - 1 + release.first_batches
    rows = max(seen / batches if release.subjects is None else release.subjects, 1.0) / step
    return (release.sigma or 0.0) ** 2 * step / 2, rows


def mean_noise(release: Release) -> float:
    """Estimate the standard deviation of the mean of a feature, in its standard deviations.

    The mean is the moment of (z, b) beside the diagonal, over b (`method.memory`).
    """
    noise, rows = _errors(release)
    return math.sqrt(noise / constant(len(release.features)) ** 2 + 1 / rows)


def loading_noise(release: Release, together: bool = False) -> FloatArray | None:
    """Estimate the standard deviation of each loading, k x d; None if not known.

    An error E in the second moment moves the component v by sum_j u_j (u_j' E v)/(l - l_j) to first
    order, over all other eigenvectors u_j. Two errors are in it: the noise, whose sd in u_j' E v is
    sigma sqrt(step/2), and that of sampling, sqrt(l l_j/n) for n normal records.

    Parameters
    ----------
    together
        If true, only movements out of the subspace of all components count.
    """
    numbers = (release.spread, release.explained_variance_ratio)
    if release.sigma is None or not (release.step and all(c and all(c) for c in numbers)):
        return None
    values, ratio = (np.array(column, dtype=np.float64) for column in numbers)
    noise, rows = _errors(release)
    total = float(values[0] / ratio[0])

    def moved(value: float, others: FloatArray) -> FloatArray:
        """The variance of the part of a component along vectors with other eigenvalues."""
        gap = np.maximum(np.abs(value - others), _SMALLEST_GAP * total)
        return np.asarray((noise + value * np.maximum(others, 0.0) / rows) / gap**2)

    variance = np.zeros(np.shape(release.components))
    for share, others in _beyond(release, values, total):
        variance += [share * moved(value, others) for value in values]
    for j, value in enumerate(() if together else values):
        others = np.delete(values, j)[:, np.newaxis]
        squares = np.delete(np.array(release.components), j, axis=0) ** 2
        variance[j] += (squares * moved(value, others)).sum(axis=0)
    # A loading is at most 1: beyond that the approximation says only that nothing is known.
    return np.asarray(np.minimum(np.sqrt(variance), 1.0))


def _beyond(
    release: Release, values: FloatArray, total: float
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield vectors beyond the components: what each has of the features, and its eigenvalue.

    Their eigenvalues are known if they stand out of the noise, the vectors are not. But the squares
    of a feature's loadings in all vectors add up to 1, and with the eigenvalues as weights to its
    variance. Each vector, the one with the largest eigenvalue first, has as much of the features as
    is left, in proportion; what remains of a feature after all of them has one eigenvalue.
    """
    squares, (k, d) = np.array(release.components) ** 2, np.shape(release.components)
    varies = np.full(d, True) if release.deviation is None else np.array(release.deviation) > 0
    left = np.where(varies, np.maximum(1 - squares.sum(axis=0), 0.0), 0.0)
    variance = np.maximum(1 - values @ squares, 0.0)
    if release.clamp is None:  # in one unit: the variance of a feature is not known
        variance = left * max(total - float(values.sum()), 0.0) / max(d - k, 1)
    last = float(values[-1])
    for last in release.eigenvalues[k:]:
        share = np.minimum(variance / max(last, _SMALLEST_GAP), left)
        share /= max(float(share.sum()), 1.0)
        yield share, np.full(d, last)
        left, variance = left - share, variance - share * last
    yield left, np.minimum(variance / np.maximum(left, _SMALLEST_GAP), last)

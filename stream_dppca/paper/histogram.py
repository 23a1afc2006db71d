"""The private histogram learner (Lemma B.1; Karwa, Vadhan 2017), over unboundedly many bins.

Adjacency: one label is replaced, or turns null.
Sensitivity: one count falls and one rises by 1, so L1 = 2; at most one bin is occupied in one
    histogram and not in the other.
Noise: discrete Laplace of scale 2/epsilon on the count of every occupied bin.
Delta: a bin is released if its noisy count exceeds T; a lone record surfaces its bin with
    probability at most delta (`calibration.laplace_threshold`).
"""

from __future__ import annotations

import numpy as np

from ..arrays import IntArray
from ..calibration import laplace_threshold
from ..noise import Noise

__all__ = ["private_histogram"]


def private_histogram(
    labels: IntArray, *, epsilon: float, delta: float, noise: Noise
) -> tuple[IntArray, IntArray]:
    """Bins with many labels, and their noisy counts, sorted by bin.

    Parameters
    ----------
    labels
        The bin of each record. Nulls are left out by the caller.

    Examples
    --------
    >>> from stream_dppca.noise import SeededNoise
    >>> labels = np.array([7] * 500 + [-3] * 400 + [1])
    >>> bins, counts = private_histogram(labels, epsilon=1.0, delta=1e-6, noise=SeededNoise(1))
    >>> bins.tolist()
    [-3, 7]
    """
    bins, counts = np.unique(labels, return_counts=True)
    noisy = noise.laplace(counts, scale=2.0 / epsilon)
    released = noisy > laplace_threshold(epsilon, delta)
    return bins[released].astype(np.int64), noisy[released]

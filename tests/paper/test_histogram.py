"""The private histogram learner, Lemma B.1."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dppca.calibration import laplace_threshold
from stream_dppca.noise import SeededNoise
from stream_dppca.paper import private_histogram
from tests.conftest import FrozenNoise


@given(labels=st.lists(st.integers(-5, 5), max_size=200))
@settings(max_examples=100, deadline=None)
def test_without_noise_it_is_a_histogram_above_the_threshold(labels: list[int]) -> None:
    T = laplace_threshold(1.0, 1e-6)
    bins, counts = private_histogram(
        np.array(labels, dtype=np.int64), epsilon=1.0, delta=1e-6, noise=FrozenNoise()
    )
    expected = {b: labels.count(b) for b in set(labels) if labels.count(b) > T}
    assert dict(zip(bins.tolist(), counts.tolist(), strict=True)) == expected
    assert bins.tolist() == sorted(bins.tolist())  # the order of arrival is not an output


def test_lemma_b1_accuracy() -> None:
    """Enough records keep each frequency within beta with probability 1 - alpha."""
    epsilon, delta, beta, alpha = 1.0, 1e-6, 0.1, 0.05
    n = math.ceil(8 / (epsilon * beta) * math.log(4 / (alpha * delta)))
    labels = np.repeat([0, 1, 2], [n // 2, n // 3, n - n // 2 - n // 3])
    misses = 0
    for seed in range(200):
        bins, counts = private_histogram(
            labels, epsilon=epsilon, delta=delta, noise=SeededNoise(seed)
        )
        found = dict(zip(bins.tolist(), counts.tolist(), strict=True))
        misses += any(abs(found.get(b, 0) / n - np.mean(labels == b)) > beta for b in range(3))
    assert misses <= 200 * alpha


def test_nothing_in_nothing_out() -> None:
    bins, counts = private_histogram(
        np.array([], dtype=np.int64), epsilon=1.0, delta=1e-6, noise=SeededNoise(0)
    )
    assert len(bins) == len(counts) == 0

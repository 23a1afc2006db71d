"""Eigenvectors and spectra of released matrices, by decomposition and by iteration."""

from __future__ import annotations

import numpy as np
import pytest

from stream_dppca.mechanisms import eigen


def released(d: int) -> np.ndarray:
    """A matrix of noise with one component."""
    noise = np.random.default_rng(1).normal(size=(d, d))
    return (noise + noise.T) / 2 + 60 * np.ones((d, d)) / d


@pytest.mark.parametrize("d", [40, 100, 300, 600])
def test_both_ways_agree(d: int) -> None:
    S, sd = released(d), 1.0
    values, vectors = np.linalg.eigh(S)
    found = eigen.spectrum(S, 1, sd)
    assert abs(found.vectors[:, 0] @ vectors[:, -1]) > 1 - 1e-6
    assert found.values[0] == pytest.approx(values[-1], abs=0.2 * sd)
    assert found.weights.sum() == pytest.approx(d)
    # The others are taken together, nearly as they are.
    assert found.weights @ found.values**2 == pytest.approx(values @ values, rel=0.2)
    spread = np.sqrt(values @ values / d)
    assert found.weights @ found.values / d == pytest.approx(values.mean(), abs=0.2 * spread)


def test_memory_that_was_used_before_is_not_read() -> None:
    """It may hold records, and one NaN among them would decide what is released."""
    S = released(512)

    def lengths(value: float) -> int:
        used = np.full((257, 512), value)
        del used
        return len(eigen.spectrum(S, 1, 1.0).values)

    assert {lengths(value) for value in (0.0, np.nan, 0.0, np.inf, np.nan)} == {lengths(0.0)}


@pytest.mark.parametrize("d", [300, 512])
@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.parametrize("value", [0.0, 50.0, -50.0, 1e-200])
def test_matrices_without_a_direction(d: int, k: int, value: float) -> None:
    found = eigen.spectrum(value * np.eye(d), k, 1.0)
    assert found.vectors.shape == (d, k) and np.isfinite(found.vectors).all()
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-9)
    np.testing.assert_allclose(found.values, value, rtol=1e-9, atol=1e-210)
    assert found.weights.sum() == pytest.approx(d)

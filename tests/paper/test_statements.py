"""Statements of the paper about DP-PCA, on its own examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.baselines import private_oja
from stream_dppca import DPPCA, InverseTime, PaperDPPCA
from tests.conftest import FloatArray, signal_plus_noise, sine, spiked

pytestmark = pytest.mark.audit  # medians over many long runs

D = 5
#: A Gaussian tail, enough subsets for a bin to pass, and steps long enough for ten batches.
PAPER: dict[str, Any] = {
    "K": 1.0,
    "a": 0.5,
    "C1": 8.0,
    "step": InverseTime(50.0, 1.0),
}


def dppca_error(X: FloatArray, v: FloatArray, batch_size: int, seed: int, **changes: Any) -> float:
    params: dict[str, Any] = {
        "features": tuple(range(len(v))),
        "epsilon": 2.0,
        "delta": 1e-5,
        "batch_size": batch_size,
        "seed": seed,
        "center": "none",
        "scales": None,
    }
    made = PaperDPPCA if "K" in changes else DPPCA
    pca = made(**params | changes)
    pca.learn_array(X)
    return sine(pca.components[0], v)


def median_error(make: Any, n: int, parameter: float, batch_size: int, **changes: Any) -> float:
    errors = []
    for seed in range(7):
        X, v = make(np.random.default_rng(1000 + seed), n, D, parameter)
        errors.append(dppca_error(X, v, batch_size, seed, **changes))
    return float(np.median(errors))


@pytest.mark.parametrize("changes", [PAPER, {}], ids=["paper", "adaptive"])
def test_corollary_gaussian_error_falls_with_n(changes: dict[str, Any]) -> None:
    """Corollary 5.2: sin falls at least as sqrt(1/n) while privacy costs d/(epsilon n)."""
    few = median_error(spiked, 40_000, 0.1, 8_000, **changes)
    many = median_error(spiked, 640_000, 0.1, 64_000, **changes)
    assert many < few / 3
    assert many < 0.02


@pytest.mark.parametrize("changes", [PAPER, {}], ids=["paper", "adaptive"])
def test_example_error_vanishes_with_sigma(changes: dict[str, Any]) -> None:
    """Example 4.1: the error of DP-PCA falls with the noise in the data."""
    n, batch_size = 160_000, 10_000
    loud = median_error(signal_plus_noise, n, 0.3, batch_size, **changes)
    quiet = median_error(signal_plus_noise, n, 0.003, batch_size, **changes)
    assert quiet < loud / 5


def test_example_error_of_private_oja_does_not_vanish() -> None:
    """Example 4.1: clipping at the norm adds noise that is independent of the noise in the data."""
    errors = {}
    for sigma in (0.1, 0.001):
        found = []
        for seed in range(5):
            X, v = signal_plus_noise(np.random.default_rng(1000 + seed), 10_000, D, sigma)
            fit = private_oja(
                X, epsilon=0.4, delta=1e-5, clip=1.5, steps=InverseTime(3.0, 100.0), seed=seed
            )
            found.append(sine(fit.components[0], v))
        errors[sigma] = np.median(found)
    assert errors[0.001] > errors[0.1] / 2

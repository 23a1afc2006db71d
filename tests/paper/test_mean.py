"""Algorithm 5 and Lemma 6.2."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from stream_dppca.noise import SeededNoise
from stream_dppca.paper import private_mean
from stream_dppca.paper.mean import MeanBudget
from tests.conftest import FrozenNoise

BUDGET = MeanBudget.split(1.0, 1e-6)


def test_the_budget_of_the_privacy_page() -> None:
    """At (1, 1e-6) and d = 50: noise/sensitivity about 4.5, threshold about 790 counts."""
    assert 1 / BUDGET.mu_mean == pytest.approx(4.5, abs=0.15)
    assert BUDGET.threshold(50) == pytest.approx(791, rel=0.05)


def test_lemma_dpmean() -> None:
    """No truncation with probability 1 - zeta, and then: empirical mean plus the stated noise."""
    n, d, zeta = 6000, 8, 0.01
    errors, truncated = [], 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        mean = rng.uniform(-50, 50, d)
        G = mean + rng.standard_normal((n, d))
        # K = 1, a = 1/2 fit a Gaussian: P(|g| > sqrt(2 ln(1/zeta))) <= zeta, so K = sqrt 2.
        result = private_mean(
            G,
            np.zeros(n, bool),
            eigenvalue=1.0,
            budget=BUDGET,
            K=math.sqrt(2),
            a=0.5,
            zeta=zeta,
            noise=SeededNoise(seed),
        )
        assert result is not None
        errors.append((result.mean - G.mean(axis=0)) / result.sigma)
        exact = private_mean(
            G,
            np.zeros(n, bool),
            eigenvalue=1.0,
            budget=BUDGET,
            K=math.sqrt(2),
            a=0.5,
            zeta=zeta,
            noise=FrozenNoise(),
        )
        assert exact is not None
        truncated += not np.allclose(exact.mean, G.mean(axis=0), atol=1e-7)
    assert truncated <= 3  # 60 zeta = 0.6 expected; more than 3 in one run of 500
    # The noise is Gaussian with the stated sd; false alarm one in a million.
    assert stats.kstest(np.ravel(errors), "norm").pvalue > 1e-6


def test_sensitivity_is_that_of_a_box_over_the_slots() -> None:
    """sigma = 2 R sqrt(d) / (n mu_m), n the slots of this very input."""
    n, d = 4000, 3
    G = np.random.default_rng(0).standard_normal((n, d))
    result = private_mean(G, np.zeros(n, bool), eigenvalue=1.0, budget=BUDGET, noise=FrozenNoise())
    assert result is not None
    R = 3 * 4 * math.log(n * d / 0.01)
    assert result.sigma == pytest.approx(2 * R * math.sqrt(d) / n / BUDGET.mu_mean, rel=1e-5)


def test_no_record_moves_the_mean_further_than_the_box() -> None:
    n, d = 3000, 4
    rng = np.random.default_rng(2)
    G = rng.standard_normal((n, d)) + 5

    def mean(G: np.ndarray, null: np.ndarray) -> np.ndarray:
        result = private_mean(G, null, eigenvalue=1.0, budget=BUDGET, noise=FrozenNoise())
        assert result is not None
        return result.mean

    none = np.zeros(n, bool)
    R = 3 * 4 * math.log(n * d / 0.01)
    for far in (1e3, 1e30):
        for signs in ([1, 1, 1, 1], [1, -1, 1, -1]):
            H, J = G.copy(), G.copy()
            H[17], J[17] = far * np.array(signs), -far * np.array(signs)
            moved = np.linalg.norm(mean(H, none) - mean(J, none))
            assert moved == pytest.approx(2 * R * math.sqrt(d) / n, rel=1e-6)
    null = none.copy()
    null[17] = True
    assert np.linalg.norm(mean(G, none) - mean(G, null)) <= R * math.sqrt(d) / n


def test_nulls_add_nothing_and_keep_their_slots() -> None:
    n = 4000
    G = np.full((n, 2), 3.3)
    null = np.arange(n) % 2 == 0
    G[null] = 0.0
    result = private_mean(G, null, eigenvalue=0.01, budget=BUDGET, noise=FrozenNoise())
    assert result is not None
    # The centre is the left edge of the bin of 3.3; half of the distance to it remains.
    tau = 2**0.25 * 4 * 0.1 * math.log(25)
    edge = (math.ceil(3.3 / tau) - 1) * tau
    assert result.mean == pytest.approx([edge + (3.3 - edge) / 2] * 2, abs=1e-6)


@pytest.mark.parametrize("n", [1, 50, 700])
def test_too_few_for_any_bin_is_none(n: int) -> None:
    G = np.ones((n, 50))
    assert (
        private_mean(G, np.zeros(n, bool), eigenvalue=1.0, budget=BUDGET, noise=FrozenNoise())
        is None
    )


def test_all_nulls_and_extremes() -> None:
    G = np.zeros((2000, 2))
    all_null = np.ones(2000, bool)
    assert private_mean(G, all_null, eigenvalue=1.0, budget=BUDGET, noise=FrozenNoise()) is None
    G[:] = 1e36
    result = private_mean(G, ~all_null, eigenvalue=1e-300, budget=BUDGET, noise=SeededNoise(0))
    assert result is None or np.isfinite(result.mean).all()

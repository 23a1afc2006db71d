"""Algorithm 4 and Theorem 6.1."""

from __future__ import annotations

import numpy as np
import pytest

from stream_dppca.errors import ParameterError
from stream_dppca.noise import SeededNoise
from stream_dppca.paper import private_top_eigenvalue
from stream_dppca.paper.eigenvalue import subset_count
from tests.conftest import FrozenNoise

BUDGET = {"epsilon": 1.0, "delta": 1e-6}


def rows(rng: np.random.Generator, n: int, d: int, top: float, mean: float) -> np.ndarray:
    scale = np.sqrt(np.linspace(top, top / 10, d))
    return mean + scale * rng.standard_normal((n, d))


@pytest.mark.parametrize("top, mean", [(1.0, 0.0), (37.0, 1e4), (1e-8, 3.0)])
def test_theorem_eigen(top: float, mean: float) -> None:
    """The estimate lies within a factor sqrt 2 of the truth, whatever the scale and the mean."""
    n, d = 40_000, 5
    for seed in range(20):
        rng = np.random.default_rng(seed)
        G = rows(rng, n, d, top, mean)
        found = private_top_eigenvalue(G, np.zeros(n, bool), **BUDGET, noise=SeededNoise(seed))
        assert found is not None
        assert top / np.sqrt(2) <= found <= top * np.sqrt(2)


def test_bottom_when_the_subsets_disagree() -> None:
    rng = np.random.default_rng(0)
    n = 8 * subset_count(1.0, 1e-6, 0.01, 4.0)
    G = rng.standard_normal((n, 2)) * np.exp(rng.uniform(-40, 40, (n, 1)))
    assert private_top_eigenvalue(G, np.zeros(n, bool), **BUDGET, noise=FrozenNoise()) is None


@pytest.mark.parametrize("n", [600, 601, 777])
def test_constants_and_nulls_are_bottom(n: int) -> None:
    G = np.full((n, 3), 7.0)
    for null in (np.zeros(n, bool), np.ones(n, bool)):
        assert private_top_eigenvalue(G, null, **BUDGET, noise=FrozenNoise()) is None


def test_one_record_moves_one_eigenvalue() -> None:
    """Replace one gradient, or make it a null: the true histogram moves by at most one count."""
    rng = np.random.default_rng(1)
    n = 8 * subset_count(1.0, 1e-6, 0.01, 4.0) + 3
    G, null = rng.standard_normal((n, 3)), np.zeros(n, bool)

    def labels(G: np.ndarray, null: np.ndarray) -> dict[float, float]:
        noise = FrozenNoise()
        private_top_eigenvalue(G, null, **BUDGET, noise=noise)
        return sorted(noise.asked[0])

    before = labels(G, null)
    for i in rng.integers(0, n, 20):
        for changed in (1e15, 0.0, None):
            H, other = G.copy(), null.copy()
            if changed is None:
                H[i], other[i] = 0.0, True
            else:
                H[i] = changed
            after = labels(H, other)
            assert sum(after) == sum(before)
            assert abs(len(after) - len(before)) <= 1


def test_too_few_rows_is_said() -> None:
    with pytest.raises(ParameterError, match="`G` must have at least 148 rows"):
        private_top_eigenvalue(np.zeros((20, 2)), np.zeros(20, bool), **BUDGET, noise=FrozenNoise())

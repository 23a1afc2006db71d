"""The law of the noise, and that nothing can draw it twice."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from scipy import stats

from stream_dppca.errors import DPPCAError
from stream_dppca.noise import GRID_SD, SecureNoise, SeededNoise, make_noise

# Each statistical test below raises a false alarm once in a million runs.
FALSE_ALARM = 1e-6


@pytest.mark.parametrize("noise", [SecureNoise(), SeededNoise(5)], ids=["secure", "seeded"])
def test_gaussian_law(noise: SecureNoise | SeededNoise) -> None:
    z = noise.gaussian(np.full(4000, 17.0), sensitivity=3.0, mu=0.5) - 17.0
    assert stats.kstest(z / 6.0, "norm").pvalue > FALSE_ALARM
    # Coordinates are independent: neighbours do not correlate.
    r = np.corrcoef(z[:-1], z[1:])[0, 1]
    assert abs(r) * math.sqrt(len(z)) < stats.norm.isf(FALSE_ALARM / 2)


@pytest.mark.parametrize("noise", [SecureNoise(), SeededNoise(5)], ids=["secure", "seeded"])
def test_laplace_law(noise: SecureNoise | SeededNoise) -> None:
    z = noise.laplace(np.zeros(4000, dtype=np.int64), scale=2.0)
    p = math.exp(-1 / 2.0)
    edges = np.arange(-12, 13)
    pmf = (1 - p) / (1 + p) * p ** np.abs(edges)
    observed = np.array([(z == k).sum() for k in edges] + [(np.abs(z) > 12).sum()])
    expected = np.append(pmf, 1 - pmf.sum()) * len(z)
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def test_the_grid_costs_almost_nothing() -> None:
    sd = SecureNoise.gaussian_sd(10_000, sensitivity=1.0, mu=0.2)
    assert 5.0 < sd < 5.0 * (1 + 1e-5)


def test_the_grid_pays_for_its_rounding() -> None:
    """(sensitivity + 2 sqrt(m) grid units) / sd is mu, exactly."""
    m, mu = 10_000, 0.2
    sd = SecureNoise.gaussian_sd(m, sensitivity=1.0, mu=mu)
    unit = sd / GRID_SD
    assert (1.0 + 2 * math.sqrt(m) * unit) / sd == pytest.approx(mu, rel=1e-12)


def test_rounding_is_to_the_grid() -> None:
    """Whatever the query, what leaves is a whole number of grid units."""
    noise = SeededNoise(1)
    unit = noise.gaussian_sd(3, sensitivity=1.0, mu=1.0) / GRID_SD
    released = noise.gaussian(np.array([0.1, 1 / 3, math.pi]), sensitivity=1.0, mu=1.0)
    assert np.array_equal(released / unit, np.rint(released / unit))


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.nan, math.inf])
def test_no_noise_without_a_sensitivity(sensitivity: float) -> None:
    with pytest.raises(DPPCAError):
        SecureNoise().gaussian(np.zeros(2), sensitivity=sensitivity, mu=1.0)


def test_huge_queries_saturate_instead_of_wrapping() -> None:
    released = SecureNoise().gaussian(np.array([1e300, -1e300]), sensitivity=1.0, mu=1.0)
    assert released[0] > 1e6 and released[1] < -1e6


def test_copies_of_the_production_source_draw_afresh() -> None:
    noise = make_noise(None)
    copies = [noise, copy.deepcopy(noise), pickle.loads(pickle.dumps(noise)), noise.at_batch(3)]
    draws = [tuple(n.gaussian(np.zeros(4), sensitivity=1.0, mu=1.0)) for n in copies]
    assert len(set(draws)) == len(draws)
    assert all(n.private for n in copies)


def test_seeded_noise_depends_on_seed_and_batch_only() -> None:
    def draw(seed: int, batch: int) -> tuple[float, ...]:
        source = SeededNoise(seed).at_batch(batch)
        return tuple(source.gaussian(np.zeros(4), sensitivity=1.0, mu=1.0))

    assert draw(1, 1) == draw(1, 1)
    assert len({draw(1, 1), draw(1, 2), draw(2, 1)}) == 3
    assert not SeededNoise(1).private


@pytest.mark.parametrize("noise", [SecureNoise(), SeededNoise(5)], ids=["secure", "seeded"])
def test_numbers_released_one_by_one_have_the_same_law(noise: SecureNoise | SeededNoise) -> None:
    release = noise.gaussian_each(3000, sensitivity=3.0, mu=0.5)
    z = np.array([release(17.0) for _ in range(3000)]) - 17.0
    assert stats.kstest(z / 6.0, "norm").pvalue > FALSE_ALARM
    with pytest.raises(StopIteration):
        release(17.0)  # no number without noise of its own
    huge = noise.gaussian_each(1, sensitivity=1.0, mu=1.0)
    assert 1e6 < huge(1e300) < 1e9

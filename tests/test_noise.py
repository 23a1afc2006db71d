"""The sources of noise: their law, their grid, and that no noise is drawn twice.

`test_sampler.py` has the exact sampler itself.
"""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from stream_dppca.errors import DPPCAError
from stream_dppca.noise import Noise, SeededNoise, make_noise
from stream_dppca.noise.sampler import SMALLEST_SD

# Each statistical test below raises a false alarm once in 10^8 runs.
FALSE_ALARM = 1e-8
SOURCES = [
    pytest.param(Noise(), id="exact"),
    pytest.param(SeededNoise(5), id="seeded"),
]


@pytest.mark.parametrize("noise", SOURCES)
def test_gaussian_law(noise: Noise) -> None:
    z = noise.gaussian(np.full(4000, 17.0), sensitivity=3.0, mu=0.5) - 17.0
    assert stats.kstest(z / 6.0, "norm").pvalue > FALSE_ALARM
    # Coordinates are independent: neighbours do not correlate.
    r = np.corrcoef(z[:-1], z[1:])[0, 1]
    assert abs(r) * math.sqrt(len(z)) < stats.norm.isf(FALSE_ALARM / 2)


@pytest.mark.parametrize("noise", SOURCES)
def test_laplace_law(noise: Noise) -> None:
    z = noise.laplace(np.zeros(4000, dtype=np.int64), scale=2.0)
    p = math.exp(-1 / 2.0)
    edges = np.arange(-12, 13)
    pmf = (1 - p) / (1 + p) * p ** np.abs(edges)
    observed = np.array([(z == k).sum() for k in edges] + [(np.abs(z) > 12).sum()])
    expected = np.append(pmf, 1 - pmf.sum()) * len(z)
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def test_opendp_draws_the_same_law() -> None:
    """OpenDP's samplers are the oracle: two samples, one law."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=6000)
    counts = np.zeros(6000, dtype=np.int64)
    sensitivity, mu = 0.37, 0.11
    ours = Noise().gaussian(np.full(6000, math.pi), sensitivity=sensitivity, mu=mu) - math.pi
    draw = dp.m.make_gaussian(space, dp.l2_distance(T="f64"), scale=SMALLEST_SD)
    theirs = np.array(draw(counts.tolist())) / SMALLEST_SD * (sensitivity / mu)
    assert stats.ks_2samp(ours, theirs).pvalue > FALSE_ALARM
    draw = dp.m.make_laplace(space, dp.l1_distance(T="i64"), scale=40.0)
    theirs = np.array(draw(counts.tolist()))
    assert stats.ks_2samp(Noise().laplace(counts, scale=40.0), theirs).pvalue > FALSE_ALARM


@pytest.mark.parametrize("noise", [Noise(), SeededNoise(1)], ids=["exact", "seeded"])
def test_mu_is_sensitivity_over_sd(noise: Noise) -> None:
    """At most, and nearly: whatever the number of coordinates, no more than mu is spent."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        sensitivity, mu = float(10 ** rng.uniform(-60, 60)), float(10 ** rng.uniform(-6, 2))
        sd = noise.gaussian_sd(sensitivity=sensitivity, mu=mu)
        spent = Fraction(sensitivity) / Fraction(sd)
        assert Fraction(mu) * (1 - Fraction(1, 2**50)) < spent <= Fraction(mu)


@pytest.mark.parametrize("noise", SOURCES)
def test_what_leaves_is_on_the_grid(noise: Noise) -> None:
    sd = noise.gaussian_sd(sensitivity=1.0, mu=0.3)
    unit = noise._unit(sd)
    released = noise.gaussian(np.array([0.1, 1 / 3, math.pi]), sensitivity=1.0, mu=0.3)
    assert np.array_equal(released / unit, np.rint(released / unit))


def test_the_unit_is_a_power_of_two() -> None:
    rng = np.random.default_rng(1)
    for sd in [1.0, 2.0, 0.5, *2.0 ** rng.uniform(-800, 800, 100)]:
        unit = Noise._unit(float(sd))
        assert math.frexp(unit)[0] == 0.5
        assert 2**24 <= sd / unit < 2**25


@pytest.mark.parametrize("mu", [1.0, math.nan, 0.0, -1.0, 1e-300])
@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
@pytest.mark.parametrize("noise", SOURCES)
def test_no_noise_without_a_sensitivity_and_a_budget(
    noise: Noise, sensitivity: float, mu: float
) -> None:
    with pytest.raises(DPPCAError):
        noise.gaussian(np.zeros(2), sensitivity=sensitivity, mu=mu)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-9, 1e30])
def test_no_laplace_noise_without_a_scale(scale: float) -> None:
    with pytest.raises(DPPCAError):
        Noise().laplace(np.zeros(2, dtype=np.int64), scale=scale)


@pytest.mark.parametrize("noise", SOURCES)
def test_huge_queries_saturate_instead_of_wrapping(noise: Noise) -> None:
    released = noise.gaussian(np.array([1e300, -1e300, np.inf]), sensitivity=1.0, mu=1.0)
    assert released[0] > 1e6 and released[1] < -1e6 and 1e6 < released[2] < 1e9


def test_tiny_queries_leave_no_trace_beyond_the_noise() -> None:
    """Numbers that vanish when divided by the unit neither warn nor leave a sign."""
    tiny = np.array([5e-324, -5e-324, -0.0])
    released = Noise().gaussian(tiny, sensitivity=1e100, mu=1.0)
    assert np.isfinite(released).all()


def test_copies_of_the_production_source_draw_afresh() -> None:
    noise = make_noise(None)
    copies = [noise, copy.deepcopy(noise), pickle.loads(pickle.dumps(noise)), noise.at_batch(3)]
    draws = [tuple(n.gaussian(np.zeros(4), sensitivity=1.0, mu=1.0)) for n in copies]
    assert len(set(draws)) == len(draws)
    assert all(n.private for n in copies)


def test_a_seed_chooses_the_source() -> None:
    assert type(make_noise(None)) is Noise
    assert type(make_noise(3)) is SeededNoise


def test_seeded_noise_depends_on_seed_and_batch_only() -> None:
    def draw(seed: int, batch: int) -> tuple[float, ...]:
        source = SeededNoise(seed).at_batch(batch)
        return tuple(source.gaussian(np.zeros(4), sensitivity=1.0, mu=1.0))

    assert draw(1, 1) == draw(1, 1)
    assert len({draw(1, 1), draw(1, 2), draw(2, 1)}) == 3
    assert not SeededNoise(1).private

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

from stream_dppca.errors import DPPCAError, ParameterError
from stream_dppca.noise import Noise, OpenDPNoise, SecureNoise, SeededNoise, make_noise, sources

# Each statistical test below raises a false alarm once in 10^8 runs.
FALSE_ALARM = 1e-8
SOURCES = [
    pytest.param(SecureNoise(), id="exact"),
    pytest.param(OpenDPNoise(), id="opendp"),
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


def test_the_samplers_agree() -> None:
    """OpenDP's samplers are the oracle: two samples, one law."""
    how = {"sensitivity": 0.37, "mu": 0.11}
    query = np.full(6000, math.pi)
    ours, theirs = (n.gaussian(query, **how) for n in (SecureNoise(), OpenDPNoise()))
    assert stats.ks_2samp(ours, theirs).pvalue > FALSE_ALARM
    counts = np.zeros(6000, dtype=np.int64)
    ours, theirs = (n.laplace(counts, scale=40.0) for n in (SecureNoise(), OpenDPNoise()))
    assert stats.ks_2samp(ours, theirs).pvalue > FALSE_ALARM


@pytest.mark.parametrize("noise", [SecureNoise(), SeededNoise(1)], ids=["exact", "seeded"])
def test_mu_is_sensitivity_over_sd(noise: Noise) -> None:
    """At most, and nearly: whatever the number of coordinates, no more than mu is spent."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        sensitivity, mu = float(10 ** rng.uniform(-60, 60)), float(10 ** rng.uniform(-6, 2))
        sd = noise.gaussian_sd(10**9, sensitivity=sensitivity, mu=mu)
        spent = Fraction(sensitivity) / Fraction(sd)
        assert Fraction(mu) * (1 - Fraction(1, 2**50)) < spent <= Fraction(mu)


def test_opendp_pays_for_its_rounding() -> None:
    """(sensitivity + 2 sqrt(m) grid units) / sd is at most mu."""
    m, mu = 10_000, 0.2
    sd = OpenDPNoise.gaussian_sd(m, sensitivity=1.0, mu=mu)
    unit = OpenDPNoise._unit(sd)
    assert (1.0 + 2 * math.sqrt(m) * unit) / sd == pytest.approx(mu, rel=1e-12)
    assert 5.0 < sd < 5.0 * (1 + 1e-5)


@pytest.mark.parametrize("noise", SOURCES)
def test_what_leaves_is_on_the_grid(noise: Noise) -> None:
    sd = noise.gaussian_sd(3, sensitivity=1.0, mu=0.3)
    unit = noise._unit(sd)
    released = noise.gaussian(np.array([0.1, 1 / 3, math.pi]), sensitivity=1.0, mu=0.3)
    # Dividing by OpenDP's unit, which is not a power of two, is off by a last digit.
    assert released / unit == pytest.approx(np.rint(released / unit), rel=1e-15, abs=0)


def test_the_unit_is_a_power_of_two() -> None:
    rng = np.random.default_rng(1)
    for sd in [1.0, 2.0, 0.5, *2.0 ** rng.uniform(-800, 800, 100)]:
        unit = SecureNoise._unit(float(sd))
        assert math.frexp(unit)[0] == 0.5
        assert 2**28 <= sd / unit < 2**29


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
        SecureNoise().laplace(np.zeros(2, dtype=np.int64), scale=scale)


@pytest.mark.parametrize("noise", SOURCES)
def test_huge_queries_saturate_instead_of_wrapping(noise: Noise) -> None:
    released = noise.gaussian(np.array([1e300, -1e300, np.inf]), sensitivity=1.0, mu=1.0)
    assert released[0] > 1e6 and released[1] < -1e6 and 1e6 < released[2] < 1e9


def test_tiny_queries_leave_no_trace_beyond_the_noise() -> None:
    """Numbers that vanish when divided by the unit neither warn nor leave a sign."""
    tiny = np.array([5e-324, -5e-324, -0.0])
    released = SecureNoise().gaussian(tiny, sensitivity=1e100, mu=1.0)
    assert np.isfinite(released).all()


def test_copies_of_the_production_source_draw_afresh() -> None:
    noise = make_noise(None)
    copies = [noise, copy.deepcopy(noise), pickle.loads(pickle.dumps(noise)), noise.at_batch(3)]
    draws = [tuple(n.gaussian(np.zeros(4), sensitivity=1.0, mu=1.0)) for n in copies]
    assert len(set(draws)) == len(draws)
    assert all(n.private for n in copies)


def test_a_source_by_name() -> None:
    assert type(make_noise(None)) is SecureNoise
    assert type(make_noise(None, "opendp")) is OpenDPNoise
    assert type(make_noise(3, "opendp")) is SeededNoise
    with pytest.raises(ParameterError, match="`sampler` must be one of exact, opendp"):
        make_noise(None, "openDP")  # type: ignore[arg-type]


def test_opendp_is_asked_for_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes at once, not in the middle of a batch."""
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    assert type(make_noise(None)) is SecureNoise
    with pytest.raises(DPPCAError, match="needs OpenDP: pip install"):
        make_noise(None, "opendp")


def test_seeded_noise_depends_on_seed_and_batch_only() -> None:
    def draw(seed: int, batch: int) -> tuple[float, ...]:
        source = SeededNoise(seed).at_batch(batch)
        return tuple(source.gaussian(np.zeros(4), sensitivity=1.0, mu=1.0))

    assert draw(1, 1) == draw(1, 1)
    assert len({draw(1, 1), draw(1, 2), draw(2, 1)}) == 3
    assert not SeededNoise(1).private


@pytest.mark.parametrize("noise", SOURCES)
def test_numbers_released_one_by_one_have_the_same_law(noise: Noise) -> None:
    release = noise.gaussian_each(3000, sensitivity=3.0, mu=0.5)
    z = np.array([release(17) for _ in range(3000)]) - 17.0
    assert stats.kstest(z / 6.0, "norm").pvalue > FALSE_ALARM
    with pytest.raises(StopIteration):
        release(17)  # no number without noise of its own
    huge = noise.gaussian_each(1, sensitivity=1.0, mu=1.0)
    assert 1e6 < huge(10**300) < 1e9


@pytest.mark.parametrize("noise", SOURCES)
def test_numbers_released_one_by_one_are_whole_units(noise: Noise) -> None:
    """Their noise is rounded before they are known, so they must not need rounding."""
    release = noise.gaussian_each(2, sensitivity=1.0, mu=1.0)
    with pytest.raises(TypeError):
        release(0.1)  # type: ignore[arg-type]
    release(np.int64(3))  # type: ignore[arg-type]
    with pytest.raises(DPPCAError, match="too small for counts"):
        noise.gaussian_each(1, sensitivity=2.0**30, mu=1.0)

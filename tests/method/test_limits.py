"""Limits: private quantiles of scores, their uncertainty, and when they are absent."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from stream_dppca import DPPCA, ParameterError, PerSubject, Projector, Release, StateError
from stream_dppca.arrays import FloatArray
from stream_dppca.batch import Batch, Reading
from stream_dppca.method import limits
from stream_dppca.method.limits import LIMITS, MomentsAndScores, ScoreCounts
from stream_dppca.method.statistics import AugmentedMoments
from stream_dppca.statistics import Bundle
from stream_dppca.subjects.units import SubjectRows

D, K, B = 6, 2, 10_000
FEATURES = tuple("abcdef")


def model(**changes: Any) -> DPPCA:
    how = {"features": FEATURES, "epsilon": 1.0, "delta": 1e-6, "n_components": K, "seed": 1}
    return DPPCA(**({"batch_size": B} if "unit" not in changes else {}) | how | changes)


def records(n: int, seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    loads = rng.standard_normal((n, 2)) @ np.random.default_rng(9).standard_normal((2, D))
    return np.asarray(50 + 3 * loads + rng.standard_normal((n, D)))


def released(pca: DPPCA) -> Release:
    assert pca.last_release is not None
    return pca.last_release


def rates(release: Release, score: Any) -> list[float]:
    return [limit.rate for limit in release.limits.get(score, ())]


def counts_of(scores: ScoreCounts, X: FloatArray) -> FloatArray:
    """The histograms, from the scores of a `Projector`."""
    r = np.where(scores.inverse > 0, 1 / np.where(scores.inverse > 0, scores.inverse, 1.0), 0.0)
    projector = Projector(
        FEATURES,
        scores.W,
        np.array(scores.center),
        np.array(scores.scale),
        np.array(scores.clamp),
        scores.mean,
        r,
        1 / scores.precision,
    )
    found = [projector.spe(X), projector.t2(X)]
    edges = [limits._EDGES * expected for expected in scores.expected]
    return np.array(
        [
            np.bincount(np.searchsorted(e, s[np.isfinite(s)], side="right"), minlength=len(e) + 1)
            for e, s in zip(edges, found, strict=True)
        ]
    )


@pytest.fixture
def scores() -> ScoreCounts:
    rng = np.random.default_rng(4)
    return ScoreCounts(
        center=tuple(rng.normal(50, 1, D)),
        scale=(3.0,) * D,
        clamp=(5.0,) * (D - 1) + (3.0,),
        mean=rng.normal(0, 0.3, D),
        inverse=np.r_[rng.uniform(0.5, 1.5, D - 1), 0.0],
        W=np.linalg.qr(rng.standard_normal((D, K)))[0],
        precision=np.array([0.5, 2.0]),
        expected=(3.0, 2.0),
    )


def odd(X: FloatArray) -> FloatArray:
    """Values far beyond the clamp, and records that cannot be read."""
    X = X.copy()
    X[::7, 1], X[3::50, 4], X[5::90, 2] = 1e6, -1e12, np.nan
    return X


def test_counts_are_those_of_the_scores(scores: ScoreCounts) -> None:
    X = odd(records(9000))
    expected = counts_of(scores, X[np.isfinite(X).all(axis=1)])
    assert expected.sum() > 2 * 8000 and (expected > 0).sum() > 20
    found = Batch(X, Reading(max_norm=1e18)).total(scores)
    assert np.array_equal(found, expected)


def test_moments_and_counts_come_in_one_pass(scores: ScoreCounts) -> None:
    X = odd(records(9000))
    how = {"center": scores.center, "scale": scores.scale, "clamp": scores.clamp}
    moments = AugmentedMoments(**how, constant=1.0, radius=9.0)
    batch, both = Batch(X, Reading(max_norm=1e18)), MomentsAndScores(moments, scores)
    one, other = both.split(batch.total(both))
    assert np.array_equal(one, batch.total(moments))
    assert np.array_equal(other, counts_of(scores, X[np.isfinite(X).all(axis=1)]))


def test_values_beyond_the_clamp_take_little_memory() -> None:
    """All of them, as if a unit had changed."""
    rng, d, k = np.random.default_rng(1), 200, 20
    many = ScoreCounts(
        center=(0.0,) * d,
        scale=(1.0,) * d,
        clamp=(5.0,) * d,
        mean=np.zeros(d),
        inverse=np.ones(d),
        W=np.linalg.qr(rng.standard_normal((d, k)))[0],
        precision=np.ones(k),
        expected=(3.0, 2.0),
    )
    X = 1e6 * rng.standard_normal((4096, d))
    tracemalloc.start()
    Batch(X, Reading(max_norm=1e18)).total(many)
    assert tracemalloc.get_traced_memory()[1] < 8 * X.nbytes
    tracemalloc.stop()


def test_a_missing_value_is_filled_in_and_too_few_are_not_scored(scores: ScoreCounts) -> None:
    X = odd(records(3000))
    X[::11, :2], X[::13, :3] = np.nan, np.nan  # of five features with spread
    found = Batch(X, Reading(max_norm=1e18, partial=True)).total(scores)
    assert np.array_equal(found, counts_of(scores, X))


def test_a_subject_adds_the_shares_of_its_rows(scores: ScoreCounts) -> None:
    X, places = records(300), np.repeat(np.arange(100), 3)
    found = SubjectRows(X, places, 120, Reading(max_norm=1e18)).total(scores)
    assert np.allclose(found, counts_of(scores, X) / 3)
    assert np.allclose(found.sum(axis=1), 100)
    assert scores.sensitivity(120, 1) == 2.0 < scores.sensitivity(120, 3) < 2.0001
    # Places are not public: no row changes the bin of another, not even by rounding.
    alone = [scores(Bundle.of(X[3 * i : 3 * i + 3], 3)) for i in range(100)]
    assert np.array_equal(np.rint(np.sum(alone, axis=0) * 3), np.rint(found * 3))


def test_logarithms_do_not_depend_on_the_place() -> None:
    values = np.random.default_rng(0).uniform(1, 1e9, 1000)
    whole = np.log(values)
    for size in (1, 3, 7, 16):
        for i in range(0, 100, size):
            assert np.array_equal(np.log(values[i : i + size]), whole[i : i + size])


@pytest.mark.parametrize("seed", range(3))
def test_the_limit_of_one_percent_is_there_by_100_000_records(seed: int) -> None:
    pca, later = model(seed=seed), records(200_000, 99)
    for batch in range(10):
        pca.learn_array(records(B, batch))
    release = released(pca)
    projector = Projector.from_release(release.model_dump_json())
    for score in ("spe", "t2"):
        assert rates(release, score) == [0.1, 0.05, 0.01]
        found = getattr(projector, score)(later)
        values = [limit.value for limit in release.limits[score]]  # type: ignore[index]
        assert values == sorted(values)
        for limit in release.limits[score]:  # type: ignore[index]
            assert 0.5 * limit.rate < np.mean(found > limit.value) < 2 * limit.rate
            assert abs(limit.value - np.quantile(found, 1 - limit.rate)) < 4.5 * limit.sd
            assert limit.sd < 0.1 * limit.value


@pytest.mark.parametrize("k", [1, 2, 3, 10])
@pytest.mark.parametrize("clear", [4.0, 6.0, 15.0])
def test_the_stated_sd_is_that_of_noisy_counts(k: int, clear: float) -> None:
    """Also where all that lies beyond the bin of the limit drowns in noise."""
    rng, rate, n = np.random.default_rng(3), 0.01, 50_000
    true = float(chi2.ppf(1 - rate, k))
    shares = np.diff(chi2.cdf(limits._EDGES * k, k), prepend=0.0, append=1.0)
    sd = rate * n / (clear * np.sqrt(np.sum(limits._EDGES * k > true) + 1))
    errors = []
    for _ in range(400):
        counts = rng.multinomial(n, shares) + rng.normal(0, sd, len(shares))
        for limit in limits._limits(counts, sd, float(k), 0.0):
            if limit.rate == rate:
                errors.append((limit.value - true) / limit.sd)
    assert len(errors) > 300 and abs(np.mean(errors)) < 0.5
    assert 0.7 < np.std(errors) < 1.3


def test_the_stated_sd_is_that_of_limits_on_a_stream() -> None:
    errors, later = [], records(100_000, 99)
    for seed in range(5):
        pca = model(seed=seed)
        for batch in range(10):
            pca.learn_array(records(B, 20 * seed + batch))
            if batch not in (1, 4, 9):
                continue
            projector = Projector.from_release(released(pca))
            for score, told in released(pca).limits.items():
                found = getattr(projector, score)(later)
                for limit in told:
                    true = np.quantile(found, 1 - limit.rate)
                    errors.append((limit.value - true) / limit.sd)
    assert len(errors) > 60 and 0.5 < np.std(errors) < 1.3


def test_one_batch_has_limits_of_its_own() -> None:
    pca = model(batch_size=100_000, batches=1)
    pca.learn_array(records(100_000))
    assert set(rates(released(pca), "spe")) >= {0.1, 0.05, 0.01}


def test_without_limits_the_components_have_the_budget() -> None:
    with_, without = model(), model(limits=False)
    for batch in range(2):
        for pca in (with_, without):
            pca.learn_array(records(B, batch))
    assert released(with_).limits and not released(without).limits
    sigma = released(without).sigma, released(with_).sigma
    assert sigma[0] is not None and sigma[1] is not None
    assert sigma[0] / sigma[1] == pytest.approx((1 - LIMITS) ** 0.5, rel=1e-3)
    with pytest.raises(ParameterError, match="`limits` must be True or False"):
        model(limits="no")


def test_limits_begin_anew_when_the_past_is_dropped() -> None:
    pca = model(epsilon=4.0, seed=2)
    for batch in range(12):
        pca.learn_array(records(B, batch))
    assert released(pca).limits
    for batch in range(20):
        pca.learn_array(records(B, batch) @ np.diag([1, -1, 1, -1, 1, -1]) * [3, 1, 1, 1, 1, 1])
        if released(pca).drift:
            break
    assert released(pca).drift and not released(pca).limits
    pca.learn_array(records(B, 50) @ np.diag([1, -1, 1, -1, 1, -1]) * [3, 1, 1, 1, 1, 1])
    assert rates(released(pca), "spe")


def test_a_state_holds_limits_and_resumes() -> None:
    pca = model()
    for batch in range(4):
        pca.learn_array(records(B, batch))
    state = json.loads(json.dumps(pca.state()))
    twin = DPPCA.from_state(state)
    assert twin.last_release == pca.last_release
    assert twin._method._told()["limits"] == released(pca).limits  # type: ignore[attr-defined]
    twin.learn_array(records(B, 9))
    assert set(rates(released(twin), "t2")) >= {0.1, 0.05}
    assert len(json.dumps(state["method"]["limits"])) < 1000
    for change in ({"expected": 1e200}, {"expected": -1.0}, {"total": "AAAA"}, {"noise": -1.0}):
        bad = json.loads(json.dumps(state))
        bad["method"]["limits"] |= change
        with pytest.raises(StateError):
            DPPCA.from_state(bad)


def test_subjects_have_limits() -> None:
    unit = PerSubject("id", places=4000, records=2)
    pca = model(unit=unit, epsilon=4.0)
    for batch in range(4):
        pca.learn_array(records(8000, batch), subjects=np.repeat(np.arange(4000), 2))
        pca.close_round()
    release = released(pca)
    assert set(rates(release, "spe")) >= {0.1, 0.05}
    found = Projector.from_release(release).spe(records(50_000, 77))
    for limit in release.limits["spe"]:
        assert 0.5 * limit.rate < np.mean(found > limit.value) < 2 * limit.rate


def test_many_equal_scores_have_no_limit_among_them() -> None:
    """A share of 4 % lies at one score: nothing tells apart one percent of the records."""
    counts = np.zeros(limits._BINS)
    place = int(np.searchsorted(limits._EDGES, 100.0))
    low, high = limits._EDGES[place - 1 : place + 1]
    assert low < 100.0 < high
    counts[12:18], counts[place] = 16_000.0, 4_000.0
    assert [limit.rate for limit in limits._limits(counts, 10.0, 1.0, 0.0)] == [0.1, 0.05]
    counts[place - 1] = 4_000.0  # a tail that falls
    assert 0.01 in [limit.rate for limit in limits._limits(counts, 10.0, 1.0, 0.0)]


def test_noise_alone_has_no_limit() -> None:
    for seed in range(200):
        counts = np.random.default_rng(seed).normal(0, 40.0, limits._BINS)
        assert limits._limits(counts, 40.0, 1.0, 0.0) == ()

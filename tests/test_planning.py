"""The plan against simulations, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stream_dppca import DPPCA, BatchSizeError, ParameterError, Plan, plan
from tests.conftest import signal_plus_noise, sine, spiked

BASE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
KNOWN: dict[str, Any] = {"center": "none", "scales": None}


def least(p: Plan, records: int) -> float:
    """The error after exactly this many records."""
    return dict(p.noise_error)[records]


@pytest.mark.audit
@pytest.mark.parametrize("d, batch_size, batches", [(10, 2000, 8), (50, 2500, 8), (150, 4000, 8)])
def test_predictions_within_a_factor_two(d: int, batch_size: int, batches: int) -> None:
    errors = []
    for seed in range(5):
        X, v = spiked(np.random.default_rng(seed + 77), batches * batch_size, d, 0.1)
        pca = DPPCA(features=range(d), batch_size=batch_size, seed=seed, **BASE, **KNOWN)
        pca.learn_array(X)
        errors.append(sine(pca.components[0], v))
    predicted = least(plan(d=d, batch_size=batch_size, **BASE, **KNOWN), batches * batch_size)
    assert 0.5 < predicted / np.median(errors) < 2


@pytest.mark.parametrize("k", [1, 3])
def test_power_laws_are_predicted_too(k: int) -> None:
    d, batch_size, batches = 100, 4000, 8
    values = 1 / np.arange(1.0, d + 1)
    errors = []
    for seed in range(3):
        X = np.random.default_rng(seed).standard_normal((batches * batch_size, d)) * values**0.5
        pca = DPPCA(
            features=range(d), batch_size=batch_size, n_components=k, seed=seed, **BASE, **KNOWN
        )
        pca.learn_array(X)
        errors.append(float(np.linalg.norm(pca.components[:, k:], 2)))
    p = plan(
        d=d,
        batch_size=batch_size,
        n_components=k,
        trace_ratio=values.sum(),
        gap=values[k - 1] - values[k],
        **BASE,
        **KNOWN,
    )
    assert 0.5 < least(p, batches * batch_size) / np.median(errors) < 2 * k


def test_what_one_batch_shows_is_expected() -> None:
    """After one batch, a component above the noise is visible, one below is not."""
    for ratio, seen in ((10.0, True), (60.0, False)):
        second = (ratio - 1) / 99
        p = plan(d=100, batch_size=4000, trace_ratio=ratio, gap=1 - second, **BASE, **KNOWN)
        first = p.noise_error[0][1]
        X, v = spiked(np.random.default_rng(1), 4000, 100, second)
        pca = DPPCA(features=range(100), batch_size=4000, seed=1, **BASE, **KNOWN)
        pca.learn_array(X)
        found = sine(pca.components[0], v)
        assert (first < 0.5) == (found < 0.5) == seen
        assert not seen or 0.5 < first / found < 2


@pytest.mark.audit
def test_quiet_data_is_predicted_too() -> None:
    """Example 4.1 with sigma = 0.01: the noise is a hundredth of that on Gaussian data."""
    d, sigma, n = 150, 0.01, 12 * 4000
    X, v = signal_plus_noise(np.random.default_rng(3), n, d, sigma)
    pca = DPPCA(features=range(d), batch_size=4000, seed=3, **BASE, **KNOWN)
    pca.learn_array(X)
    p = plan(
        d=d,
        batch_size=4000,
        trace_ratio=1 + d * sigma**2,
        gap=1.0,
        **BASE,
        **KNOWN,
    )
    eight, sixteen = (least(p, t * 4000) for t in (8, 16))
    assert sixteen / 2 < sine(pca.components[0], v) < 2 * eight


@pytest.mark.parametrize("d", [5, 28, 1200])
def test_the_minimum_is_where_the_estimator_refuses(d: int) -> None:
    smallest = plan(d=d, batch_size=10**6, **BASE).minimum_batch_size
    DPPCA(features=range(d), batch_size=smallest, **BASE)
    for refuse in (
        lambda n: DPPCA(features=range(d), batch_size=n, **BASE),
        lambda n: plan(d=d, batch_size=n, **BASE),
    ):
        with pytest.raises(BatchSizeError, match=f"at least {smallest}"):
            refuse(smallest - 1)


def test_whoever_knows_everything_may_have_tiny_batches() -> None:
    smallest = plan(d=5, **BASE, **KNOWN).minimum_batch_size
    assert DPPCA(features=range(5), batch_size=smallest, **BASE, **KNOWN).first_batches == 1
    with pytest.raises(BatchSizeError, match=f"at least {smallest}"):
        plan(d=5, batch_size=smallest - 1, **BASE, **KNOWN)


def test_more_of_everything_helps() -> None:
    def last(**changes: Any) -> float:
        return plan(**{"d": 200, "batch_size": 5000, **BASE, **changes}).noise_error[-1][1]

    assert last(batch_size=10_000) < last()
    assert last(epsilon=2.0) < last()
    assert last(d=100) < last()
    assert last(gap=0.5) > last()
    assert last(n_components=3) > last()


def test_time_to_useful() -> None:
    p = plan(d=50, batch_size=2500, rate=500.0, **BASE, **KNOWN)
    assert p.useful_after_records is not None
    assert p.useful_after_seconds == p.useful_after_records / 500.0
    assert "first useful component" in str(p)
    hopeless = plan(d=2000, batch_size=400, **BASE, **KNOWN)
    assert hopeless.useful_after_records is None
    assert "larger batches" in str(hopeless)


@pytest.mark.parametrize(
    "name, value",
    [
        ("d", 0),
        ("d", 2.5),
        ("n_components", 0),
        ("n_components", 99),
        ("center", "median"),
        ("rate", -1.0),
        ("scales", "guess"),
        ("gap", 0.0),
        ("trace_ratio", 0.5),
        ("d", 2049),
        ("epsilon", 0.0),
        ("delta", 1.0),
    ],
)
def test_bad_parameters(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"`{name}` must"):
        plan(**{"d": 10, **BASE, name: value})


@pytest.mark.parametrize("d, batch_size", [(10, 2000), (50, 2500)])
def test_what_is_learned_without_knowing_anything_is_predicted(d: int, batch_size: int) -> None:
    """Gaussian data with means and units of its own."""
    errors, batches = [], 16
    for seed in range(3):
        rng = np.random.default_rng(seed + 7)
        X, _ = spiked(rng, batches * batch_size, d, 0.1)
        correlation = np.corrcoef(X.T)
        v = np.linalg.eigh(correlation)[1][:, -1]
        X = (X + rng.normal(size=d)) * 10.0 ** rng.uniform(-3, 3, size=d)
        pca = DPPCA(features=range(d), batch_size=batch_size, seed=seed, **BASE)
        pca.learn_array(X)
        errors.append(sine(pca.components[0], v))
    p = plan(d=d, batch_size=batch_size, **BASE)
    assert p.first_batches == pca.first_batches
    assert 0.5 < np.median(errors) / p.sine_after(batches * batch_size) < 2


def test_the_first_step_is_in_the_plan() -> None:
    p = plan(d=28, batch_size=1390, **BASE)
    assert p.first_batches == DPPCA(features=range(28), batch_size=1390, **BASE).first_batches == 3
    assert p.first_memory == 3 * 1390 * 28 * 8
    assert "the first step takes 3 batches at once (1 MB)" in str(p)
    assert p.noise_error[0][0] == 3 * 1390 and p.sine_after(3 * 1390 - 1) == 1.0
    assert plan(d=28, batch_size=1390, **BASE, **KNOWN).first_batches == 1


def test_no_batch_size_is_recommended_where_none_is_good() -> None:
    hopeless: dict[str, Any] = {"d": 900, "gap": 1e-7, **BASE}
    with pytest.raises(ParameterError, match="`batch_size` must be given"):
        plan(**hopeless)
    p = plan(batch_size=100_000, **hopeless)
    assert p.recommended_batch_size is None and "recommended more" in str(p)

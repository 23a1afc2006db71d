"""Scales refined after the first step, and the newest batches held back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stream_dppca import DPPCA
from stream_dppca.mechanisms.correlated import DECAYS, POWER, weights
from stream_dppca.method.correction import REFINED_AFTER
from stream_dppca.method.memory import HELD, RunningMean, noise_of_sums

D, B = 12, 4000
SD = 2.0 ** np.arange(-6, 6)


def batch(seed: int, n: int = B) -> Any:
    rng = np.random.default_rng([seed, 5])
    return (rng.normal(size=(n, D)) + rng.normal(size=(n, 1))) / math.sqrt(2) * SD + 3 * SD


def model(seed: int) -> DPPCA:
    return DPPCA(features=range(D), epsilon=1.0, delta=1e-6, batch_size=B, seed=seed)


def error(pca: DPPCA) -> float:
    """Inequality of the scales, in units of the true ones."""
    return float(np.std(np.log(pca._method.standard.scale / SD)))  # type: ignore[attr-defined]


def test_scales_become_more_equal() -> None:
    before, after = [], []
    for seed in range(4):
        pca = model(seed)
        pca.learn_array(batch(100 * seed))
        before.append(error(pca))
        for t in range(1, REFINED_AFTER[-1] + 1):
            pca.learn_array(batch(100 * seed + t))
        after.append(error(pca))
    assert np.mean(after) < 0.75 * np.mean(before)


def test_scales_are_refined_in_the_first_batches_only() -> None:
    pca = model(1)
    scales = []
    for t in range(8):
        pca.learn_array(batch(t))
        scales.append(pca._method.standard.scale.tolist())  # type: ignore[attr-defined]
    changed = [t for t in range(1, 8) if scales[t] != scales[t - 1]]
    assert changed == [1, 3]  # and after the first step


def test_noise_is_not_taken_for_scales() -> None:
    """Where the noise of a variance is as large as the variance, scales stay as they were found."""
    d, size = 200, 2000
    rng = np.random.default_rng(3)
    v = rng.normal(size=d)
    pca = DPPCA(features=range(d), epsilon=1.0, delta=1e-6, batch_size=size, seed=4)
    errors = []
    for _ in range(pca.first_batches + 6):
        pca.learn_array(rng.normal(size=(size, d)) + rng.normal(size=(size, 1)) * v)
        if pca.components.size:
            scale = pca._method.standard.scale / np.sqrt(1 + v**2)  # type: ignore[attr-defined]
            errors.append(float(np.std(np.log(scale))))
    first, *later = errors
    assert later and max(later) < first


def test_a_restored_model_projects_as_before() -> None:
    pca = model(2)
    for t in range(4):
        pca.learn_array(batch(t))
    again = DPPCA.from_state(pca.state())
    X = batch(9, 10)
    assert again.transform(X).tolist() == pca.transform(X).tolist()


def test_weights_of_the_newest_batches() -> None:
    """Batch by batch, from the sums of unit vectors."""
    every, newest = RunningMean(3), RunningMean(3)
    for t in range(3):
        every.add(np.eye(3)[t], 1.0, 1.0)
        newest.add(np.eye(3)[t], 1.0, 0.5)
    held = every.less(newest, HELD)
    expected = 1 - HELD * np.array([0.25, 0.5, 1.0])
    np.testing.assert_allclose(held.total, expected)
    assert held.weight == pytest.approx(expected.sum())
    assert held.sd == pytest.approx(every.sd)


@pytest.mark.parametrize("batches", [1, 4, 15, 45])
def test_holding_back_adds_no_noise(batches: int) -> None:
    """The noise of the mean, from the series 1/C, against that of equal weights."""
    column = weights(POWER)
    alone, sums = [], np.zeros(2)
    for t in range(batches):
        alone.append((float(t == 0) - sums.sum()) / column.own)
        sums = np.array(DECAYS) * sums + np.array(column.later) * alone[-1]
    held = 1 - HELD * 0.5 ** np.arange(batches)[::-1]
    both = [
        np.convolve(w[::-1], alone)[:batches]
        for w in (held / held.sum(), np.full(batches, 1 / batches))
    ]
    less, equal = (float(np.sum(w**2)) for w in both)
    every = sum(noise_of_sums(column.own, column.later, DECAYS)[:batches]) / batches**2
    assert equal == pytest.approx(every)
    assert less <= equal * (1 + 1e-9)
    if batches >= 15:
        assert math.sqrt(less / equal) < 0.93

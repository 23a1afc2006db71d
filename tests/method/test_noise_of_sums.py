"""The noise that a running mean states, against the noise that is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stream_dppca import DPPCA
from stream_dppca.mechanisms.correlated import (
    DECAYS,
    POWER,
    CorrelatedRelease,
    Released,
    weights,
)
from stream_dppca.mechanisms.independent import IndependentRelease
from stream_dppca.method.memory import Memory, NoiseOfSums, RunningMean, noise_of_sums
from stream_dppca.method.parameters import Parameters
from stream_dppca.noise import SeededNoise

#: Coordinates that are simulated at once. The empirical sd of so many is within 4 % of the true
#: one, except with a probability of 1e-15 (a chi-square variable, more than 8 sds away).
MANY = 20_000
Change = Callable[[int, Memory], None]


def simulated(memory: str | float, batches: int, change: Change, *, seed: int) -> Memory:
    """Released zeros: all that is in the running means is noise."""
    noise, zeros = SeededNoise(seed), np.zeros(MANY)
    given = Parameters(np.eye(1), 1.0, 1e-6, units=1000, memory=memory)
    release, running = CorrelatedRelease(mu=1.0), Memory(1, given.keep)
    running.all, running.recent, running.doubtful = (  # type: ignore[assignment]
        RunningMean(MANY) for _ in range(3)
    )
    for t in range(batches):
        change(t, running)
        if t == 17:
            release.forget()  # as after a restart
        unit = 1.0 if t < 9 else 0.7  # as if the budget of later batches were smaller
        released = release.release(zeros, sensitivity=1.0, noise=noise)
        sd = running.sd_of_next(released)
        assert np.std(released.alone) == pytest.approx(sd, rel=0.04)
        running.add(released, released.alone / unit, 1 / unit, 0.8 if t % 3 else 1.0)
    return running


def nothing(t: int, running: Memory) -> None:
    pass


def drop(t: int, running: Memory) -> None:
    if t == 5:
        running.drop_past()


@pytest.mark.parametrize("change", [nothing, drop])
@pytest.mark.parametrize("batches", [1, 2, 7, 16, 40])
@pytest.mark.parametrize("memory", [1.5, 2.0, 4.0, 8.0, "all"])
def test_running_means_have_the_noise_that_they_state(
    memory: str | float, batches: int, change: Change
) -> None:
    running = simulated(memory, batches, change, seed=batches)
    for mean in (running.all, running.recent):
        assert np.std(mean.mean) == pytest.approx(mean.sd, rel=0.04)


@pytest.mark.parametrize("keep", [0.5, 0.75, 0.875, 1.0])
def test_the_series_of_a_constant_column(keep: float) -> None:
    column, n = weights(POWER), 60
    inverse, sums = [], np.zeros(2)
    for t in range(n):
        inverse.append((float(t == 0) - sums.sum()) / column.own)
        sums = np.array(DECAYS) * sums + np.array(column.later) * inverse[-1]
    found, h, expected = NoiseOfSums((keep,), DECAYS), 0.0, 0.0
    for t in range(n):
        found.add(Released(column, np.zeros(1), np.zeros(1), first=t == 0), 1.0)
        h = keep * h + inverse[t]
        expected += h**2
        assert found.variances[0] == pytest.approx(expected)
    if keep == 1:
        assert expected == pytest.approx(sum(noise_of_sums(column.own, column.later, DECAYS)[:n]))


def test_independent_rounds_and_states() -> None:
    release, found = IndependentRelease(mu=1.0), NoiseOfSums((0.5, 1.0), DECAYS)
    for _ in range(3):
        released = release.release(np.zeros(1), sensitivity=1.0, noise=SeededNoise(1))
        found.add(released, 2.0)
    assert found.variances == pytest.approx((4 * (1 + 1 / 4 + 1 / 16), 12.0))
    found.begin((3.0, 4.0))
    found.add(released, 2.0)
    assert found.variances == pytest.approx((3 / 4 + 4, 8.0)) and found.of_next(released) == 1.0


@pytest.mark.parametrize("memory", [2.0, 4.0])
def test_constant_features_get_no_loading(memory: float) -> None:
    """Features of which nothing is known, among others that vary, with a short memory."""
    d, constant, batch = 12, 6, 2000
    loaded = total = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        common = rng.standard_normal(12 * batch)[:, np.newaxis]
        X = common + 0.5 * rng.standard_normal((12 * batch, d))
        X[:, :constant] = 3.0
        how: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "batch_size": batch}
        model = DPPCA(features=range(d), memory=memory, seed=seed, **how)
        for t in range(12):
            model.learn_array(X[t * batch : (t + 1) * batch])
            if model.components.size:
                loaded += int(np.count_nonzero(model.components[0][:constant]))
                total += constant
    assert total > 200
    assert loaded / total < 0.01

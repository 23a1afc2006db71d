"""The warm-up finds centres and scales, spends its budget, and starts over if it must."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from stream_dppca.batch import Batch, Reading
from stream_dppca.learned.warmup import SHARES, WarmUp, warm_up_batches
from stream_dppca.noise import SeededNoise

MU = 0.2367  # epsilon 1, delta 1e-6
UNITS = 4000


def warmed_up(X: Any, seed: int = 1, units: int = UNITS, mu: float = MU, **how: Any) -> WarmUp:
    how = {"known_center": False, "longer": 0.05} | how
    w = WarmUp(d=X.shape[1], mu=mu, units=units, **how)
    for t in range(w.batches):
        w.step(Batch(X[t * units : (t + 1) * units], Reading(max_norm=1e18)), SeededNoise(seed + t))
    return w


SHAPES: dict[str, tuple[float, float]] = {  # mean, sd
    "centred": (0.0, 1.0),
    "small": (3e-9, 1e-9),
    "large": (-4e12, 1e12),
    "far": (1e6, 1e3),
    "very far": (1e8, 3e4),
    "negative": (-50.0, 2.0),
}


@pytest.mark.parametrize("seed", range(3))
def test_units_and_means_of_all_sizes(seed: int) -> None:
    mean, sd = np.array(list(SHAPES.values())).T
    X = mean + sd * np.random.default_rng(seed).normal(size=(UNITS, len(mean)))
    w = warmed_up(X, seed)
    assert w.done and w.standard.known.all()
    assert (np.abs(w.standard.center - mean) / sd < 0.5).all()
    assert ((w.standard.scale / sd > 0.5) & (w.standard.scale / sd < 2)).all()


def test_features_of_other_shapes() -> None:
    rng = np.random.default_rng(2)
    n = UNITS
    X = np.stack([
        np.full(n, 7.0),  # constant
        np.zeros(n),
        np.where(rng.random(n) < 0.01, rng.exponential(size=n), 0.0),  # sparse
        np.exp(2 * rng.normal(size=n)),  # heavy tail
        (rng.random(n) < 0.3) * 1e4,  # two values
        rng.poisson(3.0, size=n).astype(float),
    ]).T  # fmt: skip
    w = warmed_up(X)
    assert w.done
    assert w.standard.known.tolist() == [False, False, False, True, True, True]
    assert abs(w.standard.center[0] - 7) < 0.01 and abs(w.standard.center[1]) < 1e-9
    assert 1 < w.standard.scale[3] < 60  # its sd is 54, most of it in 1 % of the records
    assert 2e3 < w.standard.scale[4] < 1e4
    assert 1 < w.standard.scale[5] < 3


def test_every_batch_spends_its_budget_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []
    gaussian = SeededNoise.gaussian

    def listening(self: Any, query: Any, *, sensitivity: float, mu: float, **how: Any) -> Any:
        spent[-1] += mu**2
        return gaussian(self, query, sensitivity=sensitivity, mu=mu, **how)

    monkeypatch.setattr(SeededNoise, "gaussian", listening)
    X = np.random.default_rng(0).normal(size=(5000, 20)) + 1e5  # far, so that no question is empty
    for units in (1000, 250):
        for known in (False, True):
            w = WarmUp(d=20, mu=1.0, units=units, longer=0.1, known_center=known)
            for t in range(w.batches):
                spent.append(0.0)
                rows = X[t * units : (t + 1) * units]
                w.step(Batch(rows, Reading(max_norm=1e18)), SeededNoise(t))
            assert w.done
    assert max(spent) <= 1.0 + 1e-12 and sum(SHARES.values()) == 20
    assert min(spent) > 0.85  # less only where a question has no feature to ask about


def test_small_batches_take_more_of_them() -> None:
    big, small = (warm_up_batches(d=30, mu=1.0, units=n, known_center=False) for n in (400, 100))
    assert (big, small) == (1, 15)
    assert warm_up_batches(d=30, mu=1.0, units=100, known_center=True) < small


def test_hardly_anything_that_can_be_read() -> None:
    X = np.full((2 * UNITS, 4), np.nan)
    X[UNITS:] = np.random.default_rng(0).normal(size=(UNITS, 4)) + 3
    w = WarmUp(d=4, mu=MU, units=UNITS, longer=0.05, known_center=False)
    w.step(Batch(X[:UNITS], Reading(max_norm=1e18)), SeededNoise(1))
    assert not w.done and w.batches_left == 1
    w.step(Batch(X[UNITS:], Reading(max_norm=1e18)), SeededNoise(2))
    assert w.done and np.abs(w.standard.center - 3).max() < 0.5


def test_a_state_goes_on_in_the_middle() -> None:
    X = np.random.default_rng(0).normal(size=(1000, 20)) * 5 + 3
    whole = warmed_up(X, units=100, mu=2.0)
    assert whole.batches > 2
    for cut in range(1, whole.batches):
        first = WarmUp(d=20, mu=2.0, units=100, longer=0.05, known_center=False)
        for t in range(cut):
            rows = X[t * 100 : (t + 1) * 100]
            first.step(Batch(rows, Reading(max_norm=1e18)), SeededNoise(1 + t))
        second = WarmUp(d=20, mu=2.0, units=100, longer=0.05, known_center=False)
        second.load(json.loads(json.dumps(first.state())))
        assert second.state() == first.state()
        for t in range(cut, whole.batches):
            rows = X[t * 100 : (t + 1) * 100]
            second.step(Batch(rows, Reading(max_norm=1e18)), SeededNoise(1 + t))
        assert second.state() == whole.state()


@pytest.mark.parametrize(
    "damage",
    [{"at": 3}, {"at": -20}, {"valid": 0.0}, {"radius": math.inf}, {"low": [5.0] * 3},
     {"mass": [math.nan] * 3}, {"coarse": [True]}, {"low": [-math.inf] * 3},
     {"high": [math.inf] * 3}, {"low": [0.0] * 3, "high": [5e-324] * 3}, {"radius": None},
     {"radius": 1e-3}, {"radius": 1e300}, {"answer": {"total": [0.0] * 7, "share": 0.5}}],
)  # fmt: skip
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    w = warmed_up(np.random.default_rng(0).normal(size=(UNITS, 3)))
    w.load(w.state())
    with pytest.raises(ValueError):
        w.load(w.state() | damage)


@pytest.mark.parametrize(
    "damage", [{"share": 0.0}, {"share": 1e9}, {"total": [0.0] * 257}, {"total": [[math.inf]]}]
)
def test_a_damaged_answer_is_refused(damage: dict[str, Any]) -> None:
    w = WarmUp(d=20, mu=2.0, units=100, longer=0.05, known_center=False)
    X = np.random.default_rng(0).normal(size=(100, 20))
    w.step(Batch(X, Reading(max_norm=1e18)), SeededNoise(1))
    state = json.loads(json.dumps(w.state()))
    assert state["answer"] is not None
    w.load(state)
    with pytest.raises(ValueError):
        w.load(state | {"answer": state["answer"] | damage})

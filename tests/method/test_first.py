"""The questions of the first step find centres and scales, and spend their budget exactly."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from stream_dppca.batch import Batch, Reading
from stream_dppca.method.first import SHARES, FirstAnswers, Questions
from stream_dppca.method.parameters import Budget, Parameters, first_batches, question_rounds
from stream_dppca.method.standard import CLAMP
from stream_dppca.noise import SeededNoise
from stream_dppca.participation import PerSubject

MU = 0.2367  # epsilon 1, delta 1e-6
UNITS = 4000


def rows_of(X: Any, t: int = 0, units: int = UNITS) -> Batch:
    return Batch(X[t * units : (t + 1) * units], Reading(max_norm=1e18))


def questions(d: int, units: int = UNITS, mu: float = MU, **how: Any) -> Questions:
    how = {"known_center": False, "batch": units, "mu_batch": mu} | how
    return Questions(d=d, mu=mu, units=units, **how)


def answered(X: Any, seed: int = 1, units: int = UNITS, **how: Any) -> FirstAnswers:
    asked = questions(X.shape[1], units, **how)
    for t in range(asked.rounds - 1):
        assert asked.ask(rows_of(X, t, units), SeededNoise(seed + t)) is None
    found = asked.ask(rows_of(X, asked.rounds - 1, units), SeededNoise(seed + asked.rounds - 1))
    assert found is not None
    return found


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
    w = answered(X, seed)
    assert w.standard.known.all()
    assert (np.abs(w.standard.center - mean) / sd < 0.5).all()
    assert ((w.standard.scale / sd > 0.5) & (w.standard.scale / sd < 2)).all()


@pytest.mark.parametrize("far", [100.0, 1e3, 3e3, 1e4, 3e4])
def test_a_narrow_feature_is_found_wherever_it_is(far: float) -> None:
    """With 4096 cells in place of two grids, noise hid features that were 100 cells wide."""
    X = far * np.array([1.0, -1.1, 1.3, 1.7]) + np.random.default_rng(6).normal(size=(UNITS, 4))
    for seed in range(5):
        found = answered(X, seed, mu=0.55 * MU).standard  # 30 % of the budget
        assert found.known.all() and (np.abs(found.center - X.mean(axis=0)) < 1).all()
        assert ((found.scale > 0.4) & (found.scale < 2.5)).all()


def test_features_of_other_shapes() -> None:
    rng = np.random.default_rng(2)
    n = UNITS
    X = np.stack(
        [
            np.full(n, 7.0),  # constant
            np.zeros(n),
            np.where(rng.random(n) < 0.01, rng.exponential(size=n), 0.0),  # sparse
            np.exp(2 * rng.normal(size=n)),  # heavy tail
            (rng.random(n) < 0.3) * 1e4,  # two values
            rng.poisson(3.0, size=n).astype(float),
        ]
    ).T
    w = answered(X)
    assert w.standard.known.tolist() == [False, False, False, True, True, True]
    assert abs(w.standard.center[0] - 7) < 0.01 and abs(w.standard.center[1]) < 1e-9
    assert 1 < w.standard.scale[3] < 60  # its sd is 54, most of it in 1 % of the records
    assert 2e3 < w.standard.scale[4] < 1e4
    assert 1 < w.standard.scale[5] < 3


def test_known_scales_are_kept_and_the_centre_is_found() -> None:
    mean, sd = np.array([5.0, -3e6]), np.array([1.0, 1e3])
    X = mean + sd * np.random.default_rng(3).normal(size=(UNITS, 2))
    found = answered(X, scales=sd)
    assert found.standard.scale.tolist() == sd.tolist()
    assert (np.abs(found.standard.center - mean) < 0.3 * sd).all()
    known = answered(X - mean, scales=sd, known_center=True)
    assert known.standard.center.tolist() == [0.0, 0.0]


def test_a_quiet_beginning_does_not_shorten_the_radius_of_known_scales() -> None:
    X = 0.1 * np.random.default_rng(3).normal(size=(UNITS, 8))
    assert answered(X, scales=np.ones(8)).radius == 8.0
    assert answered(X, scales=np.ones(8), known_center=True).radius == 8.0
    assert answered(X * 30, scales=np.ones(8)).radius > 40


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e12])
def test_features_in_one_unit_have_one_scale_and_no_clamp(size: float) -> None:
    X = size * (np.random.default_rng(3).normal(size=(UNITS, 4)) * [3.0, 1.0, 0.1, 0.0] + 5)
    found = answered(X, one_unit=True)
    assert len(set(found.standard.scale.tolist())) == 1 and np.isinf(found.standard.clamp).all()
    assert 0.3 * size < found.standard.scale[0] < 5 * size


KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "known centre": {"known_center": True},
    "known scales": {"scales": np.ones(20)},
    "one unit": {"one_unit": True},
    "centred, in one unit": {"one_unit": True, "known_center": True},
    "everything known": {"scales": np.ones(20), "known_center": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", [1, 3, 7])
def test_every_step_spends_its_budget_exactly(
    kind: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[float] = []
    gaussian = SeededNoise.gaussian

    def listening(self: Any, query: Any, *, sensitivity: float, mu: float, **how: Any) -> Any:
        spent[-1] += mu**2
        return gaussian(self, query, sensitivity=sensitivity, mu=mu, **how)

    monkeypatch.setattr(SeededNoise, "gaussian", listening)
    for offset in (1e5, 0.0):  # far, so that no question is empty; and near, so that one is
        X = np.random.default_rng(0).normal(size=(7000, 20)) + offset
        asked = questions(20, 1000, mu=0.7, rounds=rounds, **KINDS[kind])
        for t in range(rounds):
            spent.append(0.0)
            found = asked.ask(rows_of(X, t, 1000), SeededNoise(t))
            assert (found is None) == (t + 1 < rounds)
    assert spent == pytest.approx([0.49] * len(spent), rel=1e-12)
    assert max(spent) <= 0.49 * (1 + 1e-12) and sum(SHARES.values()) == 22


def test_sizes_that_differ_are_found_by_neighbours() -> None:
    """No octave alone stands out of the noise where a few hundred devices have many sizes."""
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(400, 10)) * np.exp(rng.normal(size=(400, 1)))
        asked = questions(10, 400, one_unit=True, known_center=True, mu=0.5 * MU)
        found += asked.ask(rows_of(X, units=400), SeededNoise(seed)) is not None
    assert found >= 16


def test_a_round_of_subjects_with_known_scales_is_mostly_for_moments() -> None:
    def share(unit: Any, **how: Any) -> float:
        subjects = None if unit is None else PerSubject("device", places=unit)
        W = np.eye(50)[:, :1]
        given = Parameters(W, 1.0, 1e-6, unit or UNITS, subjects=subjects, **how)
        return Budget(given).first_share

    for how in ({"one_unit": True}, {"scales": np.ones(50)}):
        known: dict[str, Any] = {"known_center": True, **how}
        assert share(None, **known) == share(300, **known) == 0.3
        assert 0.1 < share(600, **known) < 0.3
        assert share(2700, **known) == 0.1
    assert share(10_000) == 0.3


def test_small_batches_take_more_of_them() -> None:
    sizes = [first_batches(d=30, mu=1.0, units=n) for n in (1000, 400, 100)]
    assert sizes == [1, 3, 9]
    assert first_batches(d=30, mu=1.0, units=100, known=True) == 1
    assert [question_rounds(d=30, mu=1.0, units=n) for n in (1000, 400, 100)] == [1, 2, 15]


def test_hardly_anything_that_can_be_read() -> None:
    X = np.full((2 * UNITS, 4), np.nan)
    X[UNITS:] = np.random.default_rng(0).normal(size=(UNITS, 4)) + 3
    for how in ({}, {"one_unit": True}):
        asked = questions(4, **how)
        assert asked.ask(rows_of(X), SeededNoise(1)) is None and asked.rounds_left == 1
        found = asked.ask(rows_of(X, 1), SeededNoise(2))
        assert found is not None and np.abs(found.standard.center - 3).max() < 2


def test_noise_alone_is_no_answer() -> None:
    """With the fewest rows that questions are asked of, the share of valid rows is uncertain."""
    units = 1400
    asked, nothing = questions(4, units, MU * math.sqrt(0.3)), np.full((units, 4), np.nan)
    noises = [SeededNoise(seed) for seed in range(600)]
    assert all(asked.ask(rows_of(nothing, units=units), noise) is None for noise in noises)


def test_a_state_goes_on_in_the_middle() -> None:
    X = np.random.default_rng(0).normal(size=(1000, 20)) * 5 + 3
    how: dict[str, Any] = {"units": 100, "mu": 2.0, "rounds": 6}
    whole = answered(X, **how)
    for cut in range(1, 6):
        first, second = questions(20, **how), questions(20, **how)
        for t in range(cut):
            first.ask(rows_of(X, t, 100), SeededNoise(1 + t))
        second.load(json.loads(json.dumps(first.state())))
        assert second.state() == first.state()
        for t in range(cut, 6):
            found = second.ask(rows_of(X, t, 100), SeededNoise(1 + t))
        assert found is not None and found.state() == whole.state()


@pytest.mark.parametrize(
    "damage",
    [
        {"at": 3},
        {"at": -20},
        {"at": 10**6},
        {"valid": [-0.1, 0.1]},
        {"valid": [0.5, math.inf]},
        {"low": [5.0] * 3},
        {"mass": [math.nan] * 3},
        {"coarse": [True]},
        {"low": [-math.inf] * 3},
        {"high": [math.inf] * 3},
        {"low": [0.0] * 3, "high": [5e-324] * 3},
        {"low": [2.0**40] * 3, "high": [2.0**40 + 2**-12] * 3},
        {"answer": {"total": [0.0] * 7, "share": 0.5}},
    ],
)
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    asked = questions(3)
    asked.load(asked.state())
    with pytest.raises(ValueError):
        asked.load(asked.state() | damage)


@pytest.mark.parametrize("radius", [math.inf, math.nan, 1e-3, 1e300, -1.0])
def test_a_damaged_range_is_refused(radius: float) -> None:
    state = answered(np.random.default_rng(0).normal(size=(UNITS, 3))).state()
    FirstAnswers.load(state, 3, False)
    with pytest.raises(ValueError):
        FirstAnswers.load(state | {"radius": radius}, 3, False)
    for name, value in (("scale", [0.0] * 3), ("center", [math.nan] * 3)):
        with pytest.raises(ValueError):
            FirstAnswers.load(state | {"standard": state["standard"] | {name: value}}, 3, False)


def test_a_state_does_not_say_what_is_cut_off() -> None:
    """Whether features are in one unit is a parameter: a state that disagrees is refused."""
    for one_unit in (False, True):
        state = answered(np.random.default_rng(0).normal(size=(UNITS, 3)), one_unit=one_unit)
        plain = json.loads(json.dumps(state.state()))
        for limit in ({}, {"limit": None}, {"limit": 5.0}):
            standard = plain["standard"] | limit
            found = FirstAnswers.load(plain | {"standard": standard}, 3, one_unit).standard
            assert found.limit == state.standard.limit == (math.inf if one_unit else CLAMP)
    for damage in ({"known": [True, True, False]}, {"scale": [1.0, 1.0, 2.0]}):
        with pytest.raises(ValueError, match="in one unit"):
            FirstAnswers.load(plain | {"standard": plain["standard"] | damage}, 3, True)


@pytest.mark.parametrize(
    "damage", [{"share": 0.0}, {"share": 1e9}, {"total": [0.0] * 257}, {"total": [[math.inf]]}]
)
def test_a_damaged_answer_is_refused(damage: dict[str, Any]) -> None:
    asked = questions(20, 100, mu=2.0, rounds=6)
    asked.ask(rows_of(np.random.default_rng(0).normal(size=(100, 20)), 0, 100), SeededNoise(1))
    state = json.loads(json.dumps(asked.state()))
    assert state["answer"] is not None
    asked.load(state)
    with pytest.raises(ValueError):
        asked.load(state | {"answer": state["answer"] | damage})


def test_the_radius_is_not_that_of_one_noisy_count() -> None:
    """Of 32 counts beyond a length, one is two sds too high in every twentieth first step."""
    rng = np.random.default_rng(5)
    radii = [answered(rng.normal(size=(2000, 3)), seed, units=2000).radius for seed in range(100)]
    assert 4 < np.median(radii) < 16 and max(radii) < 24

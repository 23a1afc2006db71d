"""`plan` for subjects: within a factor of two of the simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stream_dppca import BatchSizeError, ParameterError, SubjectPlan, plan, plan_subjects
from stream_dppca.calibration import epsilon_of_periods
from stream_dppca.subjects.planning import GOOD
from tests.conftest import sine
from tests.subjects.fleets import fleet, model

KNOWN: dict[str, Any] = {"center": "none", "scales": None}


@pytest.mark.audit
@pytest.mark.parametrize(
    ("d", "subjects", "presence", "epsilon", "period", "rounds"),
    [
        (10, 600, 1.0, 1.0, 1, 1),
        (10, 600, 1.0, 1.0, 1, 8),
        (20, 3000, 0.5, 2.0, 4, 1),
        (20, 3000, 0.5, 2.0, 4, 4),
        (100, 3000, 1.0, 4.0, 1, 1),
        (100, 3000, 1.0, 4.0, 1, 4),
    ],
)
def test_the_prediction_is_near_the_simulation(
    d: int, subjects: int, presence: float, epsilon: float, period: int, rounds: int
) -> None:
    public: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-6, "period": period, **KNOWN}
    expected = plan_subjects(d=d, subjects=subjects, presence=presence, horizon=rounds, **public)
    assert expected.noise_error[-1][0] == rounds
    sines = []
    for seed in range(7):
        rng = np.random.default_rng([seed, d])
        est = model(d, subjects, seed=seed, **public)
        v = np.zeros(d)
        for r in range(rounds):
            X, ids, drawn = fleet(rng, int(subjects * presence), d, mean=1.2)
            if r == 0:
                v = drawn
            else:  # the same direction in every round
                X += np.outer(X @ drawn, v - drawn)
            est.learn_array(X, subjects=ids)
            est.close_round()
        sines.append(sine(est.components[0], v))
    assert 0.5 < np.median(sines) / expected.noise_error[-1][1] < 2


def test_how_many_devices_are_needed() -> None:
    found = plan_subjects(d=50, epsilon=1.0, delta=1e-6, subjects=1e5, **KNOWN)
    assert isinstance(found, SubjectPlan)
    (first, needed), *later = found.subjects_needed
    assert first == 1 and needed is not None and 1700 < needed < 4500
    again = plan_subjects(d=50, epsilon=1.0, delta=1e-6, subjects=needed, **KNOWN)
    assert again.noise_error[0][1] <= GOOD
    assert all(number is not None and number < needed for _, number in later)
    year = plan_subjects(
        d=50, epsilon=1.0, delta=1e-6, subjects=1e5, presence=0.9, period=24, horizon=365, **KNOWN
    )
    assert year.noise_error[-1][0] == 365 and year.epsilon_over["1 period"] == 1.0
    assert year.epsilon_over["all rounds"] == epsilon_of_periods(1.0, 1e-6, 365 / 24)
    assert "subjects needed for an error of 0.1" in str(year)


@pytest.mark.parametrize("known", [{}, KNOWN])
@pytest.mark.parametrize("d", [3, 10])
def test_a_plan_does_not_contradict_itself(d: int, known: dict[str, Any]) -> None:
    """The error is good if and only if there are as many subjects as are needed."""
    for subjects in (250, 350, 600, 700, 1200, 3000):
        for places in (None, round(1.5 * subjects), 2 * subjects):
            fleet = {"d": d, "epsilon": 1.0, "delta": 1e-6, "subjects": subjects, "places": places}
            found = plan_subjects(**fleet, **known)
            errors = dict(found.noise_error)
            (rounds, needed), *_ = found.subjects_needed
            assert needed is not None
            assert errors[rounds] <= GOOD if subjects >= needed else errors[rounds] > 0.9 * GOOD


@pytest.mark.audit
@pytest.mark.parametrize(
    ("d", "subjects", "places"), [(10, 1000, 2000), (10, 1150, 1150), (5, 450, 900)]
)
def test_what_empty_places_cost_is_predicted(d: int, subjects: int, places: int) -> None:
    """The questions of the first round are for as many subjects as there are places."""
    public: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "center": "mean", "scales": "learn"}
    expected = dict(plan_subjects(d=d, subjects=subjects, places=places, **public).noise_error)
    first, v, ids = [], np.full(d, d**-0.5), np.repeat(np.arange(subjects), 2)
    for seed in range(15):
        rng = np.random.default_rng([seed, d])
        X = np.sqrt(0.1) * rng.standard_normal((len(ids), d))
        X += np.outer(np.sqrt(0.9) * rng.standard_normal(len(ids)), v) + rng.normal(0, 5, d)
        X *= 10.0 ** rng.uniform(-2, 2, d)
        est = model(d, places, seed=seed, **public)
        est.learn_array(X, subjects=ids)
        est.close_round()
        first.append(sine(est.components[0], v) if len(est.components) else 1.0)
    assert 0.5 < np.median(first) / expected[1] < 2.5


def test_too_few_of_the_places_teach_nothing() -> None:
    found = plan_subjects(d=3, epsilon=1.0, delta=1e-6, subjects=200, places=700)
    assert found.noise_error[0] == (1, 1.0)


def test_few_subjects_take_rounds_of_questions() -> None:
    enough = plan_subjects(d=10, epsilon=1.0, delta=1e-6, subjects=3000)
    assert enough.question_rounds == 0 and enough.noise_error[0][0] == 1
    assert "components from round 1 on" in str(enough)
    found = plan_subjects(d=10, epsilon=1.0, delta=1e-6, subjects=700)
    told: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "center": "mean", "scales": "learn"}
    assert found.question_rounds == model(10, 700, **told).first_batches == 2
    assert model(10, 3000, **told).first_batches == 1
    assert found.noise_error[0][0] == found.question_rounds + 1
    assert f"components from round {found.question_rounds + 1} on" in str(found)
    nothing = str(plan_subjects(d=10, epsilon=1.0, delta=1e-6, subjects=500, horizon=3))
    assert "the horizon ends before the first release" in nothing and "needed" not in nothing


def test_what_does_not_fit_is_refused() -> None:
    public: dict[str, Any] = {"d": 10, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(BatchSizeError, match="`subjects` must be at least"):
        plan_subjects(subjects=50, **public)
    with pytest.raises(BatchSizeError, match="`places` must be at least"):
        plan_subjects(subjects=1000, places=50, **public)
    for wrong in ({"presence": 0.0}, {"presence": 2.0}, {"period": 0}, {"rows": 0.5}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            plan_subjects(subjects=1000, **public, **wrong)
    with pytest.raises(ParameterError, match="center"):
        plan_subjects(subjects=1000, center="pairs", **public)
    with pytest.raises(ParameterError, match="center"):
        plan(center="own", **public)

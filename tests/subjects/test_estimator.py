"""The estimator with subjects: rounds, statements, states, and what it finds."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stream_dppca import (
    DPPCA,
    BatchSizeError,
    DPPCAError,
    NothingLearnedWarning,
    ParameterError,
    PerSubject,
    StateError,
)
from stream_dppca.calibration import epsilon_over, gaussian_mu
from stream_dppca.outcome import ONLY_RANGE
from stream_dppca.release import Release, SubjectStatement
from tests.conftest import sine
from tests.subjects.fleets import fleet, model


def test_only_closing_a_round_releases() -> None:
    X, ids, v = fleet(np.random.default_rng(1), 1000, 6)
    est = model(6, 1000)
    est.learn_array(X, subjects=ids)
    assert est.last_release is None and est.n_batches == 0
    release = est.close_round()
    assert release == est.last_release and release.batch == est.n_batches == 1
    assert sine(est.components[0], v) < 0.1
    assert release.subjects == pytest.approx(1000, abs=100)
    assert est.transform(X).shape == (len(X), 1)


def test_a_noisy_number_of_subjects_is_not_negative() -> None:
    est = model(6, 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NothingLearnedWarning)
        found = [est.close_round().subjects for _ in range(40)]
    assert min(found) == 0.0 < max(found)  # type: ignore[type-var]


def test_dicts_frames_and_arrays_give_the_same_release() -> None:
    X, ids, _ = fleet(np.random.default_rng(2), 400, 4)
    one, many, array = (model(4, 500) for _ in range(3))
    for x, who in zip(X.tolist(), ids.tolist(), strict=True):
        one.learn_one({**dict(enumerate(x)), "id": who, "other": "ignored"})
    frame = pd.DataFrame(X)
    frame["id"] = ids
    for start in range(0, len(X), 301):
        many.learn_many(frame.iloc[start : start + 301])
    array.learn_array(X, subjects=[str(who) for who in ids])
    releases = [est.close_round() for est in (one, many, array)]
    assert releases[0] == releases[1] == releases[2]


def test_an_empty_round_is_released_and_changes_nothing() -> None:
    X, ids, _ = fleet(np.random.default_rng(3), 600, 5)
    for settings in ({}, {"center": "mean", "scales": "learn", "epsilon": 8.0}):
        est = model(5, 600, **settings)
        first = est.close_round()
        assert first.reason and first.components == ()
        assert first.subjects is not None and abs(first.subjects) < 100
        est.learn_array(X, subjects=ids)
        est.close_round()
        est.learn_array(X, subjects=ids)
        known = est.close_round()
        assert known.status == "learned"
        empty = est.close_round()
        assert empty.status == "skipped" and empty.components == known.components
        assert "too few subjects" in str(empty.reason)


def test_with_few_subjects_the_questions_take_several_rounds() -> None:
    rng = np.random.default_rng(4)
    v = np.ones(6) / math.sqrt(6)
    est = model(6, 350, epsilon=2.0, center="mean", scales="learn")
    statuses = []
    for _ in range(est._method.questions.rounds + 2):  # type: ignore[attr-defined]
        ids = np.repeat(np.arange(320), 4)
        X = rng.standard_normal((1280, 6)) * 0.5 + 2 * np.outer(rng.standard_normal(1280), v) + 7
        est.learn_array(X, subjects=ids)
        release = est.close_round()
        statuses.append(release.status)
        assert (release.reason == ONLY_RANGE) == (release.status == "starting")
        est = DPPCA.from_state(json.loads(json.dumps(est.state())))
    assert len(statuses) > 3 and statuses == ["starting"] * (len(statuses) - 2) + ["learned"] * 2
    assert sine(est.components[0], v) < 0.3


@pytest.mark.parametrize("d", [6, 80])
def test_rounds_of_different_size_count_by_their_noisy_size(d: int) -> None:
    rng = np.random.default_rng(5)
    X, ids, v = fleet(rng, 3000, d)
    est = model(d, 3000, epsilon=8.0)
    for share in (1.0, 0.3, 0.0, 0.6):
        some = ids < share * 3000
        est.learn_array(X[some], subjects=ids[some])
        est.close_round()
    assert sine(est.components[0], v) < 0.1


def test_learned_centre_and_scales() -> None:
    rng = np.random.default_rng(6)
    d, n = 6, 4000
    units, center = 10.0 ** np.arange(-3, 3), np.array([5.0, -3e2, 0.0, 7.0, 1e3, -1e6])
    v = np.ones(d) / math.sqrt(d)
    est = model(d, n, epsilon=2.0, center="mean", scales="learn")
    statuses = []
    for _ in range(5):
        ids = rng.permutation(np.repeat(np.arange(int(0.7 * n)), 3))
        Z = rng.standard_normal((len(ids), d)) * 0.6 + 2 * np.outer(
            rng.standard_normal(len(ids)), v
        )
        est.learn_array(center + Z * units, subjects=ids)
        statuses.append(est.close_round().status)
    assert statuses == ["learned"] * 5
    assert sine(est.components[0], v) < 0.1
    release = est.last_release
    assert release is not None and release.center is not None
    found = np.array(release.center) + np.array(release.scale) * np.array(release.mean)
    sd = units * math.sqrt(0.36 + 4 / d)
    assert (np.abs(found - center) < 0.2 * sd).all()
    assert release.subjects == pytest.approx(0.7 * n, abs=300)


def test_variation_within_subjects_alone() -> None:
    rng = np.random.default_rng(7)
    d, n = 5, 3000
    between, within = np.eye(d)[0], np.array([0.0, 1.0, 1.0, 0.0, 0.0]) / math.sqrt(2)
    ids = np.repeat(np.arange(n), 4)
    X = rng.standard_normal((4 * n, d)) * 0.2 + np.outer(rng.standard_normal(4 * n), within)
    X += 30 * rng.standard_normal(n)[ids][:, np.newaxis] * between
    for scales in (None, "learn"):
        est = model(d, n, center="own", scales=scales)
        for _ in range(2):
            est.learn_array(X, subjects=ids)
            est.close_round()
        raw = np.diff(est.projector().inverse_transform(np.array([[0.0], [1.0]])), axis=0)[0]
        assert sine(raw / np.linalg.norm(raw), within) < 0.1


# The guarantee


def test_the_statement_is_that_of_dp_accounting() -> None:
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    est = model(4, 5000, epsilon=1.0, delta=1e-6, period=24)
    said = est.privacy
    assert isinstance(said, SubjectStatement)
    assert (said.unit, said.subject, said.adjacency) == ("subject", "id", "replace-subject")
    assert said.scope == "any 24 consecutive rounds" and not said.private
    budget = est._method.budget
    mu_round = math.hypot(budget.mu, budget.count)
    assert mu_round == pytest.approx(gaussian_mu(1.0, 1e-6) / math.sqrt(24))
    for name, periods in (("1 period", 1), ("7 periods", 7), ("30 periods", 30)):
        accountant = PLDAccountant()
        event = GaussianDpEvent(1 / mu_round)
        accountant.compose(SelfComposedDpEvent(event, 24 * periods))
        oracle = accountant.get_epsilon(1e-6)
        assert said.epsilon_over[name] == pytest.approx(oracle, rel=2e-3)
        days = epsilon_over(1.0, 1e-6, period=24, horizon=None, round_seconds=3600)
        assert days[f"{periods} day" + "s" * (periods > 1)] == said.epsilon_over[name]
    assert said.epsilon_over["365 periods"] == pytest.approx(31.04, abs=0.01)


def test_large_epsilons_do_not_overflow() -> None:
    from scipy.special import log_ndtr

    from stream_dppca.calibration import gaussian_delta

    for epsilon, mu in ((699.0, 30.0), (701.0, 30.0), (900.0, 38.0), (5000.0, 95.0), (900.0, 20.0)):
        tail = math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        exact = math.exp(log_ndtr(mu / 2 - epsilon / mu)) - tail
        assert gaussian_delta(epsilon, mu) == pytest.approx(exact, rel=1e-6, abs=1e-18)
    said = model(4, 5000, epsilon=20.0).privacy
    assert isinstance(said, SubjectStatement) and 1000 < said.epsilon_over["365 periods"] < 1e5


def test_a_horizon_gives_one_number_for_all() -> None:
    est = model(4, 5000, epsilon=1.0, delta=1e-6, period=2, horizon=14)
    said = est.privacy
    assert isinstance(said, SubjectStatement)
    assert set(said.epsilon_over) == {"1 period", "7 periods", "all rounds"}
    assert said.epsilon_over["all rounds"] == pytest.approx(said.epsilon_over["7 periods"])
    days = epsilon_over(1.0, 1e-6, period=2, horizon=14, round_seconds=86_400)
    assert days["30 days"] == days["365 days"] == said.epsilon_over["all rounds"]
    assert days["7 days"] < days["30 days"]
    whole = model(4, 5000, epsilon=1.0, delta=1e-6, period=14, horizon=14).privacy
    assert isinstance(whole, SubjectStatement) and whole.epsilon_over["all rounds"] == 1.0


def test_learning_is_refused_past_the_horizon() -> None:
    est = model(2, 400, horizon=2)
    for _ in range(2):
        est.learn_one({0: 1.0, 1: 1.0, "id": 1})
        est.close_round()
    restored = DPPCA.from_state(json.loads(json.dumps(est.state())))
    for spent in (est, restored):
        for learn in (
            lambda m: m.learn_one({0: 1.0, 1: 1.0, "id": 1}),
            lambda m: m.learn_one({}),
            lambda m: m.learn_many(pd.DataFrame({0: [1.0], 1: [1.0], "id": [1]})),
            lambda m: m.learn_array(np.ones((1, 2)), subjects=[1]),
            lambda m: m.close_round(),
        ):
            with pytest.raises(DPPCAError, match="horizon has been reached"):
                learn(spent)
        assert spent.n_batches == 2 and spent.last_release is not None


def test_what_counts_records_is_absent() -> None:
    est = model(3, 400)
    est.learn_array(np.ones((50, 3)), subjects=range(50))
    release = est.close_round()
    assert not hasattr(est, "n_seen")
    dumped = json.loads(release.model_dump_json())
    assert "n_seen" not in dumped and dumped["subjects"] == release.subjects
    assert Release.model_validate(dumped) == release
    # The releases of records are as they were.
    records = DPPCA(
        features=(0, 1), epsilon=2.0, delta=1e-3, batch_size=400, scales=None, center="none"
    )
    records.learn_array(np.random.default_rng(0).normal(size=(400, 2)))
    assert records.last_release is not None
    shown = records.last_release.model_dump()
    assert shown["n_seen"] == 400 and "subjects" not in shown


def test_with_frozen_noise_a_release_shows_no_exact_number() -> None:
    """Everything in a release is noisy or public: two seeds have no number in common but these."""
    X, ids, _ = fleet(np.random.default_rng(8), 300, 3)
    shown = []
    for seed in (1, 2):
        est = model(3, 400, seed=seed)
        est.learn_array(X, subjects=ids)
        shown.append(est.close_round().model_dump())
    same = {name for name in shown[0] if shown[0][name] == shown[1][name]}
    public = {
        "version",
        "status",
        "batch",
        "features",
        "center",
        "scale",
        "mean",
        "deviation",
        "clamp",
        "explained_variance_ratio",
        "explained_variance_ratio_sd",
        "step",
        "drift",
        "reason",
        "privacy",
        "first_batches",
        "shift",
        "limits",
    }
    # The range is on a coarse grid, and the sd of the noise follows from it.
    assert same <= public | {"range", "sigma"}


# States


@pytest.mark.parametrize(
    "settings", [{}, {"center": "mean", "scales": "learn"}, {"center": "own"}], ids=str
)
def test_a_state_goes_on_where_it_was_taken(settings: dict[str, Any]) -> None:
    X, ids, _ = fleet(np.random.default_rng(9), 900, 4)
    est = model(4, 1000, period=2, horizon=99, records=3, **settings)
    for _ in range(4):
        est.learn_array(X, subjects=ids)
        est.close_round()
    assert est.clone().unit == est.unit and "PerSubject" in repr(est)
    other = DPPCA.from_state(json.loads(json.dumps(est.state())))
    assert other.unit == PerSubject("id", places=1000, period=2, horizon=99, records=3)
    for m in (est, other):
        m.learn_array(X, subjects=ids)
    assert est.close_round() == other.close_round()
    assert est.state() == other.state()


@pytest.mark.parametrize(
    ("name", "value"),
    [("subject", "user"), ("period", 3), ("horizon", 100), ("records", 2), ("places", 999)],
)
def test_a_state_with_other_rounds_is_refused(name: str, value: Any) -> None:
    est = model(4, 1000, period=2, horizon=99, records=3)
    assert isinstance(est.unit, PerSubject)
    with pytest.raises(StateError, match=rf"`config\.unit\.{name}` is .*, expected {value!r}"):
        DPPCA.from_state(est.state(), unit=replace(est.unit, **{name: value}))
    DPPCA.from_state(est.state(), unit=est.unit)


def test_a_state_of_another_unit_is_refused() -> None:
    state = model(4, 1000).state()
    with pytest.raises(StateError, match="`config` cannot be used: `batch_size` must be given"):
        DPPCA.from_state(state | {"config": state["config"] | {"unit": "record"}})
    record = DPPCA(features=(0, 1), epsilon=1.0, delta=1e-6, batch_size=1000).state()
    unit = PerSubject("id", places=1000)
    with pytest.raises(StateError, match="`config` cannot be used: `batch_size` must be left out"):
        DPPCA.from_state(record, unit=unit)
    with pytest.raises(StateError, match=r"`config\.unit` is 'record', expected {'subject': 'id'"):
        DPPCA.from_state(record, unit=unit, batch_size=None)


# What is refused


@pytest.mark.parametrize(
    ("settings", "parameter", "why"),
    [
        ({"center": "pairs"}, "center", "one of mean, none, own"),
        ({"batch_size": 1000}, "batch_size", "must be left out with a PerSubject: its `places`"),
        ({"subject": None}, "subject", "must name the id"),
        ({"subject": 0}, "subject", "not a feature"),
        ({"period": 0}, "period", "at least 1"),
        ({"horizon": 0}, "horizon", "at least 1"),
        ({"records": 0}, "records", "at least 1"),
        ({"records": 1, "center": "own"}, "records", "at least 2"),
        ({"places": 2**22}, "places", "/ records"),
        ({"places": 1}, "places", "at least 2"),
        ({"unit": "user"}, "unit", "or a PerSubject"),
        ({"unit": "subject"}, "unit", "or a PerSubject"),
        ({"unit": "record", "center": "own", "batch_size": 1000}, "center", "unless `unit`"),
        ({"unit": "record"}, "batch_size", "must be given: .* a PerSubject with its places"),
        ({"missing": "center", "center": "own", "scales": "learn"}, "missing", "must be"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(
    settings: dict[str, Any], parameter: str, why: str
) -> None:
    with pytest.raises(ParameterError, match=why) as error:
        model(4, **{"places": 1000} | settings)
    assert error.value.parameter == parameter


def test_rounds_that_are_too_small_are_refused() -> None:
    for places, period in ((40, 1), (300, 24)):
        with pytest.raises(BatchSizeError, match=r"`places` must be .* fewer subjects"):
            how: dict[str, Any] = {"center": "mean", "scales": "learn", "period": period}
            model(4, places, epsilon=1.0, delta=1e-6, **how)


def test_subjects_and_rows_must_fit() -> None:
    est = model(2, 400)
    for subjects in (None, "ab", [1], range(3)):
        with pytest.raises(ParameterError, match="subjects"):
            est.learn_array(np.ones((2, 2)), subjects=subjects)
    est.learn_array(np.ones((2, 2)), subjects=(i for i in range(2)))
    records = DPPCA(features=(0, 1), epsilon=2.0, delta=1e-3, batch_size=400)
    with pytest.raises(ParameterError, match="subjects"):
        records.learn_array(np.ones((2, 2)), subjects=[1, 2])
    with pytest.raises(DPPCAError, match="PerSubject"):
        records.close_round()


def test_an_interrupted_round_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    est = model(2, 400)
    monkeypatch.setattr(est._method, "step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        est.close_round()
    with pytest.raises(DPPCAError, match="first 1 rounds"):
        est.close_round()


def test_far_more_places_than_subjects_teach_nothing() -> None:
    """The questions of the first round are for as many subjects as there are places."""
    rng = np.random.default_rng(8)
    # The noisy number has an sd of 42, and must be 280.
    for subjects, status in ((60, "nothing_learned"), (650, "learned")):
        unit = PerSubject("id", places=700, period=1, records=1)
        pca = DPPCA(features=("a", "b", "c"), epsilon=1.0, delta=1e-6, unit=unit)
        for _ in range(3):
            X = rng.normal(size=(subjects, 1)) + 0.3 * rng.normal(size=(subjects, 3))
            pca.learn_array(X, subjects=range(subjects))
            release = pca.close_round()
        assert release.status == status
        assert (release.reason is not None) is (status != "learned")

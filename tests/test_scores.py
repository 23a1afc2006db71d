"""Scores of records: never a number that looks normal where nothing is known."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from stream_dppca import (
    DPPCA,
    Limit,
    PaperDPPCA,
    ParameterError,
    PrivacyStatement,
    Projector,
    Release,
    SubspaceDistance,
    SubspaceT2,
)
from stream_dppca import scores as of

FEATURES = ("cpu", "disk.free", "load[1]", "still")
W = np.array([[0.6, 0.8, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]).T
RELEASE = Release(
    status="learned",
    batch=3,
    features=FEATURES,
    components=tuple(map(tuple, W.T.tolist())),
    spread=(1.5, 0.5),
    center=(50.0, 100.0, 0.0, 7.0),
    scale=(10.0, 20.0, 1.0, 1.0),
    clamp=(4.0, 4.0, 4.0, 4.0),
    mean=(0.1, 0.0, 0.0, 0.0),
    deviation=(0.9, 1.0, 1.0, 0.0),
    limits={
        "spe": (Limit(rate=0.1, value=1.0, sd=0.1), Limit(rate=0.01, value=4.0, sd=0.3)),
        "t2": (Limit(rate=0.01, value=9.0, sd=0.5),),
    },
    privacy=PrivacyStatement(epsilon=1.0, delta=1e-6, method="adaptive", private=True),
)
PROJECTOR = Projector.from_release(RELEASE.model_dump_json())
ROWS = np.array([[60.0, 120.0, 1.0, 7.0], [30.0, 170.0, -2.0, 9.0], [50.0, 100.0, 0.0, 7.0]])


def record(row: Any) -> dict[str, Any]:
    return dict(zip(FEATURES, row.tolist(), strict=True))


def nested(row: Any) -> dict[str, Any]:
    cpu, free, load, still = row.tolist()
    return {"cpu": cpu, "disk": {"free": free, "used": 1}, "load": [0.0, load], "still": still}


def test_the_formulas() -> None:
    z = (ROWS - RELEASE.center) / np.array(RELEASE.scale)
    u = (z - RELEASE.mean) / np.array([0.9, 1, 1, np.inf])
    t = u @ W
    assert PROJECTOR.transform(ROWS) == pytest.approx(t)
    assert PROJECTOR.spe(ROWS) == pytest.approx(((u - t @ W.T) ** 2).sum(axis=1))
    assert PROJECTOR.t2(ROWS) == pytest.approx(t[:, 0] ** 2 / 1.5 + t[:, 1] ** 2 / 0.5)
    assert PROJECTOR.n_read(ROWS).tolist() == [3, 3, 3]
    for to, score in (("spe", PROJECTOR.spe), ("t2", PROJECTOR.t2)):
        parts = PROJECTOR.contributions(ROWS, to)  # type: ignore[arg-type]
        assert np.abs(parts).sum(axis=1) == pytest.approx(score(ROWS))
        assert (parts[:, 3] == 0).all()
    low = PROJECTOR.contributions(record(ROWS[1]))
    assert list(low) == ["cpu", "disk.free", "load[1]", "still"] and low["cpu"] < 0
    assert low["disk.free"] > 0


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        ROWS.tolist(),
        ROWS.astype(object),
        [record(row) for row in ROWS],
        [nested(row) for row in ROWS],
        pd.DataFrame(ROWS, columns=FEATURES, index=list("xyz")),
        pl.DataFrame(ROWS, schema=list(FEATURES)),
    ],
    ids=["array", "lists", "objects", "dicts", "nested", "pandas", "polars"],
)
def test_every_form_is_scored_alike(given: Any) -> None:
    for score in (PROJECTOR.spe, PROJECTOR.t2, PROJECTOR.n_read, PROJECTOR.is_anomaly):
        assert np.array_equal(score(given), score(ROWS))
        for i, row in enumerate(ROWS):
            assert score(record(row)) == score(nested(row)) == score(ROWS)[i]
    for wide in (PROJECTOR.transform, PROJECTOR.contributions):
        found = wide(given)
        assert np.array_equal(np.asarray(found), wide(ROWS))
        if isinstance(given, pd.DataFrame | pl.DataFrame):
            assert type(found) is type(given)
    if isinstance(given, pd.DataFrame):
        assert list(PROJECTOR.contributions(given).columns) == list(FEATURES)
        assert list(PROJECTOR.transform(given).index) == list("xyz")


@pytest.mark.parametrize(
    "nothing",
    [
        {},
        {"other": 1.0},
        {"cpu": "93"},
        {"cpu": 50.0},
        dict.fromkeys(FEATURES, math.nan),
        dict.fromkeys(FEATURES),
        {"cpu": math.inf, "disk.free": -math.inf, "load[1]": 0.0},
        {"disk": {"free": "much"}, "load": 3.0, "cpu": {}},
        {"still": 7.0, "cpu": 1.0},
    ],
)
def test_a_record_that_cannot_be_read_has_no_score(nothing: dict[str, Any]) -> None:
    assert math.isnan(PROJECTOR.spe(nothing)) and math.isnan(PROJECTOR.t2(nothing))
    assert PROJECTOR.is_anomaly(nothing) is None
    assert PROJECTOR.n_read(nothing) < 2
    assert all(map(math.isnan, PROJECTOR.transform(nothing).values()))
    assert all(map(math.isnan, PROJECTOR.contributions(nothing).values()))
    frame = pd.DataFrame([nothing, record(ROWS[1])])
    assert np.isnan(PROJECTOR.spe(frame)).tolist() == [True, False]
    flags = PROJECTOR.is_anomaly(frame)
    assert flags.mask.tolist() == [True, False] and flags.sum() == 1


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_column_of_text_is_warned_of(frame: Any) -> None:
    """One text makes a column of a CSV text in pandas; then it is missing in every row."""
    cells = {name: ROWS[:, j].tolist() for j, name in enumerate(FEATURES)}
    text = frame(cells | {"cpu": ["60", "n/a", "50"], "still": [None] * 3})
    with pytest.warns(UserWarning, match="column 'cpu' holds text and no number") as told:
        found = PROJECTOR.n_read(text)
    assert found.tolist() == [2, 2, 2] and len(told) == 1
    for quiet in (
        text.drop(["cpu"], axis=1) if frame is pd.DataFrame else text.drop("cpu"),
        frame(cells | {"cpu": [None, math.nan, None]}),
        text[:0],
    ):
        PROJECTOR.n_read(quiet)  # a warning would be an error here


def test_what_is_no_release_is_said_in_a_line() -> None:
    for wrong, why in ((b"", "Invalid JSON: EOF"), ({}, "status: Field required"), (3, "not iter")):
        with pytest.raises(ValueError, match=why) as told:
            Projector.from_release(wrong)  # type: ignore[arg-type]
        assert str(told.value).count("\n") == 0 and "pydantic" not in str(told.value)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3.0,
        "text",
        b"text",
        np.ones(4),
        np.ones((2, 3)),
        np.ones((1, 1, 4)),
        [1.0, 2.0],
        [],
        [[1.0, 2.0], [3.0]],
        np.array(1.0),
    ],
)
def test_what_is_no_record_is_an_error(wrong: Any) -> None:
    for method in (
        PROJECTOR.transform,
        PROJECTOR.spe,
        PROJECTOR.t2,
        PROJECTOR.contributions,
        PROJECTOR.is_anomaly,
        PROJECTOR.n_read,
    ):
        with pytest.raises(ParameterError, match=r"`X` must be a dict, .* of shape \(n, 4\)"):
            method(wrong)


def test_missing_values_are_the_expected_ones_given_the_others() -> None:
    """Of normal values, those of the regression on the others."""
    rng = np.random.default_rng(5)
    W = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    variance, rest = np.array([3.0, 0.5]), 0.2
    covariance = (W * variance) @ W.T + rest * np.eye(6)
    U, there = rng.normal(size=(50, 6)), rng.random((50, 6)) < 0.7
    expected = U.copy()
    for row, known in zip(expected, there, strict=True):
        weights = np.linalg.solve(covariance[np.ix_(known, known)], row[known])
        row[~known] = covariance[np.ix_(~known, known)] @ weights
    found = of.filled(np.where(there, U, np.nan), there, W, variance, rest)
    assert found == pytest.approx(expected)
    for i in range(50):  # each by itself, to the last bit
        one = of.filled(U[i : i + 1].copy(), there[i : i + 1], W, variance, rest)
        assert (one[0] == found[i]).all()


def test_a_missing_value_raises_no_alarm_and_hides_none() -> None:
    rng = np.random.default_rng(6)
    names = ("a", "b", "c", "d", "e")
    load = rng.normal(size=(60_000, 1))
    X = load * [1.0, 1.0, -1.0, 1.0, 1.0] + 0.1 * rng.normal(size=(60_000, 5))
    pca = DPPCA(features=names, epsilon=3.0, delta=1e-6, batch_size=10_000)
    pca.learn_array(X[:50_000])
    for model in (pca, Projector.from_release(pca.last_release.model_dump_json())):
        for j, name in enumerate(names):
            holes, broken = X[50_000:].copy(), X[50_000:].copy()
            holes[:, j] = broken[:, j] = np.nan
            broken[:, (j + 1) % 5] += 2.0
            assert (model.n_read(holes) == 4).all() and model.n_read({name: 1.0}) == 1
            assert model.is_anomaly(holes).mean() < 0.03
            assert model.is_anomaly(broken).mean() > 0.97
            found = dict(zip(names, np.abs(model.contributions(holes)).mean(axis=0), strict=True))
            assert found.pop(name) < 0.1 * min(found.values())


def test_one_missing_value_takes_no_more_memory_with_many_components() -> None:
    rng = np.random.default_rng(2)
    W, U = np.linalg.qr(rng.normal(size=(300, 300)))[0], rng.normal(size=(50, 300))
    there = np.ones(U.shape, dtype=bool)
    there[7, 3] = False
    tracemalloc.start()
    of.filled(U, there, W, np.ones(300), 0.1)
    assert tracemalloc.get_traced_memory()[1] < 8e6  # 27 million products of two loadings
    tracemalloc.stop()


@pytest.mark.parametrize("known", ["spe", "t2"])
def test_with_the_limit_of_one_score_a_record_below_it_is_not_judged(known: Any) -> None:
    one = {known: PROJECTOR.limits[known]}
    projector = Projector.from_release(RELEASE.model_copy(update={"limits": one}))
    whole = PROJECTOR.is_anomaly(ROWS * [1.0, 1.0, 5.0, 1.0], by=known).tolist()
    found = projector.is_anomaly(ROWS * [1.0, 1.0, 5.0, 1.0]).tolist()
    assert True in whole and found == [True if beyond else None for beyond in whole]
    # With as many components as features there is no SPE, and T2 judges alone.
    only = RELEASE.model_copy(update={"limits": one, "deviation": (0.0, 1.0, 1.0, 0.0)})
    assert Projector.from_release(only).judged == ("t2",)
    [told] = {Projector.from_release(only).is_anomaly(record(ROWS[2]))}
    assert told is (False if known == "t2" else None)


def test_odd_names_find_nothing_that_is_not_there() -> None:
    release = RELEASE.model_copy(update={"features": ("a..b", "", "[0]", 7)})
    projector = Projector.from_release(release)
    nowhere: list[dict[Any, Any]] = [{"a": [1.0]}, {"a": {"": {}}}, {"": [2.0]}, {"[0]": "x"}]
    assert projector.n_read(nowhere).tolist() == [0, 0, 0, 0]
    assert projector.n_read({"a": {"": {"b": 1.0}}, "": 2.0, "[0]": 3.0, 7: 4.0}) == 3


def test_scores_grow_beyond_the_clamp() -> None:
    z = np.array([-1e300, -40.0, -4.0, -3.0, 0.0, 4.0, 40.0, 4e9])
    grown = of.grown(z, 4.0)
    assert (np.diff(grown) > 0).all() and np.isfinite(grown).all()
    assert grown[2:6].tolist() == z[2:6].tolist()
    assert grown[6] == pytest.approx(4 * (1 + math.log(10)))
    assert of.grown(z, np.inf)[1:].tolist() == z[1:].tolist()
    far = [{"cpu": 50.0 + 10.0**n, "disk.free": 100.0, "load[1]": 0.0} for n in (1, 2, 4, 9, 308)]
    scores = PROJECTOR.spe(far)
    assert (np.diff(scores) > 0).all() and np.isfinite(scores).all()


def test_limits_decide() -> None:
    quiet, odd = record(ROWS[2]), record(ROWS[1])
    assert PROJECTOR.is_anomaly(quiet) is False and PROJECTOR.is_anomaly(odd) is True
    shared = {"cpu": 120.0, "disk.free": 260.0, "load[1]": 0.0}  # along the component
    assert PROJECTOR.is_anomaly(shared, by="spe") is False
    assert PROJECTOR.is_anomaly(shared, by="t2") is PROJECTOR.is_anomaly(shared) is True
    between = {"cpu": 68.0, "disk.free": 100.0, "load[1]": 0.0}
    assert 1.0 < PROJECTOR.spe(between) < 4.0
    assert PROJECTOR.is_anomaly(between, rate=0.1) and not PROJECTOR.is_anomaly(between)
    assert PROJECTOR.is_anomaly(odd, rate=0.05) is None  # not told
    assert PROJECTOR.is_anomaly(odd, rate=0.1, by="t2") is None
    with pytest.raises(ParameterError, match=r"`rate` must be one of 0.1, 0.05, 0.01, 0.001"):
        PROJECTOR.is_anomaly(odd, rate=0.02)
    with pytest.raises(ParameterError, match="`by`"):
        PROJECTOR.is_anomaly(odd, by="both")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="`to`"):
        PROJECTOR.contributions(odd, to="either")  # type: ignore[arg-type]


def test_what_a_release_does_not_say_is_not_made_up() -> None:
    silent = Projector.from_release(RELEASE.model_copy(update={"spread": None, "limits": {}}))
    assert np.isnan(silent.t2(ROWS)).all() and not np.isnan(silent.spe(ROWS)).any()
    assert silent.is_anomaly(ROWS).mask.all() and silent.is_anomaly(record(ROWS[0])) is None
    assert np.isnan(silent.contributions(ROWS, to="t2")).all()
    three = RELEASE.model_copy(
        update={"components": tuple(map(tuple, np.eye(4)[:3].tolist())), "spread": (1.0, 1.0, 1.0)}
    )
    full = Projector.from_release(three)  # no feature with spread is left over
    assert np.isnan(full.spe(ROWS)).all() and not np.isnan(full.t2(ROWS)).any()
    empty = Projector.from_release(
        RELEASE.model_copy(
            update={"status": "nothing_learned", "components": (), "spread": None, "limits": {}}
        )
    )
    assert np.isnan(empty.spe(ROWS)).all() and np.isnan(empty.t2(ROWS)).all()
    assert empty.transform(ROWS).shape == (3, 0) and empty.is_anomaly(record(ROWS[0])) is None


def telemetry(n: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    return np.asarray(rng.standard_normal((n, 1)) * [3, 2, 1] + rng.standard_normal((n, 3)))


def test_a_model_scores_as_its_release_does() -> None:
    m = DPPCA(features=("a", "b", "c"), epsilon=4.0, delta=1e-5, batch_size=1000, seed=1)
    x = {"a": 1.0, "b": 1.0, "c": 9.0}
    for score in (m.spe, m.t2):
        assert math.isnan(score(x)) and np.isnan(score(np.ones((2, 3)))).all()
    assert m.is_anomaly(x) is None and m.transform(x) == {} and m.transform_one(x) == {0: 0.0}
    assert SubspaceDistance(m).score_one(x) == SubspaceT2(m).score_one(x) == 0.0
    X = telemetry(4000)
    for start in range(0, len(X), 1000):  # what was scored with before must not stay
        m.learn_array(X[start : start + 1000])
        if m.last_release is None:
            continue
        projector = Projector.from_release(m.last_release.model_dump_json())
        for name in ("transform", "spe", "t2", "contributions"):
            assert np.array_equal(getattr(m, name)(X), getattr(projector, name)(X))
        assert m.spe(x) == SubspaceDistance(m).score_one(x) == projector.spe(x)
        assert m.t2(x) == SubspaceT2(m).score_one(x) == projector.t2(x)
    assert (
        m.contributions(x) == projector.contributions(x) and next(iter(m.contributions(x))) == "c"
    )
    assert SubspaceDistance(m).score_one({}) == 0.0 and m.transform_one({}) == {0: 0.0}
    again = DPPCA.from_state(m.state())
    assert np.array_equal(again.t2(X), m.t2(X))


def test_a_skipped_batch_keeps_the_variances() -> None:
    for m in (
        DPPCA(features=("a", "b", "c"), epsilon=4.0, delta=1e-5, batch_size=1000, seed=1),
        PaperDPPCA(features=("a", "b", "c"), epsilon=9.0, delta=1e-3, batch_size=4000, seed=1),
    ):
        m.learn_array(telemetry(20_000))
        before = m.t2(telemetry(5))
        assert np.isfinite(before).all()
        m.learn_array(np.full((4000, 3), np.nan))
        release = m.last_release
        assert release is not None and release.spread is not None
        assert np.isfinite(m.t2(telemetry(5))).all()


def test_one_record_as_an_array() -> None:
    X = telemetry(2000)
    one, many = (
        DPPCA(features=("a", "b", "c"), epsilon=4.0, delta=1e-5, batch_size=500, seed=1)
        for _ in range(2)
    )
    for row in X:
        one.learn_one(row)
    many.learn_array(X)
    assert one.components.tolist() == many.components.tolist()
    for table in (X, pd.DataFrame(X, columns=["a", "b", "c"])):
        with pytest.raises(ParameterError, match="`x` must be one record: `learn_array`"):
            one.learn_one(table)

"""The public class: river's contract, the three ways in, state, copies, bad input."""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import checks, compose

from stream_dppca import (
    DPPCA,
    InverseTime,
    LooseBudgetWarning,
    PaperDPPCA,
    PerSubject,
    streaming,
)
from stream_dppca.errors import BatchSizeError, DPPCAError, ParameterError, StateError
from stream_dppca.frames import rows_of
from tests.conftest import sine, spiked

FEATURES = tuple("abcde")
PARAMS: dict[str, Any] = {
    "features": FEATURES,
    "epsilon": 2.0,
    "delta": 1e-5,
    "batch_size": 1000,
    "center": "none",
    "scales": None,
}


#: Enough subsets for a bin to pass in a small batch.
PAPER: dict[str, Any] = {"K": 1.0, "a": 0.5, "C1": 20.0}


def model(**changes: Any) -> DPPCA:
    return DPPCA(**{**PARAMS, **changes})


def paper(**changes: Any) -> PaperDPPCA:
    return PaperDPPCA(**{**PARAMS, **PAPER, **changes})


MODELS: dict[str, Callable[..., DPPCA | PaperDPPCA]] = {"adaptive": model, "paper": paper}


def river_cases() -> list[Any]:
    params = next(DPPCA._unit_test_params())
    known = {"center": "none", "scales": None}
    models = {
        "learned": DPPCA(**params),
        "learned and seeded": DPPCA(**params, seed=42),
        "unseeded": DPPCA(**params, **known),
        "seeded": DPPCA(**params, **known, seed=42),
        "two": DPPCA(**params, n_components=2),
        "paper": PaperDPPCA(**next(PaperDPPCA._unit_test_params()), C1=0.5),
        "pairs": PaperDPPCA(**next(PaperDPPCA._unit_test_params()), C1=0.5, center="pairs", seed=1),
    }
    return [
        pytest.param(m, check, id=f"{name}-{check.__name__}")
        for name, m in models.items()
        for check in checks.yield_checks(m)
        if check.__name__ not in m._unit_test_skips()
    ]


@pytest.mark.parametrize("estimator, check", river_cases())
def test_river(estimator: Any, check: Any) -> None:
    check(estimator.clone())


def test_river_ran_its_mini_batch_checks() -> None:
    names = {case.values[1].__name__ for case in river_cases()}
    assert {"check_learn_many_matches_learn_one", "check_seeding_is_idempotent"} <= names


# The three ways in


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(
    "method, batch_size, center",
    [("adaptive", 500, "none"), ("paper", 3000, "none"), ("paper", 3000, "pairs")],
)
def test_the_three_ways_in_agree(method: str, batch_size: int, k: int, center: str) -> None:
    rng = np.random.default_rng(0)
    X, _ = spiked(rng, 5 * batch_size // 2, 5, 0.2)
    X[7, 3] = np.nan
    X[8] = 1e200
    frame = pd.DataFrame(X, columns=list(FEATURES))
    settings = {
        "batch_size": batch_size,
        "n_components": k,
        "center": center,
        "epsilon": 8.0,
        "delta": 1e-3,
        "seed": 3,
    }
    if method == "paper":
        settings["C1"] = 10.0
    one, many, array = (MODELS[method](**settings) for _ in range(3))
    for row in X:
        one.learn_one(dict(zip(FEATURES, row.tolist(), strict=True)))
    for start in range(0, len(X), 333):
        many.learn_many(frame.iloc[start : start + 333])
    array.learn_array(X)
    assert one.n_seen == many.n_seen == array.n_seen == len(X)
    assert one.n_batches == many.n_batches == array.n_batches == 2
    assert one.last_release is not None and one.last_release.status == "learned"
    assert one.state() == many.state() == array.state()


@pytest.mark.parametrize(
    "method, how",
    [
        ("adaptive", {"batch_size": 700}),
        ("paper", {"batch_size": 700, "epsilon": 20.0, "delta": 1e-3}),
        ("paper", {"batch_size": 1400, "epsilon": 20.0, "delta": 1e-3, "center": "pairs"}),
    ],
)
def test_scales_are_a_division_whatever_the_way_in(method: str, how: dict[str, Any]) -> None:
    model = MODELS[method]
    rng = np.random.default_rng(0)
    scales = (1e6, 1e-6, 2.0, 8.0, 0.5)
    X = rng.standard_normal((1500, 5))
    X[3, 2], X[9] = np.nan, 1e300
    raw = X * scales
    settings: dict[str, Any] = {"seed": 5, **how}
    # Known standard deviations of 1; values as they are for the paper's algorithm.
    plain = model(**settings, **({"scales": [1.0] * 5} if method == "adaptive" else {}))
    plain.learn_array(raw / scales)
    array, one = (model(scales=given, **settings) for given in (scales, np.array(scales)))
    many = model(scales=dict(zip(FEATURES, scales, strict=True)), **settings)
    before = raw.copy()
    array.learn_array(raw)
    assert np.array_equal(raw, before, equal_nan=True)
    for row in raw.tolist():
        one.learn_one(dict(zip(FEATURES, row, strict=True)))
    many.learn_many(pd.DataFrame(raw, columns=list(FEATURES)))
    assert array.state() == one.state() == many.state()
    assert array.components == pytest.approx(plain.components)
    x = dict(zip(FEATURES, raw[0].tolist(), strict=True))
    divided = dict(zip(FEATURES, X[0].tolist(), strict=True))
    assert array.transform_one(x) == pytest.approx(plain.transform_one(divided))
    if method == "paper":
        assert array.transform_one(x)[0] == pytest.approx(X[0] @ plain.components[0])
    restored = type(array).from_state(json.loads(json.dumps(array.state())), scales=scales)
    assert restored.transform_one(x) == array.transform_one(x)
    assert pickle.loads(pickle.dumps(array)).transform_one(x) == array.transform_one(x)


def test_float32_is_taken() -> None:
    X = np.random.default_rng(1).standard_normal((1000, 5)).astype(np.float32)
    one, other = model(seed=1), model(seed=1)
    one.learn_array(X)
    other.learn_array(X.astype(np.float64))
    assert one.state() == other.state()


@pytest.mark.parametrize(
    "X",
    [
        np.zeros(5),
        np.zeros((3, 4)),
        np.zeros((2, 5, 1)),
        [["a"] * 5],
        None,
    ],
)
def test_an_array_of_another_shape_is_refused_whole(X: Any) -> None:
    m = model()
    with pytest.raises(ParameterError, match="`X` must"):
        m.learn_array(X)
    assert m.n_seen == 0


# Learning


def test_it_finds_the_direction() -> None:
    rng = np.random.default_rng(4)
    X, v = spiked(rng, 40_000, 5, 0.1)
    # Without a seed, the last one was further off than a lucky first one in 1 of 105 runs.
    m = model(seed=1)
    errors = []
    for start in range(0, len(X), 1000):
        m.learn_array(X[start : start + 1000])
        errors.append(sine(m.components[0], v))
    assert errors[-1] < 0.05
    assert errors[-1] < errors[0]


@pytest.mark.parametrize("k", [2, 4])
def test_several_components(k: int) -> None:
    rng = np.random.default_rng(5)
    scale = np.array([4.0, 3.0, 2.0, 1.0, 0.1])
    Q = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    m = model(n_components=k)
    previous = None
    for _ in range(40):
        m.learn_array(rng.standard_normal((1000, 5)) * scale @ Q.T)
        W = m.components
        assert pytest.approx(np.eye(k), abs=1e-9) == W @ W.T
        if previous is not None:
            assert (np.einsum("ij,ij->i", W, previous) >= 0).all()  # no component flips
        previous = W
    assert np.linalg.svd(Q[:, :k].T @ W.T)[1].min() > 0.99
    assert m.last_release is not None and m.last_release.spread is not None
    assert m.last_release.spread == pytest.approx(scale[:k] ** 2, rel=0.5)


@pytest.mark.parametrize("d", [5, 70])
def test_the_largest_weight_of_a_first_release_is_positive(d: int) -> None:
    for seed in range(5):
        pca = model(features=range(d), epsilon=8.0, delta=1e-3, batch_size=500, n_components=2)
        pca.learn_array(np.random.default_rng(seed).standard_normal((500, d)))
        W = pca.components
        assert (W[np.arange(2), np.abs(W).argmax(axis=1)] > 0).all()


def test_scores() -> None:
    m = model(n_components=2)
    x = dict.fromkeys(FEATURES, 1.0)
    assert m.transform_one(x) == {0: 0.0, 1: 0.0} and m.transform(x) == {}
    assert m.transform_many(pd.DataFrame([x])).to_numpy().tolist() == [[0.0, 0.0]]
    assert m.transform(np.ones((3, 5))).shape == (3, 0) and m.components.shape == (0, 5)
    assert math.isnan(m.spe(x)) and math.isnan(m.t2(x)) and m.is_anomaly(x) is None
    m.learn_array(np.random.default_rng(0).standard_normal((1000, 5)))
    scores = m.transform_one(x)
    assert list(scores.values()) == pytest.approx(m.components.sum(axis=1))
    assert all(type(v) is float for v in scores.values())
    bad = {"a": math.nan, "b": "3", "c": None, "d": math.inf}
    assert m.transform_one(bad) == {0: 0.0, 1: 0.0}
    frame = pd.DataFrame([x, bad], index=["r", "s"])
    assert m.transform_many(frame).loc["r"].tolist() == pytest.approx(list(scores.values()))
    assert m.transform_many(frame).loc["s"].tolist() == [0.0, 0.0]
    assert m.transform_many(pd.DataFrame()).shape == (0, 2)


def test_in_a_pipeline() -> None:
    pipeline = compose.FuncTransformer(lambda x: {**x, "a": x["a"] / 10.0}) | model()
    for row in np.random.default_rng(0).standard_normal((1000, 5)).tolist():
        pipeline.learn_one(dict(zip(FEATURES, row, strict=True)))
    assert pipeline["DPPCA"].n_batches == 1
    assert set(pipeline.transform_one(dict.fromkeys(FEATURES, 1.0))) == {0}


# What is shown


def test_privacy_and_releases() -> None:
    for seed, private in ((None, True), (1, False)):
        m = model(seed=seed)
        assert m.last_release is None
        m.learn_array(np.zeros((1000, 5)))
        release = m.last_release
        assert release is not None
        assert release.privacy == m.privacy
        assert m.privacy.private is private
        assert (m.privacy.epsilon, m.privacy.delta) == (2.0, 1e-5)
        assert (m.privacy.adjacency, m.privacy.unit) == ("replace-one", "record")
        assert release.batch == 1 and release.n_seen == 1000
        json.loads(release.model_dump_json())


def test_nothing_changes_between_batches() -> None:
    """Nothing visible before a batch is full depends on the records in it."""
    m = model()
    m.learn_array(np.random.default_rng(0).standard_normal((1000, 5)))
    before = json.dumps(m.state())
    m.learn_array(np.full((999, 5), 123.0))
    assert json.dumps(m.state()) == before
    assert "123" not in repr(m) and "123" not in str(m)


# Copies and state


def same_records(m: DPPCA | PaperDPPCA) -> list[float]:
    m.learn_array(np.zeros((1000, 5)))
    # The paper's algorithm skips a batch whose counts fall on both sides of an edge; not of two.
    for scale in (1.0, 1.4):
        m.learn_array(scale * np.random.default_rng(0).standard_normal((1000, 5)))
    return m.components.ravel().tolist()


@pytest.mark.parametrize("method", MODELS)
def test_copies_never_share_noise(method: str) -> None:
    m = MODELS[method](epsilon=20.0)
    m.learn_array(np.random.default_rng(1).standard_normal((1500, 5)))
    stored = pickle.dumps(m)
    grouper = compose.Grouper(m, by="group")
    copies = [
        m,
        copy.copy(m),
        copy.deepcopy(m),
        pickle.loads(stored),
        pickle.loads(stored),
        m.clone(),
        m.clone(include_attributes=True),
        copy.deepcopy(grouper.transformer),
    ]
    assert [c.n_seen for c in copies[1:5]] == [1000] * 4  # the partial batch stays behind
    assert copies[6].n_seen == 1000
    results = [tuple(same_records(c)) for c in copies]
    assert len(set(results)) == len(results)


def test_a_pickle_holds_no_record() -> None:
    m = model()
    m.learn_array(np.random.default_rng(1).standard_normal((1000, 5)))
    m.learn_one(dict.fromkeys(FEATURES, 123456.789))
    assert np.float64(123456.789).tobytes() not in pickle.dumps(m)
    assert np.float64(123456.789).tobytes() in m._slots._rows.tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "method, how",
    [("adaptive", {}), ("paper", {"step": InverseTime(2.0, 1.0)}), ("paper", {"center": "pairs"})],
)
def test_state_goes_on_where_it_was(method: str, how: dict[str, Any]) -> None:
    X = np.random.default_rng(2).standard_normal((3000, 5)) * [3, 1, 1, 1, 1]
    m = MODELS[method](epsilon=20.0, seed=9, **how)
    m.learn_array(X[:1400])
    restored = type(m).from_state(json.loads(json.dumps(m.state())))
    assert restored.n_seen == 1000  # the 400 of the partial batch are to be read again
    assert restored.components == pytest.approx(m.components)
    assert restored.last_release == m.last_release
    restored.learn_array(X[1000:])
    assert restored.n_batches == 3


def test_state_is_plain_json_and_small() -> None:
    m = model()
    m.learn_array(np.random.default_rng(2).standard_normal((20_000, 5)))
    text = json.dumps(m.state(), allow_nan=False)
    assert len(text) < 10_000


@pytest.mark.parametrize(
    "name, value",
    [
        ("features", ("a", "b", "c", "d", "x")),
        ("epsilon", 1.0),
        ("delta", 1e-6),
        ("seed", 1),
        ("n_components", 2),
        ("center", "mean"),
        ("memory", "all"),
        ("batch_size", 2000),
        ("scales", (1.0, 1.0, 1.0, 1.0, 2.0)),
    ],
)
def test_a_state_of_another_configuration_is_refused_by_name(name: str, value: Any) -> None:
    state = model(epsilon=20.0).state()
    with pytest.raises(StateError, match=rf"`config\.{name}`"):
        DPPCA.from_state(state, **{name: value})


@pytest.mark.parametrize(
    "name, value",
    [
        ("K", 2.0),
        ("a", 1.0),
        ("zeta", 0.1),
        ("C1", 8.0),
        ("center", "pairs"),
        ("step", InverseTime(2.0, 0.0)),
        ("scales", (1.0, 1.0, 1.0, 1.0, 2.0)),
    ],
)
def test_a_paper_state_of_another_configuration_is_refused(name: str, value: Any) -> None:
    state = paper(epsilon=20.0).state()
    with pytest.raises(StateError, match=rf"`config\.{name}`"):
        PaperDPPCA.from_state(state, **{name: value})


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {"version": 3},
        {"version": 2},
        {"version": 1},
        {"version": 1, "config": {}},
        {**model().state(), "version": 3},
        {**model().state(), "learned": {}, "n_batches": -1},
        {**model().state(), "centre": [0.0]},
        {**model().state(), "config": None},
        {**model().state(), "method": {}},
        {**model().state(), "method": {"W": [[1.0]]}},
        {**model().state(), "n_batches": None},
    ],
)
def test_a_broken_state_is_refused(broken: Any) -> None:
    with pytest.raises(StateError):
        DPPCA.from_state(broken)


# Bad parameters, bad records


@pytest.mark.parametrize(
    "name, value",
    [
        ("features", ()),
        ("features", "abc"),
        ("features", ("a", "a")),
        ("features", None),
        ("epsilon", 0),
        ("epsilon", "1"),
        ("delta", 0.0),
        ("delta", 2.0),
        ("batch_size", 0),
        ("batch_size", 10.5),
        ("batch_size", True),
        ("batch_size", None),
        ("n_components", 0),
        ("n_components", 6),
        ("n_components", 1.0),
        ("center", "median"),
        ("center", "pairs"),
        ("center", "own"),
        ("memory", 1),
        ("memory", "long"),
        ("memory", True),
        ("missing", "mean"),
        ("scales", "guess"),
        ("batches", 2),
        ("batches", True),
        ("seed", -1),
        ("seed", 0.5),
        ("scales", (1.0,)),
        ("scales", 2.0),
        ("scales", dict.fromkeys("vwxyz", 1.0)),
        ("scales", "abcde"),
        ("scales", (1.0, 1.0, 1.0, 1.0, 0.0)),
        ("scales", (1.0, 1.0, 1.0, 1.0, math.nan)),
    ],
)
def test_a_bad_parameter_is_named(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=rf"`{name}` must .*Found"):
        model(**{name: value})


@pytest.mark.parametrize(
    "name, value",
    [
        ("features", ()),
        ("epsilon", 0),
        ("delta", 2.0),
        ("batch_size", 0),
        ("batch_size", None),
        ("batch_size", 2**22 + 2),
        ("n_components", 6),
        ("seed", -1),
        ("center", "mean"),
        ("center", "own"),
        ("scales", "learn"),
        ("scales", (1.0,)),
        ("K", math.nan),
        ("a", -1.0),
        ("zeta", 0.0),
        ("C1", 0.0),
        ("step", 3),
    ],
)
def test_a_bad_parameter_of_the_paper_is_named(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=rf"`{name}` must .*Found"):
        paper(**{name: value})


def test_what_cannot_be_meant_cannot_be_written() -> None:
    for name, value in {
        "K": 9,
        "zeta": 0.1,
        "method": "paper",
        "period": 2,
        "subject": "a",
    }.items():
        with pytest.raises(TypeError, match=name):
            model(**{name: value})
    for name, value in {"memory": "all", "missing": "null", "unit": "record"}.items():
        with pytest.raises(TypeError, match=name):
            paper(**{name: value})


def test_pairs_need_an_even_batch() -> None:
    with pytest.raises(ParameterError, match="`batch_size` must be even"):
        paper(batch_size=4001, center="pairs")


def test_pairs_know_no_mean() -> None:
    """Differences of neighbours: a mean that all records share changes no release."""
    X, v = spiked(np.random.default_rng(4), 40_000, 5, 0.1)
    found = []
    for mean in (0.0, 1024.0):  # sums that are exact
        m = paper(center="pairs", seed=1, epsilon=20.0, batch_size=8000, step=InverseTime(4.0))
        m.learn_array(np.round(X * 2**20) / 2**20 + mean)
        found.append(m.components)
    assert sine(found[0][0], v) < 0.1
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    "method, center", [("adaptive", "mean"), ("paper", "none"), ("paper", "pairs")]
)
def test_a_batch_too_small_says_the_smallest(method: str, center: str) -> None:
    make = partial(MODELS[method], center=center)
    if method == "adaptive":
        make = partial(make, scales="learn")
    with pytest.raises(BatchSizeError) as caught:
        make(batch_size=4)
    smallest = caught.value.minimum
    make(batch_size=smallest)
    with pytest.raises(BatchSizeError):
        make(batch_size=smallest - 2)


EXTREMES = {
    "zeros": np.zeros(5),
    "negative zeros": -np.zeros(5),
    "constants": np.full(5, 7.0),
    "huge": np.full(5, 4e17),
    "beyond the cap": np.full(5, 1e300),
    "tiny": np.full(5, 1e-300),
    "subnormal": np.full(5, 5e-324),
    "nulls": np.full(5, np.nan),
    "infinite": np.full(5, -np.inf),
    "mixed": np.array([1e17, 1e-300, 0.0, -1.0, 5e-324]),
}


@pytest.mark.parametrize(
    "method, how",
    [
        ("adaptive", {"center": "mean"}),
        ("adaptive", {"center": "none"}),
        ("paper", {"C1": 0.5}),
        ("paper", {"C1": 0.5, "center": "pairs"}),
    ],
)
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", EXTREMES)
def test_no_batch_is_too_odd(name: str, k: int, method: str, how: dict[str, Any]) -> None:
    m = MODELS[method](n_components=k, epsilon=20.0, batch_size=400, **how)
    rng = np.random.default_rng(0)
    for odd in (True, False, True):
        X = np.tile(EXTREMES[name], (400, 1)) if odd else rng.standard_normal((400, 5))
        m.learn_array(X)
        assert np.isfinite(m.components).all()
        found = len(m.components)
        assert found in (0, k)
        assert pytest.approx(np.eye(found), abs=1e-9) == m.components @ m.components.T
    assert m.n_batches == 3
    json.dumps(m.state(), allow_nan=False)


def _column(kind: str, scale: float, n: int, rng: np.random.Generator) -> np.ndarray:
    draws = {
        "constant": lambda: np.ones(n),
        "normal": lambda: rng.standard_normal(n),
        "far from 0": lambda: 1e6 + rng.standard_normal(n),
        "heavy": lambda: rng.standard_cauchy(n) ** 3,
        "rare": lambda: (rng.random(n) < 2 / n) * 1.0,
        "two values": lambda: rng.integers(0, 2, n) * 1.0,
        "grows": lambda: np.exp(rng.uniform(-600, 600, n)),
        "infinite": lambda: np.where(rng.random(n) < 0.1, np.inf, rng.standard_normal(n)),
        "missing": lambda: np.where(rng.random(n) < 0.6, np.nan, rng.standard_normal(n)),
        "nothing": lambda: np.full(n, np.nan),
    }
    with np.errstate(all="ignore"):
        return np.asarray(draws[kind]() * scale)


COLUMNS = st.tuples(
    st.sampled_from(
        [
            "constant",
            "normal",
            "normal",
            "far from 0",
            "heavy",
            "rare",
            "two values",
            "grows",
            "infinite",
            "missing",
            "nothing",
        ]
    ),
    st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e-300, 1e-18, 1e-9, 1e9, 1e17, 1e300]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(COLUMNS, min_size=3, max_size=3), min_size=2, max_size=4),
    st.sampled_from([8.0, 40.0, 100.0]),
    st.sampled_from(["mean", "none"]),
    st.sampled_from(["learn", None, (1.0, 1e-9, 1e9)]),
    st.sampled_from(["auto", "all", 2.0]),
    st.sampled_from(["null", "center", "subjects"]),
    st.sampled_from([120, 1500]),
    st.integers(0, 2**32 - 1),
)
def test_every_number_of_a_release_is_finite(
    batches: list[list[tuple[str, float]]],
    epsilon: float,
    center: Any,
    scales: Any,
    memory: Any,
    reading: str,
    n: int,
    seed: int,
) -> None:
    """Whatever the records are: a release with another number could be neither made nor kept."""
    rng = np.random.default_rng(seed)
    how: dict[str, Any] = {"batch_size": n, "missing": reading}
    if reading == "subjects":
        how = {"unit": PerSubject("id", places=n, records=2, period=2)}
    m = DPPCA(
        features=("a", "b", "c"),
        epsilon=epsilon,
        delta=1e-2,
        n_components=2,
        center=center,
        scales=scales,
        memory=memory,
        seed=seed,
        **how,
    )
    for columns in batches:
        size = n * m.step_batches
        X = np.column_stack([_column(*column, size, rng) for column in columns])
        if reading == "subjects":
            m.learn_array(X, subjects=rng.integers(0, n, size).tolist())
            m.close_round()
        else:
            m.learn_array(X)
        release = m.last_release
        assert release is not None
        # JSON has no other numbers.
        json.dumps(release.model_dump(mode="python"), allow_nan=False)
        m = DPPCA.from_state(json.loads(json.dumps(m.state(), allow_nan=False)))
    assert m.n_batches == len(batches)


def test_scales_from_micro_to_mega() -> None:
    for scale in (1e-6, 1.0, 1e6):
        X, v = spiked(np.random.default_rng(1), 20_000, 5, 0.1)
        m = model()
        m.learn_array(X * scale)
        assert sine(m.components[0], v) < 0.1


@pytest.mark.parametrize("where", ["step", "release"])
@pytest.mark.parametrize("center", ["mean", "none"])
def test_a_batch_that_was_interrupted_is_used_and_ends_the_model(
    center: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a batch has spent budget: its records, and the model, must not be used again."""
    scales = "learn" if center == "mean" else None
    pca = DPPCA(
        features=("a", "b"), epsilon=4.0, delta=1e-4, batch_size=500, center=center, scales=scales
    )
    X = np.random.default_rng(0).standard_normal((1000, 2))
    pca.learn_array(X[:500])

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    if where == "step":
        monkeypatch.setattr(type(pca._method), "step", interrupt)
    else:
        monkeypatch.setattr(streaming, "Release", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pca.learn_array(X[500:])
    monkeypatch.undo()
    release = pca.last_release
    assert pca.n_seen == 1000 and release is not None and release.batch == 1
    with pytest.raises(DPPCAError, match="batch 2 was interrupted"):
        pca.learn_array(X[:500])
    with pytest.raises(DPPCAError, match="first 1000 records"):
        pca.state()


def test_a_missing_key_is_replaced_by_the_centre_as_a_missing_value_is() -> None:
    rows = []
    for x in ({"a": 1.0, "b": None}, {"a": 1.0}):
        pca = DPPCA(features=("a", "b"), epsilon=4.0, delta=1e-4, batch_size=500, missing="center")
        pca.learn_one(x)
        assert pca._slots._rows is not None
        rows.append(pca._slots._rows[0].copy())
    assert rows[0][0] == rows[1][0] == 1.0
    assert np.isnan(rows[0][1]) and np.isnan(rows[1][1])


def test_one_cell_does_not_decide_where_the_rows_of_a_frame_lie() -> None:
    pca = DPPCA(features=("a", "b", "c"), epsilon=4.0, delta=1e-4, batch_size=500)
    plain = pd.DataFrame(np.zeros((64, 3)), columns=["a", "b", "c"])
    mixed = plain.astype(object)
    mixed.iloc[7, 2] = "bad"
    found = [rows_of(frame, pca._slots.features) for frame in (plain, mixed)]
    assert {X.ctypes.data % 64 for X in found} == {0}
    assert {X.strides for X in found} == {(24, 8)}


@pytest.mark.parametrize(
    ("loose", "said"),
    [
        ({"epsilon": 50.0}, "epsilon = 50 promises next to nothing"),
        ({"delta": 0.1}, "delta = 0.1 is above 1/batch_size.*1e-06 is usual"),
        ({"delta": 1e-6, "batch_size": 2_000_000}, "delta = 1e-06 is above.*1e-08 is usual"),
    ],
)
def test_a_budget_that_protects_nobody_is_warned_of(loose: dict[str, float], said: str) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-6}
    with pytest.warns(LooseBudgetWarning, match=said):
        DPPCA(features=("a", "b"), **{"batch_size": 2000, **budget, **loose})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DPPCA(features=("a", "b"), batch_size=2000, **budget)

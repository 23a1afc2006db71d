"""Learned centre and scales with many features: gradients of standardised records."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stream_dppca.method
from stream_dppca import DPPCA, Projector, StateError, plan
from stream_dppca.engine import EngineBatches
from stream_dppca.mechanisms.queries import SIDE
from stream_dppca.method import WideMethod
from stream_dppca.method.gradients import CenteredGradients, MomentsAlong
from tests.conftest import batch_of, clipped_mean, replaced, sine
from tests.engine.helpers import ArraySource, PicklingEngine

D, B = 12, 4000
FAR = [0.0, 1e-9, 1.0, 30.0, 1e6, 4e17, math.nan, 1e300]


@pytest.fixture
def few() -> Iterator[None]:
    """The method of more than 1023 features, for a few."""
    with patch.object(stream_dppca.method, "MOST_FEATURES", 0):
        yield


def model(**changes: Any) -> DPPCA:
    how: dict[str, Any] = {
        "features": tuple(range(D)), "epsilon": 2.0, "delta": 1e-5, "batch_size": B, "seed": 3
    }  # fmt: skip
    return DPPCA(**how | changes)


def telemetry(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Mixed units, far from centred, and the truth."""
    rng = np.random.default_rng(seed)
    direction, units = rng.standard_normal(D), np.exp(3 * rng.standard_normal(D))
    X = 0.8 * rng.standard_normal((n, D)) + 1.5 * rng.standard_normal((n, 1)) * direction
    truth = np.linalg.eigh(np.corrcoef(X.T))[1][:, -1]
    return (X + 20 * rng.standard_normal(D)) * units, truth


@given(
    seed=st.integers(0, 10_000),
    log_rho=st.integers(-8, 8),
    size=st.sampled_from([0.0, 1.0, 1e3]),
    lengths=st.tuples(st.sampled_from(FAR), st.sampled_from(FAR)),
)
@settings(max_examples=200, deadline=None)
def test_no_record_moves_a_query_further_than_its_sensitivity(
    seed: int, log_rho: int, size: float, lengths: tuple[float, float]
) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 40)), int(rng.integers(1, 8))
    k = int(rng.integers(1, d + 1))
    W = np.linalg.qr(rng.standard_normal((d, k)))[0]
    L = rng.standard_normal((k, k)) * size
    how: dict[str, Any] = {
        "center": tuple(rng.standard_normal(d).tolist()),
        "scale": tuple(np.exp(rng.standard_normal(d)).tolist()),
        "clamp": tuple(rng.choice([0.0, 3.0, 5.0], d).tolist()),
        "along": rng.standard_normal(k) * size,
    }
    X = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-2, 3)
    i, rho = int(rng.integers(n)), 2.0**log_rho
    one, other = (batch_of(replaced(rng, X, i, length)) for length in lengths)
    form = CenteredGradients(W, (L + L.T) / 2, **how, offset=rng.standard_normal(d))
    (a, sensitivity), (b, _) = (clipped_mean(rows, form, rho) for rows in (one, other))
    assert np.linalg.norm(a - b) <= sensitivity
    T = rng.standard_normal((k, k))
    along = MomentsAlong(
        W,
        **how,
        whiten=T + T.T,
        length=float(rng.choice([0.0, 0.3])),
        constant=float(rng.choice([0.1, 1.0, 3.0])),
        radius=rho,
    )
    assert np.linalg.norm(one.total(along) - other.total(along)) <= along.sensitivity(n)


def test_the_sensitivities_are_tight() -> None:
    W = np.eye(4)[:, :1]
    how: dict[str, Any] = {
        "center": (0.0,) * 4, "scale": (1.0,) * 4, "clamp": (5.0,) * 4, "along": np.zeros(1)
    }  # fmt: skip
    rest = np.zeros((9, 4))
    # The same along W, opposite across: opposite gradients; and a null for the clip factor.
    one, other = (np.vstack([rest, [[0.1, sign * 4.9, 0, 0]]]) for sign in (1, -1))
    form = CenteredGradients(W, np.zeros((1, 1)), **how, offset=np.zeros(4))
    (a, sensitivity), (b, _) = (clipped_mean(batch_of(X), form, 0.1) for X in (one, other))
    assert np.linalg.norm(a - b) > 0.99 * sensitivity * 2 / math.hypot(2, SIDE)
    how["along"] = np.zeros(2)
    along = MomentsAlong(
        np.eye(4)[:, :2], **how, whiten=np.eye(2), length=0.01, constant=0.1, radius=2.0
    )
    one, other = (np.vstack([rest, [row]]) for row in ([4.0, 0, 0, 0], [0, 4.0, 0, 0]))
    moved = batch_of(one).total(along) - batch_of(other).total(along)
    assert np.linalg.norm(moved) > 0.999 * along.sensitivity(10)


@pytest.mark.usefixtures("several_threads")
def test_other_records_keep_their_digits() -> None:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((500, 7))
    W = np.linalg.qr(rng.standard_normal((7, 2)))[0]
    how = {"center": (0.1,) * 7, "scale": (2.0,) * 7, "clamp": (5.0,) * 7}
    form = CenteredGradients(W, np.eye(2), **how, along=np.zeros(2), offset=np.zeros(7))
    lengths = [batch_of(replaced(rng, X, 8, far)).ranged(form)._sq_length for far in FAR]
    for found in lengths[1:]:
        assert np.array_equal(np.delete(found, 8), np.delete(lengths[0], 8))


@pytest.mark.usefixtures("few")
class TestFew:
    @pytest.mark.parametrize("k", [1, 2])
    def test_raw_telemetry(self, k: int) -> None:
        X, v = telemetry(16 * B)
        m = model(n_components=k)
        m.learn_array(X)
        assert isinstance(m._method, WideMethod)
        assert m.last_release is not None and m.last_release.status == "learned"
        assert math.sqrt(1 - min(np.sum((m.components @ v) ** 2), 1.0)) < 0.1
        assert np.allclose(m.components @ m.components.T, np.eye(k))
        standard = (X - X.mean(axis=0)) / X.std(axis=0)
        scores = m.transform(X)
        assert abs(np.corrcoef(scores[:, 0], standard @ v)[0, 1]) > 0.99
        projector = Projector.from_release(m.last_release.model_dump_json())
        assert np.allclose(projector.transform(X[:9]), scores[:9])

    def test_a_mean_that_has_moved_is_not_taken_for_a_component(self) -> None:
        X, _ = telemetry(24 * B, seed=1)
        X[2 * B :] += 1.5 * X.std(axis=0) * np.random.default_rng(6).choice([-1, 1], D)
        later = X[2 * B :]
        v = np.linalg.eigh(np.corrcoef(later.T))[1][:, -1]
        m = model()
        m.learn_array(X)
        assert sine(m.components[0], v) < 0.2
        with patch.object(WideMethod, "_center_gradients", lambda self, *how: None):
            uncentred = model()
            uncentred.learn_array(X)
        assert sine(uncentred.components[0], v) > 2 * sine(m.components[0], v)

    def test_given_scales_and_a_known_centre(self) -> None:
        X, _ = telemetry(16 * B)
        v = np.linalg.eigh(np.corrcoef(X.T))[1][:, -1]
        m = model(scales=X.std(axis=0).tolist())
        m.learn_array(X)
        assert sine(m.components[0], v) < 0.1
        m = model(center="none")
        m.learn_array(X - X.mean(axis=0))
        assert sine(m.components[0], v) < 0.1

    @pytest.mark.parametrize("kind", ["learned", "given", "two", "known centre", "moving mean"])
    def test_explained_variances(self, kind: str) -> None:
        X, v = telemetry(16 * B)
        settings: dict[str, Any] = {"memory": "all"}
        if kind == "given":  # features of these units do not have variance 1: the total is 4.3
            settings["scales"] = (X.std(axis=0) * np.linspace(1.0, 3.0, D)).tolist()
        if kind == "two":
            settings["n_components"] = 2  # there is no second one: it keeps turning
        if kind == "known centre":
            settings["center"] = "none"
            X = X - X.mean(axis=0)
        if kind == "moving mean":  # half of the variance along the component is between batches
            level = np.repeat(np.tile([1.0, -1.0], 8), B)[:, np.newaxis]
            X = X + 2 * level * v * X.std(axis=0)
        if kind not in ("given", "known centre"):
            X[:, [3, 5, 7]] = 7.0  # no spread: each counts as one that is not explained
        m = model(**settings)
        m.learn_array(X)
        release = m.last_release
        assert release is not None and release.explained_variance_ratio is not None
        assert release.explained_variance_ratio_sd is not None and release.spread is not None
        found = m._projector()
        assert found is not None
        U = found.standardise(X)
        whole = U.var(axis=0).sum() + np.count_nonzero(U.std(axis=0) == 0)
        truth = (m.transform(X).var(axis=0) / whole).tolist()
        stated = zip(
            truth,
            release.explained_variance_ratio,
            release.explained_variance_ratio_sd,
            release.spread,
            strict=True,
        )
        assert release.explained_variance_ratio_sd[0] < 0.2 * release.explained_variance_ratio[0]
        for share, ratio, sd, spread in stated:
            assert abs(ratio - share) < 3 * sd + 0.05 * share
            assert spread == pytest.approx(ratio * whole, rel=0.15)

    def test_features_without_spread_get_loading_zero_until_they_vary(self) -> None:
        X, _ = telemetry(20 * B)
        X[:, 3] = 7.0
        X[: 4 * B, 5] = -2.0
        X[::50] = np.nan
        m = model()
        m.learn_array(X[: 4 * B])
        assert (m.components[0, [3, 5]] == 0).all()
        m.learn_array(X[4 * B :])
        assert m.components[0, 3] == 0 and m.components[0, 5] != 0

    def test_it_resumes_bit_by_bit_and_copies_forget(self) -> None:
        X, _ = telemetry(8 * B)
        m = model()
        m.learn_array(X[: 5 * B])
        state = json.loads(json.dumps(m.state()))
        restored, twin = DPPCA.from_state(state), copy.deepcopy(m)
        method = twin._method
        assert isinstance(method, WideMethod)
        assert not method.beside._sums and not method.gradients.correlated._sums
        assert restored.state() == m.state()
        for pca in (restored, twin):
            pca.learn_array(X[5 * B :])
        assert restored.state() == twin.state()
        del state["method"]["excess"]
        with pytest.raises(StateError, match="cannot be used"):
            DPPCA.from_state(state)

    def test_a_tampered_state_is_refused(self) -> None:
        m = model()
        m.learn_array(telemetry(4 * B)[0])
        for path, value in ((("gradients", "place"), 10**6), (("moments", "total"), [1.0])):
            state = json.loads(json.dumps(m.state()))
            state["method"][path[0]][path[1]] = value
            with pytest.raises(Exception, match="cannot be used"):
                DPPCA.from_state(state)

    def test_on_an_engine_it_is_the_same(self) -> None:
        X, _ = telemetry(4 * B)
        m, far = model(), model()
        m.learn_array(X)
        batches = EngineBatches(PicklingEngine(), far, 3)
        for t in range(4):
            far.learn_rows(batches.rows(ArraySource(X[t * B : (t + 1) * B])))
        assert np.allclose(m.components, far.components, atol=1e-6)

    def test_a_turn_is_noticed_and_a_calm_stream_left_alone(self) -> None:
        X, _ = telemetry(30 * B, seed=2)
        Y = X[:, ::-1] * (X.std(axis=0) / X[:, ::-1].std(axis=0))
        m, alarms = model(), []
        for t in range(40):
            rows = X[t * B : (t + 1) * B] if t < 30 else Y[(t - 30) * B : (t - 29) * B]
            m.learn_array(rows)
            assert m.last_release is not None
            alarms.append(m.last_release.drift)
        assert not any(alarms[:30]) and any(alarms[30:])


def test_more_than_1023_features() -> None:
    """A whole run at its real size, with a large budget so that it is short."""
    d, size = 1030, 4000
    rng = np.random.default_rng(5)
    v = rng.standard_normal(d) / math.sqrt(d)
    mean, units = 3 * rng.standard_normal(d), np.exp(rng.standard_normal(d))
    m = DPPCA(features=range(d), epsilon=8.0, delta=1e-3, batch_size=size, seed=1)
    for _ in range(4):
        X = rng.standard_normal((size, d)) + 8 * rng.standard_normal((size, 1)) * v
        m.learn_array((X + mean) * units)
    standard = v / np.sqrt(1 + 64 * v**2)
    assert sine(m.components[0], standard / np.linalg.norm(standard)) < 0.2


def test_plan_knows_many_features() -> None:
    p = plan(d=2000, epsilon=1.0, delta=1e-6, batch_size=12_500)
    assert p.first_batches == 2 and p.noise_per_step > 0
    assert p.sine_after(16 * 12_500)[0] < 0.5

"""The estimator with nothing but features, budget and batch size."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

from stream_dppca import (
    DPPCA,
    DPPCAError,
    ParameterError,
    PerSubject,
    PrivacyStatement,
    Projector,
    Release,
    SubspaceDistance,
    SubspaceT2,
)
from stream_dppca.mechanisms.correlated import CorrelatedRelease
from stream_dppca.mechanisms.independent import IndependentRelease
from stream_dppca.method.memory import Memory
from tests.conftest import FrozenNoise, batch_of, sine

D, B = 6, 2000
FEATURES = tuple("abcdef")
UNITS = np.array([1.0, 1e6, 1e-6, 1.0, 1e3, 1.0])
MEANS = np.array([0.0, 5.0, -3.0, 100.0, 20.0, 1.0])  # in units


def model(**changes: Any) -> DPPCA:
    how = {"features": FEATURES, "epsilon": 1.0, "delta": 1e-6, "batch_size": B, "seed": 1}
    return DPPCA(**how | changes)


def telemetry(n: int, seed: int = 0, direction: Any = (1, 1, -1, 1, 0.5, 0)) -> Any:
    """One load that drives most features, in mixed units, far from centred; and the truth."""
    rng = np.random.default_rng(seed)
    S = np.outer(direction, direction) + 0.5 * np.eye(D)
    X = rng.multivariate_normal(np.zeros(D), S, size=n)
    R = S / np.sqrt(np.outer(np.diag(S), np.diag(S)))
    return (X / np.sqrt(np.diag(S)) + MEANS) * UNITS, np.linalg.eigh(R)[1][:, -1]


@pytest.mark.parametrize("seed", range(3))
def test_raw_telemetry_needs_no_other_word(seed: int) -> None:
    X, v = telemetry(16 * B, seed)
    m = model(seed=seed)
    m.learn_array(X)
    assert sine(m.components[0], v) < 0.05
    release = m.last_release
    assert release is not None and release.status == "learned" and not release.drift
    assert release.explained_variance_ratio is not None
    assert release.explained_variance_ratio_sd is not None
    values = np.linalg.eigvalsh(np.corrcoef(X.T))
    off = abs(release.explained_variance_ratio[0] - values[-1] / D)
    assert off < 0.03 + 4 * release.explained_variance_ratio_sd[0]


def test_the_first_step_takes_several_batches_and_has_components() -> None:
    X, v = telemetry(8 * 400)
    m = model(batch_size=400)
    first = m.first_batches
    assert first == 5 == m._method.first_batches  # type: ignore[attr-defined]
    for t in range(8):
        m.learn_array(X[t * 400 : (t + 1) * 400])
        assert m.n_seen == (t + 1) * 400 and m.n_batches == max(t + 2 - first, 0)
        assert (m.last_release is None) == (t + 1 < first)
        if m.last_release is None:
            assert m.components.shape == (0, D)
        else:
            assert m.last_release.status == "learned" and m.last_release.n_seen == m.n_seen
    assert m.n_batches == 4 and sine(m.components[0], v) < 0.3


def test_copies_do_not_keep_whole_batches_that_wait() -> None:
    """Otherwise both would release the same records."""
    X, _ = telemetry(5 * 400)
    m = model(batch_size=400)
    for t in range(m.first_batches - 1):
        m.learn_rows(batch_of(X[t * 400 : (t + 1) * 400]))
    for twin in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        twin.learn_rows(batch_of(X[-400:]))
        assert twin.last_release is None
    m.learn_rows(batch_of(X[-400:]))
    assert m.last_release is not None and m.n_seen == 5 * 400


def test_one_batch_has_independent_noise() -> None:
    X, v = telemetry(6000)
    m = model(batch_size=6000, batches=1)
    m.learn_array(X)
    assert m.first_batches == 1 and sine(m.components[0], v) < 0.2
    assert isinstance(m._method.mechanism, IndependentRelease)  # type: ignore[attr-defined]


def test_one_batch_may_cut_off_as_many_records_as_eight_together() -> None:
    """Noise far out passed for long records in one run of twenty, when it might cut off fewer."""
    ranges = []
    for seed in range(60):
        X = np.random.default_rng(seed).normal(size=(5000, D))
        m = model(batch_size=5000, batches=1, seed=seed)
        m.learn_array(X)
        assert m.last_release is not None and m.last_release.range is not None
        ranges.append(m.last_release.range)
    assert max(ranges) < 1.6 * np.median(ranges)


def test_a_projector_needs_the_release_only() -> None:
    X, _ = telemetry(4 * B)
    m = model(n_components=2)
    m.learn_array(X)
    assert m.last_release is not None
    projector = Projector.from_release(m.last_release.model_dump_json().encode())
    assert projector.transform(X[:9]) == pytest.approx(m.transform(X[:9]))
    x = dict(zip(FEATURES, X[3].tolist(), strict=True))
    assert projector.transform(x) == m.transform(x) == pytest.approx(m.transform_one(x))
    release = m.last_release
    c, s, mean, r = (
        np.array(getattr(release, name)) for name in ("center", "scale", "mean", "deviation")
    )
    clamp, W = np.array(release.clamp), np.array(release.components).T
    by_hand = ((np.clip((X[:9] - c) / s, -clamp, clamp) - mean) / r) @ W
    assert m.transform(X[:9]) == pytest.approx(by_hand)
    directions = projector.inverse_transform(np.eye(2)) - projector.inverse_transform(
        np.zeros((1, 2))
    )
    assert directions == pytest.approx((W * (s * r)[:, None]).T)


def test_round_trips_and_distances() -> None:
    X, _ = telemetry(6 * B)
    m = model(n_components=2)
    m.learn_array(X)
    scores = m.transform(X[:50])
    back = m.projector().inverse_transform(scores)
    assert m.transform(back) == pytest.approx(scores)
    assert m.spe(back) == pytest.approx(np.zeros(50), abs=1e-6)
    strange = X[0] + np.array([0, 0, 3.0, 0, 0, 0]) * UNITS
    x = dict(zip(FEATURES, strange.tolist(), strict=True))
    assert m.spe(x) > np.median(m.spe(X[:500]))
    assert SubspaceDistance(m).score_one(x) == m.spe(x)
    assert SubspaceT2(m).score_one(x) == m.t2(x)
    huge = m.transform(np.full((1, D), 1e17))
    assert np.isfinite(huge).all() and np.abs(huge).max() < 1000  # it grows with the logarithm
    assert np.isnan(m.transform(np.full((1, D), np.nan))).all()


def test_features_that_never_vary_have_no_loading() -> None:
    X, _ = telemetry(6 * B)
    X[:, 2], X[:, 5] = 7.0, 0.0
    m = model()
    m.learn_array(X)
    assert m.components[0, [2, 5]].tolist() == [0.0, 0.0]
    assert m.last_release is not None and m.last_release.deviation is not None
    assert m.last_release.deviation[2] == 0.0


def test_a_feature_that_wakes_up_is_found() -> None:
    X, v = telemetry(24 * B)
    X[: 2 * B, 0] = MEANS[0]
    m = model()
    m.learn_array(X)
    assert sine(m.components[0], v) < 0.15


def test_scales_are_widened_as_the_data_grows() -> None:
    X, _ = telemetry(20 * B)
    X[2 * B :] *= 50
    m = model()
    m.learn_array(X)
    assert m.last_release is not None and m.last_release.scale is not None
    assert (np.array(m.last_release.scale) > 10 * UNITS).sum() >= 4


def test_drifting_means_add_up() -> None:
    """Batches whose means move along one direction: the total covariance has it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20 * B, D))
    way = np.array([1.0, -1.0, 0.0, 0.0, 0.0, 0.0])
    X += np.outer(np.repeat(rng.normal(size=20), B), way) * 1.5
    m = model(memory="all")
    m.learn_array(X * UNITS)
    assert sine(m.components[0], way / np.sqrt(2)) < 0.1


def test_known_standard_deviations_are_as_good_as_learned_ones() -> None:
    X, v = telemetry(16 * B)
    m = model(scales=X.std(axis=0).tolist())
    m.learn_array(X)
    assert sine(m.components[0], v) < 0.05


def test_one_loud_batch_does_not_widen_known_scales() -> None:
    """They are about the whole stream; if all of it is far wider, they were wrong."""
    X, _ = telemetry(8 * B)
    X = (X - MEANS * UNITS) / UNITS
    for factor, widened in ((np.repeat([3.0, 1.0], [B, 7 * B])[:, np.newaxis], 0), (30.0, D)):
        m = model(center="none", scales=[1.0] * D)
        m.learn_array(X * factor)
        assert m.last_release is not None and m.last_release.scale is not None
        assert (np.array(m.last_release.scale) > 2.0).sum() == widened


def test_features_that_hardly_vary_do_not_bring_noise_if_scales_are_known() -> None:
    """Most of what varies in rare features is beyond the clamp. Told so, it is no worse."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(16 * B, 60)) * (rng.random((16 * B, 60)) < 0.0002)
    X[:, :6] = telemetry(16 * B)[0]
    v = np.linalg.eigh(np.corrcoef(X.T))[1][:, -1]
    names, sds = tuple(map(str, range(60))), X.std(axis=0).tolist()
    for seed in range(3):
        told = model(features=names, scales=sds, seed=seed)
        told.learn_array(X)
        assert sine(told.components[0], v) < 0.1
        assert (told.components[0, 6:] == 0).sum() > 40


def test_features_in_one_unit_have_the_components_of_raw_records() -> None:
    X, _ = telemetry(16 * B)
    X = (X / UNITS - MEANS + 1) * np.array([1.0, 1.0, 3.0, 5.0, 1.0, 0.0])
    m = model(scales=None)
    m.learn_array(X)
    v = np.linalg.eigh(np.cov(X.T))[1][:, -1]
    assert sine(m.components[0], v) < 0.05


def test_a_known_centre_with_unknown_scales() -> None:
    X, v = telemetry(16 * B)
    m = model(center="none")
    m.learn_array(X - MEANS * UNITS)
    assert sine(m.components[0], v) < 0.05


def test_missing_features_may_count_as_the_centre() -> None:
    X, v = telemetry(16 * B)
    X[np.random.default_rng(5).random(X.shape) < 0.1] = np.nan  # half of the records
    errors = {}
    for missing in ("null", "center"):
        m = model(missing=missing)
        m.learn_array(X)
        errors[missing] = sine(m.components[0], v)
    assert errors["center"] < 0.1


@pytest.mark.parametrize("at", [1, 5])
def test_a_state_goes_on(at: int) -> None:
    X, v = telemetry(12 * B)
    m = model()
    m.learn_array(X[: at * B])
    again = DPPCA.from_state(json.loads(json.dumps(m.state(), allow_nan=False)))
    assert again.state() == m.state()
    assert again.components.tolist() == m.components.tolist()
    again.learn_array(X[at * B :])
    assert sine(again.components[0], v) < 0.1


class TestMemory:
    """The memory of a model whose stream changes half-way."""

    OLD, NEW = (1, 1, -1, 1, 0.5, 0), (1, -1, 1, 1, 0, 2)

    def run(self, **how: Any) -> tuple[DPPCA, list[int], Any]:
        before, _ = telemetry(12 * B, 1, self.OLD)
        after, v = telemetry(12 * B, 2, self.NEW)
        m, dropped = model(**how), []
        for X in (before, after):
            for t in range(12):
                m.learn_array(X[t * B : (t + 1) * B])
                if m.last_release is not None and m.last_release.drift:
                    dropped.append(m.n_batches)
        return m, dropped, v

    def test_auto_follows_a_change(self) -> None:
        m, dropped, v = self.run()
        assert dropped and 13 <= dropped[0] <= 18
        assert sine(m.components[0], v) < 0.15

    def test_all_keeps_everything(self) -> None:
        m, dropped, _ = self.run(memory="all")
        assert not dropped and m.state()["method"]["moments"]["weight"] == 24

    def test_a_number_forgets_by_and_by(self) -> None:
        m, dropped, v = self.run(memory=3)
        assert not dropped and sine(m.components[0], v) < 0.3

    def test_a_calm_stream_is_left_alone(self) -> None:
        X, _ = telemetry(40 * B, 3)
        m = model()
        for t in range(40):
            m.learn_array(X[t * B : (t + 1) * B])
            assert m.last_release is not None and not m.last_release.drift


class TestAfterAChange:
    """A stream whose mean moves by eight deviations, with a component that turns."""

    NEW = (1, -1, 1, 1, 0, 2)

    def changed(self, batch_size: int = B) -> tuple[DPPCA, Any, Any]:
        """A model that has just noticed it, the batches that follow, and their component."""
        before, _ = telemetry(12 * B, 1)
        after, v = telemetry(12 * B, 2, self.NEW)
        m = model(batch_size=batch_size)
        m.learn_array(before)
        moved = iter(np.split(after + 8 * UNITS, len(after) // batch_size))
        for _ in range(3 * B // batch_size):
            m.learn_array(next(moved))
            release = m.last_release
            assert release is not None
            if release.drift:
                return m, moved, v
        raise AssertionError("the change was not noticed")

    def test_everything_is_learned_anew(self) -> None:
        m, moved, v = self.changed()
        m.learn_array(next(moved))
        release = m.last_release
        assert release is not None and release.status == "learned" and not release.drift
        # Nothing of the time before is in the next release: means and components are right at once.
        assert sine(m.components[0], v) < 0.15
        mean = np.array(release.center) + np.array(release.scale) * release.mean
        assert np.abs(mean / UNITS - MEANS - 8).max() < 0.3
        assert m._method.memory.all.weight == 1  # type: ignore[attr-defined]

    def test_a_first_step_takes_several_batches_again(self) -> None:
        m, moved, v = self.changed(B // 2)
        assert m.first_batches == m.step_batches == 2
        batch, seen = m.n_batches, m.n_seen
        m.learn_array(next(moved))
        assert (m.n_batches, m.n_seen) == (batch, seen + B // 2)
        again = DPPCA.from_state(json.loads(json.dumps(m.state())))
        assert again.step_batches == 2 and again.n_seen == seen  # the waiting batch is not in it
        for one in (m, again):
            rest = [next(moved) for _ in range(1 if one is m else 2)]
            one.learn_array(np.concatenate(rest))
            assert one.n_batches == batch + 1 and one.step_batches == 1
            assert one.last_release is not None and one.last_release.n_seen == seen + B
            assert sine(one.components[0], v) < 0.2

    def test_the_first_batches_after_it_are_not_its_past(self) -> None:
        memory = Memory(2, 1.0)
        released = CorrelatedRelease(mu=1.0).release(
            np.zeros(6), sensitivity=1.0, noise=FrozenNoise()
        )
        for value, weight in ((1.0, 4.0), (7.0, 1.0)):
            memory.add(released, np.full((3, 3), value), 1.0, weight, doubtful=weight == 1.0)
        assert memory.trusted().weight == 4 and memory.trusted().mean[0, 0] == 0.25
        memory.rescale(np.full(2, 2.0))
        assert memory.trusted().mean[0, 0] == 1.0
        again = Memory(2, 1.0)
        again.load(memory.state())
        assert (again.trusted().total == memory.trusted().total).all()
        memory.trust()
        assert memory.trusted().weight == 5 and memory.state()["doubtful"] is None


@pytest.mark.parametrize("moved, noticed", [(0.0, False), (1.0, False), (5.0, True)])
def test_a_shift_along_the_component_is_noticed(moved: float, noticed: bool) -> None:
    """The component stays, and most of the records are clipped."""
    rng, d, size = np.random.default_rng(4), 8, 5000
    m = DPPCA(features=range(d), epsilon=1.0, delta=1e-6, batch_size=size, seed=2)
    drift = shift = False
    for t in range(26):
        X = rng.normal(size=(size, 1)) * [1, 1, 1, 1, 0.3, 0.3, 0, 0] + rng.normal(size=(size, d))
        if t >= 20:
            X[:, :4] += moved * np.sqrt(2)
        m.learn_array(X)
        assert m.last_release is not None
        drift, shift = drift or m.last_release.drift, shift or m.last_release.shift
    assert (drift, shift) == (noticed, noticed)


def test_nulls_for_a_while_change_no_component() -> None:
    X, v = telemetry(24 * B)
    m = model()
    m.learn_array(X[: 8 * B])
    for _ in range(6):
        m.learn_array(np.full((B, D), np.nan))
        assert m.last_release is not None and not m.last_release.drift
    m.learn_array(X[8 * B :])
    assert sine(m.components[0], v) < 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_day_and_night_are_learned_as_a_whole(seed: int) -> None:
    """A stream that comes and goes is no stream that changes: at first it may seem so."""
    rng, d = np.random.default_rng(seed), 20
    u = rng.normal(size=d)
    u *= np.sqrt(d / 3) / np.linalg.norm(u)
    night = rng.normal(size=d)  # the mean, and its opposite by day
    m = DPPCA(features=range(d), epsilon=1.0, delta=1e-6, batch_size=B, seed=seed)
    drops, last = set(), 0
    for t in range(144):
        X = rng.normal(size=(B, d)) + rng.normal(size=(B, 1)) * u
        m.learn_array(X + (night if t // 12 % 2 else -night))
        if m.last_release is not None and m.last_release.drift:
            drops.add(m.n_batches)  # its release stays while a first step fills
            last = t
    assert len(drops) <= 3 and last < 72
    C = np.eye(d) + np.outer(u, u) + np.outer(night, night)
    R = C / np.sqrt(np.outer(np.diag(C), np.diag(C)))
    assert sine(m.components[0], np.linalg.eigh(R)[1][:, -1]) < 0.1


@pytest.mark.parametrize("unit", [{"batch_size": 10**6}, {"unit": PerSubject("id", places=10**6)}])
def test_too_many_features_are_refused(unit: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"`features` must be at most 2048; .*PaperDPPCA"):
        DPPCA(features=range(2049), epsilon=1.0, delta=1e-6, **unit)


def test_a_release_projects_in_every_form_and_junk_in_none() -> None:
    privacy = PrivacyStatement(epsilon=1.0, delta=1e-6, method="adaptive", private=True)
    release = Release(
        status="learned", batch=1, features=("a", "b"), components=((0.6, 0.8),), privacy=privacy
    )
    fields = release.model_dump(mode="json")
    for form in (release, release.model_dump_json(), json.dumps(fields).encode(), fields):
        projector = Projector.from_release(form)
        assert projector.transform({"a": 1.0, "b": 1.0}) == pytest.approx({0: 1.4})
    with pytest.raises(ValueError, match="is 2, this program reads"):
        Projector.from_release(fields | {"version": 2})
    for junk in (b'{"hello": 1}', b"", b"[" * 10**6, [1], fields | {"scale": [1.0]}):
        with pytest.raises(ValueError, match="not a release"):
            Projector.from_release(junk)  # type: ignore[arg-type]


def test_other_numbers_of_components_cost_nothing() -> None:
    """They follow from the released moments of a saved model: no record is needed, nor noise."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20_000, 6)) @ np.diag([4.0, 3.0, 2.0, 1.0, 1.0, 1.0]) @ np.ones((6, 6))
    X += rng.normal(size=X.shape) * [1, 2, 3, 4, 5, 6]
    pca = model(epsilon=2, n_components=2)
    with pytest.raises(DPPCAError, match="nothing has been learned"):
        pca.projector()
    pca.learn_array(X)
    saved = DPPCA.from_state(pca.state())
    for k in (1, 2, 6):
        other = saved.projector(k)
        common = min(k, 2)
        assert other.W.shape == (6, k)
        np.testing.assert_allclose(other.W.T @ other.W, np.eye(k), atol=1e-9)
        np.testing.assert_allclose(other.W[:, :common], pca.components.T[:, :common], atol=1e-6)
    assert saved.state() == pca.state()
    with pytest.raises(ParameterError, match=r"n_components.*at most 6"):
        saved.projector(7)


@pytest.mark.parametrize("seed", [184, 279])
def test_a_feature_at_its_clamp_is_widened_until_it_is_seen(seed: int) -> None:
    """With these seeds the first step puts a centre hundreds of standard deviations off."""
    rng = np.random.default_rng(1)
    load, noise = rng.normal(size=20_000), rng.normal(scale=0.1, size=(20_000, 3))
    cpu, memory = 40 + 20 * (load + noise[:, 0]), 8e9 + 1e9 * (load + noise[:, 1])
    pca = model(features=("cpu", "memory", "disk"), seed=seed, limits=False)
    pca.learn_array(np.column_stack([cpu, memory, 500 * noise[:, 2]]))
    assert abs(pca.components[0, 2]) < 0.1


def test_no_small_stream_goes_astray() -> None:
    """Some of these did, because of a noisy share of valid records, a noisy mass or radius."""
    sines = []
    for seed in range(100):
        rng = np.random.default_rng([seed, 5])
        load = rng.normal(size=(5 * B, 1))
        X = 0.8 * load + 0.6 * rng.normal(size=(5 * B, 4))
        X[:, 2:] = np.exp(X[:, 2:])
        scales, means = np.exp(rng.uniform(-10, 20, size=4)), rng.normal(scale=9, size=4)
        pca = model(features=tuple("abcd"), seed=seed, limits=False)
        pca.learn_array(scales * (X + means))
        sines.append(sine(pca.components[0], np.linalg.eigh(np.corrcoef(X.T))[1][:, -1]))
    assert np.median(sines) < 0.05 and max(sines) < 0.2

"""The choice of the form, and the change of the form. All fast: 70 features, low noise."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from consumers.kafka.config import MAX_RECORD_BYTES
from stream_dppca import DPPCA
from stream_dppca.adaptive.method import (
    MOMENT_POWER,
    GradientMethod,
    MomentMethod,
)
from stream_dppca.adaptive.scout import SCOUT_FEATURES, SCOUT_POWER, ScoutMethod, form_for
from stream_dppca.errors import StateError
from tests.conftest import FrozenNoise

D, ROWS = 70, 1000
Array = NDArray[np.float64]


def model(k: int = 1, d: int = D, **changes: Any) -> DPPCA:
    settings = {"epsilon": 8.0, "delta": 1e-3, "batch_size": ROWS, "seed": 3}
    settings |= {"center": "none", "scales": None} | changes
    return DPPCA(features=range(d), n_components=k, **settings)


def method(pca: DPPCA) -> ScoutMethod:
    assert isinstance(pca._method, ScoutMethod)
    return pca._method


def stream(*values: float, rest: float = 0.1, d: int = D) -> tuple[Callable[..., Array], Array]:
    """Gaussian records with these first eigenvalues, and the basis."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    root = np.sqrt([*values, *[rest] * (d - len(values))])
    return lambda n=ROWS: rng.standard_normal((n, d)) * root @ Q.T, Q


def missed(pca: DPPCA, Q: Array) -> float:
    """Sine of the largest angle between the components and the first columns of Q."""
    W = pca.components.T
    truth = Q[:, : W.shape[1]]
    return float(np.linalg.norm(W - truth @ (truth.T @ W), 2))


@pytest.mark.parametrize(
    "d, rows, form",
    [(64, 400, "moment"), (65, 400, "gradient"), (65, 20_000, "scout"), (200, 6250, "scout"),
     (200, 1000, "gradient"), (784, 3750, "scout"), (1023, 6250, "scout"),
     (1023, 3000, "gradient"), (1024, 10**6, "gradient")],
)  # fmt: skip
def test_the_form_follows_from_public_numbers(d: int, rows: int, form: str) -> None:
    assert form_for(d=d, epsilon=1.0, delta=1e-6, rows=rows) == form


# The decision


def test_one_component_and_gradients_go_on_from_it() -> None:
    draw, Q = stream(1.0)
    pca = model()
    scout = method(pca).form
    assert isinstance(scout, MomentMethod) and scout.power == SCOUT_POWER
    pca.learn_array(draw())
    assert missed(pca, Q) < 0.3
    chosen = method(pca).form
    assert method(pca).name == "gradient" and isinstance(chosen, GradientMethod)
    # It starts from the component, knows its strength and that of the rest, and is fairly sure.
    assert abs(chosen.V[:, 0] @ pca.components[0]) == pytest.approx(1.0)
    assert chosen.L[0, 0] == pytest.approx(0.8, abs=0.2)
    assert chosen.bulk == pytest.approx(0.1, rel=0.3)
    assert chosen.gain > 0.9
    assert chosen.estimate.weight > 0
    # A new C: nothing of the scouting batch is in it.
    assert not chosen.correlated._sums and not chosen.whitener._expected
    first, bulk = pca.components[0], chosen.bulk
    pca.learn_array(draw(7 * ROWS))
    assert chosen.bulk == bulk  # that is for random starts to learn
    assert missed(pca, Q) < 0.08
    assert first @ pca.components[0] > 0.9  # no sign flips with the form


def test_the_scout_is_forgotten() -> None:
    draw, _ = stream(1.0)
    pca = model()
    gone = [weakref.ref(method(pca).form), weakref.ref(method(pca).form.correlated)]
    pca.learn_array(draw())
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_a_close_second_component_and_moments_stay() -> None:
    draw, Q = stream(1.0, 0.8)
    pca = model()
    pca.learn_array(draw())
    stayed = method(pca).form
    assert method(pca).name == "moment" and isinstance(stayed, MomentMethod)
    assert stayed.power == MOMENT_POWER and stayed.correlated._sums
    pca.learn_array(draw(7 * ROWS))
    assert method(pca).form is stayed
    assert missed(pca, Q) < 0.12  # gradients from the start: 0.19


def test_two_components_one_of_them_seen() -> None:
    draw, Q = stream(1.0, 0.3)
    pca = model(k=2, epsilon=2.0)
    pca.learn_array(draw())
    chosen = method(pca).form
    assert isinstance(chosen, GradientMethod)
    assert np.abs(chosen.V.T @ pca.components.T) == pytest.approx(np.eye(2), abs=1e-9)
    values = np.diag(chosen.L)
    assert values[0] > 0.5 and values[1] == pytest.approx(chosen.bulk)
    pca.learn_array(draw(15 * ROWS))
    assert missed(pca, Q) < 0.3


def test_nothing_seen_and_gradients_start_at_random() -> None:
    draw, _ = stream(1.0, rest=1.0)
    pca = model(epsilon=2.0)
    start = method(pca).W
    pca.learn_array(draw())
    chosen = method(pca).form
    assert isinstance(chosen, GradientMethod)
    assert np.array_equal(chosen.V, start) and chosen.estimate.weight == 0
    assert not np.allclose(np.abs(pca.components[0]), np.abs(start[:, 0]))  # shown: what was found


def test_many_components_are_not_scouted_for() -> None:
    pca = model(k=3)
    assert method(pca).name == "moment"
    pca.learn_array(stream(1.0, 1.0, 1.0)[0]())
    assert method(pca).name == "moment"


class Scripted(FrozenNoise):
    """A source whose releases are those of another stream, whatever the queries are."""

    def __init__(self, script: list[Array] | None = None) -> None:
        super().__init__(scale=1.0)
        self.said: list[Array] = []
        self.script = None if script is None else iter(script)

    def gaussian(self, query: Array, **how: Any) -> Array:
        own = super().gaussian(query, **how)
        self.said.append(own if self.script is None else next(self.script))
        return self.said[-1]


@pytest.mark.parametrize("values, form", [((1.0,), "gradient"), ((1.0, 0.8), "moment")])
def test_all_that_follows_is_a_function_of_what_was_released(
    values: tuple[float, ...], form: str
) -> None:
    """Other records, equal releases: equal decisions, components, states."""
    one, other = model(), model()
    one._noise = first = Scripted()
    one.learn_array(stream(*values)[0](3 * ROWS))
    other._noise = Scripted(first.said)
    other.learn_array(np.random.default_rng(9).standard_normal((3 * ROWS, D)) * 7)
    assert method(one).name == form
    assert json.dumps(one.state()) == json.dumps(other.state())


def test_a_skipped_batch_decides_nothing() -> None:
    draw, _ = stream(1.0)
    pca = model()
    start = np.abs(method(pca).W)
    pca.learn_array(np.zeros((2 * ROWS, D)))
    assert pca.last_release is not None and pca.last_release.skipped
    assert method(pca).name == "scout" and np.array_equal(np.abs(method(pca).W), start)
    restored = DPPCA.from_state(json.loads(json.dumps(pca.state())))
    X = draw()
    for each in (pca, restored):
        each.learn_array(X)
        assert method(each).name == "gradient"
    assert restored.state() == pca.state()


@pytest.mark.parametrize("second", [0.1, 0.8])
def test_a_jump_is_followed_in_either_form(second: float) -> None:
    draw, Q = stream(1.0, second)
    pca = model()
    pca.learn_array(draw(10 * ROWS))
    before = missed(pca, Q)
    P = Q[:, ::-1]  # the first component is now where least was
    pca.learn_array(draw(10 * ROWS) @ Q @ P.T)
    assert before < 0.15
    assert missed(pca, P) < 0.2


# State

AFTER = {
    "nothing": (0, (1.0,), 1, "scout"),
    "gradient": (2, (1.0,), 1, "gradient"),
    "moment": (2, (1.0, 0.8), 1, "moment"),
    "many": (2, (1.0,), 3, "moment"),
}


def after(case: str) -> tuple[DPPCA, Callable[..., Array]]:
    batches, values, k, form = AFTER[case]
    draw, _ = stream(*values)
    pca = model(k=k)
    pca.learn_array(draw(batches * ROWS))
    assert method(pca).name == form
    return pca, draw


@pytest.mark.parametrize("case", AFTER)
def test_a_state_goes_on_where_it_was(case: str) -> None:
    pca, draw = after(case)
    state = json.loads(json.dumps(pca.state(), allow_nan=False))
    twins = [DPPCA.from_state(state), copy.deepcopy(pca), pickle.loads(pickle.dumps(pca))]
    assert all(twin.state() == state for twin in twins)
    X = draw(2 * ROWS)
    for twin in twins:
        assert not method(twin).form.correlated._sums
        twin.learn_array(X)
    assert twins[0].state() == twins[1].state() == twins[2].state()
    assert twins[0].n_batches == pca.n_batches + 2


@pytest.mark.parametrize("case", AFTER)
@pytest.mark.parametrize(
    "change",
    [{"form": "other"}, {"form": None}, {"form": ["moment"]}, {"W": [[1.0]] * D}, {"W": None}],
)
def test_a_forged_state_is_refused(case: str, change: dict[str, Any]) -> None:
    state = after(case)[0].state()
    DPPCA.from_state(state)
    with pytest.raises(StateError):
        DPPCA.from_state(state | {"method": state["method"] | change})
    del state["method"]["form"]
    with pytest.raises(StateError):
        DPPCA.from_state(state)


def test_a_large_estimate_is_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    pca, _ = after("moment")
    listed = pca.state()["method"]["estimate"]["total"]
    monkeypatch.setattr("stream_dppca.adaptive.estimate.LISTED", 100)
    state = json.loads(json.dumps(pca.state()))
    assert isinstance(listed, list) and isinstance(state["method"]["estimate"]["total"], str)
    twin = DPPCA.from_state(state)
    assert method(twin).form.estimate.total.tolist() == listed
    assert twin.state() == state
    for forged in ("", "AAAA", "x" * 17, state["method"]["estimate"]["total"][8:]):
        state["method"]["estimate"]["total"] = forged
        with pytest.raises(StateError):
            DPPCA.from_state(state)


@pytest.mark.parametrize("case, other", [("gradient", "moment"), ("moment", "gradient")])
def test_a_state_under_the_name_of_the_other_form_is_refused(case: str, other: str) -> None:
    state = after(case)[0].state()
    with pytest.raises(StateError):
        DPPCA.from_state(state | {"method": state["method"] | {"form": other}})


@pytest.mark.parametrize("case", ["gradient", "moment"])
@pytest.mark.parametrize(
    "change",
    [{"total": [1.0, 2.0]}, {"total": 0.0}, {"weight": 0.0}, {"weight": float("inf")},
     {"weight": float("nan")}, {"energy": [1.0, -1.0, 4]}, {"energy": None}],
)  # fmt: skip
def test_a_forged_estimate_is_refused(case: str, change: dict[str, Any]) -> None:
    state = after(case)[0].state()
    estimate = state["method"]["estimate"] | change
    with pytest.raises(StateError):
        DPPCA.from_state(state | {"method": state["method"] | {"estimate": estimate}})


@pytest.mark.parametrize("k", [1, 16])
def test_the_largest_state_fits_into_a_record(k: int) -> None:
    """The service writes the state, and the release as it will be published."""
    draw, _ = stream(1.0, 0.8, rest=0.01, d=SCOUT_FEATURES)
    pca = model(k=k, d=SCOUT_FEATURES)
    pca.learn_array(draw())
    assert method(pca).name == "moment" and pca.last_release is not None
    size = len(msgspec.json.encode(pca.state())) + len(pca.last_release.model_dump_json())
    assert size < 0.8 * MAX_RECORD_BYTES

"""States resume with the settings that they were made with."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest

from stream_dppca import DPPCA, InverseTime, PaperDPPCA, PerSubject
from stream_dppca.errors import StateError

PARAMS: dict[str, Any] = {
    "features": tuple("abcd"),
    "epsilon": 4.0,
    "delta": 1e-4,
    "batch_size": 300,
    "center": "none",
    "scales": None,
}
PAPER: dict[str, Any] = PARAMS | {"batch_size": 2000, "K": 1.0, "C1": 8.0}


def changed_defaults(monkeypatch: pytest.MonkeyPatch, **defaults: Any) -> None:
    """The estimator of a later version, with other defaults."""
    for name, value in defaults.items():
        assert name in inspect.signature(DPPCA).parameters
        monkeypatch.setitem(DPPCA.__init__.__kwdefaults__, name, value)


def test_a_later_default_does_not_change_an_old_model(monkeypatch: pytest.MonkeyPatch) -> None:
    old = DPPCA(**PARAMS).state()
    changed_defaults(monkeypatch, center="mean", scales=[2.0] * 4, n_components=3)
    assert DPPCA.from_state(old).state() == old


def test_only_what_is_given_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    state = DPPCA(**PARAMS).state()
    changed_defaults(monkeypatch, center="mean")
    assert DPPCA.from_state(state, epsilon=4.0, features=list("abcd")).center == "none"
    with pytest.raises(StateError, match=r"`config\.center` is 'none', expected 'mean'"):
        DPPCA.from_state(state, center="mean")


def test_a_setting_that_a_state_lacks_is_refused_by_name() -> None:
    state = DPPCA(**PARAMS).state()
    del state["config"]["center"]
    with pytest.raises(StateError, match=r"`config\.center` is missing"):
        DPPCA.from_state(state)
    for name in state:
        with pytest.raises(StateError, match=f"`{name}` is"):
            DPPCA.from_state({other: state[other] for other in state if other != name})


@pytest.mark.parametrize("number", [-1, 0, 1, 3])
def test_a_state_of_another_batch_than_its_release_is_refused(number: int) -> None:
    pca = DPPCA(**PARAMS)
    pca.learn_array(np.random.default_rng(4).standard_normal((600, 4)) * [4, 1, 1, 1])
    state = json.loads(json.dumps(pca.state()))
    np.testing.assert_array_equal(DPPCA.from_state(state).components, pca.components)
    with pytest.raises(StateError, match=rf"`n_batches` is {number}, expected 2"):
        DPPCA.from_state(state | {"n_batches": number})
    with pytest.raises(StateError):
        DPPCA.from_state(state | {"release": state["release"] | {"version": 2}})


def test_what_is_not_known_is_refused_by_name() -> None:
    state = DPPCA(**PARAMS).state()
    with pytest.raises(StateError, match="`scales` is not known to this version"):
        DPPCA.from_state(state | {"scales": {"learned": [1.0]}})
    with pytest.raises(StateError, match=r"`config\.colour` is not known to this version"):
        DPPCA.from_state(state | {"config": state["config"] | {"colour": "red"}})
    with pytest.raises(StateError, match="`version` is 2, expected 1"):
        DPPCA.from_state(state | {"version": 2})


def test_a_state_of_the_other_estimator_is_refused() -> None:
    with pytest.raises(StateError, match=r"`config\.method` is 'adaptive', expected 'paper'"):
        PaperDPPCA.from_state(DPPCA(**PARAMS).state())
    with pytest.raises(StateError, match=r"`config\.method` is 'paper', expected 'adaptive'"):
        DPPCA.from_state(PaperDPPCA(**PAPER).state())


@pytest.mark.parametrize(
    "made",
    [
        DPPCA(**PARAMS),
        DPPCA(
            **PARAMS | {"batch_size": None},
            unit=PerSubject("id", places=np.int64(400), period=2, horizon=9),  # type: ignore[arg-type]
        ),
        PaperDPPCA(**PAPER),
        PaperDPPCA(
            **PAPER | {"center": "pairs", "batch_size": 4000, "step": InverseTime(2.0, 1.0)}
        ),
    ],
    ids=["records", "subjects", "paper", "paper in pairs"],
)
def test_every_setting_is_in_a_state_and_comes_back(made: DPPCA | PaperDPPCA) -> None:
    state = json.loads(json.dumps(made.state(), allow_nan=False))
    parameters = set(inspect.signature(type(made)).parameters)
    assert set(state["config"]) == parameters | {"method"}
    restored = type(made).from_state(state)
    assert restored.state() == state
    for name in parameters:
        assert getattr(restored, name) == getattr(made, name)

"""States of all versions resume with the settings that they were made with.

`states/version-1.json` was written by the last code that wrote version 1, after two batches each.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from stream_dppca import DPPCA, InverseTime
from stream_dppca import state as saved
from stream_dppca.errors import StateError

OLD: dict[str, Any] = json.loads((Path(__file__).parent / "states" / "version-1.json").read_text())
PARAMS: dict[str, Any] = {
    "features": tuple("abcd"), "epsilon": 4.0, "delta": 1e-4, "batch_size": 300,
    "center": "none", "scales": None,
}  # fmt: skip


def records(n: int, d: int) -> np.ndarray:
    X = np.random.default_rng(d).standard_normal((n, d))
    X[:, 0] *= 4.0
    return X


@pytest.mark.parametrize("case", OLD)
def test_a_state_of_version_1_resumes(case: str) -> None:
    old = OLD[case]
    assert old["version"] == 1
    pca = DPPCA.from_state(old)
    now = pca.state()
    assert now["version"] == 2
    assert now["config"] == old["config"] | saved.AS_BEFORE
    assert now["learned"]
    for section in ("n_batches", "method"):
        assert now[section] == old[section]  # to the last bit
    assert old["release"].items() <= now["release"].items()
    pca.learn_array(records(pca.batch_size, len(pca.features)))
    assert pca.n_batches == 3
    again = DPPCA.from_state(json.loads(json.dumps(pca.state())))
    assert again.state() == pca.state()
    largest = 1 if case == "scales" else 0  # its first feature is divided by 10
    assert abs(again.components[0]).argmax() == largest


def test_old_states_are_of_every_kind() -> None:
    assert [OLD[case]["config"][name] for case, name in (
        ("paper", "method"), ("pairs", "center"), ("scales", "scales"), ("moment", "center"),
    )] == ["paper", "pairs", [10.0, 0.5, 2.0, 1.0], "none"]  # fmt: skip
    assert OLD["scout"]["method"]["form"] == "gradient" and "V" in OLD["gradient"]["method"]
    assert OLD["unseeded"]["config"]["seed"] is None and OLD["moment"]["config"]["scales"] is None
    assert OLD["paper"]["config"]["step"] is not None


def changed_defaults(monkeypatch: pytest.MonkeyPatch, **defaults: Any) -> None:
    """The estimator of a later version, with other defaults."""
    for name, value in defaults.items():
        assert name in inspect.signature(DPPCA).parameters
        monkeypatch.setitem(DPPCA.__init__.__kwdefaults__, name, value)


@pytest.mark.parametrize("case", ["moment", "gradient", "pairs"])
def test_a_later_default_does_not_change_an_old_model(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_defaults(monkeypatch, center="pairs", scales=[2.0] * 4, max_norm=7.0, n_components=3)
    assert DPPCA.from_state(OLD[case]).state()["config"] == OLD[case]["config"] | saved.AS_BEFORE


def test_only_what_is_given_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    state = DPPCA(**PARAMS).state()
    changed_defaults(monkeypatch, center="pairs")
    assert DPPCA.from_state(state, epsilon=4.0, features=list("abcd")).center == "none"
    with pytest.raises(StateError, match=r"`config\.center` is 'none', expected 'pairs'"):
        DPPCA.from_state(state, center="pairs")


def test_a_setting_that_a_state_lacks_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing setting has its old value from a table, or the state is refused."""
    state = DPPCA(**PARAMS | {"center": "pairs"}).state()
    del state["config"]["center"]
    with pytest.raises(StateError, match=r"`config\.center` is missing"):
        DPPCA.from_state(state)
    monkeypatch.setattr(saved, "AS_BEFORE", MappingProxyType(saved.AS_BEFORE | {"center": "pairs"}))
    assert DPPCA.from_state(state).center == "pairs"


def test_what_is_not_known_is_refused_by_name() -> None:
    state = DPPCA(**PARAMS).state()
    with pytest.raises(StateError, match="`scales` is not known to this version"):
        DPPCA.from_state(state | {"scales": {"learned": [1.0]}})
    with pytest.raises(StateError, match=r"`config\.colour` is not known to this version"):
        DPPCA.from_state(state | {"config": state["config"] | {"colour": "red"}})
    with pytest.raises(StateError, match="`unit` is 'subject', expected 'record'"):
        DPPCA.from_state(state | {"unit": "subject"})
    with pytest.raises(StateError, match="`version` is 3, expected 2 or 1"):
        DPPCA.from_state(state | {"version": 3})


def test_every_setting_is_in_a_state() -> None:
    config = DPPCA(**PARAMS, step=InverseTime(2.0, 1.0)).state()["config"]
    # The source of noise is not part of a model.
    assert set(config) == set(inspect.signature(DPPCA).parameters) - {"sampler"}

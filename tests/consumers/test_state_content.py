"""All that a state may hold follows from releases and public numbers.

What a model releases is given again, as it is, to a model of a neighbouring stream (`outputs`). If
anything in a state depended on records in another way (a digest, an exact sum, a count, a length),
the states of the two would differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from consumers.model.learner import Learner
from consumers.model.states import ModelIdentity, SlotRule, make_estimator
from consumers.settings import EstimatorRecipe, RoundRule

from .conftest import Outputs

BATCHES, CHANGED, SIZE = 6, 4, 2000
SUBJECTS = {"subject": "id", "places": SIZE, "period": 2, "horizon": None, "records": 4}
PLAIN = {"center": "none", "scales": None}

#: Every method, and every option that adds something to a state.
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "one unit": (5, PLAIN),
    "one unit, two components": (70, {**PLAIN, "n_components": 2}),
    "known scales": (5, {"center": "none", "scales": (1.0,) * 5}),
    "learned": (5, {}),
    "learned, many features": (200, {}),
    "without limits": (5, {"limits": False}),
    "a first step of two batches": (5, {"epsilon": 0.5}),
    "missing": (5, {"missing": "center"}),
    "memory": (5, {"memory": 3}),
    "all": (5, {"memory": "all"}),
    "paper": (5, {"center": "none", "C1": 40.0}),
    "paper, pairs": (5, {"center": "pairs", "C1": 40.0}),
    "subjects": (5, {"unit": SUBJECTS}),
    "subjects, own": (5, {"unit": SUBJECTS, "center": "own"}),
    "subjects, plain": (5, {**PLAIN, "unit": {**SUBJECTS, "horizon": 8}}),
}


def neighbours(d: int, far: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Two streams, of which one has a record that is a null, or else a little different."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((BATCHES * SIZE, d)) + 5 * rng.standard_normal((BATCHES * SIZE, 1))
    Y = X.copy()
    Y[CHANGED * SIZE + 11] = [np.nan, *[1e3] * (d - 1)] if far else 1.01 * X[CHANGED * SIZE + 11]
    return X, Y


def recipe(name: str) -> EstimatorRecipe:
    d, how = MODELS[name]
    features = tuple(f"x{i}" for i in range(d))
    given = {"features": features, "epsilon": 20.0, "delta": 1e-5, "seed": 7, **how}
    if "unit" not in how:
        given["batch_size"] = SIZE
    return EstimatorRecipe("paper" if name.startswith("paper") else "adaptive", given)


def states(name: str, X: np.ndarray, change: Callable[[Learner], None]) -> list[bytes]:
    """The states after each batch, with all that a topic may add to them."""
    unit = MODELS[name][1].get("unit")
    rounds = None if unit is None else RoundRule("id", 3_600_000, 2, unit["horizon"])
    learner = Learner(identity(rounds), recipe(name))
    change(learner)
    found, earlier = [], []
    for t, rows in enumerate(np.split(X, BATCHES)):
        positions = {0: 1000 * t, 1: 500 * t}
        if rounds is None:
            done = learner.learn(rows, positions)
        else:
            learner.add(rows, [f"s{i // 2}" for i in range(len(rows))])
            done = learner.close_round(t, positions)
        if done is None:  # the first step needs more
            continue
        found.append(done.state("", earlier))
        earlier.append(done.message)
    return found


def identity(rounds: RoundRule | None) -> ModelIdentity:
    return ModelIdentity("m", "in", SlotRule("offsets" if rounds is None else "rounds"), rounds)


def nothing(learner: Learner) -> None:
    pass


@pytest.mark.parametrize("name", MODELS)
def test_neighbours_with_the_same_releases_have_the_same_states(
    name: str, outputs: Outputs
) -> None:
    # The paper's histograms draw noise for each bin that is taken: it must be the same ones.
    X, Y = neighbours(MODELS[name][0], far="paper" not in name)
    one = states(name, X, nothing)
    outputs.again()
    steps = BATCHES - (1 if name.startswith("a first step of two") else 0)
    assert states(name, Y, nothing) == one and len(set(one)) == steps
    assert statuses(one)[CHANGED - BATCHES :] == ["learned"] * (BATCHES - CHANGED)


def statuses(found: list[bytes]) -> list[str]:
    releases = (json.loads(state)["release"]["value"] for state in found)
    return [json.loads(release)["status"] for release in releases]


def mean_in_state(learner: Learner) -> None:
    """A mutant: the state holds a number that was computed from the records."""
    estimator = learner._estimator
    learn, state = estimator.learn_array, estimator.state
    seen = []

    def learn_array(rows: np.ndarray, **more: Any) -> None:
        seen.append(float(np.nansum(rows)))
        learn(rows, **more)

    estimator.learn_array = learn_array  # type: ignore[method-assign]
    estimator.state = lambda: {**state(), "sum": seen}  # type: ignore[method-assign]


def test_the_test_can_fail(outputs: Outputs) -> None:
    X, Y = neighbours(5)
    one = states("learned", X, mean_in_state)
    outputs.again()
    other = states("learned", Y, mean_in_state)
    equal = [a == b for a, b in zip(one, other, strict=True)]
    assert equal == [t < CHANGED for t in range(BATCHES)]


def test_every_method_is_tried() -> None:
    tried = {type(make_estimator(recipe(name))._method).__name__ for name in MODELS}
    assert tried == {"AdaptiveMethod", "PaperMethod"}

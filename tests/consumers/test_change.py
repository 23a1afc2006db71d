"""A first step of several batches after a change, and a successor in the middle of it."""

from __future__ import annotations

import numpy as np

from consumers.model.learner import Learner
from consumers.model.states import ModelIdentity, SlotRule, decode_state
from consumers.protocols import FinishedBatch
from consumers.settings import EstimatorRecipe

B, D = 1000, 4
IDENTITY = ModelIdentity("m", "in", SlotRule("offsets"), None)
RECIPE = EstimatorRecipe(
    "adaptive",
    {
        "features": tuple(f"x{i}" for i in range(D)),
        "epsilon": 1.0,
        "delta": 1e-5,
        "batch_size": B,
        "seed": 3,
    },
)


def stream(batch: int, change: int) -> np.ndarray:
    """A batch of a stream that shifts by ten deviations and turns."""
    rng = np.random.default_rng(batch)
    new = batch >= change
    load = rng.normal(size=(B, 1)) * ([1, -1, 1, -1] if new else [1, 1, 1, 1])
    return np.asarray(load + 0.3 * rng.normal(size=(B, D)) + 10 * new)


def test_a_successor_takes_the_whole_step_again() -> None:
    learner, t, finished = Learner(IDENTITY, RECIPE), 0, []
    change = 10 * learner.step_batches

    def learn(learner: Learner) -> FinishedBatch | None:
        nonlocal t
        t += 1
        return learner.learn(stream(t - 1, change), {0: B * t})

    while not (finished and finished[-1].drift):
        finished += filter(None, [learn(learner)])
        assert t < change + 8, "the change was not noticed"
    wanted = learner.step_batches
    assert wanted > 1 and learner.taken == 0
    assert learn(learner) is None and learner.taken == 1  # and then it dies

    state = decode_state(finished[-1].state("", ()), "refused")
    successor = Learner(IDENTITY, RECIPE, [state])
    assert (successor.step_batches, successor.taken) == (wanted, 0)
    assert successor.positions == {0: B * (t - 1)}  # of the batch that showed the change
    t -= 1
    done = [learn(successor) for _ in range(wanted)]
    assert done[:-1] == [None] * (wanted - 1)
    assert done[-1] is not None and done[-1].number == finished[-1].number + 1
    assert done[-1].positions == {0: B * t} and done[-1].status == "learned"
    assert successor.step_batches == 1
    components = successor._estimator.components[0]
    assert abs(components @ [0.5, -0.5, 0.5, -0.5]) > 0.97

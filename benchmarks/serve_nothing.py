"""The service without learning: the time of reading, decoding and one transaction per batch.

python -m benchmarks.serve_nothing serve

The first batch is learned. All later ones are read and decoded, and the result of the first one is
committed and published in their place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consumers.cli import main
from consumers.model.learner import Learner
from consumers.protocols import FinishedBatch, Positions

learn = Learner.learn
first: list[FinishedBatch] = []


def learn_nothing(self: Learner, rows: Any, positions: Positions, inputs: Any = ()) -> Any:
    if not first:
        first.append(learn(self, rows, positions, inputs))
        return first[0]
    first[0] = replace(first[0], number=first[0].number + 1, positions=dict(positions))
    return first[0]


if __name__ == "__main__":
    Learner.learn = learn_nothing  # type: ignore[method-assign]
    main()

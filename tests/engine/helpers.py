"""Sources of records and engines for tests."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_dppca.arrays import FloatArray
from stream_dppca.engine import Group

G = TypeVar("G")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class ArraySource:
    """A source that has its records with it."""

    X: NDArray[np.floating[Any]]

    def read(self, group: Group) -> NDArray[np.floating[Any]]:
        return self.X[group.start : group.stop]


@dataclass(frozen=True)
class DrawnSource:
    """A source that draws each record from its slot: public parameters, whatever the split."""

    seed: int
    d: int
    far: int = 0  #: interval between records that are far out
    bad: int = 0  #: interval between nulls

    def read(self, group: Group) -> FloatArray:
        step = 1024
        first = group.start // step
        rows = np.concatenate([self._drawn(i, step) for i in range(first, -(-group.stop // step))])
        return rows[group.start - first * step : group.stop - first * step]

    def _drawn(self, i: int, step: int) -> FloatArray:
        rng = np.random.default_rng([self.seed, i])
        X = rng.standard_normal((step, self.d)) * np.linspace(3.0, 0.3, self.d) + 5.0
        if self.far:
            X[:: self.far] *= 1e6
        if self.bad:
            X[1 :: self.bad, 0] = np.nan
        return X


class PicklingEngine:
    """Runs tasks in this process, but everything travels as bytes; keeps its questions."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.jobs = 0

    def map(self, task: Callable[[G], R], groups: Sequence[G]) -> list[R]:
        self.jobs += 1
        packed = [pickle.dumps((task, group)) for group in groups]
        self.asked += packed
        results = []
        for item in reversed(packed):  # tasks end in any order
            run, group = pickle.loads(item)
            results.append(pickle.loads(pickle.dumps(run(group))))
        return results[::-1]

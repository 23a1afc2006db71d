"""Attacks on a batch that is spread over the tasks of an engine.

Streams go through `EngineBatches` and `DPPCA.learn_rows`, in groups that are smaller than in
production so that a batch of the audit has several.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar
from unittest.mock import patch

import numpy as np

from stream_dppca import DPPCA
from stream_dppca.arrays import FloatArray
from stream_dppca.engine import EngineBatches, Group, groups
from tests.audit import attack, replay
from tests.audit.evidence import BATCH, Statistic, spied

G = TypeVar("G")
R = TypeVar("R")
TASKS = 3
#: Groups begin at slots 0, 512 and 1280.
FIRST_OF_A_GROUP = 1280


@dataclass(frozen=True)
class Elsewhere:
    """A source that names its records but does not hold them, like that of a cluster."""

    name: str
    records: ClassVar[dict[str, FloatArray]] = {}

    def read(self, group: Group) -> FloatArray:
        return self.records[self.name][group.start : group.stop]


class Watched:
    """An engine that keeps everything that leaves the driver, as bytes."""

    def __init__(self) -> None:
        self.jobs: list[list[bytes]] = []

    def map(self, task: Callable[[G], R], groups: Sequence[G]) -> list[R]:
        self.jobs.append([pickle.dumps((task, group)) for group in groups])
        return [task(group) for group in groups]


@contextmanager
def small_groups(block: int) -> Iterator[None]:
    """Groups of whole blocks of this many units."""
    with patch.object(groups, "block_size", lambda features: block):
        yield


@contextmanager
def on_an_engine(block: int = 256) -> Iterator[list[Watched]]:
    """Batches that are given to `learn_array` go through an engine."""
    engines: list[Watched] = []

    def learn(self: DPPCA, X: FloatArray) -> None:
        engine = Watched()
        engines.append(engine)
        made = EngineBatches(engine, self, TASKS)
        assert len(made.groups) == TASKS
        for batch in np.split(X, len(X) // self.batch_size):
            # The batches of the first step must be there until its last one is.
            self.__dict__["given"] = number = (vars(self).get("given", 0) + 1) % 8
            Elsewhere.records[str(number)] = batch.copy()
            self.learn_rows(made.rows(Elsewhere(str(number))))

    with small_groups(block), patch.object(DPPCA, "learn_array", learn):
        yield engines


def canary(n: int) -> list[Statistic]:
    """The canary of the moments, as for a batch in memory."""
    with on_an_engine():
        return attack.mean_canary(attack.run_method(n))


def tasks(n: int = 1) -> list[Statistic]:
    """Compare what the driver sends to the first job of a batch, with a record and with a null.

    Later jobs follow from noisy counts; their groups are those of the first.
    """

    def left(record: float) -> tuple[list[bytes], set[tuple[Group, ...]]]:
        with on_an_engine() as engines:
            pca = spied(5, 4)
            X = np.random.default_rng(5).standard_normal((BATCH, 4))
            X[FIRST_OF_A_GROUP] = record
            pca.learn_array(X)
        jobs = engines[-1].jobs
        return jobs[0], {tuple(pickle.loads(item)[1] for item in job) for job in jobs}

    good, bad, huge = left(0.1), left(np.nan), left(1e17)
    moved = not (good == bad == huge) or len(good[1]) != 1
    return [Statistic("a record changed the tasks", float(moved), 0.0)]


def spent(n: int) -> list[Statistic]:
    """The exact audit of learned centre and scales: the budget that one record spends, over mu.

    In n batches, from those of the first step on.
    """
    with on_an_engine(block=64):
        found = list(replay.attack(replay.Composition(first=3), range(1, 1 + n)))
    return [Statistic(f"batch {f.at}", math.inf if f.leak else f.spent, 1 + 1e-9) for f in found]


AUDITS: dict[str, Callable[[int], list[Statistic]]] = {
    "tasks": tasks,
    "spent": spent,
}


def audit(name: str, n: int) -> list[Statistic]:
    return AUDITS[name](n)

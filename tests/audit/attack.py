"""Attacks on the method: canaries, and the table of all audits.

Streams go through `DPPCA.learn_array`, so buffer, method, calibration and noise are those of
production; only the seed is not. `evidence` has the view of an attacker and what it proves, `paper`
the attacks on the paper's method.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from stream_dppca import DPPCA, PaperDPPCA
from stream_dppca.arrays import FloatArray
from stream_dppca.mechanisms.correlated import DECAYS as IN_PRODUCTION
from stream_dppca.mechanisms.correlated import CorrelatedRelease, Weights
from stream_dppca.mechanisms.packing import pack
from stream_dppca.noise import SeededNoise
from tests.audit import paper
from tests.audit.evidence import (
    ALPHA,
    BATCH,
    DELTA,
    EPSILON,
    Statistic,
    gaussian_mu,
    independence,
    ks,
    mu_lb,
    spied,
)

#: Decays of the running sums: faster than in production, so that a batch is in `AGES` releases.
DECAYS = (0.5, 0.7)
AGES = 6


@dataclass
class Run:
    """A stream with a coin per batch, which decides the content of one record."""

    columns: list[FloatArray] = field(default_factory=list)  # of C, `AGES` of their entries
    y: list[FloatArray] = field(default_factory=list)
    coin: list[bool] = field(default_factory=list)
    direction: list[int] = field(default_factory=list)  # coordinate of y that the canary moves
    noise: list[FloatArray] = field(default_factory=list)  # of y, over its sd


class Canary:
    """d = 4: base records are unit vectors, canaries (e_i +- e_j)/sqrt 2: off-diagonal entries."""

    d, k = 4, 1
    pairs = tuple((i, j) for i in range(4) for j in range(i + 1, 4))

    @staticmethod
    def at(i: int, j: int) -> int:
        """The place of y_i y_j in the packed moments of (z, b)."""
        S = np.zeros((5, 5))
        S[i, j] = S[j, i] = 1.0
        return int(np.flatnonzero(pack(S))[0])

    def base(self) -> FloatArray:
        return np.eye(self.d)[np.arange(BATCH) % self.d]

    def record(self, t: int, coin: bool) -> tuple[FloatArray, int]:
        """The record of batch t, and the coordinate of y that it moves."""
        i, j = self.pairs[t % 6]
        x = np.zeros(self.d)
        x[i], x[j] = 1e6, 1e6 if coin else -1e6
        return x, self.at(i, j)


CANARY = Canary()


@contextmanager
def heard(decays: tuple[float, ...] = DECAYS) -> Iterator[list[Any]]:
    """Running sums have these decays, and every `Released` goes into the list."""
    released: list[Any] = []
    production: Callable[..., Any] = CorrelatedRelease.release

    def release(self: CorrelatedRelease, *args: Any, **how: Any) -> Any:
        released.append(production(self, *args, **how))
        return released[-1]

    def begun(self: CorrelatedRelease, *, mu: float, **how: Any) -> None:
        init(self, mu=mu, decays=decays)

    init = CorrelatedRelease.__init__
    with (
        patch.object(CorrelatedRelease, "release", release),
        patch.object(CorrelatedRelease, "__init__", begun),
    ):
        yield released


def run_method(n: int, seed: int = 12) -> Run:
    run, rng = Run(), np.random.default_rng(seed)
    with heard() as released:
        pca = spied(seed, CANARY.d, n_components=CANARY.k, limits=False)
        base = CANARY.base()
        base[: BATCH * 35 // 100] = np.nan  # nulls, so that dividing by valid records shows
        pca.learn_array(base)  # the first step finds scale and radius
        for t in range(n):
            coin = bool(rng.random() < 0.5)
            base[-1], direction = CANARY.record(t, coin)
            pca.learn_array(base)
            run.columns.append(column_of(released[-1].weights, DECAYS, AGES))
            run.y.append(np.ravel(released[-1].y))
            run.coin.append(coin)
            run.direction.append(direction)
            run.noise.append(pca._noise.last.gaussians[-1].noise)
    return run


def mean_canary(run: Run) -> list[Statistic]:
    """A canary in batch s seen through `AGES` releases, with the best linear score.

    Within this many batches the canaries move different coordinates, so scores are independent.
    """
    score = [
        sum(c * run.y[s + age][run.direction[s]] for age, c in enumerate(column))
        for s, column in enumerate(run.columns[: 1 - AGES])
    ]
    coins = np.array(run.coin[: len(score)])
    # Centre and scale are known, and nothing else is asked: moments have the whole budget.
    limit = gaussian_mu(EPSILON, DELTA)
    return [Statistic("mean", mu_lb(np.array(score), coins), limit)]


def column_of(weights: Weights, decays: tuple[float, ...], ages: int) -> FloatArray:
    """Weights of a batch in its own release and in the next ones."""
    tails = np.array(decays) ** np.arange(ages - 1)[:, np.newaxis]
    return np.r_[weights.own, tails @ weights.later]


def law(run: Run) -> list[Statistic]:
    """The noise of y has sd 1, all of it independent."""
    limit = -math.log10(ALPHA)
    return [
        Statistic("mean", ks(np.concatenate(run.noise)), limit),
        *independence(np.array(run.noise)),
    ]


def column_length() -> list[Statistic]:
    """Weight of a batch in all releases together, with the running sums of production.

    It is measured without noise: one query among zeros, and its effect on each release.
    """
    with heard(IN_PRODUCTION) as released:
        pca = spied(1, CANARY.d, n_components=CANARY.k)
        method: Any = pca._method
        correlated = method.mechanism
        for t in range(600):
            query = np.full(1, 1e6 * (t == 0))
            correlated.release(query, sensitivity=1.0, noise=Mute(1))
    column = np.array([r.y[0] for r in released]) / (1e6 * correlated.mu)
    return [Statistic("column", float(column @ column), 1 + 1e-9)]


class Mute(SeededNoise):
    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        return np.rint(values)


def copies() -> list[Statistic]:
    """A copy continues exactly like one rebuilt from the public state: it has no secret history."""
    rng = np.random.default_rng(6)
    with heard():
        features = tuple(range(CANARY.d))
        how = {"epsilon": EPSILON, "delta": DELTA, "batch_size": BATCH, "seed": 6}
        pca = DPPCA(features=features, center="none", scales=None, **how)
        pca.learn_array(rng.standard_normal((3 * BATCH, CANARY.d)))
        twins = {
            "state": DPPCA.from_state(json.loads(json.dumps(pca.state()))),
            "deepcopy": copy.deepcopy(pca),
            "pickle": pickle.loads(pickle.dumps(pca)),
        }
        X = rng.standard_normal((BATCH, CANARY.d))
        after = {}
        for name, twin in twins.items():
            twin.learn_array(X)
            after[name] = json.dumps(twin.state())
    return [
        Statistic(f"{name} knows more than the state", float(after[name] != after["state"]), 0.0)
        for name in ("deepcopy", "pickle")
    ]


def slots(kind: type[DPPCA] | type[PaperDPPCA] = DPPCA, **settings: Any) -> list[Statistic]:
    """A record that turns bad changes the queries of its own batch, and no later boundary."""

    def run(record: Any) -> tuple[list[int], list[FloatArray]]:
        # Scores would be those under a model that was released, after the record was read.
        one = {"batches": 1, "limits": False} if kind is DPPCA else {}
        pca = spied(7, 4, kind, **settings | one)
        X = np.random.default_rng(7).standard_normal((2 * BATCH, 4))
        X[5] = record
        seen, asked = [], []
        for block in np.array_split(X, 7):
            pca.learn_array(block)
            seen.append(pca.n_seen)
        if kind is DPPCA:  # with independent noise, a question reads one batch alone
            asked = [c.exact for c in pca._noise.last.gaussians]
        return seen, asked

    good, bad = run(0.1), run(np.nan)
    moved = good[0] != bad[0] or any((a != b).any() for a, b in zip(good[1], bad[1], strict=True))
    return [Statistic("a bad record moved later slots", float(moved), 0.0)]


# By name. Those alone make streams of their own.
PAPER: dict[str, Callable[[paper.PaperRun], list[Statistic]]] = {
    "A1 mean canary": paper.mean_canary,
    "A2 difference": paper.difference,
    "A5 law": paper.law,
    "A6 laplace canary": paper.laplace_canary,
    "A7 public stream": paper.public_stream,
}
PAPER_ALONE: dict[str, Callable[[], list[Statistic]]] = {
    "A3 lone bins": paper.lone_bins,
    "A4 halves": paper.halves,
    "slots": lambda: slots(PaperDPPCA),
    "slots in pairs": lambda: slots(PaperDPPCA, center="pairs"),
}
METHOD: dict[str, Callable[[Run], list[Statistic]]] = {
    "mean canary": mean_canary,
    "law": law,
}
METHOD_ALONE: dict[str, Callable[[], list[Statistic]]] = {
    "column length": column_length,
    "copies": copies,
    "slots": slots,
}


def audit(kind: str, name: str, n: int) -> list[Statistic]:
    """Run one audit on n batches of kind "paper" or "method"."""
    if kind == "paper":
        return PAPER[name](paper.run(n)) if name in PAPER else PAPER_ALONE[name]()
    return METHOD[name](run_method(n)) if name in METHOD else METHOD_ALONE[name]()

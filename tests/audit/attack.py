"""Attacks on the method in both forms: canaries, and the table of all audits.

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

import stream_dppca.method
from stream_dppca import DPPCA, PaperDPPCA
from stream_dppca.arrays import FloatArray
from stream_dppca.mechanisms.correlated import DECAYS as IN_PRODUCTION
from stream_dppca.mechanisms.correlated import CorrelatedRelease, Weights
from stream_dppca.mechanisms.radius import FIRST, LAST, count_of_counts
from stream_dppca.method.base import POWER
from stream_dppca.method.gradient_step import range_share
from stream_dppca.method.wide import ALONG, BESIDE
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

COUNTS = count_of_counts(FIRST, LAST)  # of the search for the range, a public number
#: Decays of the running sums: faster than in production, so that a batch is in `AGES` releases.
DECAYS = (0.5, 0.7)
AGES = 6


@dataclass
class Run:
    """A stream with two coins per batch: a record of the mean, a record of the range counts."""

    form: str
    columns: list[FloatArray] = field(default_factory=list)  # of C, `AGES` of their entries
    y: list[FloatArray] = field(default_factory=list)
    mean_coin: list[bool] = field(default_factory=list)
    direction: list[int] = field(default_factory=list)  # coordinate of y that the canary moves
    noise: list[FloatArray] = field(default_factory=list)  # of y, over its sd
    range_coin: list[bool] = field(default_factory=list)
    counts: list[FloatArray] = field(default_factory=list)  # released
    count_noise: list[FloatArray] = field(default_factory=list)


def budgets(form: str) -> tuple[float, float]:
    """mu of the range and of the mean in every batch after the first."""
    mu = gaussian_mu(EPSILON, DELTA)
    if form == "moment":  # centre and scale are known: nothing else is asked
        return 0.0, mu
    mu *= math.sqrt(1 - BESIDE - ALONG)
    share = range_share(BATCH, mu)
    return mu * math.sqrt(share), mu * math.sqrt(1 - share)


class Moments:
    """d = 4: base records are unit vectors, canaries (e_i +- e_j)/sqrt 2: off-diagonal entries."""

    d, k = 4, 1
    pairs = tuple((i, j) for i in range(4) for j in range(i + 1, 4))
    rows, columns = np.triu_indices(5)  # of (z, b), packed
    at = tuple(np.flatnonzero((rows < columns) & (columns < 4)))

    def pin(self, method: Any) -> None: ...

    def base(self) -> FloatArray:
        return np.eye(self.d)[np.arange(BATCH) % self.d]

    def mean_canary(self, t: int, coin: bool) -> tuple[FloatArray, int]:
        i, j = self.pairs[t % 6]
        x = np.zeros(self.d)
        x[i], x[j] = 1e6, 1e6 if coin else -1e6
        return x, int(self.at[t % 6])

    def range_canary(self) -> FloatArray:
        return np.full(self.d, np.nan)  # there is no range to find


class Gradients:
    """d = 6, k = 2, the iterate held at (e_0, e_1) and the centre off zero: canaries +-e_j."""

    d, k = 6, 2

    def pin(self, method: Any) -> None:
        step = method.gradients
        step.V, step.L, step.place = np.eye(6)[:, :2], np.eye(2), FIRST

    def base(self) -> FloatArray:
        return np.sqrt(2.0) * np.eye(self.d)[np.arange(BATCH) % 2]

    def mean_canary(self, t: int, coin: bool) -> tuple[FloatArray, int]:
        column, row = t % 2, 2 + t // 2 % 4
        x = np.zeros(self.d)
        x[row], x[column] = 1e6, 1e3 if coin else -1e3  # nearly across W, on either side
        return x, row * self.k + column

    def range_canary(self) -> FloatArray:
        return np.array([1e12, 0.0, 0.0, 0.0, 0.0, 0.0])


FORMS: dict[str, Any] = {"moment": Moments(), "gradient": Gradients()}


@contextmanager
def form_of(form: str, decays: tuple[float, ...] = DECAYS) -> Iterator[list[Any]]:
    """The estimator takes this form, and every `Released` goes into the list."""
    released: list[Any] = []
    production: Callable[..., Any] = CorrelatedRelease.release

    def release(self: CorrelatedRelease, *args: Any, **how: Any) -> Any:
        released.append(production(self, *args, **how))
        return released[-1]

    def begun(self: CorrelatedRelease, *, mu: float, **how: Any) -> None:
        init(self, mu=mu, decays=decays)

    init = CorrelatedRelease.__init__
    most = 0 if form == "gradient" else stream_dppca.method.MOST_FEATURES
    with (
        patch.object(CorrelatedRelease, "release", release),
        patch.object(CorrelatedRelease, "__init__", begun),
        patch.object(stream_dppca.method, "MOST_FEATURES", most),
    ):
        yield released


def run_method(form: str, n: int, seed: int = 12) -> Run:
    canary, run, rng = FORMS[form], Run(form), np.random.default_rng(seed)
    with form_of(form) as released:
        pca = spied(seed, canary.d, n_components=canary.k, limits=False)
        base = canary.base()
        base[1 : BATCH * 35 // 100] = np.nan  # nulls, so that dividing by valid records shows
        pca.learn_array(base)  # the first step finds scale and radius
        for t in range(n):
            mean_coin, range_coin = rng.random(2) < 0.5
            canary.pin(pca._method)
            base[0] = canary.range_canary() if range_coin else np.nan
            base[-1], direction = canary.mean_canary(t, mean_coin)
            pca.learn_array(base)
            calls = pca._noise.last.gaussians
            run.columns.append(column_of(released[-1].weights, DECAYS, AGES))
            run.y.append(np.ravel(released[-1].y))
            run.mean_coin.append(bool(mean_coin))
            run.direction.append(direction)
            run.noise.append(calls[-1].noise)
            run.range_coin.append(bool(range_coin))
            counts = [c for c in calls[:-1] if c.exact.size == 1]
            run.counts.append(np.array([c.noisy[0] for c in counts]))
            run.count_noise.append(np.array([c.noise[0] for c in counts]))
    return run


def mean_canary(run: Run) -> list[Statistic]:
    """A canary in batch s seen through `AGES` releases, with the best linear score.

    Within this many batches the canaries move different coordinates, so scores are independent.
    """
    score = [
        sum(c * run.y[s + age][run.direction[s]] for age, c in enumerate(column))
        for s, column in enumerate(run.columns[: 1 - AGES])
    ]
    coins = np.array(run.mean_coin[: len(score)])
    return [Statistic("mean", mu_lb(np.array(score), coins), budgets(run.form)[1])]


def column_of(weights: Weights, decays: tuple[float, ...], ages: int) -> FloatArray:
    """Weights of a batch in its own release and in the next ones."""
    tails = np.array(decays) ** np.arange(ages - 1)[:, np.newaxis]
    return np.r_[weights.own, tails @ weights.later]


def range_canary(run: Run) -> list[Statistic]:
    """A record beyond all radii, or a null: it moves every count of the search."""
    limit = budgets(run.form)[0]
    if run.form == "moment":
        return []
    if any(len(c) != COUNTS for c in run.counts):
        return [Statistic("counts without noise", math.inf, limit)]
    score = np.array([c.sum() for c in run.counts])
    return [Statistic("range", mu_lb(score, np.array(run.range_coin)), limit)]


def range_output(form: str = "gradient", n: int = 600) -> list[Statistic]:
    """The released range, where one record decides whether a count is above its mark."""
    rng, coins, ranges = np.random.default_rng(4), [], []
    with form_of(form):
        pca = spied(4, 6, n_components=2)
        base = np.zeros((BATCH, 6))
        base[:, 0] = 1.0
        pca.learn_array(base)  # the first step finds a scale
        step: Any = pca._method
        beyond = math.ceil((1 - step.gradients.quantile) * BATCH)
        base[beyond - 1 :] = 0.0
        for _ in range(n):
            coins.append(bool(rng.random() < 0.5))
            base[-1, 0] = coins[-1]
            FORMS[form].pin(step)
            step.gradients.L = np.zeros((2, 2))
            pca.learn_array(base)
            assert pca.last_release is not None
            ranges.append(pca.last_release.range or 0.0)
    limit = budgets(form)[0]
    return [Statistic("range as published", mu_lb(np.array(ranges), np.array(coins)), limit)]


def law(run: Run) -> list[Statistic]:
    """The noise of y has sd 1, that of the counts sqrt(COUNTS)/mu_range, all of it independent."""
    limit = -math.log10(ALPHA)
    found = [
        Statistic("mean", ks(np.concatenate(run.noise)), limit),
        *independence(np.array(run.noise)),
    ]
    if run.form == "gradient":
        counts = np.concatenate(run.count_noise) * budgets(run.form)[0] / math.sqrt(COUNTS)
        found.append(Statistic("range", ks(counts) if counts.size else math.inf, limit))
    return found


def column_length(form: str) -> list[Statistic]:
    """Weight of a batch in all releases together, with the running sums of production.

    It is measured without noise: one query among zeros, and its effect on each release.
    """
    with form_of(form, IN_PRODUCTION) as released:
        pca = spied(1, FORMS[form].d, n_components=FORMS[form].k)
        method: Any = pca._method
        correlated = method.correlated if form == "moment" else method.gradients.correlated
        for t in range(600):
            query = np.full(1, 1e6 * (t == 0))
            correlated.release(query, sensitivity=1.0, power=POWER, noise=Mute(1))
    column = np.array([r.y[0] for r in released]) / (1e6 * correlated.mu)
    return [Statistic("column", float(column @ column), 1 + 1e-9)]


class Mute(SeededNoise):
    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        return np.rint(values)


def copies(form: str) -> list[Statistic]:
    """A copy continues exactly like one rebuilt from the public state: it has no secret history."""
    canary, rng = FORMS[form], np.random.default_rng(6)
    with form_of(form):
        features = tuple(range(canary.d))
        how = {"epsilon": EPSILON, "delta": DELTA, "batch_size": BATCH, "seed": 6}
        pca = DPPCA(features=features, center="none", scales=None, **how)
        pca.learn_array(rng.standard_normal((3 * BATCH, canary.d)))
        twins = {
            "state": DPPCA.from_state(json.loads(json.dumps(pca.state()))),
            "deepcopy": copy.deepcopy(pca),
            "pickle": pickle.loads(pickle.dumps(pca)),
        }
        X = rng.standard_normal((BATCH, canary.d))
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
    "range canary": range_canary,
    "law": law,
}
METHOD_ALONE: dict[str, Callable[[str], list[Statistic]]] = {
    "range output": lambda form: range_output() if form == "gradient" else [],
    "column length": column_length,
    "copies": copies,
    "slots": lambda form: slots(),
}


def audit(kind: str, name: str, n: int) -> list[Statistic]:
    """Run one audit on n batches of kind "paper", "moment" or "gradient"."""
    if kind == "paper":
        return PAPER[name](paper.run(n)) if name in PAPER else PAPER_ALONE[name]()
    if name in METHOD:
        return METHOD[name](run_method(kind, n))
    return METHOD_ALONE[name](kind)

"""Attacks on the adaptive method and the scout: canaries, and the table of all audits.

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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from stream_dppca import DPPCA, PaperDPPCA
from stream_dppca.adaptive import method as adaptive
from stream_dppca.adaptive import scout
from stream_dppca.adaptive.correlated import CorrelatedRelease, Weights
from stream_dppca.adaptive.radius import FIRST, LAST, count_of_counts
from stream_dppca.arrays import FloatArray
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
    mu_lb_of_guesses,
    spied,
)
from tests.conftest import FrozenNoise

COUNTS = count_of_counts(FIRST, LAST)  # of the search for the range, a public number
#: Decays of the running sums: faster than in production, so that a batch is in `AGES` releases.
DECAYS = (0.5, 0.7)
AGES = 6


@dataclass
class AdaptiveRun:
    """A stream with two coins per batch: a record of the mean, a record of the range counts."""

    columns: list[FloatArray] = field(default_factory=list)  # of C, `AGES` of their entries
    y: list[FloatArray] = field(default_factory=list)
    mean_coin: list[bool] = field(default_factory=list)
    direction: list[int] = field(default_factory=list)  # coordinate of y that the canary moves
    noise: list[FloatArray] = field(default_factory=list)  # of y, over its sd
    range_coin: list[bool] = field(default_factory=list)
    counts: list[FloatArray] = field(default_factory=list)  # released
    count_noise: list[FloatArray] = field(default_factory=list)


def budgets() -> tuple[float, float]:
    """mu of the range and of the mean: the shares of `range_share` of one mu^2."""
    mu = gaussian_mu(EPSILON, DELTA)
    share = adaptive.range_share(BATCH, mu)
    return mu * math.sqrt(share), mu * math.sqrt(1 - share)


class Moments:
    """d = 4: base records are unit vectors, canaries (e_i +- e_j)/sqrt 2: off-diagonal entries."""

    d, k = 4, 1
    pairs = tuple((i, j) for i in range(4) for j in range(i + 1, 4))
    at = tuple(np.flatnonzero(np.less(*np.triu_indices(4))))  # where they are in the packed vector

    def pin(self, method: Any) -> None: ...

    def base(self) -> FloatArray:
        return np.eye(self.d)[np.arange(BATCH) % self.d]

    def mean_canary(self, t: int, coin: bool) -> tuple[FloatArray, int]:
        i, j = self.pairs[t % 6]
        x = np.zeros(self.d)
        x[i], x[j] = 1e6, 1e6 if coin else -1e6
        return x, int(self.at[t % 6])

    def range_canary(self) -> FloatArray:
        return np.array([1e12, 0.0, 0.0, 0.0])


class Gradients:
    """d = 6, k = 2, the iterate held at (e_0, e_1) and the centre off zero: canaries +-e_j."""

    d, k = 6, 2

    def pin(self, method: Any) -> None:
        method.V, method.L = np.eye(6)[:, :2], np.eye(2)

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

    with ExitStack() as stack:
        stack.enter_context(patch.object(CorrelatedRelease, "release", release))
        stack.enter_context(patch.object(adaptive, "DECAYS", decays))
        stack.enter_context(patch.object(scout, "form_for", lambda **public: form))
        yield released


def run_adaptive(form: str, n: int, seed: int = 12) -> AdaptiveRun:
    canary, run, rng = FORMS[form], AdaptiveRun(), np.random.default_rng(seed)
    with form_of(form) as released:
        pca = spied(seed, canary.d, n_components=canary.k)
        base = canary.base()
        base[1 : BATCH * 35 // 100] = np.nan  # nulls, so that dividing by valid records shows
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
            run.counts.append(np.array([c.noisy[0] for c in calls[:-1]]))
            run.count_noise.append(np.array([c.noise[0] for c in calls[:-1]]))
    return run


def mean_canary(run: AdaptiveRun) -> list[Statistic]:
    """A canary in batch s seen through `AGES` releases, with the best linear score.

    Within this many batches the canaries move different coordinates, so scores are independent.
    """
    score = [
        sum(c * run.y[s + age][run.direction[s]] for age, c in enumerate(column))
        for s, column in enumerate(run.columns[: 1 - AGES])
    ]
    coins = np.array(run.mean_coin[: len(score)])
    return [Statistic("mean", mu_lb(np.array(score), coins), budgets()[1])]


def column_of(weights: Weights, decays: tuple[float, ...], ages: int) -> FloatArray:
    """Weights of a batch in its own release and in the next ones."""
    tails = np.array(decays) ** np.arange(ages - 1)[:, np.newaxis]
    return np.r_[weights.own, tails @ weights.later]


def range_canary(run: AdaptiveRun) -> list[Statistic]:
    """A record beyond all radii, or a null: it moves every count of the search."""
    limit = budgets()[0]
    if any(len(c) != COUNTS for c in run.counts):
        return [Statistic("counts without noise", math.inf, limit)]
    score = np.array([c.sum() for c in run.counts])
    return [Statistic("range", mu_lb(score, np.array(run.range_coin)), limit)]


def range_output(form: str = "moment", n: int = 600) -> list[Statistic]:
    """The released range, where one record decides whether a count is above its mark."""
    rng, coins, ranges = np.random.default_rng(4), [], []
    with form_of(form):
        pca = spied(4, 4)
        base = np.zeros((BATCH, 4))
        base[: int(pca._method.beyond(BATCH)), 0] = 1.0
        for _ in range(n):
            coins.append(bool(rng.random() < 0.5))
            base[-1, 0] = coins[-1]
            pca.learn_array(base)
            assert pca.last_release is not None
            ranges.append(pca.last_release.range or 0.0)
    return [Statistic("range as published", mu_lb(np.array(ranges), np.array(coins)), budgets()[0])]


def adaptive_law(run: AdaptiveRun) -> list[Statistic]:
    """The noise of y has sd 1, that of the counts sqrt(COUNTS)/mu_range, all of it independent."""
    limit = -math.log10(ALPHA)
    counts = np.concatenate(run.count_noise) * budgets()[0] / math.sqrt(COUNTS)
    return [
        Statistic("mean", ks(np.concatenate(run.noise)), limit),
        Statistic("range", ks(counts) if counts.size else math.inf, limit),
        *independence(np.array(run.noise)),
    ]


def column_length(form: str) -> list[Statistic]:
    """Weight of a batch in all releases together, with the running sums of production.

    It is measured without noise: one query among zeros, and its effect on each release.
    """
    with form_of(form, adaptive.DECAYS) as released:
        pca = spied(1, FORMS[form].d, n_components=FORMS[form].k)
        correlated, power = pca._method.correlated, pca._method._power()
        for t in range(600):
            query = np.full(1, 1e6 * (t == 0))
            correlated.release(query, sensitivity=1.0, power=power, noise=Mute(1))
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
        pca.learn_array(rng.standard_normal((2 * BATCH, canary.d)))
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
        pca = spied(7, 4, kind, **settings)
        X = np.random.default_rng(7).standard_normal((2 * BATCH, 4))
        X[5] = record
        seen, asked = [], []
        for block in np.array_split(X, 7):
            pca.learn_array(block)
            seen.append(pca.n_seen)
        if kind is DPPCA:  # its range counts read the second batch alone
            asked = [c.exact for c in pca._noise.last.gaussians[:COUNTS]]
        return seen, asked

    good, bad = run(0.1), run(np.nan)
    moved = good[0] != bad[0] or any((a != b).any() for a, b in zip(good[1], bad[1], strict=True))
    return [Statistic("a bad record moved later slots", float(moved), 0.0)]


# The scout: a second moment in the first batch, gradients after it


@dataclass
class ScoutRun:
    """Streams of three batches: a coin in the scouting one, a coin in the first of the new form."""

    scout_coin: list[bool] = field(default_factory=list)
    scout: list[float] = field(default_factory=list)  # the released coordinate that it moves
    next_coin: list[bool] = field(default_factory=list)
    next: list[float] = field(default_factory=list)  # best linear score, over two releases
    columns: list[float] = field(default_factory=list)  # squared lengths
    releases: list[int] = field(default_factory=list)  # means in one batch
    noise: list[FloatArray] = field(default_factory=list)  # three rows per stream, over the sd


def run_scout(n: int, seed: int = 13) -> ScoutRun:
    canary, run, rng = FORMS["gradient"], ScoutRun(), np.random.default_rng(seed)
    upper = [tuple(ij) for ij in np.transpose(np.triu_indices(canary.d)).tolist()]
    pairs = [(i, j) for i, j in upper if 1 < i < j]
    size = (canary.d + 1) * canary.k
    with form_of("scout", decays=(0.3,)) as released:
        for t in range(n):
            pca = spied(seed * n + t, canary.d, n_components=canary.k)
            base = canary.base()  # both components stand out, nothing else does
            base[1 : BATCH * 35 // 100] = np.nan
            scout_coin, next_coin = (rng.random(2) < 0.5).tolist()
            batches = [base.copy() for _ in range(3)]
            i, j = pairs[t % len(pairs)]
            batches[0][-1] = 0.0
            batches[0][-1, [i, j]] = 1e6, 1e6 if scout_coin else -1e6
            batches[1][-1], direction = canary.mean_canary(t, next_coin)
            seen, asked = [], []
            for b, X in enumerate(batches):
                before = len(released)
                if b == 1:
                    assert pca._method.name == "gradient"
                    canary.pin(pca._method.form)
                pca.learn_array(X)
                asked.append(pca._noise.last.heard)
                seen.append(released[before])
                run.releases.append(len(released) - before)
            run.scout_coin.append(scout_coin)
            run.scout.append(float(seen[0].y[upper.index((i, j))]))
            run.next_coin.append(next_coin)
            column = column_of(seen[1].weights, (0.3,), 2)
            run.next.append(
                sum(c * r.y.flat[direction] for c, r in zip(column, seen[1:], strict=True))
            )
            columns = [column_of(r.weights, (0.3,), 60) for r in seen]
            run.columns += [float(c @ c) for c in columns]
            run.noise += [calls[-1].noise[:size] for calls in asked]
    return run


def scout_canary(run: ScoutRun) -> list[Statistic]:
    """A canary in the scouting batch and one in the batch after it; one mean per batch."""
    limit = budgets()[1]
    return [
        Statistic("batch 1", mu_lb(np.array(run.scout), np.array(run.scout_coin)), limit),
        Statistic("batch 2", mu_lb(np.array(run.next), np.array(run.next_coin)), limit),
        Statistic("column", max(run.columns), 1 + 1e-9),
        Statistic("means in a batch", max(run.releases), 1),
    ]


def scout_law(run: ScoutRun) -> list[Statistic]:
    """The noise before and after the change of form has the stated law and is independent."""
    noise = np.array(run.noise)
    return [Statistic("mean", ks(noise.ravel()), -math.log10(ALPHA)), *independence(noise)]


def scouted(records: int, noise: Any) -> str:
    """The form after one batch with this many records along the second direction."""
    with form_of("scout"):
        pca = spied(0, Moments.d)
        pca._noise = noise
        X = np.eye(Moments.d)[np.zeros(BATCH, dtype=int)]
        X[:records] = np.eye(Moments.d)[1]
        pca.learn_array(X)
    return str(pca._method.name)


def scout_decision(n: int = 600) -> list[Statistic]:
    """The decision as published, where one record is what decides it without noise."""
    few, many = 0, BATCH // 4
    while many - few > 1:
        middle = (few + many) // 2
        stays = scouted(middle, FrozenNoise()) == "moment"
        few, many = (few, middle) if stays else (middle, many)
    coins = np.random.default_rng(14).random(n) < 0.5
    forms = [scouted(many if coin else few, SeededNoise(t)) for t, coin in enumerate(coins)]
    stayed = np.array([form == "moment" for form in forms])
    return [Statistic("decision", mu_lb_of_guesses(stayed, coins), gaussian_mu(EPSILON, DELTA))]


class Script(FrozenNoise):
    """Gives the answers to another stream, whatever the queries are."""

    def __init__(self, script: list[FloatArray] | None = None) -> None:
        super().__init__(scale=1.0)
        self.said: list[FloatArray] = []
        self.script = script

    def gaussian(self, query: FloatArray, **how: Any) -> FloatArray:
        own = super().gaussian(query, **how)
        self.said.append(own if self.script is None else self.script[len(self.said)])
        return self.said[-1]


def scout_script() -> list[Statistic]:
    """Other records, equal releases: everything that is shown is equal, whichever form follows."""
    rng, found = np.random.default_rng(15), []
    with form_of("scout"):
        for form, values in (("gradient", [3.0, 0.1, 0.1, 0.1]), ("moment", [3.0, 2.0, 0.1, 0.1])):
            X, Y = rng.standard_normal((2, 3 * BATCH, Moments.d))
            one, other = spied(0, Moments.d), spied(0, Moments.d)
            one._noise = script = Script()
            differ = 0
            for t in range(3):
                one.learn_array(X[t * BATCH : (t + 1) * BATCH] * values)
                other._noise = Script(script.said[other.n_batches * (COUNTS + 1) :])
                other.learn_array(Y[t * BATCH : (t + 1) * BATCH])
                differ += json.dumps(one.state()) != json.dumps(other.state())
                if differ:  # the next question may be of another shape
                    break
            else:
                assert one._method.name == form
            found.append(Statistic(f"{form} knows more than was released", differ, 0.0))
    return found


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
ADAPTIVE: dict[str, Callable[[AdaptiveRun], list[Statistic]]] = {
    "mean canary": mean_canary,
    "range canary": range_canary,
    "law": adaptive_law,
}
ADAPTIVE_ALONE: dict[str, Callable[[str], list[Statistic]]] = {
    "range output": range_output,
    "column length": column_length,
    "copies": copies,
    "slots": lambda form: slots(),
}
SCOUT: dict[str, Callable[[ScoutRun], list[Statistic]]] = {
    "canary": scout_canary,
    "law": scout_law,
}
SCOUT_ALONE: dict[str, Callable[[], list[Statistic]]] = {
    "decision": scout_decision,
    "script": scout_script,
}


def audit(kind: str, name: str, n: int) -> list[Statistic]:
    """Run one audit on n batches of kind "paper", "moment" or "gradient", n streams of "scout"."""
    if kind == "scout":
        return SCOUT[name](run_scout(n)) if name in SCOUT else SCOUT_ALONE[name]()
    if kind == "paper":
        return PAPER[name](paper.run(n)) if name in PAPER else PAPER_ALONE[name]()
    if name in ADAPTIVE:
        return ADAPTIVE[name](run_adaptive(kind, n))
    return ADAPTIVE_ALONE[name](kind)

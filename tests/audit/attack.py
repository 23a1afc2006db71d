"""Attacks on the whole estimator: canaries, what the attacker sees, and what it proves.

The attacker of differential privacy knows every record but one, the *canary*, and sees everything
that is released. In each batch of a stream a coin puts one of two contents into the canary's slot;
the attacker scores what it saw and says which. Error rates bounded from above (Clopper-Pearson)
bound what the release spends from below:

    mu_lb = Phi^-1(1 - FPR_ub) - Phi^-1(FNR_ub)

and correct code has mu_lb <= mu but with probability `ALPHA`. Every number here that the code also
computes (mu, sensitivities, sds) is computed again, from the formulas of docs/privacy.md.

`Spy` stands between the estimator and its noise and writes down what was released; it changes
nothing. Streams go through `DPPCA.learn_array`, so buffer, method, calibration and noise are those
of production; only the seed is not.
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
from numpy.typing import NDArray
from scipy import stats

from stream_dppca import DPPCA
from stream_dppca.adaptive import method as adaptive
from stream_dppca.adaptive import scout
from stream_dppca.adaptive.correlated import CorrelatedRelease, Weights
from stream_dppca.adaptive.radius import FIRST, LAST, count_of_counts
from stream_dppca.noise import SeededNoise
from stream_dppca.paper import histogram as algorithm4
from stream_dppca.paper import mean as algorithm5
from stream_dppca.paper.mean import MeanBudget
from tests.conftest import FrozenNoise

FloatArray = NDArray[np.float64]

#: False-alarm probability of one statistic on correct code. The suite computes fewer than 60.
ALPHA = 1e-6
EPSILON, DELTA, BATCH = 2.0, 0.02, 2048  # loud: what is wrong shows in a few thousand batches
COUNTS = count_of_counts(FIRST, LAST)  # of the search for the range, a public number
#: Of the running sums: faster than in production, so that a batch is in `AGES` releases only.
DECAYS = (0.5, 0.7)
AGES = 6


@dataclass(frozen=True)
class Statistic:
    """What an audit measured, and the most that correct code may show."""

    name: str
    value: float
    limit: float

    @property
    def caught(self) -> bool:
        return not self.value <= self.limit


# Statistics


def error_bound(errors: int, trials: int) -> float:
    """Clopper-Pearson: the rate is below this but with probability ALPHA/2."""
    return 1.0 if errors == trials else stats.beta.isf(ALPHA / 2, errors + 1, trials - errors)


def rate_floor(hits: int, trials: int) -> float:
    return 1 - error_bound(trials - hits, trials)


def mu_lb(scores: FloatArray, coins: NDArray[np.bool_]) -> float:
    """Lower bound on mu from scores that are higher where the coin is 1."""
    held_out = len(scores) // 8  # chooses the threshold and is not counted
    # Between the quartiles: a median of two values that noise does not blur is one of them.
    threshold = np.quantile(scores[:held_out], [0.25, 0.75]).mean()
    return mu_lb_of_guesses(scores[held_out:] > threshold, coins[held_out:])


def mu_lb_of_guesses(guess: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    fpr = error_bound(int((guess & ~truth).sum()), int((~truth).sum()))
    fnr = error_bound(int((~guess & truth).sum()), int(truth.sum()))
    return float(stats.norm.isf(fpr) - stats.norm.ppf(fnr))


def ks(sample: FloatArray) -> float:
    """-log10 of the p-value of `sample` being standard normal."""
    return -math.log10(max(stats.kstest(sample, "norm").pvalue, 1e-300))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu by bisection on the Gaussian trade-off, apart from stream_dppca.calibration."""
    low, high = 1e-6, 100.0
    while high - low > 1e-12:
        mu = (low + high) / 2
        reach = stats.norm.cdf(mu / 2 - epsilon / mu)
        reach -= math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if reach <= delta else (low, mu)
    return low


# What the attacker sees


@dataclass(frozen=True)
class Call:
    """One question to the noise source: the exact answer and the released one."""

    exact: FloatArray
    noisy: FloatArray

    @property
    def noise(self) -> FloatArray:
        return self.noisy - self.exact


class Spy:
    """A seeded source that keeps what was asked and answered in this batch."""

    def __init__(self, seed: int) -> None:
        self._source: Any = SeededNoise(seed)
        self.gaussians: list[Call] = []
        self.laplaces: list[Call] = []

    def at_batch(self, batch: int) -> Spy:
        spy = Spy.__new__(Spy)
        spy._source, spy.gaussians, spy.laplaces = self._source.at_batch(batch), [], []
        self.last = spy
        return spy

    def gaussian(self, query: FloatArray, **how: Any) -> FloatArray:
        noisy = self._source.gaussian(query, **how)
        self.gaussians.append(Call(np.ravel(query), np.ravel(noisy)))
        return noisy

    def gaussian_each(self, count: int, **how: Any) -> Callable[[float], float]:
        release = self._source.gaussian_each(count, **how)

        def spied(number: float) -> float:
            noisy = release(number)
            self.gaussians.append(Call(np.array([float(number)]), np.array([noisy])))
            return noisy

        return spied

    def laplace(self, counts: Any, **how: Any) -> Any:
        noisy = self._source.laplace(counts, **how)
        self.laplaces.append(Call(counts.astype(float), noisy.astype(float)))
        return noisy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    @property
    def heard(self) -> list[Call]:
        """What was asked in this batch, by whatever source was made of this one."""
        return self.gaussians + (vars(self)["last"].heard if "last" in vars(self) else [])


def spied(seed: int, d: int, **settings: Any) -> DPPCA:
    features = tuple(f"x{i}" for i in range(d))
    settings = {"epsilon": EPSILON, "delta": DELTA, "batch_size": BATCH} | settings
    pca = DPPCA(features=features, seed=seed, **settings)
    pca._noise = Spy(seed)
    return pca


# The paper's method

D = 4
W0 = np.array([[0.5], [0.5], [-0.5], [-0.5]])
CORNERS = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]]) / 2
SUBSETS = 18  # ceil(4 ln(1/(delta zeta))/epsilon)
PAIRS = BATCH // 4 // SUBSETS  # in one subset


@dataclass
class PaperRun:
    """A stream with two coins a batch: a record of the first half, a record of the second."""

    first: list[bool] = field(default_factory=list)
    second: list[bool] = field(default_factory=list)
    corner: list[int] = field(default_factory=list)
    counts: list[FloatArray] = field(default_factory=list)  # Algorithm 4, two bins
    laplace: list[FloatArray] = field(default_factory=list)
    histogram: list[FloatArray] = field(default_factory=list)  # noise over its sd
    mean: list[FloatArray] = field(default_factory=list)  # released, over its noise sd
    noise: list[FloatArray] = field(default_factory=list)  # its noise over its sd
    components: list[FloatArray] = field(default_factory=list)  # published, over the noise sd


def paper_budget() -> MeanBudget:
    """mu and delta of Algorithm 5: a tenth of mu^2 and half of delta for the histograms."""
    mu = gaussian_mu(EPSILON + math.log1p(-DELTA / 2), DELTA / 2)
    return MeanBudget(mu * math.sqrt(0.1), mu * math.sqrt(0.9), DELTA / 2)


def paper_batch(first: bool, second: bool, corner: FloatArray) -> FloatArray:
    """Two full bins of nine eigenvalues each in the first half; zeros in the second."""
    X = np.zeros((BATCH, D))
    a = np.array([1.0, 1.0, 0.5, 0.5]) * 2**0.0625  # |g|^2 in the middle of its bin
    size = np.where(np.arange(BATCH // 2) // (2 * PAIRS) < SUBSETS // 2, 1.0, 2.0)
    X[: BATCH // 2] = a * size[:, None]
    X[0 : BATCH // 2 : 2] = 0.0
    if first:  # one record moves the eigenvalue of its subset from one bin to the other
        X[1] = a * (16 * PAIRS - (PAIRS - 1)) ** 0.25
    X[-1] = corner_record(corner, second)
    X[-100:-96] = np.nan
    return X


def corner_record(corner: FloatArray, positive: bool) -> FloatArray:
    """A record whose gradient x (x.w) is truncated to this corner of the box, or the opposite."""
    along = (np.sign(corner) * W0[:, 0] > 0) == positive  # stress these: the sign of x.w is theirs
    return 1e6 * np.sign(corner) * np.where(along, 3.0, 1.0)


def run_paper(n: int, seed: int = 11) -> PaperRun:
    # A small step: components are linear in the mean.
    pca = spied(seed, D, method="paper", step=lambda t: 0.05)
    rng, run, budget = np.random.default_rng(seed), PaperRun(), paper_budget()
    half = BATCH // 2
    for t in range(n):
        first, second = rng.random(2) < 0.5
        corner = t // 2 % 2
        pca._method.W = W0
        pca.learn_array(paper_batch(first, second, CORNERS[corner]))
        seen, release = pca._noise.last, pca.last_release
        assert release is not None
        histogram, mean = seen.gaussians
        root = 4.0 * math.sqrt(2 * release.range)
        R = 3 * root * math.log(half * D / 0.01)
        sd = 2 * R * math.sqrt(D) / half / budget.mu_mean
        run.first.append(bool(first))
        run.second.append(bool(second))
        run.corner.append(corner)
        run.counts.append(seen.laplaces[0].noisy)
        run.laplace.append(seen.laplaces[0].noise)
        run.histogram.append(histogram.noise * budget.mu_histogram / math.sqrt(2 * D))
        run.mean.append(mean.noisy / sd)
        run.noise.append(mean.noise / sd)
        run.components.append(np.array(release.components[0]) / sd)
    return run


def paper_mean_canary(run: PaperRun) -> list[Statistic]:
    """A1: opposite corners of the box, along 1 and along alternating signs."""
    corner, coins, mean = np.array(run.corner), np.array(run.second), np.array(run.mean)
    return [
        Statistic(f"corner {i}", mu_lb((mean @ CORNERS[i])[on], coins[on]), paper_budget().mu_mean)
        for i, on in enumerate((corner == 0, corner == 1))
    ]


def paper_difference(run: PaperRun) -> list[Statistic]:
    """A2: the difference of two batches' releases; two records, so sqrt 2 mu."""
    coins = np.array(run.second)
    score = np.einsum("ij,ij->i", np.array(run.mean), CORNERS[np.array(run.corner)])
    apart = coins[::2] != coins[1::2]
    difference = (score[::2] - score[1::2])[apart]
    limit = math.sqrt(2) * paper_budget().mu_mean
    return [Statistic("difference", mu_lb(difference, coins[::2][apart]), limit)]


def paper_law(run: PaperRun) -> list[Statistic]:
    """A5: the noise has the stated law, coordinate by coordinate and batch by batch."""
    limit = -math.log10(ALPHA)
    laplace = np.concatenate(run.laplace)
    a = math.exp(-EPSILON / 2)
    zeros = stats.binomtest(int((laplace == 0).sum()), laplace.size, (1 - a) / (1 + a)).pvalue
    tail = stats.binomtest(int((abs(laplace) >= 2).sum()), laplace.size, 2 * a**2 / (1 + a)).pvalue
    return [
        Statistic("mean", ks(np.concatenate(run.noise)), limit),
        Statistic("histogram", ks(np.concatenate(run.histogram)), limit),
        Statistic("laplace", -math.log10(max(min(zeros, tail), 1e-300) * 2), limit),
        *independence(np.array(run.noise)),
    ]


def paper_laplace_canary(run: PaperRun) -> list[Statistic]:
    """A6: one record moved between two full bins: a likelihood ratio of e^epsilon at most."""
    counts, coins = np.array(run.counts), np.array(run.first)
    half = SUBSETS // 2
    event = (counts[:, 0] <= half - 1) & (counts[:, 1] >= half + 1)
    hit = rate_floor(int(event[coins].sum()), int(coins.sum()))
    false = error_bound(int(event[~coins].sum()), int((~coins).sum()))
    return [Statistic("log likelihood ratio", math.log(hit / false), EPSILON)]


def paper_public_stream(run: PaperRun) -> list[Statistic]:
    """A7: one stream, a coin in each batch, seen through the published components alone."""
    score = np.einsum("ij,ij->i", np.array(run.components), CORNERS[np.array(run.corner)])
    return [Statistic("components", mu_lb(score, np.array(run.second)), paper_budget().mu_mean)]


def lone_bins() -> list[Statistic]:
    """A3: what one record alone in its bins can bring up. Many lone bins show it at once."""
    labels = np.arange(100_000)
    found, _ = algorithm4.private_histogram(
        labels, epsilon=EPSILON, delta=DELTA, noise=SeededNoise(5)
    )
    n, trials, budget = 512, 1000, MeanBudget.split(EPSILON, DELTA)
    G = np.repeat(np.arange(n)[:, None] * 1e6, D, axis=1)
    null = np.zeros(n, dtype=bool)
    up = sum(
        algorithm5.private_mean(G, null, eigenvalue=1.0, budget=budget, noise=noise) is not None
        for noise in map(SeededNoise, range(trials))
    )
    # All d coordinates have some bin up if each has one of its n.
    most = (1 - (1 - budget.delta_threshold) ** (n / D)) ** D
    return [
        Statistic("Algorithm 4", rate_floor(len(found), len(labels)), DELTA),
        Statistic("Algorithm 5", rate_floor(up, trials), most),
    ]


def paper_halves() -> list[Statistic]:
    """A4: with the noise frozen, each half leaves what the other half releases bit-equal."""

    def seen(slot: int, record: Any) -> tuple[bytes, bytes]:
        pca = spied(3, D, method="paper")
        pca._method.W = W0
        X = paper_batch(False, False, CORNERS[1])
        X[slot] = record
        pca.learn_array(X)
        heard = pca._noise.last
        return tuple(
            b"".join(c.noisy.tobytes() for c in kind) for kind in (heard.laplaces, heard.gaussians)
        )

    # A null in the first half leaves its eigenvalue in its bin, so the range is as it was.
    first = seen(1, math.nan)[1] != seen(1, 1.09)[1]
    slot, canary = BATCH // 2 + 1, corner_record(CORNERS[1], True)
    second = seen(slot, canary)[0] != seen(slot, math.nan)[0]
    return [
        Statistic("a first-half record changed the mean", float(first), 0.0),
        Statistic("a second-half record changed the range", float(second), 0.0),
    ]


# The adaptive method


@dataclass
class AdaptiveRun:
    """A stream with two coins a batch: a record of the mean, a record of the range counts."""

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

    Within so many batches the canaries move different coordinates, so scores are independent.
    """
    score = [
        sum(c * run.y[s + age][run.direction[s]] for age, c in enumerate(column))
        for s, column in enumerate(run.columns[: 1 - AGES])
    ]
    coins = np.array(run.mean_coin[: len(score)])
    return [Statistic("mean", mu_lb(np.array(score), coins), budgets()[1])]


def column_of(weights: Weights, decays: tuple[float, ...], ages: int) -> FloatArray:
    """What a batch weighs in its own release and in the next ones."""
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
        base[: int((1 - pca._method.quantile) * BATCH), 0] = 1.0
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


def independence(noise: FloatArray) -> list[Statistic]:
    """Noise, a row a batch: between batches and between coordinates, in sds of the estimate."""
    n, m = noise.shape
    lags = [abs((noise[lag:] * noise[:-lag]).sum()) / math.sqrt((n - lag) * m) for lag in (1, 2, 3)]
    sums = noise.sum(axis=1) ** 2 / m
    limit = 6.0
    return [
        Statistic("between batches", max(lags), limit),
        Statistic("between coordinates", abs(sums.mean() - 1) * math.sqrt(n / 2), limit),
    ]


def column_length(form: str) -> list[Statistic]:
    """What a batch weighs in all releases together, with the running sums of production.

    As it acts: one query among zeros, and what it adds to each release, without noise.
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
    """A copy goes on exactly as one rebuilt from the public state: it holds no secret history."""
    canary, rng = FORMS[form], np.random.default_rng(6)
    with form_of(form):
        features = tuple(range(canary.d))
        pca = DPPCA(features=features, epsilon=EPSILON, delta=DELTA, batch_size=BATCH, seed=6)
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


def slots(**settings: Any) -> list[Statistic]:
    """A record that turns bad changes what its own batch is asked, and no later boundary."""

    def run(record: Any) -> tuple[list[int], list[FloatArray]]:
        pca = spied(7, D, **settings)
        X = np.random.default_rng(7).standard_normal((2 * BATCH, D))
        X[5] = record
        seen, asked = [], []
        for block in np.array_split(X, 7):
            pca.learn_array(block)
            seen.append(pca.n_seen)
        if "method" not in settings:  # its range counts read the second batch alone
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
    noise: list[FloatArray] = field(default_factory=list)  # three rows a stream, over the sd


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
    """A canary in the scouting batch and one in the batch after it; one mean a batch."""
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
    """The form after one batch with so many records along the second direction."""
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
    """Answers as it did to another stream, whatever is asked."""

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
PAPER: dict[str, Callable[[PaperRun], list[Statistic]]] = {
    "A1 mean canary": paper_mean_canary,
    "A2 difference": paper_difference,
    "A5 law": paper_law,
    "A6 laplace canary": paper_laplace_canary,
    "A7 public stream": paper_public_stream,
}
PAPER_ALONE: dict[str, Callable[[], list[Statistic]]] = {
    "A3 lone bins": lone_bins,
    "A4 halves": paper_halves,
    "slots": lambda: slots(method="paper"),
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
        return PAPER[name](run_paper(n)) if name in PAPER else PAPER_ALONE[name]()
    if name in ADAPTIVE:
        return ADAPTIVE[name](run_adaptive(kind, n))
    return ADAPTIVE_ALONE[name](kind)

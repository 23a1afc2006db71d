"""Evidence: the view of an attacker of differential privacy, and what it proves.

The attacker knows every record but one, the *canary*, and sees everything that is released. In each
batch of a stream a coin puts one of two contents into the canary's slot; the attacker scores what
it saw and says which. Error rates bounded from above (Clopper-Pearson) bound what the release
spends from below:

    mu_lb = Phi^-1(1 - FPR_ub) - Phi^-1(FNR_ub)

and correct code has mu_lb <= mu, except with probability `ALPHA`. Every number here that the code
also computes (mu, sensitivities, sds) is computed again, from the formulas of docs/privacy.md.

`Spy` stands between the estimator and its noise and writes down what was released; it changes
nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from stream_dppca import DPPCA, PaperDPPCA
from stream_dppca.arrays import BoolArray, FloatArray
from stream_dppca.noise import SeededNoise

#: False-alarm probability of one statistic on correct code. The suite computes fewer than 60.
ALPHA = 1e-6
EPSILON, DELTA, BATCH = 2.0, 0.02, 2048  # low noise: an error shows in a few thousand batches


@dataclass(frozen=True)
class Statistic:
    """A measured number, and the most that correct code may show."""

    name: str
    value: float
    limit: float

    @property
    def caught(self) -> bool:
        return not self.value <= self.limit


# Statistics


def error_bound(errors: int, trials: int) -> float:
    """Clopper-Pearson: the rate is below this, except with probability ALPHA/2."""
    return 1.0 if errors == trials else stats.beta.isf(ALPHA / 2, errors + 1, trials - errors)


def rate_floor(hits: int, trials: int) -> float:
    return 1 - error_bound(trials - hits, trials)


def mu_lb(scores: FloatArray, coins: BoolArray) -> float:
    """Lower bound on mu from scores that are higher where the coin is 1."""
    held_out = len(scores) // 8  # chooses the threshold and is not counted
    # Between the quartiles: a median of two values that noise does not blur is one of them.
    threshold = np.quantile(scores[:held_out], [0.25, 0.75]).mean()
    return mu_lb_of_guesses(scores[held_out:] > threshold, coins[held_out:])


def mu_lb_of_guesses(guess: BoolArray, truth: BoolArray) -> float:
    fpr = error_bound(int((guess & ~truth).sum()), int((~truth).sum()))
    fnr = error_bound(int((~guess & truth).sum()), int(truth.sum()))
    return float(stats.norm.isf(fpr) - stats.norm.ppf(fnr))


def ks(sample: FloatArray) -> float:
    """-log10 of the p-value of `sample` being standard normal."""
    return -math.log10(max(stats.kstest(sample, "norm").pvalue, 1e-300))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu by bisection on the Gaussian trade-off, independent of stream_dppca.calibration."""
    low, high = 1e-6, 100.0
    while high - low > 1e-12:
        mu = (low + high) / 2
        reach = stats.norm.cdf(mu / 2 - epsilon / mu)
        reach -= math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if reach <= delta else (low, mu)
    return low


def independence(noise: FloatArray) -> list[Statistic]:
    """Correlation of noise, one row per batch: between batches and coordinates, in sds."""
    n, m = noise.shape
    lags = [abs((noise[lag:] * noise[:-lag]).sum()) / math.sqrt((n - lag) * m) for lag in (1, 2, 3)]
    sums = noise.sum(axis=1) ** 2 / m
    limit = 6.0
    return [
        Statistic("between batches", max(lags), limit),
        Statistic("between coordinates", abs(sums.mean() - 1) * math.sqrt(n / 2), limit),
    ]


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
    """A seeded source that keeps the queries and the answers of this batch."""

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

    def laplace(self, counts: Any, **how: Any) -> Any:
        noisy = self._source.laplace(counts, **how)
        self.laplaces.append(Call(counts.astype(float), noisy.astype(float)))
        return noisy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    @property
    def heard(self) -> list[Call]:
        """Calls in this batch, to this source or to any source that was made of it."""
        return self.gaussians + (vars(self)["last"].heard if "last" in vars(self) else [])


Estimator = TypeVar("Estimator", DPPCA, PaperDPPCA)


def spied(seed: int, d: int, kind: type[Estimator] = DPPCA, **settings: Any) -> Estimator:
    features = tuple(f"x{i}" for i in range(d))
    settings = {"epsilon": EPSILON, "delta": DELTA, "batch_size": BATCH} | settings
    settings = {"center": "none", "scales": None} | settings
    pca = kind(features=features, seed=seed, **settings)
    pca._noise = Spy(seed)
    return pca

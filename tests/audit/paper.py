"""Attacks on the paper's method: A1 to A7, on streams with two coins per batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from stream_dppca.arrays import FloatArray
from stream_dppca.noise import SeededNoise
from stream_dppca.paper import InverseTime, PaperDPPCA
from stream_dppca.paper import eigenvalue as algorithm4
from stream_dppca.paper import mean as algorithm5
from stream_dppca.paper.mean import MeanBudget
from tests.audit.evidence import (
    ALPHA,
    BATCH,
    DELTA,
    EPSILON,
    Statistic,
    error_bound,
    gaussian_mu,
    independence,
    ks,
    mu_lb,
    rate_floor,
    spied,
)

D = 4
W0 = np.array([[0.5], [0.5], [-0.5], [-0.5]])
CORNERS = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]]) / 2
SUBSETS = 18  # ceil(4 ln(1/(delta zeta))/epsilon)
PAIRS = BATCH // 4 // SUBSETS  # in one subset


@dataclass
class PaperRun:
    """A stream with two coins per batch: a record of the first half, a record of the second."""

    first: list[bool] = field(default_factory=list)
    second: list[bool] = field(default_factory=list)
    corner: list[int] = field(default_factory=list)
    counts: list[FloatArray] = field(default_factory=list)  # Algorithm 4, two bins
    laplace: list[FloatArray] = field(default_factory=list)
    histogram: list[FloatArray] = field(default_factory=list)  # noise over its sd
    mean: list[FloatArray] = field(default_factory=list)  # released, over its noise sd
    noise: list[FloatArray] = field(default_factory=list)  # its noise over its sd
    components: list[FloatArray] = field(default_factory=list)  # published, over the noise sd


def stated_budget() -> MeanBudget:
    """mu and delta of Algorithm 5: a tenth of mu^2 and half of delta for the histograms."""
    mu = gaussian_mu(EPSILON + math.log1p(-DELTA / 2), DELTA / 2)
    return MeanBudget(mu * math.sqrt(0.1), mu * math.sqrt(0.9), DELTA / 2)


def batch(first: bool, second: bool, corner: FloatArray) -> FloatArray:
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


def run(n: int, seed: int = 11) -> PaperRun:
    # A small step: components are linear in the mean.
    pca = spied(seed, D, PaperDPPCA, step=InverseTime(c1=5e7, c2=1e9))
    rng, run, budget = np.random.default_rng(seed), PaperRun(), stated_budget()
    half = BATCH // 2
    for t in range(n):
        first, second = rng.random(2) < 0.5
        corner = t // 2 % 2
        pca._method.W = W0
        pca.learn_array(batch(first, second, CORNERS[corner]))
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


def mean_canary(run: PaperRun) -> list[Statistic]:
    """A1: opposite corners of the box, along 1 and along alternating signs."""
    corner, coins, mean = np.array(run.corner), np.array(run.second), np.array(run.mean)
    return [
        Statistic(f"corner {i}", mu_lb((mean @ CORNERS[i])[on], coins[on]), stated_budget().mu_mean)
        for i, on in enumerate((corner == 0, corner == 1))
    ]


def difference(run: PaperRun) -> list[Statistic]:
    """A2: the difference of two batches' releases; two records, so sqrt 2 mu."""
    coins = np.array(run.second)
    score = np.einsum("ij,ij->i", np.array(run.mean), CORNERS[np.array(run.corner)])
    apart = coins[::2] != coins[1::2]
    difference = (score[::2] - score[1::2])[apart]
    limit = math.sqrt(2) * stated_budget().mu_mean
    return [Statistic("difference", mu_lb(difference, coins[::2][apart]), limit)]


def law(run: PaperRun) -> list[Statistic]:
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


def laplace_canary(run: PaperRun) -> list[Statistic]:
    """A6: one record moved between two full bins: a likelihood ratio of e^epsilon at most."""
    counts, coins = np.array(run.counts), np.array(run.first)
    half = SUBSETS // 2
    event = (counts[:, 0] <= half - 1) & (counts[:, 1] >= half + 1)
    hit = rate_floor(int(event[coins].sum()), int(coins.sum()))
    false = error_bound(int(event[~coins].sum()), int((~coins).sum()))
    return [Statistic("log likelihood ratio", math.log(hit / false), EPSILON)]


def public_stream(run: PaperRun) -> list[Statistic]:
    """A7: one stream, a coin in each batch, seen through the published components alone."""
    score = np.einsum("ij,ij->i", np.array(run.components), CORNERS[np.array(run.corner)])
    return [Statistic("components", mu_lb(score, np.array(run.second)), stated_budget().mu_mean)]


def lone_bins() -> list[Statistic]:
    """A3: bins that one record alone can surface. Many lone bins show it at once."""
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


def halves() -> list[Statistic]:
    """A4: with the noise frozen, each half leaves what the other half releases bit-equal."""

    def seen(slot: int, record: Any) -> tuple[bytes, bytes]:
        pca = spied(3, D, PaperDPPCA)
        pca._method.W = W0
        X = batch(False, False, CORNERS[1])
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

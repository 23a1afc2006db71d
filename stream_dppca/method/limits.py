"""Limits: the scores that few records exceed, from histograms of SPE and T2.

Every batch that is learned from is asked for two histograms of the scores of its records
(`stream_dppca.scores`), under the model that was released before it. The first step, before which
there is none, is asked after its own moments. (Later ones could be asked like that, but that would
be a second pass over their records, which on an engine are read again for it.) Histograms are added
up over batches as moments are. They begin anew when the past is dropped, and when other features
are scored.

Adjacency: one record is replaced, or turns null; or everything that one subject sends in a round.
Sensitivity: `ScoreCounts`, 2 for both histograms together, plus the rounding of shares.
Noise: N(0, (that/mu_limits)^2) on every count, mu_limits^2 = `LIMITS` of mu^2, which the moments of
    the same step leave. Records: `CorrelatedRelease`, with a C of its own, of which a record is in
    one column. Subjects, and a single batch: `IndependentRelease`.
Delta: none beyond that of mu.

The model and the bins follow from earlier releases; in the first step from those of the same step.
A null is in no bin, nor is a record with too few values to be scored. The number of records that
are is the noisy sum of all bins.

**Reading** is post-processing. The count beyond an edge is the sum of the bins beyond it, made
monotone. Between edges, the normal quantile of the share beyond is interpolated against the
logarithm of the score. That is exact for log-normal scores, and near enough for the squared length
of any number of normal values. A limit is told where the noise of the count beyond it is small
against that count (`_CLEAR`), and where scores do not pile up (`_RISES`). Its sd is that of the
count, noise and sampling together, over the density there, with a little for a model that still
changes (`_SETTLES`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from ..arrays import FloatArray
from ..mechanisms.correlated import DECAYS, CorrelatedRelease
from ..mechanisms.independent import IndependentRelease
from ..noise import Noise
from ..release import RATES, Limit, Score
from ..scores import READABLE, grown
from ..statistics import Block
from .covariance import NoiseOfSums, RunningMean
from .standard import Standard
from .statistics import AugmentedMoments, bin_counts, count_slack, standardised

__all__ = ["LIMITS", "Limits", "MomentsAndScores", "ScoreCounts"]

#: Share of mu^2 for both histograms: 2 % more noise in the moments.
LIMITS = 0.04
SCORES: Final[tuple[Score, Score]] = ("spe", "t2")
#: Edges of the bins, in eighths of octaves of the expected score, 2^e (1 + j/8): fine where the few
#: highest of many features lie, and few beyond, because the noise of all bins beyond a limit is in
#: it.
_EIGHTHS = (-48, -40, *range(-32, -8, 4), -8, -6, *range(-4, 8), 8, 10, 12, 14, *range(16, 32, 4))
_EIGHTHS += (32, 40, 48, 56)
_EDGES = np.array([2.0 ** (i // 8) * (1 + i % 8 / 8) for i in _EIGHTHS])
_BINS = len(_EDGES) + 1
#: The bin of each eighth, from the one below the first edge to the one beyond the last.
_FIRST, _LAST = _EIGHTHS[0] - 1, _EIGHTHS[-1]
_BIN = np.searchsorted(_EIGHTHS, np.arange(_FIRST, _LAST + 1), side="right")
#: The first bits of 1.0.
_ONE = 1023 * 8
#: A count tells a limit if it is this many sds of its noise.
_CLEAR = 3.0
#: In the tail, a bin is at most this many times as dense as the one before.
_RISES = 2.0
#: Relative sd of scores as the model settles: batches were scored under earlier ones.
_SETTLES = 0.03
#: As `base.POWER`.
_POWER = 0.8
#: Bins begin anew if the expected score is off by more than this factor.
_OFF = 8.0
#: Expected scores are between 2^-400 and 2^400.
_LARGEST = 400.0


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Number of units by SPE and by T2 under a released model: one bin of each per unit.

    Adjacency: one unit is replaced, or turns null.
    Sensitivity: a record is in one bin of each histogram, so one count falls and one rises by 1 in
        each: 2 for both. Counts are exact. A unit of several rows adds the shares of its rows in
        each bin, h with sum at most 1: |h - h'|^2 <= |h|^2 + |h'|^2 <= 2 in each histogram, so 2
        for both, with the rounding of `count_slack`.
    """

    center: tuple[float, ...]
    scale: tuple[float, ...]
    clamp: tuple[float, ...]
    mean: FloatArray  #: m
    inverse: FloatArray  #: 1/r; 0 for features without spread
    W: FloatArray  #: d x k, orthonormal columns
    precision: FloatArray  #: 1/v, v the variance along each component; 0 where it is not positive
    expected: tuple[float, float]  #: SPE and T2, by which the edges are multiplied

    long_blocks: ClassVar[bool] = False

    @property
    def multiplied(self) -> int:
        """Columns of the matrix that rows are multiplied with."""
        return int(self.W.shape[1]) + 1

    def __call__(self, block: Block) -> FloatArray:
        Z = standardised(block, self.center, self.scale, self.clamp)
        return self.counts(block, Z)

    def counts(self, block: Block, Z: FloatArray) -> FloatArray:
        """2 x bins, for standardised rows. With u = (z - m)/r and t = W^T u, SPE is |u|^2 - |t|^2.

        Every number of a row comes from that row alone, so none changes the bin of another.
        """
        shift, edge, flat = self.mean * self.inverse, min(self.clamp), Z.ravel()
        u = Z * self.inverse  # m/r is subtracted below
        far = flat >= edge
        far |= flat <= -edge
        row, column = np.divmod(np.flatnonzero(far), Z.shape[1])
        c, s = np.array(self.center)[column], np.array(self.scale)[column]
        z = grown((block.X[row, column] - c) / s, np.array(self.clamp)[column])
        u[row, column] = z * self.inverse[column]
        outside = block.null
        if block.partial:  # a missing value is scored as its mean, and too few are not scored
            there = np.isfinite(block.X)
            u = np.where(there, u, shift)
            scored = self.inverse > 0
            read = np.count_nonzero(there & scored, axis=1)
            outside = outside | (read < max(1, READABLE * np.count_nonzero(scored)))
        along = block.along(np.column_stack([self.W, shift]), u).T
        spe, t2 = scores = np.zeros((2, len(u)))
        spe += block.sq_lengths(u) - 2 * along[-1] + float(shift @ shift)
        for t, w, precision in zip(along, self.W.T, self.precision, strict=False):
            square = (t - float(shift @ w)) ** 2
            spe -= square
            t2 += precision * square
        scores /= np.array([self.expected]).T
        # The first bits of a positive number, as an integer: its eighth of an octave.
        eighths = np.maximum(scores, 1e-300).view(np.int64) >> 49
        bins = _BIN[np.clip(eighths - _ONE, _FIRST, _LAST) - _FIRST]
        return bin_counts(bins.T, _BINS, outside[:, np.newaxis]) / block.each

    def sensitivity(self, units: int, each: int) -> float:
        return 2 * count_slack(units, each)


@dataclass(frozen=True, eq=False)
class MomentsAndScores:
    """Two questions in one pass: the moments, then the counts, in one vector.

    Each is released with its own noise and sensitivity.
    """

    moments: AugmentedMoments
    scores: ScoreCounts

    long_blocks: ClassVar[bool] = True

    @property
    def multiplied(self) -> int:
        return self.scores.multiplied

    def __call__(self, block: Block) -> FloatArray:
        m = self.moments
        Z = standardised(block, m.center, m.scale, m.clamp)
        counts = self.scores.counts(block, Z)
        return np.concatenate([m.of(block, Z).ravel(), counts.ravel()])

    def split(self, total: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The sum of moments, and that of counts."""
        size = len(self.scores.mean) + 1
        moments, counts = np.split(total, [size * size])
        return moments.reshape(size, size), counts.reshape(2, _BINS)


class Limits:
    """The histograms of all batches so far, and the limits that they show.

    Parameters
    ----------
    mu
        Budget of a batch, or of a round, for both histograms.
    correlated
        True if noise may cancel over batches.
    keep
        Share of the past that is kept with every batch.
    k
        Number of components.
    """

    def __init__(self, *, mu: float, correlated: bool, keep: float, k: int) -> None:
        self.mu, self.keep, self.k = mu, keep, k
        self.release: CorrelatedRelease | IndependentRelease
        self.release = CorrelatedRelease(mu=mu) if correlated else IndependentRelease(mu=mu)
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.histograms = RunningMean(2 * _BINS)
        self.expected: float | None = None  #: SPE, by which the edges are multiplied
        self._noise = NoiseOfSums((self.keep,), DECAYS)
        self.release.forget()

    def question(
        self,
        standard: Standard,
        *,
        mean: FloatArray,
        deviation: FloatArray,
        W: FloatArray,
        variance: FloatArray,
        rest: float,
    ) -> ScoreCounts:
        """The question about the scores under a released model.

        Parameters
        ----------
        deviation
            r; infinite or 0 for features without spread.
        variance
            Variance along each component.
        rest
            Expected SPE: the variance that the components do not explain.
        """
        rest = float(2.0 ** np.clip(math.log2(max(rest, 1e-300)), -_LARGEST, _LARGEST))
        if self.expected is None or not 1 / _OFF < rest / self.expected < _OFF:
            self.forget()
            self.expected = rest
        inverse = np.where((deviation > 0) & np.isfinite(deviation), 1 / deviation, 0.0)
        return ScoreCounts(
            **standard.parameters(),
            mean=mean,
            inverse=inverse,
            W=W,
            precision=np.where(variance > 0, 1 / np.maximum(variance, 1e-300), 0.0),
            expected=(self.expected, float(self.k)),
        )

    def add(self, counts: FloatArray, *, sensitivity: float, noise: Noise) -> None:
        """Release the counts of a step, and add them. **Private**: see the module."""
        released = self.release.release(
            counts.ravel(), sensitivity=sensitivity, power=_POWER, noise=noise
        )
        gain = sensitivity / self.mu
        self._noise.add(released, gain)
        (variance,) = self._noise.variances
        self.histograms.add(released.alone * gain, variance, self.keep)
        self.histograms.settle()

    # Post-processing.

    def read(self) -> dict[Score, tuple[Limit, ...]]:
        """The limits that can be told, in order."""
        if self.expected is None or self.histograms.weight == 0:
            return {}
        found: dict[Score, tuple[Limit, ...]] = {}
        sd = math.sqrt(self.histograms.noise)
        for score, expected, counts in zip(
            SCORES, (self.expected, float(self.k)), np.split(self.histograms.total, 2), strict=True
        ):
            limits = _limits(counts, sd, _EDGES * expected)
            if limits:
                found[score] = limits
        return found

    # State

    def state(self) -> dict[str, Any]:
        return self.histograms.state() | {"expected": self.expected}

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`, or raise a ValueError."""
        self.forget()
        self.histograms.load(state)
        self.expected = None if state["expected"] is None else float(state["expected"])
        if self.expected is not None and not 2.0**-_LARGEST <= self.expected <= 2.0**_LARGEST:
            raise ValueError("not a state of these limits")
        self._noise.begin((self.histograms.noise,))


def _limits(counts: FloatArray, sd: float, edges: FloatArray) -> tuple[Limit, ...]:
    """Limits from noisy counts in bins."""
    from scipy.special import ndtri  # it sets a filter of warnings: only if needed

    every = float(counts.sum())
    if not every > _CLEAR * sd * math.sqrt(len(counts)):
        return ()
    beyond = np.cumsum(counts[:0:-1])[::-1]  # each edge
    noise = sd * np.sqrt(np.arange(len(edges), 0, -1))
    # At least half of a record, and the share is below 1.
    share = np.clip(_falling(beyond, noise**-2.0) / every, 0.5 / every, 1 - 0.5 / every)
    place, score = -ndtri(share), np.log(edges)
    width = np.diff(np.log2(edges), prepend=-np.inf, append=np.inf)
    density, of_density = counts / width, sd / width  # of each bin
    found = []
    for rate in RATES:
        at = int(np.searchsorted(-share, -rate))  # the first edge with less beyond it
        if not 0 < at < len(edges) or rate * every < _CLEAR * noise[at - 1]:
            continue
        if density[at] > _RISES * density[at - 1] + _CLEAR * of_density[at]:
            continue  # many equal scores: a limit would be anywhere among them
        low, high = place[at - 1], place[at]
        slope = (score[at] - score[at - 1]) / (high - low)
        value = math.exp(score[at - 1] + (-ndtri(rate) - low) * slope)
        of_count = math.hypot(noise[at - 1], math.sqrt(rate * every)) / every
        normal = math.exp(-(float(ndtri(rate)) ** 2) / 2) / math.sqrt(2 * math.pi)
        sd_of_log = math.hypot(slope * of_count / normal, _SETTLES)
        found.append(Limit(rate=rate, value=value, sd=value * sd_of_log))
    return tuple(found)


def _falling(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The values of least squares that do not rise, by pooling neighbours that do.

    Examples
    --------
    >>> _falling(np.array([5.0, 1.0, 3.0, 0.0]), np.ones(4)).tolist()
    [5.0, 2.0, 2.0, 0.0]
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while pools and pools[-1][0] < mean:
            before, more, others = pools.pop()
            mean = (mean * total + before * more) / (total + more)
            total, size = total + more, size + others
        pools.append((mean, total, size))
    return np.repeat([mean for mean, *_ in pools], [size for *_, size in pools])

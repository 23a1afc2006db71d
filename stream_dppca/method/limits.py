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
A null is in no bin, nor is a record with too few values to be scored. The number of scored
records is the noisy sum of all bins.

**Reading** is post-processing. The count beyond an edge is the sum of the bins beyond it, made
monotone. Between edges, the normal quantile of the share beyond is interpolated against the
logarithm of the score. That is exact for log-normal scores, and near enough for the squared length
of any number of normal values. A limit is told where the noise of the count beyond it is small
against that count (`_CLEAR`), and where scores do not pile up (`_RISES`).

The stated sd covers the noise of the counts and sampling, over the density there; that batches were
scored under earlier models, with more noise (`Limits.read`); and interpolation of smooth scores
(`_SETTLES`). It does not cover scores that pile up within a bin, a scale that was corrected, nor a
stream that changes: docs/detection.md has what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..arrays import FloatArray
from ..mechanisms.correlated import DECAYS, CorrelatedRelease
from ..mechanisms.independent import IndependentRelease
from ..noise import Noise
from ..release import RATES, Limit, Score
from ..scores import READABLE, filled, grown
from ..statistics import Block
from .components import Components
from .memory import NoiseOfSums, RunningMean
from .standard import Standard
from .statistics import AugmentedMoments, Products, Rule, count_slack, rule, squared, standardised

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
_WIDTHS = np.diff(np.log2(_EDGES), prepend=-np.inf, append=np.inf)  # in octaves
#: Scores are counted by eighths, from the one below the first edge to the one beyond the last.
_FIRST, _EACH = _EIGHTHS[0] - 1, _EIGHTHS[-1] - _EIGHTHS[0] + 2
#: The first eighth of each bin.
_STARTS = np.array([_FIRST, *_EIGHTHS]) - _FIRST
#: A count tells a limit if it is this many sds of its noise.
_CLEAR = 3.0
#: In the tail, a bin is at most this many times as dense as the one before.
_RISES = 2.0
#: Relative sd of a limit that has no noise: interpolation, and small changes of the model.
_SETTLES = 0.01
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
    rest: float = 0.0  #: variance of a feature that no component explains

    @property
    def multiplied(self) -> int:
        """Columns of the matrix that rows are multiplied with."""
        return int(self.W.shape[1]) + 1

    @cached_property
    def _shift(self) -> FloatArray:
        """m/r."""
        return self.mean * self.inverse

    @cached_property
    def _variance(self) -> FloatArray:
        """v; 0 where it is not positive."""
        return np.where(self.precision > 0, 1 / np.maximum(self.precision, 1e-300), 0.0)

    @cached_property
    def _columns(self) -> FloatArray:
        """What u is multiplied with: W, and m/r."""
        return np.column_stack([self.W, self._shift])

    @cached_property
    def _of_z(self) -> tuple[FloatArray, FloatArray]:
        """What z is multiplied with, and z^2 for |u|^2, where u = z/r."""
        return self._columns * self.inverse[:, np.newaxis], self.inverse**2

    def __call__(self, block: Block) -> FloatArray:
        how = rule(self.center, self.scale, self.clamp)
        _, found = self.measure(block, how, standardised(block, how))
        return self.counts([found]) / block.each

    def measure(self, block: Block, how: Rule, Z: FloatArray) -> tuple[FloatArray, tuple[Any, ...]]:
        """Squared lengths of standardised rows, and what `counts` needs; each from that row alone.

        With u = z/r, which goes on beyond the clamp, these are the products of u with the columns,
        |u|^2, and whether a row is in no bin.
        """
        columns, weights = self._of_z
        sq_lengths, sq_u = squared(block, Z, weights).T
        clamped = np.flatnonzero(block.scratch[1] == how.edge**2)
        row, column = np.divmod(clamped, len(self.mean))
        z, edge = np.take(block.X, clamped) - how.center[column], how.clamp[column]
        z *= how.factor[column]
        far, outside = grown(z, edge) * self.inverse[column], block.null
        if not block.partial:
            along, near = block.along(columns, Z), np.copysign(edge, z) * self.inverse[column]
            beyond = far - near
            # One column at a time: little memory, even if most values are clamped.
            for total, of in zip(along.T, self._columns.T, strict=True):
                total += np.bincount(row, of[column] * beyond, len(along))
            sq_u += np.bincount(row, (beyond + 2 * near) * beyond, len(along))
            return sq_lengths, (along, sq_u, outside)
        # Missing values are filled in, and too few are not scored.
        there, scored = np.isfinite(block.X), self.inverse > 0
        read = np.count_nonzero(there & scored, axis=1)
        outside = outside | (read < max(1, READABLE * np.count_nonzero(scored)))
        u = np.multiply(Z, self.inverse, out=block.scratch[1])
        u[row, column] = far
        u -= self._shift
        filled(u, there | ~scored | outside[:, np.newaxis], self.W, self._variance, self.rest)
        u += self._shift
        along, sq_u = block.along(self._columns, u), block.sq_lengths(u)
        return sq_lengths, (along, sq_u, outside)

    def counts(self, parts: Sequence[tuple[Any, ...]]) -> FloatArray:
        """2 x bins, from what `measure` has found of blocks.

        With t = W^T (u - m/r), SPE is |u - m/r|^2 - |t|^2. All arithmetic is number by number, so
        no row changes the bin of another.
        """
        along, sq_u, outside = map(np.concatenate, zip(*parts, strict=True))
        shift, scores = self._shift, np.zeros((2, len(along)))
        spe, t2 = scores
        np.add(sq_u - 2 * along[:, -1], float(shift @ shift), out=spe)
        for t, of_shift, precision in zip(along.T, shift @ self.W, self.precision, strict=False):
            square = (t - of_shift) ** 2
            spe -= square
            t2 += precision * square
        scores /= np.array([self.expected]).T
        # The first bits of a positive number, as an integer, are its eighth of an octave: 1023 * 8
        # for 1.0.
        eighths = (np.maximum(scores, 1e-300).view(np.int64) >> 49) - (1023 * 8 + _FIRST)
        np.clip(eighths, 0, _EACH - 1, out=eighths)
        eighths[1] += _EACH
        eighths[:, outside] = 2 * _EACH
        counts = np.bincount(eighths.ravel(), minlength=2 * _EACH + 1)[:-1].reshape(2, _EACH)
        return np.add.reduceat(counts, _STARTS, axis=1)

    def sensitivity(self, units: int, each: int) -> float:
        return 2 * count_slack(units, each)


@dataclass(frozen=True, eq=False)
class MomentsAndScores:
    """Two questions in one pass: the moments, then the counts, in one vector.

    Each is released with its own noise and sensitivity.
    """

    moments: AugmentedMoments
    scores: ScoreCounts

    @property
    def multiplied(self) -> int:
        return self.scores.multiplied

    def __call__(self, block: Block) -> FloatArray:
        return self.over([block])

    def over(self, blocks: Iterable[Block]) -> FloatArray:
        """The sums over the units of several blocks."""
        m, found = self.moments, []
        products, how = Products(len(m.center)), rule(m.center, m.scale, m.clamp)
        for block in blocks:
            Z = standardised(block, how)
            sq_lengths, numbers = self.scores.measure(block, how, Z)
            found.append(numbers)
            m.add(products, block, Z, sq_lengths)
        counts = self.scores.counts(found) / block.each
        return np.concatenate([products.packed(), counts.ravel()])

    @staticmethod
    def split(total: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The sum of moments, packed, and that of counts."""
        return total[: -2 * _BINS], total[-2 * _BINS :].reshape(2, _BINS)


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

    def question(self, standard: Standard, found: Components, W: FloatArray) -> ScoreCounts:
        """The question about the scores under a released model, whose components are W."""
        # Expected SPE: the variance that the components do not explain.
        rest = max(found.total - float(found.values.sum()), 3 * found.sd, 1e-300)
        rest = float(2.0 ** np.clip(math.log2(rest), -_LARGEST, _LARGEST))
        if self.expected is None or not 1 / _OFF < rest / self.expected < _OFF:
            self.forget()
            self.expected = rest
        variance = found.values
        return ScoreCounts(
            **standard.parameters(),
            mean=found.mean,
            inverse=1 / found.deviation,
            W=W,
            precision=np.where(variance > 0, 1 / np.maximum(variance, 1e-300), 0.0),
            expected=(self.expected, float(self.k)),
            rest=found.rest,
        )

    def add(self, counts: FloatArray, *, sensitivity: float, noise: Noise) -> None:
        """Release the counts of a step, and add them. **Private**: see the module."""
        released = self.release.release(counts.ravel(), sensitivity=sensitivity, noise=noise)
        gain = sensitivity / self.mu
        self._noise.add(released, gain)
        (variance,) = self._noise.variances
        self.histograms.add(released.alone * gain, variance, self.keep)
        self.histograms.settle()

    # Post-processing.

    def read(self, found: Components) -> dict[Score, tuple[Limit, ...]]:
        """The limits that can be told, in order, of a model that was found.

        Batches were scored under earlier models, with more noise. SPE follows the variance that is
        left, which has the noise of as many variances as features less components. As noise falls
        with 1/n, the models of n batches have 1 + ln n times as much as the last, on average. T2
        follows the variances along the components. Half of both was fitted to simulations.
        """
        n = self.histograms.weight
        if self.expected is None or n == 0:
            return {}
        counts, sd = np.split(self.histograms.total, 2), math.sqrt(self.histograms.noise)
        of_rest = found.sd / max(found.rest * math.sqrt(max(found.seen - self.k, 1)), found.sd)
        of_model = (1 + math.log(max(n, 1.0))) * of_rest / 2, found.sd / 2
        told = map(_limits, counts, (sd, sd), (self.expected, float(self.k)), of_model)
        return {score: limits for score, limits in zip(SCORES, told, strict=True) if limits}

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


def _limits(counts: FloatArray, sd: float, expected: float, model: float) -> tuple[Limit, ...]:
    """Limits from noisy counts in bins, whose edges are multiplied by the expected score.

    `model` is the relative sd of scores because earlier batches had other models.
    """
    from scipy.special import ndtri  # it sets a filter of warnings: only if needed

    every = float(counts.sum())
    if not every > _CLEAR * sd * math.sqrt(len(counts)):
        return ()
    beyond = np.cumsum(counts[:0:-1])[::-1]  # each edge
    noise = sd * np.sqrt(np.arange(len(_EDGES), 0, -1))
    # What drowns in noise may be as much as that noise: taken for nothing, it would draw the limit
    # of a wide bin, and its sd, towards the lower edge. At least half of a record, and not all.
    share = np.clip(_falling(beyond, noise**-2.0), np.maximum(noise, 0.5), every - 0.5) / every
    place, score = -ndtri(share), np.log(_EDGES * expected)
    density, of_density = counts / _WIDTHS, sd / _WIDTHS  # of each bin
    found = []
    for rate in RATES:
        at = int(np.searchsorted(-share, -rate))  # the first edge with less beyond it
        if not 0 < at < len(_EDGES) or rate * every < _CLEAR * noise[at - 1]:
            continue
        if density[at] > _RISES * density[at - 1] + _CLEAR * of_density[at]:
            continue  # many equal scores: a limit would be anywhere among them
        slope = (score[at] - score[at - 1]) / (place[at] - place[at - 1])
        value = math.exp(score[at - 1] + (-ndtri(rate) - place[at - 1]) * slope)
        of_count = math.hypot(noise[at - 1], math.sqrt(rate * every)) / every
        normal = math.exp(-(float(ndtri(rate)) ** 2) / 2) / math.sqrt(2 * math.pi)
        sd_of_log = math.hypot(slope * of_count / normal, model, _SETTLES)
        found.append(Limit(rate=rate, value=value, sd=value * sd_of_log))
    return tuple(found)


def _falling(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The values of least squares that do not rise, by pooling neighbours that do.

    Examples
    --------
    >>> _falling(np.array([5.0, 1.0, 3.0, 0.0]), np.ones(4)).tolist()
    [5.0, 2.0, 2.0, 0.0]
    """
    if (values[1:] <= values[:-1]).all():
        return values
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while pools and pools[-1][0] < mean:
            before, more, others = pools.pop()
            mean = (mean * total + before * more) / (total + more)
            total, size = total + more, size + others
        pools.append((mean, total, size))
    return np.repeat([mean for mean, *_ in pools], [size for *_, size in pools])

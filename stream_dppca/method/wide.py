"""Many features: gradients in place of second moments.

Above `MOST_FEATURES` a second moment has too many numbers. The questions of the first step are
those of `first`, with all of its budget. Every batch after it answers up to five questions about
the same records, in this order:

| question | statistic | sensitivity | share of mu^2 |
|---|---|---|---|
| means and variances of all features | `MomentsInBall`, correlated noise | 2 R/B | `BESIDE` |
| a look, if a spread is not known | `OctaveCounts`, d' features | sqrt(2 d') | `LOOK`, out of it |
| mean and variance along the components | `MomentsAlong` | sqrt 2 rho' | `ALONG` |
| the range of gradients | counts, see `mechanisms.radius` | sqrt 11 | the rest, divided |
| the mean gradient | `CenteredGradients`, correlated noise | 2.006 rho/B | by `range_share` |

Adjacency: one record is replaced, or turns null.
Noise: the shares of a batch add up to 1, so its questions spend mu together. Whether there is a
    look follows from earlier releases. The two sequences of correlated releases are two Gaussian
    mechanisms with adaptively chosen queries: a record of batch s is in one column of either, of
    length 1 at most, and spends in each of them the share of its batch.
Dependencies: a question may use the answers to those before it in the same batch, which are
    releases like any other: adaptive composition. Means, scales, clamps, the basis W and L come
    from releases; the radius is the largest that searches have found so far.
Delta: none beyond that of mu.

**The radius never falls** while the past is kept: with radii of their own, batches would be
weighted by 1/radius^2, and quiet batches would win.

**Means that move.** Batch t has mean m_t, and all batches up to it m^_t. Its contribution to the
total covariance of all batches (Chan, Golub, LeVeque 1983) is C_t W + (t - 1)/t v (W^T v)^T, with
C_t the covariance within the batch and v = m_t - m^_{t-1}. That is the mean of u (W^T u - p)^T with
u = z - m^_{t-1} and p = W^T v/t. Where W^T v does not stand out of its noise, it counts as zero,
and gradients are z (W^T z - p)^T with p = W^T m_t: the noise of m^ in d numbers stays out.

**Scales.** Components of standardised records need each feature's deviation, which gradients do not
show. Variances come from the first question, moved towards their mean as far as they are uncertain.
The theory is that of a few components over a level rest: if A = r r^T * C has the gradient G at W,
then G/r points along the component of C.

**Explained variances** come from the question about the components (`along`), and from the
variances of the first question for the total.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import BoolArray, FloatArray
from ..errors import BatchSizeError
from ..mechanisms.correlated import CorrelatedRelease, Released, claimed
from ..mechanisms.queries import pack
from ..mechanisms.radius import FIRST
from ..noise import Noise
from ..oja import orthonormal
from ..outcome import ONLY_RANGE, Outcome
from ..projector import Projector
from ..statistics import Rows
from .along import LENGTH, Along, RunningExcess, clip_radius, constant
from .base import (
    POWER,
    REFINED_MOST,
    UNREADABLE,
    WIDEN_ABOVE,
    WIDEN_SDS,
    MethodBase,
    Parameters,
    kept_share,
)
from .covariance import HEAVY, RunningMean
from .first import BALL
from .gradient_step import GradientStep, smallest_range_batch
from .gradients import MomentsAlong
from .looks import LOOK, Look
from .standard import CLAMP
from .statistics import MomentsInBall

__all__ = ["ALONG", "BESIDE", "WideMethod"]

#: Shares of mu^2 for means and variances of all features, and for those along the components.
BESIDE, ALONG = 0.12, 0.03
#: Batches after the first step after which scales are refined.
REFINED_AFTER = (1, 2, 4, 8, 16, 32)
#: A mean that has moved along a component counts if it is this many sds of its noise away.
_MOVED_SDS = 3.0


def _constant(d: int) -> float:
    """a of `MomentsInBall`: a^2 = d/4 makes the ball 4 % larger.

    An error in the share of valid records is an error of the mean *along* the mean, which feeds a
    false component; with a = 1 the false one was found instead of the true one.
    """
    return math.sqrt(d) / 2


class WideMethod(MethodBase[RunningMean]):
    """Learns centre, scales and components of many features.

    Parameters
    ----------
    given
        Its units are records.
    """

    REFINED_AFTER = REFINED_AFTER
    FIRST = 1.0

    def __init__(self, given: Parameters) -> None:
        W, d, units = given.W, len(given.W), given.units
        moments = RunningMean(2 * d + 1)  # of (z, (z^2 - 1)/2, 1)
        super().__init__(given, moments, constant=_constant(d))
        self.mu_along = self.mu * math.sqrt(ALONG)
        self.beside = CorrelatedRelease(mu=self.mu)
        part = 1 - BESIDE - ALONG
        self.gradients = GradientStep(
            W=W, mu=self.mu * math.sqrt(part), rows=units, memory=given.memory
        )
        self.excess = RunningExcess(W.shape[1])
        self.learned = False

    def check_batch(self, units: int) -> None:
        super().check_batch(units)
        smallest = smallest_range_batch(self.gradients.mu)
        if units < smallest:
            why = "with fewer records the range cannot be found within the noise"
            raise BatchSizeError(units, smallest, why)

    def step(self, rows: Rows, t: int, noise: Noise) -> Outcome:
        """Learn from one batch."""
        if self.range is None:
            self.range = self.questions.ask(rows, noise)
            return Outcome.skip(UNREADABLE if self.range is None else ONLY_RANGE)
        # Private: each release may use the results of those before it.
        before, sd_before = self._mean(), self.moments.sd
        released, sensitivity = self._ask_beside(rows, noise)
        alone, sd = self._add(released, self.mu / sensitivity)
        look = self._look(rows, noise)
        p, along = self._ask_along(rows, before, noise)
        if not self.given.known_center:
            self._center_gradients(p, along, before, sd_before)
        basis = self.gradients.V
        outcome = self.gradients.step(rows, noise)
        # From here on, post-processing.
        if outcome.drift:
            self._drop_past()
            self.gradients.place = FIRST
            self.excess.forget()
        self._learn_along(along)
        self.excess.turn(basis.T @ self.gradients.V)
        self._widen(alone, sd)
        self._refine()
        if look is not None:
            self._find_scales(look)
        self._settle()
        if outcome.skipped is None:
            self.learned = True
            self._read()
            return self._with_ratios(outcome)
        return outcome

    # Private.

    def _ask_beside(self, rows: Rows, noise: Noise) -> tuple[Released, float]:
        """Release the moments of all features, and the sensitivity that was allowed for.

        Adjacency: one record is replaced, or turns null.
        Sensitivity: `MomentsInBall` over the units: 2 R/B, plus rounding.
        Noise: that of `CorrelatedRelease` with mu, where the query is `claimed` to be more
            sensitive than it is, so that it spends `BESIDE` of mu^2, less `LOOK` if there is a
            look in the same batch.
        Delta: none beyond that of mu.
        """
        known = int(np.count_nonzero(self.standard.known))
        # Of a feature whose spread is not known, z is 0 and (z^2 - 1)/2 is -1/2.
        a = self._constant
        longest = math.sqrt(BALL * known + 0.25 * (len(self.W) - known) + a * a)
        query = MomentsInBall(**self._parameters(), radius=longest, constant=a)
        part = BESIDE - (LOOK if known < len(self.W) else 0.0)
        sensitivity = claimed(query.sensitivity(self.units) / self.units, part)
        released = self.beside.release(
            rows.total(query) / self.units, sensitivity=sensitivity, power=POWER, noise=noise
        )
        return released, sensitivity

    def _ask_along(self, rows: Rows, before: FloatArray, noise: Noise) -> tuple[FloatArray, Along]:
        """Release the moments of this batch along V, around p of the mean before; return both.

        Adjacency: one record is replaced, or turns null.
        Sensitivity: `MomentsAlong`, sqrt 2 rho' and rounding.
        Noise: N(0, (that/mu_along)^2), mu_along^2 = `ALONG` of mu^2, fresh in every batch.
        Delta: none beyond that of mu.
        """
        gradients = self.gradients
        p, k = gradients.V.T @ before, len(gradients.L)
        expected = self._expected_along()
        values, vectors = np.linalg.eigh(expected)
        whiten = (vectors / np.sqrt(values)) @ vectors.T
        query = MomentsAlong(
            gradients.V,
            **gradients.standard,
            along=p,
            whiten=whiten,
            length=LENGTH / math.sqrt(self._square_length()),
            constant=constant(k),
            radius=clip_radius(k),
        )
        sensitivity = query.sensitivity(self.units)
        packed = noise.gaussian(pack(rows.total(query)), sensitivity=sensitivity, mu=self.mu_along)
        sd = sensitivity / self.mu_along
        return p, Along.read(packed, sd, expected=expected, whiten=whiten, units=self.units)

    # Post-processing.

    def _expected_along(self) -> FloatArray:
        """k x k: the second moment that is expected along V."""
        level = self._level()
        values, vectors = np.linalg.eigh(self.excess.expected + level * np.eye(len(self.W.T)))
        # Clipped gradients give too small a value, but they have seen the newest basis.
        if not self.excess.known:
            values = np.maximum(values, float(np.linalg.eigvalsh(self.gradients.L)[-1]))
        return np.asarray((vectors * np.maximum(values, level / 2)) @ vectors.T)

    def _square_length(self) -> float:
        """Mean square length of records in the units of the gradients, as far as is known."""
        known, mean = self.standard.known, self._mean()
        noise = 0.0 if self.given.known_center else (self.moments.sd / self._valid()) ** 2
        square = self._variances() + mean**2 - noise  # the noise of the mean lifts its square
        total, seen = float(np.sum(square[known])), int(np.count_nonzero(known))
        return max(total, 0.05 * seen) if seen else 1.0

    def _level(self) -> float:
        """Variance in a direction of the rest, in the units of the gradients."""
        known = self.standard.known
        total = float(np.sum(self._variances()[known]))
        rest = total - float(np.trace(self.excess.excess)) if self.excess.known else total
        typical = total / max(int(known.sum()), 1) if total > 0 else 1.0
        return max(rest / max(int(known.sum()), 1), 0.05 * typical)

    def _learn_along(self, along: Along) -> None:
        """Add the variance of this batch along the basis of its query."""
        second = along.second
        if not self.given.known_center:
            # Around the mean of all batches, this one included (Chan, Golub, LeVeque 1983).
            second = second - np.outer(along.shift, along.shift) / self.moments.weight
        self.excess.add(along, second, self._level(), kept_share(self.given.memory))

    def _center_gradients(
        self, p: FloatArray, along: Along, before: FloatArray, sd_before: float
    ) -> None:
        """Take gradients around the mean of all batches if it has moved, or else of this batch."""
        weight, shift = self.moments.weight, along.shift
        sds = np.hypot(along.shift_sd, sd_before / self._valid())
        moved = (np.abs(shift) > _MOVED_SDS * sds) & (weight > 1)
        if moved.any():
            self.gradients.mean = before
            self.gradients.along = np.where(moved, shift / weight, shift)
        else:
            self.gradients.mean = np.zeros(len(before))
            self.gradients.along = p + shift

    def _parameters(self) -> dict[str, tuple[float, ...]]:
        """The parameters of statistics, in which a feature whose spread is not known is 0."""
        clamp = np.where(self.standard.known, self.standard.clamp, 0.0)
        return self.standard.parameters() | {"clamp": tuple(clamp.tolist())}

    def _add(self, released: Released, unit: float) -> tuple[FloatArray, float]:
        """Add a batch's own moments, and update the gradients. Returns them and their noise sd."""
        sd = self._noise.of_next(released) / unit
        self._remember(released, released.alone / unit, 1 / unit)
        self.gradients.standard = self._parameters()
        return released.alone / unit, sd

    def _valid(self) -> float:
        """Noisy share of valid records."""
        return min(max(float(self.moments.mean[-1]) / self._constant, 0.05), 1.0)

    def _mean(self) -> FloatArray:
        d = len(self.W)
        if self.given.known_center:
            return np.zeros(d)
        return np.clip(self.moments.mean[:d] / self._valid(), -CLAMP, CLAMP)

    def _variances(self) -> FloatArray:
        """Variances of z, moved towards their mean as far as they are uncertain; 1 if unknown."""
        d, known, valid = len(self.W), self.standard.known, self._valid()
        if not known.any() or self.moments.weight == 0:
            return np.ones(d)
        sd = 2 * self.moments.sd / valid
        mean = self._mean()
        # The noise of the mean lifts its square.
        square = 1 + 2 * self.moments.mean[d : 2 * d] / valid
        variance = square - mean**2 + (0.0 if self.given.known_center else (sd / 2) ** 2)
        typical = max(float(np.mean(variance[known])), sd, 1e-3)
        apart = max(float(np.mean((variance[known] - typical) ** 2)) - sd**2, 0.0)
        trust = apart / (apart + sd**2) if apart > 0 else 0.0
        shrunk = typical + trust * (variance - typical)
        return np.where(known, np.maximum(shrunk, 0.05 * typical), 1.0)

    def _widen(self, alone: FloatArray, sd: float) -> None:
        """Widen scales where this batch's second moment is too large for the clamp."""
        if self.given.one_unit:
            return
        d, valid = len(self.W), self._valid()
        square = 1 + 2 * alone[d : 2 * d] / valid
        too_small = square > WIDEN_ABOVE + WIDEN_SDS * 2 * sd / valid
        too_small &= self.standard.known
        factor = np.where(too_small, np.sqrt(np.clip(square, 1.0, CLAMP**2)), 1.0)
        self._rescale(factor, self.standard.known)

    def _refine(self) -> None:
        """Make scales more equal, by the variances of the first batches."""
        if not self._refine_now():
            return
        variance = self._variances()
        factor = np.clip(np.sqrt(variance / np.mean(variance)), *REFINED_MOST)
        known = self.standard.known
        self._rescale(np.where(known, factor, 1.0), known)

    def _find_scales(self, look: Look) -> None:
        """Add up the looks, and take the scales that show."""
        factor, known = np.ones(len(self.W)), self.standard.known.copy()
        for j, scale in self.looks.add(look, self.standard, self.units * self._valid()):
            known[j] = True
            factor[j] = scale / self.standard.scale[j]
        self._rescale(factor, known, found=known & ~self.standard.known)

    def _rescale(
        self, factor: FloatArray, known: BoolArray, found: BoolArray | None = None
    ) -> None:
        """Multiply scales by factors; moments in the old scales are converted.

        Parameters
        ----------
        found
            Features whose spread is known only now: their z was 0, and is taken to have had mean 0
            and variance 1.
        """
        if (factor == 1.0).all() and found is None:
            return
        self._restandardise(self.standard.with_scale(self.standard.scale * factor, known))
        d = len(self.W)
        for moments in (self.moments, self.recent):
            first, second, last = moments.total[:d], moments.total[d:-1], moments.total[-1]
            valid = last / self._constant
            first, second = first / factor, ((2 * second + valid) / factor**2 - valid) / 2
            if found is not None:
                first, second = np.where(found, 0.0, first), np.where(found, 0.0, second)
            moments.total = np.concatenate([first, second, [last]])
        again = 1 / factor if found is None else np.where(found, 1.0, 1 / factor)
        if not (again == 1.0).all():
            basis = again[:, np.newaxis] * self.gradients.V
            self.gradients.rescale(again)
            self.excess.rescale(self.gradients.V.T @ basis)

    def _deviation(self) -> FloatArray:
        """r: the divisor of z, 0 for features without spread."""
        given = self._spread()
        r = np.sqrt(self._variances()) if given is None else given
        return np.where(self.standard.known, r, 0.0)

    def _read(self) -> None:
        """Take over the components of standardised records."""
        known = self.standard.known[:, np.newaxis]
        found = np.where(known, self.gradients.W, 0.0)
        if not self.given.one_unit:
            found = found / np.sqrt(self._variances())[:, np.newaxis]
        self.W = orthonormal(found, like=self.W)

    def _with_ratios(self, outcome: Outcome) -> Outcome:
        """The outcome with explained variances, if they are known.

        With u the standardised record and W its components, the variance along them is that of the
        rest plus W^T R^-1 V E V^T R^-1 W, where R turns the units of gradients into those of u.
        """
        known = self.standard.known
        if not (self.excess.known and known.any()):
            return outcome
        r = np.where(known, self._deviation(), 1.0)
        variance = (self._variances() / r**2)[known]
        total, n = float(np.sum(variance)), len(variance)
        H = self.W.T @ (self.gradients.V / r[:, np.newaxis])
        excess = H @ self.excess.excess @ H.T
        values = np.maximum(np.diag(excess) + (total - float(np.trace(excess))) / n, 0.0)
        of_total = 2 * self.moments.sd / self._valid() * float(np.sqrt(np.mean(variance**2) * n))
        # A feature whose spread has not been seen counts, too.
        whole = total if self.given.one_unit else max(total, float(len(known)))
        share = np.minimum(values / whole, 1.0)
        sd = np.hypot(self.excess.sd(H, values), share * of_total) / whole
        return replace(outcome, spread=values, ratio=share, ratio_sd=np.hypot(sd, HEAVY * share))

    def projector(self, features: tuple[Hashable, ...]) -> Projector | None:
        """The projector that scores raw records; None before anything has been learned."""
        if not self.learned:
            return None
        return Projector(
            features,
            self.W,
            self.standard.center,
            self.standard.scale,
            self.standard.clamp,
            self._mean(),
            self._deviation(),
        )

    # State

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "gradients": self.gradients.state(),
            "excess": self.excess.state(),
            "learned": self.learned,
        }

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.gradients.load(state["gradients"])
        self.excess.load(state["excess"])
        self.learned = bool(state["learned"])
        self.beside.forget()

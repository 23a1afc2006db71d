"""The method: nothing about the data need be known beforehand.

1. **The first step** takes W batches at once. Its questions (`first`) find the centre, the scales
   and a clip radius, and its moments are released with what is left of its budget. All batches have
   one radius: with radii of their own, batches would be weighted by 1/radius^2, and quiet batches
   would win.
2. **Every batch**: z = clamp((x - c)/s), one release of the moments of (z, b) with noise that
   cancels over batches (`mechanisms.correlated`). `covariance` computes mean, spread and components
   from the sum of the releases, in which every record has the same weight.
3. **Scales** are refined after the first batches, and widened for later batches where they turn out
   too small, by released values. Features whose spread has not been seen are looked at again, with
   a small share of every batch's budget.

In the words of the paper: range, mean, step. The range is found once, in the first step.

Privacy of a step: up to four questions about the same records.

Adjacency: one record is replaced, or turns null.
Sensitivity: `AugmentedMoments` sqrt 2 rho for the sum over the units of the step; `OctaveCounts`
    sqrt(2 d') for the d' features that are looked at; `ScoreCounts` 2; `Questions` states its own.
Noise: the shares of mu^2 add up to 1 in every step: `FIRST` for the questions of the first step,
    `LOOK` for a look if there is one, `LIMITS` for the scores, unless limits are not wanted, the
    rest for the moments. Whether there is a look follows
    from earlier releases. Moments go through `CorrelatedRelease`: their queries are in units of
    their noise, so a change of scales, of the number of units or of their share between steps
    changes nothing about past queries.
Delta: none beyond that of mu.

**Subjects** (`participation`). A step is a round, mu that of a round; noise is not correlated over
rounds (`mechanisms.independent`). Every round has one more query: the number of subjects, of
sensitivity 1, with the share `COUNT` of mu^2. Everything above has the rest of mu^2. A round is
weighted by its noisy number of subjects; if that may as well be zero, or if the first round finds
fewer than a quarter of the places taken, nothing is learned.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import BoolArray, FloatArray
from ..errors import ParameterError
from ..mechanisms.correlated import CorrelatedRelease, Released, claimed
from ..mechanisms.independent import IndependentRelease
from ..mechanisms.queries import unpack
from ..noise import Noise
from ..oja import column_signs, orthonormal
from ..outcome import FEW_SUBJECTS, ONLY_RANGE, Outcome
from ..projector import Projector
from ..statistics import Rows
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
from .covariance import HELD, Components, RunningMoments, components
from .drift import SHIFT, DriftAlarm
from .first import ENOUGH
from .limits import LIMITS, Limits, MomentsAndScores, ScoreCounts
from .looks import LOOK, Look
from .standard import CLAMP
from .statistics import AugmentedMoments

__all__ = ["MOST_FEATURES", "REFINED_AFTER", "MomentMethod", "constant"]

#: Second moments of more features than this take too long.
MOST_FEATURES = 1023
#: The noisy number of subjects must be this many sds of its noise above zero.
_SURE_OF_SUBJECTS = 3.0
#: A scale is narrowed if the variance of z is below this by so many sds of its noise, and the mean
#: is this many standard deviations off the centre. (Where it is not, the feature may be quiet now.)
NARROW_BELOW, NARROW_SDS, FAR_OFF = 0.2, 3.0, 3.0
#: Steps after which scales are refined.
REFINED_AFTER = (1, 2, 4)
#: Sd of a variance after the questions: measured .4 on Gaussian data with 10 to 200 features.
_REFINED_SD = 0.4


def constant(d: int) -> float:
    """b of y = (z, b): b^2 = d/20 costs 5 % more noise and measures means well enough."""
    return math.sqrt(d / 20)


class MomentMethod(MethodBase[RunningMoments]):
    """Learns centre, scales and components from second moments."""

    REFINED_AFTER = REFINED_AFTER

    def __init__(self, given: Parameters) -> None:
        super().__init__(given, RunningMoments(len(given.W) + 1))
        self.correlated: CorrelatedRelease | IndependentRelease
        self.correlated = (CorrelatedRelease if self.cancels else IndependentRelease)(mu=self.mu)
        self.limits: Limits | None = None
        if given.limits:
            self.limits = Limits(
                mu=self.mu * math.sqrt(LIMITS),
                correlated=self.cancels,
                keep=kept_share(given.memory),
                k=given.W.shape[1],
            )
        self.alarm = DriftAlarm()
        self.shift_alarm = DriftAlarm(SHIFT)
        self.shifted = False  # by the newest step
        self._presence = 1.0 if given.subjects is None else 0.0  # weighted mean of the rounds
        self.components: Components | None = None

    def check_batch(self, units: int) -> None:
        d = self.W.shape[0]
        if d > MOST_FEATURES:
            rule = f"must be at most {MOST_FEATURES} with privacy per subject"
            raise ParameterError("features", rule, d)
        super().check_batch(units)

    def step(self, rows: Rows, t: int, noise: Noise) -> Outcome:
        """Learn from one batch, or from the W batches of the first step."""
        present = None if self.subjects is None else self._count(rows, noise)
        spent = 0.0
        if self.range is None:
            if present is not None and present < ENOUGH * len(rows):
                return Outcome.skip(FEW_SUBJECTS, units=present)
            left, spent = self.questions.rounds_left, self.first_share
            self.range = self.questions.ask(rows, noise)
            if self.range is None or spent == 1.0:
                unread = self.range is None and left == 1
                return Outcome.skip(UNREADABLE if unread else ONLY_RANGE, units=present)
        elif present is not None and present * self.mu_count < _SURE_OF_SUBJECTS:
            return Outcome.skip(FEW_SUBJECTS, units=present)
        query = self._query()
        looking = spent == 0.0 and not self.standard.known.all()
        # A query that claims a larger sensitivity than its own spends less: a part of mu^2.
        part = 1 - spent - (LOOK if looking else 0.0) - (0.0 if self.limits is None else LIMITS)
        sensitivity = claimed(query.sensitivity(len(rows)), part)
        scores = self._scores()
        if scores is None:
            exact, counts = rows.total(query), None
        else:
            both = MomentsAndScores(query, scores)
            exact, counts = both.split(rows.total(both))
        released = self.correlated.release(
            query.packed(exact), sensitivity=sensitivity, power=POWER, noise=noise
        )
        if counts is not None:
            self._limit(scores, counts, len(rows), noise)
        look = self._look(rows, noise) if looking else None
        # From here on, post-processing. Sums are in units of those of one batch.
        unit = self.mu * self.units / sensitivity
        weight = len(rows) / self.units
        if present is not None:
            weight = min(max(present, 0.0) / self.units, 1.0)
        dropped = self._learn(released, unit, weight)
        if dropped:
            self._forget_limits()
        if look is not None:
            self._find_scales(look)
        self._settle()
        self._read()
        if counts is None and (scores := self._scores()) is not None:  # private
            self._limit(scores, rows.total(scores), len(rows), noise)
        return Outcome(
            range=math.sqrt(query.radius),
            step=weight / self.moments.weight,
            sigma=1 / unit,
            drift=dropped,
            shift=dropped and self.shifted,
            units=present,
            **self._told(),
        )

    def _count(self, rows: Rows, noise: Noise) -> float:
        """The noisy number of subjects.

        Adjacency: everything that one subject sends in the round is replaced.
        Sensitivity: 1.
        Noise: N(0, 1/mu_count^2), mu_count^2 = `COUNT` of the mu^2 of a round.
        Delta: none beyond that of mu.
        """
        count = np.array([float(rows.present())])
        return float(noise.gaussian(count, sensitivity=1.0, mu=self.mu_count)[0])

    def _scores(self) -> ScoreCounts | None:
        """The question about scores under the model so far; None without a model, or limits."""
        found = self.components
        if self.limits is None or found is None:
            return None
        return self.limits.question(
            self.standard,
            mean=found.mean,
            deviation=found.spread,
            W=self.W,
            variance=found.values,
            rest=max(found.total - float(found.values.sum()), 3 * found.sd),
        )

    def _limit(
        self, scores: ScoreCounts | None, counts: FloatArray, units: int, noise: Noise
    ) -> None:
        """Release the scores of a step; `limits` states what this spends."""
        if self.limits is not None and scores is not None:
            sensitivity = scores.sensitivity(units, self.each)
            self.limits.add(counts, sensitivity=sensitivity, noise=noise)

    def _query(self) -> AugmentedMoments:
        b = constant(self.W.shape[0])
        if self.range is None:
            raise RuntimeError("the first step has not been taken")
        radius = self.range.radius + b * b
        return AugmentedMoments(
            **self.standard.parameters(), constant=b, radius=radius, each=self.each
        )

    # Post-processing.

    def _learn(self, released: Released, unit: float, weight: float) -> bool:
        """Add a step's own moments. Returns True if the past was dropped.

        Parameters
        ----------
        weight
            Batches of the step; for a round of subjects the noisy share of its places that are
            taken.
        """
        gain, own = 1.0, weight
        if self.subjects is not None:
            # Least squares for the contribution of a subject, if this share of them is there.
            gain = weight
            own = weight / self._presence if self._presence > 0 else 1.0  # more than on average
        alone, sd = unpack(released.alone), self._noise.of_next(released) / (unit * own)
        alone /= unit * own
        dropped = (
            self.given.memory == "auto" and self.moments.weight >= 2 and self._changed(alone, sd)
        )
        if dropped:
            self._drop_past()
        self._remember(released, alone * (gain * own), gain / unit, weight)
        if self.subjects is not None:
            self._presence += (weight - self._presence) * weight / self.moments.weight
        self._widen(np.diag(alone)[:-1], sd)
        self._refine()
        self._narrow()
        return dropped

    def _components(
        self, moments: RunningMoments, k: int | None = None, whole: bool = False
    ) -> Components:
        return components(
            moments,
            constant=constant(self.W.shape[0]),
            k=self.W.shape[1] if k is None else k,
            known=self.standard.known,
            known_center=self.given.known_center,
            spread=self._spread(),
            whole=whole,
        )

    def _changed(self, alone: FloatArray, sd: float) -> bool:
        """Tell whether the past should be dropped, by the variance of a step along components."""
        past, recent = self.components or self._found(), self._components(self.recent)
        mean = np.zeros(len(self.W)) if self.given.known_center else past.mean
        own = alone[:-1, -1] / constant(len(self.W))

        def along(W: FloatArray) -> float:
            """The variance along these components, around the mean of all batches."""
            V = W / past.spread[:, np.newaxis]
            shift = mean @ V
            moved = past.valid * (shift @ shift) - 2 * (own @ V) @ shift
            return float(np.sum(V * (alone[:-1, :-1] @ V)) + moved) / past.valid

        turned = self.alarm(along(past.W), along(recent.W), sd / past.valid, past.W.shape[1])
        self.shifted = not self.given.known_center and self._shifted(alone, past, sd)
        return turned or self.shifted

    def _shifted(self, alone: FloatArray, past: Components, sd: float) -> bool:
        """Tell whether the means of steps have been far from that of the past."""
        b, seen = constant(len(self.W)), np.isfinite(past.spread)
        r, n = past.spread[seen], max(int(np.count_nonzero(seen)), 1)
        valid = max(float(alone[-1, -1]), 4 * sd, 0.01 * b**2) / b**2  # a shift is clipped
        apart = (alone[:-1, -1][seen] / (b * valid) - past.mean[seen]) / r
        noise = 2 * sd / (b * valid) * float(np.linalg.norm(apart / r)) / n
        return self.shift_alarm.judge(float(apart @ apart) / n, noise)

    def _share(self) -> float:
        """Noisy share of valid units."""
        share = self.moments.total[-1, -1] / (self.moments.weight * constant(len(self.W)) ** 2)
        return float(np.clip(share, 0.05, 1.0))

    def _widen(self, squares: FloatArray, sd: float) -> None:
        """Widen scales where a step's second moments are too large for the clamp."""
        if self.given.one_unit:
            return
        share = self._share()
        square = squares / share
        too_small = self.standard.known & (square > WIDEN_ABOVE + WIDEN_SDS * sd / share)
        factor = np.where(too_small, np.sqrt(np.clip(square, 1.0, CLAMP**2)), 1.0)
        self._rescale(factor, self.standard.known)

    def _refine(self) -> None:
        """Make scales more equal, by the moments of the first batches.

        Questions find a scale to about 20 %. The remaining error adds to the length of records,
        and so to the noise: 10 % of it with 50 to 200 features. A variance that is uncertain is
        moved towards the answer of the questions.
        """
        known = self.standard.known
        if not self._refine_now() or not known.any():
            return
        found = self._components(self.moments)
        # Clipping lowers all variances: their mean stays as it is.
        typical = max(float(np.mean(found.variance[known])), found.sd)
        trust = _REFINED_SD**2 / (_REFINED_SD**2 + (found.sd / typical) ** 2)
        square = 1 + (found.variance / typical - 1) * trust
        factor = np.clip(np.sqrt(np.maximum(square, 0.0)), *REFINED_MOST)
        self._rescale(np.where(known, factor, 1.0), known)

    def _narrow(self) -> None:
        """Move the centre to the mean, and narrow the scale, where the spread is far too small.

        Questions that drown in noise leave a centre in the middle of its octave, and a scale that
        covers the distance. The moments of all batches show both.
        """
        if self.given.one_unit or self.given.known_center or self.subjects is not None:
            return
        b = constant(len(self.W))
        _, mean, variance, sd = self.moments.spread(b)
        most = variance + NARROW_SDS * sd
        inside = np.abs(mean) < CLAMP / 2  # others may be at the clamp, and are widened instead
        narrow = self.standard.known & inside & (most < NARROW_BELOW)
        narrow &= mean**2 > FAR_OFF**2 * most
        if not narrow.any():
            return
        shift = np.where(narrow, mean, 0.0)
        for moments in (self.moments, self.recent):
            moments.shift(shift, b)
        center = self.standard.center + shift * self.standard.scale
        self._restandardise(replace(self.standard, center=center))
        factor = np.where(narrow, np.sqrt(np.maximum(most, 1 / CLAMP**2)), 1.0)
        self._rescale(factor, self.standard.known)

    def _find_scales(self, look: Look) -> None:
        """Add up the looks, and take the scales that show."""
        M, d, share = self.moments.mean, self.W.shape[0], self._share()
        factor, known = np.ones(d), self.standard.known.copy()
        for j, scale in self.looks.add(look, self.standard, self.units * share):
            known[j] = True
            factor[j] = scale / self.standard.scale[j]
            # Up to now z was 0 or at its clamp. With the new scale its second moment becomes 1.
            before = max(M[j, j] / share, 4 * self.moments.sd / share, 0.05)
            only = np.ones(d)
            only[j] = factor[j] / math.sqrt(before)  # undone by `_rescale`
            for moments in (self.moments, self.recent):
                moments.rescale(only)
        if (known != self.standard.known).any():
            self._forget_limits()  # these are scored in another way
        self._rescale(factor, known)

    def _forget_limits(self) -> None:
        if self.limits is not None:
            self.limits.forget()

    def _rescale(self, factor: FloatArray, known: BoolArray) -> None:
        """Multiply scales by factors; moments in the old scales are converted."""
        if (factor == 1.0).all():
            return
        self._restandardise(self.standard.with_scale(self.standard.scale * factor, known))
        for moments in (self.moments, self.recent):
            moments.rescale(1 / factor)

    def _found(self, k: int | None = None) -> Components:
        """The components of all batches, with a part of the newest held back."""
        # With a short memory the newest batch is used whole. Rounds of subjects have independent
        # noise, which nothing cancels later.
        cancelled = isinstance(self.given.memory, str) and isinstance(
            self.correlated, CorrelatedRelease
        )
        held = HELD if cancelled else 0.0
        return self._components(self.moments.less(self.recent, held), k, whole=True)

    def _read(self) -> None:
        before, found = self.components, self._found()
        self.components = found
        if before is not None and (np.isfinite(before.spread) != np.isfinite(found.spread)).any():
            self._forget_limits()  # other features are scored
        self.W = orthonormal(found.W, like=self.W)

    def _told(self) -> dict[str, Any]:
        """What an outcome says about the model so far."""
        found = self.components
        if found is None:
            return {}
        records = self.moments.weight * self.units * found.valid
        cut = 0.0 if self.range is None else self.questions.longer * self.range.radius / len(self.W)
        eigenvalues, eigenvalues_sd = found.eigenvalues(records, cut)
        values, values_sd = found.told(found.values, records, cut)
        return {
            "spread": found.values,
            "ratio": np.clip(values / found.whole, 0.0, 1.0),
            "ratio_sd": values_sd / found.whole,
            "eigenvalues": eigenvalues,
            "eigenvalues_sd": eigenvalues_sd,
            "limits": {} if self.limits is None else self.limits.read(),
        }

    def projector(self, features: tuple[Hashable, ...], k: int | None = None) -> Projector | None:
        """The projector that scores raw records; None before anything has been learned.

        Another number of components k follows from the same released moments.
        """
        if self.components is None:
            return None
        found, W = self.components, self.W
        if k is not None and k != W.shape[1]:
            found = self._found(k)
            common, signs = min(k, W.shape[1]), column_signs(found.W)
            signs[:common] = column_signs(found.W[:, :common], W[:, :common])
            W = found.W * signs
        return Projector(
            features,
            W,
            self.standard.center,
            self.standard.scale,
            self.standard.clamp,
            found.mean,
            np.where(np.isfinite(found.spread), found.spread, 0.0),
            found.values,
        )

    # State

    def state(self) -> dict[str, Any]:
        presence = {} if self.subjects is None else {"presence": self._presence}
        alarms = {"alarm": self.alarm.state(), "shift_alarm": self.shift_alarm.state()}
        limits = {} if self.limits is None else {"limits": self.limits.state()}
        return super().state() | alarms | presence | limits

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.alarm.load(state["alarm"])
        self.shift_alarm.load(state["shift_alarm"])
        if self.subjects is not None:
            self._presence = float(state["presence"])
            if not 0 <= self._presence <= 1:
                raise ValueError("not a state of this method")
        if self.limits is not None:
            self.limits.load(state["limits"])
        self.correlated.forget()
        if self.moments.weight > 0:
            self.components = self._found()

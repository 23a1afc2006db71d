"""The method: nothing about the data need be known beforehand.

1. **The first step** takes W batches at once. Its questions (`first`) find the centre, the scales
   and a clip radius, and its moments are released with what is left of its budget. All batches have
   one radius: with radii of their own, batches would be weighted by 1/radius^2, and quiet batches
   would win.
2. **Every batch**: z = clamp((x - c)/s), one release of the moments of (z, b) with noise that
   cancels over batches (`mechanisms.correlated`). `components` computes mean, deviations and
   components from the sum of the releases (`memory`), in which every record has the same weight.
3. **Scales** are refined after the first batches, and widened for later batches where they turn out
   too small, by released values (`correction`). Features whose spread has not been seen are looked
   at again, with a small share of every batch's budget.
4. **A stream that has changed** (`drift`): this release is of the last few batches only, and the
   next step is a first step again, with questions of its own. Whatever is left of the time before,
   above all in the mean, would stay in the components for dozens of batches.

In the words of the paper: range, mean, step. The range is found in a first step.

Privacy of a step: up to four questions about the same records.

Adjacency: one record is replaced, or turns null.
Sensitivity: `AugmentedMoments` sqrt 2 rho for the sum over the units of the step; `OctaveCounts`
    sqrt(2 d') for the d' features that are looked at; `ScoreCounts` 2; `Questions` states its own.
Noise: the shares of mu^2 add up to 1 in every step: `FIRST` for the questions of the first step,
    `LOOK` for a look if there is one, `LIMITS` for the scores, unless limits are not wanted, the
    rest for the moments. Whether there is a look follows from earlier releases. Moments go through
    `CorrelatedRelease`: their queries are in units of their noise, so a change of scales, of the
    number of units or of their share between steps changes nothing about past queries.
Delta: none beyond that of mu.

Whether a step is a first step follows from earlier releases. Its records are new ones, so a record
is asked the questions of one step only, however often the stream changes.

**Subjects** (`participation`). A step is a round, mu that of a round; noise is not correlated over
rounds (`mechanisms.independent`). Every round has one more query: the number of subjects, of
sensitivity 1, with the share `COUNT` of mu^2. Everything above has the rest of mu^2. A round is
weighted by its noisy number of subjects; if that may as well be zero, or if the first round finds
fewer than 40 % of the places taken, nothing is learned.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import FloatArray
from ..basis import checked_basis, column_signs, orthonormal
from ..mechanisms.correlated import CorrelatedRelease, Released, claimed
from ..mechanisms.independent import IndependentRelease
from ..mechanisms.packing import unpack
from ..noise import Noise
from ..outcome import FEW_PLACES, FEW_SUBJECTS, ONLY_RANGE, Method, Outcome
from ..projector import Projector
from ..statistics import Rows
from .components import Components, components
from .correction import Correction
from .drift import Change, Drift
from .first import FirstAnswers, Questions
from .limits import LIMITS, Limits, MomentsAndScores, ScoreCounts
from .looks import LOOK, Looks
from .memory import HELD, Memory, RunningMoments
from .parameters import Budget, Parameters, check_batch
from .standard import Standard
from .statistics import AugmentedMoments

#: Reason of a first step without enough valid records, by noisy counts.
UNREADABLE = "hardly any record could be read, or there are too few to tell"
#: Share of the places that must be taken in the first round: its questions are for as many
#: subjects as there are places, and with three features and 29 % of 700 taken they found noise.
TAKEN = 0.4
#: The noisy number of subjects must be this many sds of its noise above zero.
_SURE_OF_SUBJECTS = 3.0


class AdaptiveMethod(Method):
    """Learns centre, scales and components from second moments."""

    def __init__(self, given: Parameters) -> None:
        self.given = given
        self.W, self.units = given.W, given.units
        self.budget = Budget(given)
        self.questions = self._make_questions()
        self.first_batches = self.budget.at_once * self.budget.rounds
        release = CorrelatedRelease if given.cancels else IndependentRelease
        self.mechanism: CorrelatedRelease | IndependentRelease = release(mu=self.budget.mu)
        self.limits: Limits | None = None
        if given.limits:
            self.limits = Limits(
                mu=self.budget.limits, correlated=given.cancels, keep=given.keep, k=given.W.shape[1]
            )
        self.drift = Drift(given.known_center)
        self._begin()

    def _begin(self) -> None:
        """Begin with a first step; from earlier ones only the order and the signs of W are left."""
        given = self.given
        self._answers: FirstAnswers | None = None  # of the first step, once there are any
        self._changed = False  # so the next step is a first step
        self.memory = Memory(given.features, given.keep)
        self.correction = Correction(given)
        self.components: Components | None = None
        self._presence = 1.0 if given.subjects is None else 0.0  # weighted mean of the rounds
        self.mechanism.forget()
        self._forget_limits()

    def _make_questions(self) -> Questions:
        """The questions of the first step."""
        given, budget = self.given, self.budget
        return Questions(
            d=given.features,
            mu=budget.mu * math.sqrt(budget.first_share),
            units=budget.at_once * given.units,
            batch=0 if given.batches == 1 else given.units,
            mu_batch=budget.mu,
            known_center=given.known_center,
            scales=given.scales,
            one_unit=given.one_unit,
            each=given.each,
            rounds=budget.rounds,
            counted=given.subjects is not None,
        )

    @property
    def answers(self) -> FirstAnswers:
        """The answers of the first step, which has been taken."""
        if self._answers is None:
            raise RuntimeError("the first step has not been taken")
        return self._answers

    @property
    def standard(self) -> Standard:
        return self.answers.standard

    @property
    def batches_of_step(self) -> int:
        """Batches that the next step takes at once: W if it is a first step, otherwise 1."""
        return self.budget.at_once if self._answers is None or self._changed else 1

    def check_batch(self, units: int) -> None:
        """Raise `BatchSizeError` if the questions would take too many batches or rounds."""
        check_batch(self.given, self.budget, units)

    def step(self, rows: Rows, t: int, noise: Noise) -> Outcome:
        """Learn from one batch, or from the W batches of the first step."""
        if self._changed:
            self._begin()
            self.drift.begin_again()
        present = None if self.given.subjects is None else self._count(rows, noise)
        spent = 0.0
        if self._answers is None:
            if present is not None and present < TAKEN * len(rows):
                return Outcome(reason=FEW_PLACES, subjects=present)
            left, spent = self.questions.rounds_left, self.budget.first_share
            self._answers = self.questions.ask(rows, noise)
            if self._answers is None or spent == 1.0:
                unread = self._answers is None and left == 1
                return Outcome(reason=UNREADABLE if unread else ONLY_RANGE, subjects=present)
        elif present is not None and present * self.budget.count < _SURE_OF_SUBJECTS:
            return Outcome(reason=FEW_SUBJECTS, subjects=present)
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
        released = self.mechanism.release(exact, sensitivity=sensitivity, noise=noise)
        if counts is not None:
            self._limit(scores, counts, len(rows), noise)
        look = None
        if looking:
            look = Looks.ask(
                rows, self.standard, each=self.given.each, mu=self.budget.look, noise=noise
            )
        # From here on, post-processing. Sums are in units of those of one batch.
        unit = self.budget.mu * self.units / sensitivity
        weight = len(rows) / self.units
        if present is not None:
            weight = min(max(present, 0.0) / self.units, 1.0)
        change = self._learn(released, unit, weight)
        if look is not None:
            self._restandardise(self.correction.find(self.standard, self.memory, look))
        self.memory.settle()
        self._read()
        if counts is None and (scores := self._scores()) is not None:  # private
            self._limit(scores, rows.total(scores), len(rows), noise)
        return Outcome(
            range=math.sqrt(query.radius),
            step=weight / self.memory.all.weight,
            sigma=1 / unit,
            drift=change.dropped,
            shift=change.shifted,
            subjects=present,
            **self._told(),
        )

    # Private: what is asked.

    def _count(self, rows: Rows, noise: Noise) -> float:
        """The noisy number of subjects.

        Adjacency: everything that one subject sends in the round is replaced.
        Sensitivity: 1.
        Noise: N(0, 1/mu_count^2), mu_count^2 = `COUNT` of the mu^2 of a round.
        Delta: none beyond that of mu.
        """
        count = np.array([float(rows.present())])
        return float(noise.gaussian(count, sensitivity=1.0, mu=self.budget.count)[0])

    def _query(self) -> AugmentedMoments:
        """The question about moments; `AugmentedMoments` states its sensitivity."""
        b = self.memory.all.constant
        return AugmentedMoments(
            **self.standard.parameters(),
            constant=b,
            radius=self.answers.radius + b * b,
            each=self.given.each,
        )

    def _scores(self) -> ScoreCounts | None:
        """The question about scores under the model so far; None without a model, or limits."""
        found = self.components
        if self.limits is None or found is None:
            return None
        return self.limits.question(self.standard, found, self.W)

    def _limit(
        self, scores: ScoreCounts | None, counts: FloatArray, units: int, noise: Noise
    ) -> None:
        """Release the scores of a step; `limits` states what this spends."""
        if self.limits is not None and scores is not None:
            sensitivity = scores.sensitivity(units, self.given.each)
            self.limits.add(counts, sensitivity=sensitivity, noise=noise)

    # Post-processing: remember, correct scales, read.

    def _learn(self, released: Released, unit: float, weight: float) -> Change:
        """Add a step's own moments, after the past was dropped if the stream has changed.

        Parameters
        ----------
        weight
            Batches of the step; for a round of subjects the noisy share of its places that are
            taken.
        """
        self.memory.begin(self.answers.valid)
        gain, own = 1.0, weight
        if self.given.subjects is not None:
            # Least squares for the contribution of a subject, if this share of them is there.
            gain = weight
            own = weight / self._presence if self._presence > 0 else 1.0  # more than on average
        alone, sd = unpack(released.alone), self.memory.sd_of_next(released) / (unit * own)
        alone /= unit * own
        change = Change(dropped=False, shifted=False)
        if self.given.memory == "auto" and self.memory.all.weight >= 2:
            change = self._judge(alone, sd)
        self._changed = change.dropped
        if change.dropped:
            self.memory.drop_past()
            self._forget_limits()
        doubted = self.memory.doubtful.weight + weight
        doubtful = not self.drift.calm and doubted < self.drift.most_doubtful
        self.memory.add(released, alone * (gain * own), gain / unit, weight, doubtful)
        if self.given.subjects is not None:
            self._presence += (weight - self._presence) * weight / self.memory.all.weight
        squares = np.diag(alone)[:-1]
        self._restandardise(self.correction.correct(self.standard, self.memory, squares, sd))
        return change

    def _judge(self, alone: FloatArray, sd: float) -> Change:
        recent = self._components(self.memory.recent)
        if self.drift.calm:
            past = self.components or self._found()
        else:
            past = self._components(self.memory.trusted())
        b = self.memory.all.constant
        return self.drift.judge(alone, sd, b=b, past=past, recent=recent.W)

    def _restandardise(self, standard: Standard) -> None:
        """Standardise later records in another way."""
        if (standard.known != self.standard.known).any():
            self._forget_limits()  # these are scored in another way
        self._answers = replace(self.answers, standard=standard)

    def _forget_limits(self) -> None:
        if self.limits is not None:
            self.limits.forget()

    def _components(
        self, moments: RunningMoments, k: int | None = None, whole: bool = False
    ) -> Components:
        return components(
            moments,
            k=self.W.shape[1] if k is None else k,
            known=self.standard.known,
            known_center=self.given.known_center,
            # Of features in one unit, components are those of raw records.
            deviation=1 / self.standard.scale if self.given.one_unit else None,
            told=self.given.scales is not None,
            whole=whole,
        )

    def _found(self, k: int | None = None) -> Components:
        """The components of all batches, with a part of the newest held back."""
        # With a short memory the newest batch is used whole. Rounds of subjects have independent
        # noise, which nothing cancels later.
        held = HELD if isinstance(self.given.memory, str) and self.given.cancels else 0.0
        return self._components(self.memory.held_back(held), k, whole=True)

    def _read(self) -> None:
        before, found = self.components, self._found()
        self.components = found
        if before is not None and (before.varies != found.varies).any():
            self._forget_limits()  # other features are scored
        self.W = orthonormal(found.W, like=self.W)

    def _told(self) -> dict[str, Any]:
        """What an outcome says about the model so far."""
        found = self.components
        if found is None:
            return {}
        records = self.memory.all.weight * self.units * found.valid
        cut = self.questions.share_beyond * self.answers.radius / self.given.features
        eigenvalues, eigenvalues_sd = found.eigenvalues(records, cut)
        values, values_sd = found.told(found.values, records, cut)
        return {
            "spread": found.values,
            "explained_variance_ratio": np.clip(values / found.whole, 0.0, 1.0),
            "explained_variance_ratio_sd": values_sd / found.whole,
            "eigenvalues": eigenvalues,
            "eigenvalues_sd": eigenvalues_sd,
            "limits": {} if self.limits is None else self.limits.read(found),
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
            np.where(found.varies, found.deviation, 0.0),
            found.values,
            rest=found.rest,
        )

    # State

    def state(self) -> dict[str, Any]:
        found = self._answers
        state = {
            "W": self.W.tolist(),
            "range": None if found is None else found.state(),
            "questions": self.questions.state() if found is None else None,
            "changed": self._changed,
            **self.memory.state(),
            **self.correction.state(None if found is None else found.standard),
            **self.drift.state(),
        }
        if self.given.subjects is not None:
            state["presence"] = self._presence
        if self.limits is not None:
            state["limits"] = self.limits.state()
        return state

    def load(self, state: dict[str, Any]) -> None:
        given = self.given
        self.W = checked_basis(state["W"], like=self.W)
        found = state["range"]
        self._answers = (
            None if found is None else FirstAnswers.load(found, given.features, given.one_unit)
        )
        if self._answers is None:
            self.questions.load(state["questions"])
        self._changed = state["changed"]
        self.memory.load(state)
        if not isinstance(self._changed, bool):
            raise ValueError("not a state of this method")
        if self._answers is None and (self._changed or not self.memory.empty):
            raise ValueError("not a state of this method")
        self.correction.load(state)
        self.drift.load(state)
        if given.subjects is not None:
            self._presence = float(state["presence"])
            if not 0 <= self._presence <= 1:
                raise ValueError("not a state of this method")
        if self.limits is not None:
            self.limits.load(state["limits"])
        self.mechanism.forget()
        if self.memory.all.weight > 0:
            self.memory.begin(self.answers.valid)
            self.components = self._found()

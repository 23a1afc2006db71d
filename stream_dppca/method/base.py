"""Base of both forms of the method: parameters, first step, running moments and state.

`method.MomentMethod` (second moments) and `wide.GradientMethod` (gradients) differ in their queries
on a batch. They agree on everything here. Nothing here uses records, except through `Questions` and
`Looks`, which state what they spend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ..arrays import FloatArray
from ..errors import BatchSizeError
from ..mechanisms.correlated import DECAYS, Released
from ..noise import Noise
from ..outcome import checked_basis
from ..participation import PerSubject, mu_of, size_words
from ..statistics import Rows
from .covariance import NoiseOfSums, RunningMean
from .drift import RECENT
from .first import (
    ENOUGH,
    FIRST,
    FIRST_OF_ONE,
    Questions,
    Range,
    first_batches,
    question_rounds,
    question_share,
)
from .looks import LOOK, Look, Looks
from .standard import Standard

__all__ = [
    "COUNT",
    "MOST_FIRST",
    "MOST_ROUNDS",
    "POWER",
    "REFINED_MOST",
    "UNREADABLE",
    "WIDEN_ABOVE",
    "WIDEN_SDS",
    "MethodBase",
    "Parameters",
    "kept_share",
    "smallest_batch_of",
]

#: Reason of a first step without enough valid records, by noisy counts.
UNREADABLE = "hardly any record could be read"

#: Power by which a batch fades from later releases. With equal weights for all batches, this power
#: has the least noise after 8 to 50 of them.
POWER = 0.8
#: Share of mu^2 for the noisy number of subjects.
COUNT = 0.01
#: A scale is widened if the second moment of z in one batch is above this.
WIDEN_ABOVE = 2.25
#: It must be above by more than this many sds of its noise.
WIDEN_SDS = 3.0
#: A first step of more batches than this is refused.
MOST_FIRST = 16
#: More rounds of subjects than this, in which only the questions are asked, are refused.
MOST_ROUNDS = 64
#: Smallest and largest factor of a scale when scales are refined once.
REFINED_MOST = (0.75, 1.5)


@dataclass(frozen=True, eq=False)
class Parameters:
    """Everything that decides the method: public numbers."""

    W: FloatArray  #: d x k, the start; it is never shown
    epsilon: float
    delta: float
    units: int  #: per batch
    known_center: bool = False  #: records are centred at 0
    scales: FloatArray | None = None  #: known standard deviations; None to learn them
    one_unit: bool = False  #: features are in one unit: no scales at all
    memory: str | float = "auto"  #: "auto", "all", or a number of batches
    subjects: PerSubject | None = None  #: given if units are subjects
    batches: int | None = None  #: number of batches that there will be, if it is known
    limits: bool = True  #: limits of scores are asked for

    @property
    def knows_all(self) -> bool:
        """True if neither a centre nor the scale of any single feature is learned."""
        return self.known_center and (self.one_unit or self.scales is not None)


def kept_share(memory: str | float) -> float:
    """Share of the past that is kept with every batch.

    >>> kept_share("auto"), kept_share(4.0)
    (1.0, 0.75)
    """
    return 1.0 if isinstance(memory, str) else 1 - 1 / memory


def smallest_batch_of(*, d: int, mu: float, share: float = FIRST, subjects: bool = False) -> int:
    """Units with which the questions take `MOST_FIRST` batches, or `MOST_ROUNDS` rounds."""
    if not subjects:
        return math.ceil(first_batches(d=d, mu=mu, units=1, share=share) / MOST_FIRST)
    units = 2
    while question_rounds(d=d, mu=mu, units=units) > MOST_ROUNDS:
        units = math.ceil(units * 1.02) + 1
    return units


Running = TypeVar("Running", bound=RunningMean)


class MethodBase(Generic[Running]):
    """Parameters, first step, running moments and state.

    Parameters
    ----------
    moments
        An empty running mean of the release of every batch about all features.
    constant
        The constant of `Questions`.
    """

    #: Batches after which scales are refined, the first step included.
    REFINED_AFTER: tuple[int, ...]
    #: Share of the first step's mu^2 for its questions.
    FIRST = FIRST

    def __init__(self, given: Parameters, moments: Running, constant: float = 1.0) -> None:
        self.given = given
        self.W = given.W
        self.units = given.units
        self.subjects = given.subjects
        self.each = 1 if given.subjects is None else given.subjects.records
        self.mu = self._budget(given.units)
        self._at_once = self._first_batches()
        self.mu = min(self.mu, self._budget(self._at_once * given.units))
        if given.subjects is not None:
            self.mu_count = self.mu * math.sqrt(COUNT)
            self.mu = self.mu * math.sqrt(1 - COUNT)
        self.mu_look = self.mu * math.sqrt(LOOK)
        self._constant = constant
        self.questions = self._make_questions()
        self.first_batches = self._at_once * self.questions.rounds
        self.range: Range | None = None  #: the answers of the first step, once there are any
        self.moments: Running = moments
        self.recent: Running = moments.copy()
        self.looks = Looks(len(given.W))
        # Scales that are known are not refined, nor are those of subjects, which are few.
        refined = given.scales is None and not given.one_unit and given.subjects is None
        self.refined = 0 if refined else self.REFINED_AFTER[-1]
        self._noise = NoiseOfSums((kept_share(given.memory), RECENT), DECAYS)

    @property
    def cancels(self) -> bool:
        """True if noise cancels over batches: not if subjects return, or nothing follows."""
        return self.subjects is None and self.given.batches != 1

    def _budget(self, units: int) -> float:
        """The mu of a step with this many units."""
        return mu_of(self.given.epsilon, self.given.delta, self.given.subjects, units)

    def _first_batches(self) -> int:
        """W. Subjects return in every round, so for them more rounds would gain nothing."""
        given = self.given
        if given.subjects is not None or given.batches == 1:
            return 1
        return first_batches(
            d=len(given.W), mu=self.mu, units=given.units, share=self.FIRST, known=given.knows_all
        )

    @property
    def standard(self) -> Standard:
        if self.range is None:
            raise RuntimeError("the first step has not been taken")
        return self.range.standard

    @property
    def batches_of_step(self) -> int:
        """Batches that the next step takes at once: W until centre and scales are known, then 1."""
        return self._at_once if self.range is None else 1

    def check_batch(self, units: int) -> None:
        """Raise `BatchSizeError` if the questions would take too many batches or rounds."""
        if self.given.knows_all:
            # The radius is looked for among counts that stand out of their noise.
            smallest = math.ceil(10 * math.sqrt(2) / (self.mu * math.sqrt(self.first_share)))
        else:
            smallest = smallest_batch_of(
                d=len(self.W), mu=self.mu, share=self.FIRST, subjects=self.subjects is not None
            )
        if units < smallest:
            what, parameter = size_words(self.subjects)
            most = f"{MOST_FIRST} batches" if self.subjects is None else f"{MOST_ROUNDS} rounds"
            why = f"with fewer {what} centre and scales would take more than {most}"
            if self.given.knows_all:
                why = f"with fewer {what} the lengths of records drown in noise"
            raise BatchSizeError(units, smallest, why, parameter)

    def _make_questions(self) -> Questions:
        """The questions of the first step."""
        given, d = self.given, len(self.W)
        rounds, self.first_share = 1, self.FIRST
        if given.subjects is not None and not given.knows_all and given.batches != 1:
            rounds = question_rounds(d=d, mu=self.mu, units=self.units)
            self.first_share = question_share(d=d, mu=self.mu, units=self.units)
        if given.batches == 1:
            self.first_share = FIRST_OF_ONE
        elif rounds > 1:  # nothing else is asked in these rounds
            self.first_share = 1.0
        return Questions(
            d=d,
            mu=self.mu * math.sqrt(self.first_share),
            units=self._at_once * self.units,
            batch=0 if given.batches == 1 else self.units,
            mu_batch=self.mu,
            known_center=given.known_center,
            scales=given.scales,
            one_unit=given.one_unit,
            each=self.each,
            rounds=rounds,
            # Subjects are counted before: here it is enough that most of them can be read.
            enough=ENOUGH if given.subjects is None else ENOUGH / 2,
            constant=self._constant,
        )

    def _look(self, rows: Rows, noise: Noise) -> Look | None:
        """Look at features whose spread is not known; `Looks` states what this spends."""
        return Looks.ask(
            rows, self.standard, units=len(rows), each=self.each, mu=self.mu_look, noise=noise
        )

    # Post-processing.

    def _remember(
        self, released: Released, alone: FloatArray, gain: float, weight: float = 1.0
    ) -> None:
        """Add a step's own moments to those of all steps and to those of the last few.

        Parameters
        ----------
        alone
            The moments: those of the release times `gain`, in the shape of the running mean.
        weight
            Batches of the step.
        """
        self._noise.add(released, gain)
        of_all, of_recent = self._noise.variances
        self.moments.add(alone, of_all, kept_share(self.given.memory), weight)
        self.recent.add(alone, of_recent, RECENT, weight)

    def _settle(self) -> None:
        """Leave the moments as a state holds them, at the end of a step."""
        self.moments.settle()
        self.recent.settle()

    def _restandardise(self, standard: Standard) -> None:
        """Standardise later records in another way."""
        if self.range is not None:
            self.range = replace(self.range, standard=standard)

    def _drop_past(self) -> None:
        """Drop all but the last few batches."""
        self.moments = self.recent.copy()
        self._noise.copy_sum(1, 0)

    def _refine_now(self) -> bool:
        """Count a batch. Returns True if scales are to be refined after it."""
        if self.refined >= self.REFINED_AFTER[-1]:
            return False
        self.refined += 1
        return self.refined in self.REFINED_AFTER

    def _spread(self) -> FloatArray | None:
        """r if features are in one unit, so that components are those of raw records."""
        return 1 / self.standard.scale if self.given.one_unit else None

    # State

    def state(self) -> dict[str, Any]:
        return {
            "W": self.W.tolist(),
            "range": None if self.range is None else self.range.state(),
            "questions": self.questions.state() if self.range is None else None,
            "moments": self.moments.state(),
            "recent": self.recent.state(),
            "refined": self.refined,
            "looks": {} if self.range is None else self.looks.state(self.standard),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.W = checked_basis(state["W"], like=self.W)
        found = state["range"]
        self.range = None if found is None else Range.load(found, len(self.W), self.given.one_unit)
        if self.range is None:
            self.questions.load(state["questions"])
        self.moments.load(state["moments"])
        self.recent.load(state["recent"])
        if self.range is None and self.moments.weight > 0:
            raise ValueError("not a state of this method")
        self.refined = int(state["refined"])
        self.looks.load(state["looks"])
        self._noise.begin((self.moments.noise, self.recent.noise))

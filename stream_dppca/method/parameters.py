"""Public numbers that decide the method, and what follows from them before any record is read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arrays import FloatArray
from ..errors import BatchSizeError, ParameterError
from ..participation import PerSubject, mu_of, size_words
from .limits import LIMITS
from .looks import LOOK

#: Time, memory and the size of a state grow with the square of the number of features. With this
#: many, a state has 23 MB, which fits into a Kafka message (32 MB), and a batch of 5000 records
#: takes about four seconds on one core and 600 MB.
MOST_FEATURES = 2048
#: Share of mu^2 for the noisy number of subjects.
COUNT = 0.01
#: A first step of more batches than this is refused.
MOST_FIRST = 16
#: More rounds of subjects than this, in which only the questions are asked, are refused.
MOST_ROUNDS = 64
#: Share of mu^2 of the first step that its questions spend; limits and moments have the rest.
FIRST = 0.3
#: The same if the first step is the only one: no later batch makes up for what they spend.
FIRST_OF_ONE = 0.1
#: sqrt(d)/mu times this many records, with the whole budget, answer the questions well. Fitted to
#: the real data of docs/accuracy.md.
RECORDS = 90.0
#: The same for rounds of subjects, who are few: a lower precision that comes sooner.
ROUND_RECORDS = 70.0
#: 1/mu times this many subjects, with the whole budget, answer the questions if centre and scales
#: are known: with 40, some fleets of devices that differ a hundredfold in size take more rounds.
KNOWN_RECORDS = 60.0
#: In a round that shares its budget, the questions have at most this share of mu^2.
MOST_SHARED = 0.7


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
    def features(self) -> int:
        """d."""
        return len(self.W)

    @property
    def each(self) -> int:
        """Rows per unit, at most."""
        return 1 if self.subjects is None else self.subjects.records

    @property
    def keep(self) -> float:
        """Share of the past that is kept with every batch."""
        return 1.0 if isinstance(self.memory, str) else 1 - 1 / self.memory

    @property
    def knows_all(self) -> bool:
        """True if neither a centre nor the scale of any single feature is learned."""
        return self.known_center and (self.one_unit or self.scales is not None)

    @property
    def cancels(self) -> bool:
        """True if noise cancels over batches: not if subjects return, or nothing follows."""
        return self.subjects is None and self.batches != 1


class Budget:
    """What a step may spend, and on what.

    Attributes
    ----------
    mu
        Budget of a step, less that of the number of subjects.
    count, look, limits
        Budgets of the number of subjects, of a look, and of the scores.
    at_once
        W: batches that the first step takes at once. Subjects return in every round, so for them
        more rounds would gain nothing.
    rounds
        Rounds of subjects over which the questions extend; 1 for records.
    first_share
        Share of mu^2 that the questions of the first step spend; 1 if nothing else is asked.
    """

    def __init__(self, given: Parameters) -> None:
        d, units, subjects = given.features, given.units, given.subjects

        def whole(units: int) -> float:
            return mu_of(given.epsilon, given.delta, subjects, units)

        mu, self.at_once = whole(units), 1
        if given.cancels:
            self.at_once = first_batches(d=d, mu=mu, units=units, known=given.knows_all)
        self.mu = min(mu, whole(self.at_once * units))
        self.count = self.mu * math.sqrt(COUNT)
        if subjects is not None:
            self.mu = self.mu * math.sqrt(1 - COUNT)
        self.look = self.mu * math.sqrt(LOOK)
        self.limits = self.mu * math.sqrt(LIMITS)
        self.rounds, self.first_share = 1, FIRST_OF_ONE if given.batches == 1 else FIRST
        if subjects is not None and given.batches != 1:
            self.first_share = question_share(d=d, mu=self.mu, units=units, known=given.knows_all)
            self.rounds = 1 if given.knows_all else question_rounds(d=d, mu=self.mu, units=units)
            if self.rounds > 1:  # nothing else is asked in these rounds
                self.first_share = 1.0


def first_batches(*, d: int, mu: float, units: int, known: bool = False) -> int:
    """W: the number of batches that the first step takes at once.

    Parameters
    ----------
    units
        Units per batch.
    known
        True if centre and scales are known: one question is left, which a batch can answer.

    Examples
    --------
    >>> first_batches(d=38, mu=0.2367, units=8192)
    1
    >>> first_batches(d=20, mu=0.2367, units=500)
    7
    """
    if known:
        return 1
    return max(1, math.ceil(RECORDS * math.sqrt(d) / (mu * math.sqrt(FIRST) * units)))


def question_share(*, d: int, mu: float, units: int, known: bool = False) -> float:
    """Share of a round's mu^2 that the questions spend; above 1, the number of rounds.

    If centre and scales are known, it is between `FIRST_OF_ONE` and `FIRST`.

    Examples
    --------
    >>> [round(question_share(d=10, mu=0.2367, units=n), 2) for n in (3000, 1200, 500)]
    [0.3, 0.61, 3.5]
    >>> [round(question_share(d=10, mu=0.2367, units=n, known=True), 2) for n in (3000, 600, 300)]
    [0.1, 0.18, 0.3]
    """
    if known:
        return min(FIRST, max(FIRST_OF_ONE, (KNOWN_RECORDS / (mu * units)) ** 2))
    return max(FIRST, (ROUND_RECORDS * math.sqrt(d) / (mu * units)) ** 2)


def question_rounds(*, d: int, mu: float, units: int) -> int:
    """Rounds of subjects that the questions take: their precision grows with the root.

    Examples
    --------
    >>> question_rounds(d=10, mu=0.2367, units=3000), question_rounds(d=10, mu=0.2367, units=500)
    (1, 4)
    """
    share = question_share(d=d, mu=mu, units=units)
    return 1 if share <= MOST_SHARED else max(2, math.ceil(share))


def check_features(parameter: str, d: int) -> None:
    """Raise `ParameterError` if there are more features than the method can learn."""
    if d > MOST_FEATURES:
        rule = f"must be at most {MOST_FEATURES}; stream_dppca.paper.PaperDPPCA takes more"
        raise ParameterError(parameter, rule, d)


def smallest_if_known(mu: float, share: float = FIRST) -> int:
    """Units with which the radius is looked for among counts that stand out of their noise."""
    return math.ceil(10 * math.sqrt(2) / (mu * math.sqrt(share)))


def smallest_batch_of(*, d: int, mu: float, subjects: bool = False) -> int:
    """Units with which the questions take `MOST_FIRST` batches, or `MOST_ROUNDS` rounds."""
    if not subjects:
        return math.ceil(first_batches(d=d, mu=mu, units=1) / MOST_FIRST)
    units = 2
    while question_rounds(d=d, mu=mu, units=units) > MOST_ROUNDS:
        units = math.ceil(units * 1.02) + 1
    return units


def check_batch(given: Parameters, budget: Budget, units: int) -> None:
    """Raise `BatchSizeError` if the questions would take too many batches or rounds."""
    subjects, mu = given.subjects, budget.mu
    what, parameter = size_words(subjects)
    if given.knows_all:
        smallest = smallest_if_known(mu, budget.first_share)
        why = f"with fewer {what} the lengths of records drown in noise"
    else:
        smallest = smallest_batch_of(d=given.features, mu=mu, subjects=subjects is not None)
        most = f"{MOST_FIRST} batches" if subjects is None else f"{MOST_ROUNDS} rounds"
        why = f"with fewer {what} centre and scales would take more than {most}"
    if units < smallest:
        raise BatchSizeError(units, smallest, why, parameter)

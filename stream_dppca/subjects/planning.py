"""Expected accuracy with privacy per subject, and the number of devices that it needs.

The rules of thumb are like those of `stream_dppca.planning`, fitted to the fleets of
`benchmarks/fleet.py`. They use public numbers and guesses, and spend no budget.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..calibration import check_budget, epsilon_over
from ..checks import between, one_of, whole
from ..errors import BatchSizeError
from ..method.parameters import COUNT, question_rounds, question_share, smallest_batch_of
from ..method.step import TAKEN
from ..participation import PerSubject, mu_of
from ..planning import GOOD, UNCLIPPED, guesses
from ..wording import counted, error_lines, over_in_words

#: Average number of rows per subject that count: a guess for fleets half of which sends once per
#: round.
ROWS = 2.0
#: Errors grow with this power of the budget that the questions of the first round would need for
#: the subjects that come, over the budget that they have.
_EMPTY = 0.75
#: Most subjects that are tried.
_MOST = 10**9


class Fleet(BaseModel):
    """Public numbers and guesses."""

    model_config = ConfigDict(frozen=True)

    dimension: int
    n_components: int
    epsilon: float
    delta: float
    #: Rounds over which (epsilon, delta) holds.
    period: int
    #: Subjects in all, and the share of them that sends something in a round.
    subjects: int
    presence: float
    #: Subjects that a round has places for.
    places: int
    #: Centre and scales are known.
    known: bool
    #: Guesses: the total variance over that of the first component, by how much the components
    #: stand out, in variances of the first, and the records of a subject that count in a round.
    trace_ratio: float
    gap: float
    rows: float

    @property
    def _there(self) -> int:
        """Subjects that have a place in a round."""
        return min(round(self.subjects * self.presence), self.places)

    @property
    def _mu(self) -> float:
        """Budget of a round without the count of subjects."""
        rule = PerSubject("subject", places=self.places, period=self.period)
        mu = mu_of(self.epsilon, self.delta, rule, self.places)
        return mu * math.sqrt(1 - COUNT)

    def _minimum(self) -> int:
        """Smallest number of places per round."""
        if self.known:
            return 2
        return smallest_batch_of(d=self.dimension, mu=self._mu, subjects=True)

    def _asking(self) -> int:
        """Rounds in which only centre and scales are asked for."""
        rounds = question_rounds(d=self.dimension, mu=self._mu, units=self.places)
        return 0 if self.known or rounds == 1 else rounds

    def _sine(self, rounds: int) -> float:
        """The sine of the angle that noise and sampling leave after this many rounds.

        Sampling: the variance of a sample eigenvector, of `rows` records per subject. Noise: every
        round has its own, so it falls with the root of their number. A first round whose questions
        share its budget has more. Questions are for as many subjects as there are places, and are
        less precise if fewer come (`_EMPTY`).
        """
        d, k, n, ratio = self.dimension, self.n_components, self._there, self.trace_ratio
        learned = rounds - self._asking()
        if learned < 1 or n < max(2, TAKEN * self.places):
            return 1.0
        sampling = 1.15 * k * max(ratio - k, 0.0) / (n * learned * self.rows * self.gap**2)
        noise = UNCLIPPED * ratio * math.sqrt(d * k) / (n * self._mu * self.gap)
        needed, had = (question_share(d=d, mu=self._mu, units=u) for u in (n, self.places))
        noise *= 1.0 if self.known else (needed / had) ** _EMPTY
        # Noise variance of the first round that learns.
        first = 1.0 if self.known or self._asking() else 1 / (1 - had)
        square = sampling + noise**2 * (first + learned - 1) / learned**2
        return math.sqrt(square / (1 + square))

    def _needed(self, rounds: int) -> int | None:
        """The smallest number of subjects for a good component, with as many places for each."""

        def good(subjects: int) -> bool:
            places = max(round(subjects * self.places / self.subjects), 2)
            fleet = self.model_copy(update={"subjects": subjects, "places": places})
            return places >= fleet._minimum() and fleet._sine(rounds) <= GOOD

        low, high = 1, 2
        while not good(high):
            low, high = high, 2 * high
            if high > _MOST:
                return None
        while high - low > max(low // 100, 1):
            middle = (low + high) // 2
            low, high = (low, middle) if good(middle) else (middle, high)
        return high


class SubjectPlan(Fleet):
    """The prediction of `plan_subjects`."""

    #: Rounds after which nothing more is learned.
    horizon: int | None
    #: Below this many places, `DPPCA` refuses.
    minimum_places: int
    #: Rounds before the first component, in which only centre and scales are asked for.
    question_rounds: int
    #: The guess behind the fields below: the share of the variance along the first component.
    first_share: float
    #: Rounds, and the sine of the angle to the truth that noise leaves after them.
    noise_error: tuple[tuple[int, float], ...]
    #: (rounds, subjects that are needed for a sine of 0.1 after them), None if not in sight.
    subjects_needed: tuple[tuple[int, int | None], ...]
    #: Epsilon at the same delta for all that a subject sends in longer times, as releases state it.
    epsilon_over: dict[str, float]

    def __str__(self) -> str:
        ends = "no end" if self.horizon is None else f"the end after {self.horizon}"
        needed = ", ".join(
            f"{'too many' if number is None else number} after {rounds}"
            for rounds, number in self.subjects_needed
        )
        return "\n".join(
            [
                f"{counted(self.dimension, 'feature')}, {counted(self.n_components, 'component')}, "
                f"{self.subjects} subjects, of which {100 * self.presence:g} % send something in a "
                "round",
                f"epsilon = {self.epsilon:g}, delta = {self.delta:g} per subject and "
                f"{counted(self.period, 'round')}, {ends}",
                f"epsilon over longer times: {over_in_words(self.epsilon_over)}",
                f"{self.places} places per round (at least {self.minimum_places})",
                f"components from round {self.question_rounds + 1} on",
                *error_lines(self.noise_error, "rounds", self.first_share),
                *([f"subjects needed for an error of {GOOD:g}: {needed} rounds"] if needed else []),
            ]
        )


def plan_subjects(
    *,
    d: int,
    epsilon: float,
    delta: float,
    subjects: float,
    presence: float = 1.0,
    places: int | None = None,
    period: int = 1,
    horizon: int | None = None,
    round_seconds: float | None = None,
    rows: float = ROWS,
    n_components: int = 1,
    center: str = "mean",
    scales: Any = "learn",
    trace_ratio: float | None = None,
    gap: float = 0.9,
) -> SubjectPlan:
    """Predict the error of `DPPCA` with privacy per subject, round by round.

    Parameters
    ----------
    subjects
        Number of subjects.
    presence
        The share of the subjects that sends something in a round.
    places, period, horizon
        As for `PerSubject`. Without `places`, there is one for each subject.
    round_seconds
        Length of a round, to state epsilon per day, week, month and year instead of by periods.
    rows
        Guess of the average number of records of a subject that count in a round.
    epsilon, delta, n_components, center, scales
        As for `DPPCA`.
    d, trace_ratio, gap
        As for `plan`.

    Examples
    --------
    >>> fleet = plan_subjects(
    ...     d=50, epsilon=1.0, delta=1e-6, subjects=1e5, presence=0.9, period=24, horizon=8760,
    ...     center="none", scales=None,
    ... )
    >>> fleet.places, fleet.noise_error[0][0], round(fleet.noise_error[0][1], 2)
    (100000, 1, 0.02)
    """
    check_budget(epsilon, delta)
    one_of("center", center, ("mean", "none", "own"))
    between("subjects", subjects, 2, 1e9)
    between("presence", presence, 1e-6, 1.0)
    between("rows", rows, 1.0, 64.0)
    if round_seconds is not None:
        between("round_seconds", round_seconds, 1e-3, 1e9)
    if horizon is not None:
        whole("horizon", horizon)
    if places is not None:
        whole("places", places, 2)
    fleet = Fleet(
        dimension=d,
        n_components=n_components,
        epsilon=epsilon,
        delta=delta,
        period=period,
        subjects=round(subjects),
        presence=presence,
        places=places or max(round(subjects), 2),
        known=center != "mean" and not isinstance(scales, str),
        trace_ratio=guesses(d, n_components, trace_ratio, gap),
        gap=gap,
        rows=rows,
    )
    minimum, asking = fleet._minimum(), fleet._asking()
    if fleet.places < minimum:
        name = "subjects" if places is None else "places"
        raise BatchSizeError(fleet.places, minimum, "the range drowns in noise", name)
    last = math.inf if horizon is None else horizon
    shown = {n for n in (*(asking + 2**i for i in range(10)), horizon or 0) if asking < n <= last}
    ask = {n for n in (asking + 1, asking + period, 30 * period) if asking < n <= last}
    return SubjectPlan(
        **dict(fleet),
        horizon=horizon,
        minimum_places=minimum,
        question_rounds=asking,
        first_share=1 / fleet.trace_ratio,
        noise_error=tuple((n, fleet._sine(n)) for n in sorted(shown)),
        subjects_needed=tuple((n, fleet._needed(n)) for n in sorted(ask)),
        epsilon_over=epsilon_over(
            epsilon, delta, period=period, horizon=horizon, round_seconds=round_seconds
        ),
    )

"""Base of both forms of the method: parameters, warm-up, running moments and state.

`method.LearnedMethod` (second moments) and `wide.WideMethod` (gradients) differ in their queries on
a batch after the warm-up. They agree on everything here. Nothing here uses records, except through
`WarmUp` and `Looks`, which state what they spend.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

from ..adaptive.correlated import DECAYS, Released
from ..arrays import FloatArray
from ..method import checked_basis
from ..noise import Noise
from ..participation import PerSubject, mu_of
from ..statistics import Rows
from .covariance import NoiseOfSums, RunningMean
from .drift import RECENT
from .looks import LOOK, Look, Looks
from .standard import Standard
from .warmup import ENOUGH, WarmUp, warm_up_batches

__all__ = [
    "COUNT",
    "MOST_WARM_UP",
    "POWER",
    "REFINED_MOST",
    "WARMING_UP",
    "WARMING_UP_ANEW",
    "WIDEN_ABOVE",
    "WIDEN_SDS",
    "LearnedBase",
    "Memory",
    "kept_share",
    "longer_share",
    "smallest_learned_batch",
]

#: Reason of a release during the warm-up.
WARMING_UP = "warming up"
#: The same for a warm-up that ended without enough valid records, by noisy counts.
WARMING_UP_ANEW = "warming up anew: hardly any record could be read"
#: "auto", "all", or a number of batches.
Memory = str | float

#: Power by which a batch fades from later releases. With equal weights for all batches, this power
#: has the least noise after 8 to 50 of them.
POWER = 0.8
#: Share of mu^2 for the noisy number of subjects.
COUNT = 0.01
#: A scale is widened if the second moment of z in one batch is above this.
WIDEN_ABOVE = 2.25
#: It must be above by more than this many sds of its noise.
WIDEN_SDS = 3.0
#: A warm-up of more batches than this is refused.
MOST_WARM_UP = 64
#: Smallest and largest factor of a scale when scales are refined once.
REFINED_MOST = (0.75, 1.5)


def kept_share(memory: Memory) -> float:
    """Share of the past that is kept with every batch.

    >>> kept_share("auto"), kept_share(4.0)
    (1.0, 0.75)
    """
    return 1.0 if isinstance(memory, str) else 1 - 1 / memory


def longer_share(*, d: int, mu: float, units: int) -> float:
    """Share of the records that may be longer than the clip radius in any case.

    It matters with few features, whose lengths differ most, and grows with the noise. It was fitted
    to the real data of docs/accuracy.md.
    """
    sampling = 0.5 * units * mu**2 / d**1.5
    return float(2 / (d * (2 + sampling)))


def smallest_learned_batch(*, d: int, mu: float, known_center: bool) -> int:
    """Units with which the warm-up takes `MOST_WARM_UP` batches."""
    units = 2
    while warm_up_batches(d=d, mu=mu, units=units, known_center=known_center) > MOST_WARM_UP:
        units = math.ceil(units * 1.02) + 1
    return units


Running = TypeVar("Running", bound=RunningMean)


class LearnedBase(Generic[Running]):
    """Parameters, warm-up, running moments and state of a method that learns centre and scales.

    Parameters
    ----------
    W
        d x k, the start. It is never shown.
    epsilon, delta
        The guarantee of every batch.
    units
        Units per batch.
    known_center
        If true, records are centred at 0.
    scales
        Public scales, in units of which the components are wanted; None to learn them.
    memory
        As for `DPPCA`.
    subjects
        Given if units are subjects.
    moments
        An empty running mean of the release of every batch about all features.
    constant
        The constant of `WarmUp`.
    """

    #: Batches after the warm-up after which scales are refined.
    REFINED_AFTER: tuple[int, ...]

    def __init__(
        self,
        *,
        W: FloatArray,
        epsilon: float,
        delta: float,
        units: int,
        known_center: bool,
        scales: FloatArray | None,
        memory: Memory,
        subjects: PerSubject | None,
        moments: Running,
        constant: float = 1.0,
    ) -> None:
        d = W.shape[0]
        self.W = W
        self.units = units
        self.known_center = known_center
        self.scales = scales
        self.memory = memory
        self.subjects = subjects
        self.each = 1 if subjects is None else subjects.records
        self.mu = mu_of(epsilon, delta, subjects, units)
        if subjects is not None:
            self.mu_count = self.mu * math.sqrt(COUNT)
            self.mu = self.mu * math.sqrt(1 - COUNT)
        self.mu_look = self.mu * math.sqrt(LOOK)
        self.warm_up = WarmUp(
            d=d,
            mu=self.mu,
            units=units,
            longer=longer_share(d=d, mu=self.mu, units=units),
            known_center=known_center,
            each=self.each,
            # Subjects are counted before: here it is enough that most of them can be read.
            enough=ENOUGH if subjects is None else ENOUGH / 2,
            constant=constant,
        )
        self.standard: Standard = self.warm_up.standard
        self.moments: Running = moments
        self.recent: Running = moments.copy()
        self.looks = Looks(d)
        # Batches after the warm-up while scales are refined. With subjects, which are few, they
        # are not refined.
        self.refined = 0 if subjects is None else self.REFINED_AFTER[-1]
        self._noise = NoiseOfSums((kept_share(memory), RECENT), DECAYS)  # of `moments`, `recent`

    @property
    def warming_up(self) -> bool:
        return not self.warm_up.done

    def _warm_up(self, rows: Rows, noise: Noise) -> bool:
        """Spend a batch on the warm-up. Returns True if the warm-up has to start over."""
        self.warm_up.step(rows, noise)
        self.standard = self.warm_up.standard
        return self.warm_up.batches_left == self.warm_up.batches

    def _look(self, rows: Rows, noise: Noise) -> Look | None:
        """Look at features whose spread is not known; `Looks` states what this spends."""
        return Looks.ask(
            rows, self.standard, units=self.units, each=self.each, mu=self.mu_look, noise=noise
        )

    # Post-processing.

    def _remember(self, released: Released, unit: float, weight: float = 1.0) -> None:
        """Add a batch's own moments to those of all batches and to those of the last few.

        Parameters
        ----------
        unit
            Unit of the release: 1 over the sd of its noise.
        """
        self._noise.add(released, weight / unit)
        of_all, of_recent = self._noise.variances
        self.moments.add(released.alone / unit, of_all, kept_share(self.memory), weight)
        self.recent.add(released.alone / unit, of_recent, RECENT, weight)

    def _drop_past(self) -> None:
        """Drop all but the last few batches."""
        self.moments = self.recent.copy()
        self._noise.copy_sum(1, 0)

    def _refine_now(self) -> bool:
        """Count a batch after the warm-up. Returns True if scales are to be refined after it."""
        if self.refined >= self.REFINED_AFTER[-1]:
            return False
        self.refined += 1
        return self.refined in self.REFINED_AFTER

    # State

    def state(self) -> dict[str, Any]:
        return {
            "W": self.W.tolist(),
            "warm_up": self.warm_up.state(),
            "standard": self.standard.state(),
            "moments": self.moments.state(),
            "recent": self.recent.state(),
            "refined": self.refined,
            "looks": self.looks.state(self.standard),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.W = checked_basis(state["W"], like=self.W)
        self.warm_up.load(state["warm_up"])
        self.standard = Standard.load(state["standard"], len(self.W))
        self.moments.load(state["moments"])
        self.recent.load(state["recent"])
        self.refined = int(state["refined"])
        self.looks.load(state["looks"])
        self._noise.begin((self.moments.noise, self.recent.noise))

"""The interface between the estimator and its methods, which learn components from batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from .arrays import FloatArray
from .noise import Noise
from .release import Limit, Score
from .statistics import Rows

#: Reason of a step that leaves no budget for components.
ONLY_RANGE = "only centre and scales were asked for"
#: Reason of a release of a round with hardly any subjects, by their noisy number.
FEW_SUBJECTS = "too few subjects: their noisy number may as well be zero"
FEW_PLACES = "too few subjects: less than 40 % of the places were taken, so set fewer `places`"


@dataclass(frozen=True)
class Outcome:
    """The result of one batch, in the words of a `Release`.

    Every field is released, or decided from released values only.
    """

    spread: FloatArray | None = None  #: noisy variance along each component
    range: float | None = None  #: noisy range within which records are taken as they are
    step: float | None = None
    sigma: float | None = None  #: noise sd in one coordinate of the release
    explained_variance_ratio: FloatArray | None = None
    explained_variance_ratio_sd: FloatArray | None = None
    eigenvalues: FloatArray | tuple[()] = ()  #: that stand out of the noise, largest first
    eigenvalues_sd: FloatArray | tuple[()] = ()
    limits: dict[Score, tuple[Limit, ...]] = field(default_factory=dict)
    drift: bool = False  #: the past was dropped before this batch
    shift: bool = False  #: and the mean has shifted
    reason: str | None = None  #: why nothing was learned from the batch
    subjects: float | None = None  #: noisy number of them; None for records


class Method(Protocol):
    """Learns components from batches.

    Attributes
    ----------
    W
        d x k, orthonormal columns: the current components.
    first_batches
        Batches that the first step takes at once, or rounds that ask for its answers.
    """

    W: FloatArray
    first_batches: int = 1

    @property
    def batches_of_step(self) -> int:
        """Batches that the next step takes at once."""
        return 1

    def step(self, rows: Rows, t: int, noise: Noise) -> Outcome:
        """Learn from the rows of step t = 1, 2, ...; never from fewer than it takes."""

    def check_batch(self, rows: int) -> None:
        """Raise `BatchSizeError` if batches of this many rows cannot work."""

    def state(self) -> dict[str, Any]:
        """Released values only, as plain JSON."""

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`."""

"""The interface between the estimator and its methods, which learn components from batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .arrays import ROUNDOFF, FloatArray
from .noise import Noise
from .release import Limit, Score
from .statistics import Rows

__all__ = ["FEW_SUBJECTS", "ONLY_RANGE", "Method", "Outcome", "checked_basis"]

#: Reason of a step that leaves no budget for components.
ONLY_RANGE = "only centre and scales were asked for"
#: Reason of a release of a round with hardly any subjects, by their noisy number.
FEW_SUBJECTS = "too few subjects: their noisy number may as well be zero"


@dataclass(frozen=True)
class Outcome:
    """The result of one batch. Every field is released, or decided from released values only."""

    spread: FloatArray | None = None  #: noisy variance along each component
    range: float | None = None  #: noisy range of the gradients
    step: float | None = None
    sigma: float | None = None  #: noise sd in one coordinate of the gradient
    ratio: FloatArray | None = None  #: share of the variance along each component
    ratio_sd: FloatArray | None = None  #: sd of the noise in it
    eigenvalues: FloatArray | None = None  #: that stand out of the noise, largest first
    eigenvalues_sd: FloatArray | None = None
    limits: dict[Score, tuple[Limit, ...]] = field(default_factory=dict)
    drift: bool = False  #: the past was dropped before this batch
    shift: bool = False  #: because the mean has shifted
    skipped: str | None = None  #: reason why nothing was learned from the batch
    units: float | None = None  #: noisy number of subjects; None for records

    @classmethod
    def skip(cls, why: str, range: float | None = None, units: float | None = None) -> Outcome:
        return cls(skipped=why, range=range, units=units)


def checked_basis(value: Any, *, like: FloatArray) -> FloatArray:
    """Orthonormal columns out of a saved state, or a ValueError.

    Sensitivities are proven for orthonormal columns; a state that was tampered with must not bring
    others. An honest state keeps every bit, so its columns are checked and not corrected.

    The length of a gradient allows for |W^T W - I| <= 4 (d + k + 8) sqrt(k) u in norm, u = 2^-53
    (`mechanisms.queries.length_slack`). Here W^T W is computed with pairwise sums: each entry is
    off by at most min(d + 1, 40) u, so the matrix by k times that, which is subtracted from the
    allowed error. Columns out of a QR or singular value decomposition are well within the rest.
    """
    W = np.array(value, dtype=np.float64).reshape(like.shape)
    d, k = len(W), len(W.T)
    columns = np.ascontiguousarray(W.T)
    gram = np.array([(columns * column).sum(axis=1) for column in columns])
    allowed = (4 * (d + k + 8) * math.sqrt(k) - min(d + 1, 40) * k) * ROUNDOFF
    if not np.linalg.norm(gram - np.eye(k)) <= allowed:  # true for NaN
        raise ValueError("not orthonormal")
    return W


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
    first_batches: int

    @property
    def batches_of_step(self) -> int:
        """Batches that the next step takes at once."""
        ...

    def step(self, rows: Rows, t: int, noise: Noise) -> Outcome:
        """Learn from the rows of step t = 1, 2, ...; never from fewer than it takes."""
        ...

    def check_batch(self, rows: int) -> None:
        """Raise `BatchSizeError` if batches of this many rows cannot work."""
        ...

    def state(self) -> dict[str, Any]:
        """Released values only, as plain JSON."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`."""
        ...

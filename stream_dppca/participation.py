"""The budget of one batch, by the number of batches in which a unit takes part.

A record is in one batch and spends all of mu there. A subject comes back in every round, so each
round may spend only a part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .calibration import batch_mu

__all__ = ["Subjects", "mu_of"]


@dataclass(frozen=True)
class Subjects:
    """The unit is a subject, and a batch is a round.

    Adjacency: everything that one subject sends within `period` consecutive rounds is replaced:
        what, when, how many records, whether any at all.
    Sensitivity: in each of these rounds at most one place changes its content.
    Noise: every round has noise of its own; its questions spend mu/sqrt(period) together. Rounds
        compose as Gaussian mechanisms, each chosen from the releases before it:
        sqrt(period (mu/sqrt(period))^2) = mu over the period, mu sqrt(K/period) over K rounds.
    Delta: none beyond that of mu.
    """

    period: int = 1  #: rounds over which (epsilon, delta) holds
    records: int = 1  #: rows per subject and round, at most


def mu_of(epsilon: float, delta: float, subjects: Subjects | None, units: int) -> float:
    """Budget of one batch or round with this many units.

    Examples
    --------
    >>> of_rounds = mu_of(1.0, 1e-6, Subjects(period=24), 1000)
    >>> round((mu_of(1.0, 1e-6, None, 1000) / of_rounds) ** 2, 6)
    24.0
    """
    mu = batch_mu(epsilon, delta, units)
    return mu if subjects is None else mu / math.sqrt(subjects.period)

"""The unit of privacy, and the budget of one batch that follows from it.

A record is in one batch and spends all of mu there. A subject comes back in every round, so each
round may spend only a part.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from .calibration import batch_mu
from .checks import whole
from .errors import ParameterError

#: Most rows per subject and round: bounds on rounding are proven for this many.
MOST_RECORDS = 64


@dataclass(frozen=True)
class PerSubject:
    """Privacy per subject (a device, a user), as `unit` of `DPPCA`: a batch is then a round.

    Adjacency: everything that one subject sends within `period` consecutive rounds is replaced:
        what, when, how many records, whether any at all.
    Sensitivity: in each of these rounds at most one place changes its content.
    Noise: every round has noise of its own; its questions spend mu/sqrt(period) together. Rounds
        compose as Gaussian mechanisms, each chosen from the releases before it:
        sqrt(period (mu/sqrt(period))^2) = mu over the period, mu sqrt(K/period) over K rounds.
    Delta: none beyond that of mu.

    Parameters
    ----------
    subject
        The key or column that holds the subject's id (`stream_dppca.subjects.ids` has the rule).
    places
        Subjects that a round has places for, about the number that is expected; later ones are left
        out.
    period, horizon
        Numbers of rounds. (epsilon, delta) holds for `period` consecutive rounds. After `horizon`
        rounds learning is refused; None to continue for ever.
    records
        Records of one subject that are used in a round, the first that come.

    Examples
    --------
    >>> PerSubject("device", places=1000, period=24)
    PerSubject(subject='device', places=1000, period=24, horizon=None, records=4)
    """

    subject: Hashable
    places: int = field(kw_only=True)
    period: int = field(default=1, kw_only=True)
    horizon: int | None = field(default=None, kw_only=True)
    records: int = field(default=4, kw_only=True)

    def __post_init__(self) -> None:
        if self.subject is None:
            raise ParameterError("subject", "must name the id of a record", self.subject)
        whole("places", self.places)
        whole("period", self.period, 1, 10**6)
        if self.horizon is not None:
            whole("horizon", self.horizon, 1, 10**9)
        whole("records", self.records, 1, MOST_RECORDS)


def size_words(subjects: PerSubject | None) -> tuple[str, str]:
    """The units of a batch, and the parameter that holds their number."""
    return ("records", "batch_size") if subjects is None else ("subjects", "places")


def mu_of(epsilon: float, delta: float, subjects: PerSubject | None, units: int) -> float:
    """Budget of one batch or round with this many units.

    Examples
    --------
    >>> of_rounds = mu_of(1.0, 1e-6, PerSubject("device", places=1000, period=24), 1000)
    >>> round((mu_of(1.0, 1e-6, None, 1000) / of_rounds) ** 2, 6)
    24.0
    """
    mu = batch_mu(epsilon, delta, units)
    return mu if subjects is None else mu / math.sqrt(subjects.period)

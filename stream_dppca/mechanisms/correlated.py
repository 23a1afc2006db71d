"""Noise that cancels over batches: the privacy-critical half of the filter.

With q_t the query of batch t in units of its noise, what is released is

    y_t = own_t q_t + S_1(t) + S_2(t) + xi_t,      S_b(t+1) = decay_b S_b(t) + later_bt q_t

where xi_t is fresh noise of sd 1, and two running sums S_b stand for all the past (a buffered
linear Toeplitz mechanism, with weights that may change from batch to batch). So y = C q + xi, where
the column of batch s is own_s, followed by sum_b later_bs decay_b^(age-1) for age = 1, 2, ...

Adjacency: one record of one batch s is replaced.
Sensitivity: only q_s changes, by at most mu, and it enters y_s, y_{s+1}, ... with the weights of
    its column. The squares of these add up to 1 over an endless column,

        own^2 + sum_{b,c} later_b later_c / (1 - decay_b decay_c) = 1,

    so to at most 1 over the releases that there are. The sequence of all releases is one Gaussian
    mechanism with this mu, also when later queries and later columns are chosen from earlier
    releases (Denisov, McMahan, Rush, Smith, Thakurta 2022).
Rounding: the sums are float64, and a rounding error that a replaced record causes stays in them as
    long as there are releases. `_rounding` bounds all of it over `horizon` releases; after that
    many, a public number, a new C begins.
Delta: none beyond that of mu.

The running sums are exact and as secret as records. They live in memory only: every copy of this
object, pickles included, comes out without them and starts a new C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..arrays import ROUNDOFF, FloatArray
from ..noise import Noise
from ..secrecy import Forgetful

#: Decays of the running sums. Two of them follow a power law over about 60 releases; fitted for the
#: least noise in the mean of 2 to 256 batches, against columns that end after 32 releases.
DECAYS = (0.68, 0.96)
#: Power by which a batch fades from later releases. With equal weights for all batches, this power
#: has the least noise after 8 to 50 of them.
POWER = 0.8
#: Releases after which a new C begins.
HORIZON = 4096

#: A query is at most this many sensitivities long: the mean over n rows has fewer than n. Batches
#: of more rows spend so much less than mu (`calibration.batch_mu`) that this covers the difference.
_LONGEST = 2.0**22
_AGES = np.arange(2.0, 33.0)  # 1 + age
#: Above `_rounding` over `HORIZON` releases.
_MOST_ROUNDING = 1e-4


@dataclass(frozen=True)
class Weights:
    """The column of a batch."""

    own: float  #: its weight in its own release
    later: tuple[float, ...]  #: its weight in each running sum, and so in the next release


@dataclass(frozen=True)
class Released:
    """One release, in units of its noise."""

    weights: Weights  #: of this batch, in this release and in later ones
    y: FloatArray  #: the weighted sum plus noise of sd 1
    alone: FloatArray  #: this batch's own query, solved for: C^-1 y
    first: bool  #: a new C began with this release


class CorrelatedRelease(Forgetful):
    """Releases one query per batch, with noise that cancels in sums.

    Parameters
    ----------
    mu
        Budget that each record spends here, over all releases that its batch enters.
    decays
        Decays of the running sums, each between 0 and 1.
    horizon
        A new C begins after this many releases.
    """

    PUBLIC = ("mu", "decays", "horizon")

    def __init__(
        self, *, mu: float, decays: tuple[float, ...] = DECAYS, horizon: int = HORIZON
    ) -> None:
        self.mu = mu
        self.decays = decays
        self.horizon = horizon
        self.forget()

    def _begin(self) -> None:
        """Begin a new C; later releases have nothing to do with earlier ones."""
        self._releases = 0  # of this C
        self._sums: list[FloatArray] = []  # SECRET: exact, in units of noise
        self._solved: list[FloatArray] = []  # the same sums of `alone`, which is public

    def release(
        self, query: FloatArray, *, sensitivity: float, noise: Noise, power: float = POWER
    ) -> Released:
        """Release the query of the next batch.

        Parameters
        ----------
        query
            The exact query. One record moves it by at most `sensitivity`.
        power
            Speed at which the batch fades from later releases: about as (1 + age)^-power. It must
            be public, and so must everything that decides it.
        """
        if self._releases >= self.horizon:
            self.forget()
        column, first = weights(power, self.decays), not self._sums
        exact = query * (self.mu / sensitivity)
        total = column.own * exact
        for part in self._sums:
            total += part
        y = noise.gaussian(
            total, sensitivity=self.mu * (1 + _rounding(self.decays, self.horizon)), mu=self.mu
        )
        alone = y.copy()
        for part in self._solved:
            alone -= part
        alone /= column.own
        self._releases += 1
        self._sums = self._moved(self._sums, column, exact)
        self._solved = self._moved(self._solved, column, alone)
        return Released(column, y, alone, first)

    def _moved(
        self, sums: list[FloatArray], column: Weights, newest: FloatArray
    ) -> list[FloatArray]:
        """The running sums, one release later."""
        added = [weight * newest for weight in column.later]
        for total, part, decay in zip(added, sums, self.decays, strict=bool(sums)):
            part *= decay
            total += part
        return added


def claimed(sensitivity: float, part: float) -> float:
    """The sensitivity to claim of a query that is to spend only a part of mu^2.

    A query that is taken for 1/f times as sensitive as it is moves by f mu in units of noise. What
    rounding adds, r mu, is paid for by noise of 1 + r times the sd, so a record spends at most
    (f + r)/(1 + r) mu: for that to be sqrt(part) mu, f = sqrt(part) - r is enough.

    Examples
    --------
    >>> claimed(3.0, 1.0)
    3.0
    >>> round(claimed(3.0, 0.25), 2)
    6.0
    """
    return sensitivity if part == 1 else sensitivity / (math.sqrt(part) - _MOST_ROUNDING)


@lru_cache(maxsize=64)
def weights(power: float, decays: tuple[float, ...] = DECAYS) -> Weights:
    """Weights of an endless column of length 1, nearest to (1 + age)^-power by least squares.

    With sum_b later_b / decay_b <= own, the column is a mixture of powers. Such a C can be solved
    for the queries without an error that grows (Kaluza 1928), so weights are kept to that.
    """
    fit, gram = _basis(decays)
    later = np.maximum(fit @ _AGES**-power, 0.0)
    later /= max(1.0, float(np.sum(later / decays)))
    length = math.sqrt(1 + later @ gram @ later)
    # Rounding must not make the column longer than 1.
    own, *rest = ((1 - 2.0**-48) * np.r_[1.0, later] / length).tolist()
    return Weights(own, tuple(rest))


@lru_cache(maxsize=8)
def _basis(decays: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    """The matrix that fits weights to a column of 32, and products of endless columns decay^age."""
    lam = np.array(decays)
    fit = np.linalg.pinv(lam ** (_AGES[:, np.newaxis] - 2))
    return fit, 1 / (1 - np.outer(lam, lam))


@lru_cache(maxsize=64)
def _rounding(decays: tuple[float, ...], horizon: int) -> float:
    """Bound on what rounding adds to the distance of neighbours, over the horizon, in units of mu.

    Let N mu bound the length of a query. A weight in a running sum is at most sqrt(1 - decay^2), as
    the column has length 1, so the sum is at most M = N mu sqrt((1 + decay)/(1 - decay)) long. An
    update takes four roundings, each of at most u M, and the error decays with the sum: the sum is
    off by at most 4 u M/(1 - decay). A release adds up the sums and the query, with (2 + number of
    sums) roundings of at most u (N mu + sum M). All this happens on both neighbours, in every
    release of the horizon.
    """
    sums = [(decay, math.sqrt((1 + decay) / (1 - decay))) for decay in decays]
    kept = sum(4 * length / (1 - decay) for decay, length in sums)
    added = (2 + len(sums)) * (1 + sum(length for _, length in sums))
    return 1.01 * 2 * ROUNDOFF * _LONGEST * (kept + added) * math.sqrt(horizon)

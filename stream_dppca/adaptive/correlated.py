"""Noise that cancels over batches: the privacy-critical half of the filter.

With q_t the query of batch t in units of its noise, what is released is

    y_t = C_{t,t} q_t + C_{t,t-1} q_{t-1} + ... + C_{t,t-h+1} q_{t-h+1} + xi_t

where every column of the banded matrix C has unit length and xi_t is fresh noise of sd 1.

Adjacency: one record of one batch s is replaced.
Sensitivity: only q_s changes, by at most mu, and it enters y_s, ..., y_{s+h-1} with weights whose
    squares add up to 1. So the sequence of all releases is one Gaussian mechanism with this mu,
    also when later queries and later columns of C are chosen from earlier releases
    (Denisov, McMahan, Rush, Smith, Thakurta 2022).
Delta: none beyond that of mu.

Past queries are exact and as secret as records. They live in memory only: every copy of this
object, pickles included, comes out without them and starts a new C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..noise import Noise
from ..secrecy import forget_in_child

__all__ = ["CorrelatedRelease", "Released", "combine"]

FloatArray = NDArray[np.float64]

#: Room for rounding in the weighted sum of queries: a mean over n <= 2^22 rows is below n
#: sensitivities, so float64 is off by less than 1600 n 2^-53 < 1e-6 of one.
_ROUNDING = 1e-6
#: Arrays up to this size are weighed and added in one go; a copy of larger ones costs more.
_AT_ONCE = 4096


@dataclass(frozen=True)
class Released:
    """One release, in units of its noise."""

    row: FloatArray  #: weights of this and earlier batches in it, newest first
    y: FloatArray  #: the weighted sum plus noise of sd 1
    alone: FloatArray  #: this batch's own query, solved for: C^-1 y


@dataclass(frozen=True, repr=False)
class _Batch:
    column: FloatArray  # weights of the batch in its own release and later ones
    query: FloatArray  # SECRET: exact, in units of its noise
    alone: FloatArray


class CorrelatedRelease:
    """Releases one query a batch, with noise that cancels in sums.

    Parameters
    ----------
    mu
        What each record spends here, over all releases that its batch enters.
    bandwidth
        h: how many releases a batch enters. 1 means independent noise.
    """

    def __init__(self, *, mu: float, bandwidth: int) -> None:
        self.mu = mu
        self.bandwidth = bandwidth
        self.forget()

    def forget(self) -> None:
        """Drop the past; later releases have nothing to do with earlier ones."""
        forget_in_child(self)
        self._past: deque[_Batch] = deque(maxlen=self.bandwidth - 1)  # newest first

    def __getstate__(self) -> tuple[float, int]:
        return self.mu, self.bandwidth

    def __setstate__(self, state: tuple[float, int]) -> None:
        self.mu, self.bandwidth = state
        self.forget()

    def column(self, power: float) -> FloatArray:
        """Unit length, falling as (1 + age)^-power."""
        weights = np.arange(1.0, self.bandwidth + 1) ** -power
        return np.asarray(weights / np.linalg.norm(weights))

    def release(
        self, query: FloatArray, *, sensitivity: float, power: float, noise: Noise
    ) -> Released:
        """Release the query of the next batch.

        Parameters
        ----------
        query
            Exact. One record moves it by at most `sensitivity`.
        power
            How fast the batch fades from later releases. Public, as all that decides it must be.
        """
        column, exact = self.column(power), query * (self.mu / sensitivity)
        past = list(self._past)
        row = np.array([column[0], *(b.column[age] for age, b in enumerate(past, start=1))])
        y = noise.gaussian(
            combine(row, [exact, *(b.query for b in past)]),
            sensitivity=self.mu * (1 + _ROUNDING),
            mu=self.mu,
            size=query.size * self.bandwidth,
        )
        alone = (y - combine(row[1:], (b.alone for b in past))) / row[0]
        self._past.appendleft(_Batch(column, exact, alone))
        return Released(row, y, alone)


def combine(weights: FloatArray, arrays: Iterable[FloatArray]) -> FloatArray:
    """The weighted sum of arrays; 0 for none."""
    parts = list(arrays)
    if not parts:
        return np.zeros(())
    first = parts[0]
    if first.size <= _AT_ONCE and all(part.shape == first.shape for part in parts):
        # Entry by entry, in order: no BLAS, whose last digits may depend on where memory lies.
        columns = weights.reshape(-1, *([1] * first.ndim))
        return np.asarray((columns * np.array(parts)).sum(axis=0))
    total = weights[0] * first
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        total = total + weight * part
    return np.asarray(total)

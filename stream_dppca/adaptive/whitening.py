"""From correlated releases to a running estimate: all of it post-processing.

The releases y = C q + xi of `correlated` have noise of two kinds: the privacy noise xi, white, and
the sampling noise of the queries, white before C and coloured after. Together their covariance is
I + nu C C^T. Divided by its Cholesky factor, the releases become u_t = f_t theta + white noise, and
theta is best estimated by sum f_t u_t / sum f_t^2, whatever the mix of the two.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..secrecy import forget_in_child
from .correlated import combine

__all__ = ["White", "Whitener"]

FloatArray = NDArray[np.float64]


@dataclass
class White:
    """u = f theta + noise of sd 1, uncorrelated between batches."""

    u: FloatArray
    f: float
    fresh: float  #: the part of f that comes from this batch alone


@dataclass
class _Past:
    row: list[float]  # of C
    factor: list[float]  # of the Cholesky factor, newest first
    offset: FloatArray
    gain: float
    u: FloatArray
    f: float


class Whitener:
    """Whitens releases one at a time.

    Parameters
    ----------
    sampling
        nu: sampling variance of a query over its privacy noise, a public guess. A wrong one costs
        accuracy, nothing else.
    bandwidth
        That of C.
    """

    def __init__(self, *, sampling: float, bandwidth: int) -> None:
        self.sampling = sampling
        self.bandwidth = bandwidth
        self.forget()

    def forget(self) -> None:
        """Begin anew, as `CorrelatedRelease` does whenever it is copied."""
        forget_in_child(self)
        self._past: deque[_Past] = deque(maxlen=self.bandwidth - 1)  # newest first

    def __getstate__(self) -> tuple[float, int]:
        return self.sampling, self.bandwidth

    def __setstate__(self, state: tuple[float, int]) -> None:
        self.sampling, self.bandwidth = state
        self.forget()

    def __call__(self, row: FloatArray, y: FloatArray, offset: FloatArray, gain: float) -> White:
        """Whiten release y = C q + xi, where q + offset has mean gain * theta."""
        past = list(self._past)
        factor = self._cholesky_row(row, past)
        u = y + combine(row, [offset, *(p.offset for p in past)])
        u = (u - combine(factor[1:], (p.u for p in past))) / factor[0]
        f = float(row @ np.array([gain, *(p.gain for p in past)]))
        f = (f - float(factor[1:] @ np.array([p.f for p in past]))) / float(factor[0])
        self._past.appendleft(_Past(row.tolist(), factor.tolist(), offset, gain, u, f))
        return White(u, f, fresh=float(row[0] * gain / factor[0]))

    def rebase(self, theta: FloatArray, newest: White) -> White:
        """Explain what came before the newest release by theta, and regress on it no longer."""
        for p in list(self._past)[1:]:
            p.offset = p.offset - p.gain * theta
            p.u = p.u - p.f * theta
            p.gain = p.f = 0.0
        u = newest.u - (newest.f - newest.fresh) * theta
        if self._past:
            self._past[0].u, self._past[0].f = u, newest.fresh
        return White(u, newest.fresh, newest.fresh)

    def _cholesky_row(self, row: FloatArray, past: list[_Past]) -> FloatArray:
        """The newest row of the factor of I + nu C C^T; entry j is for j releases ago."""
        # Lists: these are some hundred sums of a few numbers, where arrays are slow.
        new, factor = row.tolist(), [0.0] * len(row)
        for j in range(len(past), 0, -1):
            then = past[j - 1]
            covariance = self.sampling * _dot(new[j:], then.row)
            covariance -= _dot(factor[j + 1 :], then.factor[1:])
            factor[j] = covariance / then.factor[0]
        ahead = self.sampling * _dot(new, new) - _dot(factor[1:], factor[1:])
        factor[0] = math.sqrt(1 + ahead)
        return np.array(factor)


def _dot(a: list[float], b: list[float]) -> float:
    """Up to the end of the shorter one."""
    return float(sum(map(operator.mul, a, b)))

"""Whitens correlated releases for a running estimate: all of it post-processing.

The releases y = C q + xi of `correlated` have noise of two kinds: the privacy noise xi, white, and
the sampling noise of the queries, white before C and coloured after. Together their covariance is
I + nu C C^T. Divided by its Cholesky factor, the releases become u_t = f_t theta + white noise, and
theta is best estimated by sum f_t u_t / sum f_t^2, whatever the mix of the two.

The past enters a release through running sums only, so a Kalman filter of their size does that
division, in constant time per release: `u` is its innovation over its sd.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arrays import FloatArray
from ..mechanisms.correlated import DECAYS, Weights
from ..secrecy import Forgetful

__all__ = ["White", "Whitener"]


@dataclass
class White:
    """u = f theta + noise of sd 1, uncorrelated between batches."""

    u: FloatArray
    f: float
    fresh: float  #: the part of f that comes from this batch alone


class Whitener(Forgetful):
    """Whitens releases one at a time.

    Parameters
    ----------
    sampling
        nu: sampling variance of a query over its privacy noise, a public guess. A wrong guess costs
        accuracy, nothing else.
    decays
        The decays of C.
    """

    PUBLIC = ("sampling", "decays")

    def __init__(self, *, sampling: float, decays: tuple[float, ...] = DECAYS) -> None:
        self.sampling = sampling
        self.decays = decays
        self.forget()

    def _begin(self) -> None:
        """Start over, as `CorrelatedRelease` does whenever it is copied."""
        n = len(self.decays)
        # The running sums expected from the releases so far, less what offsets add to them; the
        # same for the part of f; and their covariance.
        self._expected: list[FloatArray] = []
        self._gains = [0.0] * n
        self._newest_gains = [0.0] * n  # the contribution of the newest release alone
        self._covariance = [[0.0] * n for _ in range(n)]

    def __call__(
        self, weights: Weights, y: FloatArray, *, gain: float, offset: FloatArray | None = None
    ) -> White:
        """Whiten release y = C q + xi, where q + offset has mean gain * theta.

        Without an offset there must never have been one since the filter was new.
        """
        own, later, nu = weights.own, weights.later, self.sampling
        ahead = [sum(row) for row in self._covariance]
        variance = 1 + nu * own**2 + sum(ahead)
        correction = [
            (decay * a + nu * w * own) / variance
            for decay, a, w in zip(self.decays, ahead, later, strict=True)
        ]
        self._covariance = [
            [
                di * dj * p + nu * wi * wj - variance * ci * cj
                for dj, p, wj, cj in zip(self.decays, row, later, correction, strict=True)
            ]
            for di, row, wi, ci in zip(
                self.decays, self._covariance, later, correction, strict=True
            )
        ]
        # The releases, and in the same way the factors of theta in them.
        innovation = y.copy() if offset is None else y + own * offset
        for part in self._expected:
            innovation -= part
        moved = [c * innovation for c in correction]
        if offset is not None:
            for part, w in zip(moved, later, strict=True):
                part -= w * offset
        for part, before, decay in zip(
            moved, self._expected, self.decays, strict=bool(self._expected)
        ):
            before *= decay
            part += before
        self._expected = moved

        f = own * gain - sum(self._gains)
        self._gains = [
            decay * g - w * gain + c * f
            for decay, g, w, c in zip(self.decays, self._gains, later, correction, strict=True)
        ]
        self._newest_gains = [(c * own - w) * gain for w, c in zip(later, correction, strict=True)]
        sd = math.sqrt(variance)
        innovation /= sd
        return White(innovation, f / sd, fresh=own * gain / sd)

    def rebase(self, theta: FloatArray, newest: White) -> White:
        """Explain all releases before the newest by theta, and stop regressing on them."""
        for part, all_, new in zip(
            self._expected, self._gains, self._newest_gains, strict=bool(self._expected)
        ):
            part -= (all_ - new) * theta
        self._gains = list(self._newest_gains)
        u = newest.u - (newest.f - newest.fresh) * theta
        return White(u, newest.fresh, newest.fresh)

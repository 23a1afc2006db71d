"""Noticing that a stream has changed, where its batches differ anyway. All post-processing.

Telemetry is autocorrelated: batches differ by more than noise, day from night, one job from the
next. That is no reason to forget. The question is not whether a batch differs from the past, but
whether the past has become a worse guide than the last few batches are. So two estimates are kept,
of all batches and of the last few, and each is tried on the next batch before that is added: how
much of its variance lies in the components of the one, how much in those of the other? If the few
are better by a margin, again and again, the rest of the past is dropped.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import FloatArray

__all__ = ["RECENT", "DriftAlarm"]

#: What the estimate of the last few batches keeps of itself: two batches, effectively.
RECENT = 0.5
#: Share of the variance along the components by which the few must be better to count.
MARGIN = 0.05
#: The alarm: a CUSUM of that advantage, in units of the margin or of its noise.
LIMIT = 4.0


class DriftAlarm:
    """Compares two sets of components on batches that neither has seen."""

    def __init__(self) -> None:
        self.cusum = 0.0

    def __call__(self, C: FloatArray, all_of_it: FloatArray, recent: FloatArray, sd: float) -> bool:
        """True if the past should be dropped.

        Parameters
        ----------
        C
            Noisy covariance of the newest batch.
        all_of_it, recent
            Components from all batches before it and from the last few.
        sd
            Noise sd in one coordinate of C.
        """
        kept = float(np.trace(all_of_it.T @ C @ all_of_it))
        gained = float(np.trace(recent.T @ C @ recent)) - kept
        noise = 2 * sd * math.sqrt(all_of_it.shape[1])
        unit = max(MARGIN * abs(kept + max(gained, 0.0)), noise, 1e-300)
        self.cusum = max(0.0, self.cusum + min(gained / unit, LIMIT * 0.75) - 1.0)
        if self.cusum < LIMIT:
            return False
        self.cusum = 0.0
        return True

    def state(self) -> dict[str, Any]:
        return {"cusum": self.cusum}

    def load(self, state: dict[str, Any]) -> None:
        self.cusum = float(state["cusum"])
        if not 0 <= self.cusum < math.inf:
            raise ValueError("not a state of this alarm")

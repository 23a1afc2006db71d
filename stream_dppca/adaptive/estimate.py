"""The running estimate, and the alarm that the stream has changed. All post-processing."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import FloatArray
from .whitening import White, Whitener

__all__ = ["RunningEstimate"]

#: Share of the past that is kept after each batch: a memory of about 1000 batches.
MEMORY = 1 - 1 / 1024
#: The alarm is a CUSUM of the innovation's energy in standard deviations, each less the slack.
CUSUM_SLACK, CUSUM_LIMIT = 0.5, 8.0

#: Arrays up to this many numbers are written as lists. Larger ones take half of the space, and a
#: hundredth of the time, as base64 of little-endian float64.
LISTED = 2**16

#: The part of theta that moves the components.
View = Callable[[FloatArray], FloatArray]


class RunningEstimate:
    """theta from u_t = f_t theta + noise: sum f u / sum f^2, with forgetting.

    Every innovation u_t - f_t theta has a known size as long as theta stays the same. If its energy
    is above that for some batches, or far above for one, the estimate forgets as much of the past
    as the excess requires. So the estimate follows a jump within a few batches after it is visible
    in the noise; the price is a rare false alarm, which costs some of the past and nothing else.

    Parameters
    ----------
    size
        Number of values with noise of variance 1 that a view of theta amounts to.
    memory
        "auto" to forget on alarm, "all" to forget nothing, or a number of batches.
    """

    def __init__(self, size: float, memory: float | str = "auto") -> None:
        self.size = size
        self.memory = memory
        self.total: FloatArray = np.zeros(())  # sum f u
        self.weight = 0.0  # sum f^2
        # Mean and variance of the innovation's energy over the expected one, and their weight.
        self.energy = (1.0, 0.04, 4)
        self.cusum = 0.0
        self.dropped = False  # by the newest release

    @property
    def theta(self) -> FloatArray:
        return np.asarray(self.total / self.weight)

    @property
    def signal(self) -> float:
        """|theta|^2 over the noise in it, with one sd of that noise allowed for."""
        noise = self.size * self.weight * (1 + math.sqrt(2 / self.size))
        return float(np.sum(self.total**2)) / noise

    def begin(self, theta: FloatArray, weight: float) -> None:
        """Start from a known theta, with noise of variance 1/weight in each number."""
        self.total, self.weight = theta * weight, weight

    def add(self, white: White, whitener: Whitener, view: View = np.asarray) -> bool:
        """Add a release. Returns True if it set off the alarm."""
        watch = self.memory == "auto" and self.weight > 0
        excess = self._excess(white, view) if watch else None
        if excess is not None:
            white = self._forget(excess, white, whitener)
        keep = MEMORY if isinstance(self.memory, str) else 1 - 1 / self.memory
        self.total = self.total * keep + white.f * white.u
        self.weight = self.weight * keep + white.f**2
        self.dropped = excess is not None
        return excess is not None

    def _excess(self, white: White, view: View) -> float | None:
        """Energy of the innovation above the normal level; None if there is no alarm."""
        innovation, theta = view(white.u - white.f * self.theta), view(self.theta)
        length = float(np.linalg.norm(theta))
        along = abs(float(np.sum(innovation * theta))) / length if length else 0.0
        # A change of scale alone is not a change of direction: 20 % of it is forgiven.
        unforgiven = max(0.0, along - 0.2 * abs(white.f) * length)
        energy = float(np.sum(innovation**2)) - along**2 + unforgiven**2
        expected = self.size * (1 + white.f**2 / self.weight)

        mean, variance, n = self.energy
        sd = math.sqrt(max(variance, 2 / self.size * mean**2))
        z = (energy / expected - mean) / sd
        self.cusum = max(0.0, self.cusum + min(max(z, -3.0), 20.0) - CUSUM_SLACK)
        # The normal level is learned from all batches, each of them cut off at two sd.
        n, x = min(n + 1, 64), min(max(z, -2.0), 2.0) * sd
        self.energy = (mean + x / n, variance + (x * x - variance) / n, n)
        if self.cusum < CUSUM_LIMIT:
            return None
        self.cusum = 0.0
        return max(energy - expected * mean, sd * expected)

    def _forget(self, excess: float, white: White, whitener: Whitener) -> White:
        theta = self.theta
        self.weight = 1 / (1 / self.weight + excess / (white.fresh**2 * self.size))
        self.total = theta * self.weight
        return whitener.rebase(theta, white)

    def state(self) -> dict[str, Any]:
        return {
            "total": _written(self.total),
            "weight": self.weight,
            "energy": list(self.energy),
            "cusum": self.cusum,
        }

    def load(self, state: dict[str, Any], *, shape: tuple[int, ...]) -> None:
        """Resume from a result of `state`; theta must have this shape."""
        self.total = _read(state["total"])
        self.weight = float(state["weight"])
        mean, variance, n = state["energy"]
        if self.total.shape != (shape if self.weight > 0 else ()):  # none before the first release
            raise ValueError("not a state of this estimate")
        if not (np.isfinite(self.total).all() and 0 <= self.weight < math.inf):
            raise ValueError("not a state of this estimate")
        if not (variance >= 0 and n > 0):
            raise ValueError("not a state of this estimate")
        self.energy = (float(mean), float(variance), int(n))
        self.cusum = float(state["cusum"])


def _written(numbers: FloatArray) -> Any:
    """An array for a state in JSON."""
    if numbers.size <= LISTED:
        return numbers.tolist()
    return base64.b64encode(numbers.astype("<f8").tobytes()).decode()


def _read(written: Any) -> FloatArray:
    """The array that `_written` wrote."""
    if isinstance(written, str):
        return np.frombuffer(base64.b64decode(written), dtype="<f8").astype(np.float64)
    return np.array(written, dtype=np.float64)

"""The running estimate, and how it notices that the stream has changed. All post-processing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .whitening import White, Whitener

__all__ = ["RunningEstimate"]

FloatArray = NDArray[np.float64]

#: What is kept of the past after each batch: a memory of about 1000 batches.
MEMORY = 1 - 1 / 1024
#: The alarm: a CUSUM of the innovation's energy in standard deviations, less a drift of its own.
CUSUM_SLACK, CUSUM_LIMIT = 0.75, 8.0


class RunningEstimate:
    """theta from u_t = f_t theta + noise: sum f u / sum f^2, with forgetting.

    Every innovation u_t - f_t theta has a known size as long as theta stays what it was. If its
    energy stays above that for some batches, or far above for one, the estimate forgets as much of
    the past as the excess asks for. A jump is followed within a few batches of being visible in
    the noise; the price on a steady stream is a false alarm in some thousands of batches.
    """

    def __init__(self, size: int) -> None:
        self.size = size  # numbers in theta that carry noise
        self.total: FloatArray = np.zeros(())  # sum f u
        self.weight = 0.0  # sum f^2
        # Mean and variance of the innovation's energy over what is expected, and how many seen.
        self.energy = (1.0, 0.04, 4)
        self.cusum = 0.0

    @property
    def theta(self) -> FloatArray:
        return np.asarray(self.total / self.weight)

    @property
    def signal(self) -> float:
        """|theta|^2 over the noise in it, with one sd of that noise allowed for."""
        noise = self.size * self.weight * (1 + math.sqrt(2 / self.size))
        return float(np.sum(self.total**2)) / noise

    def add(self, white: White, whitener: Whitener) -> bool:
        """Take a release in. Returns True if it set off the alarm."""
        alarm = self.weight > 0 and self._alarm(white)
        if alarm:
            white = self._forget(white, whitener)
        self.total = self.total * MEMORY + white.f * white.u
        self.weight = self.weight * MEMORY + white.f**2
        return alarm

    def _innovation(self, white: White) -> tuple[float, float]:
        """Energy of the innovation, and what is expected of it."""
        theta = self.theta
        innovation = white.u - white.f * theta
        length = float(np.linalg.norm(theta))
        along = abs(float(np.sum(innovation * theta))) / length if length else 0.0
        # A change of scale alone is no change of direction: 20 % of it is forgiven.
        excess = max(0.0, along - 0.2 * abs(white.f) * length)
        energy = float(np.sum(innovation**2)) - along**2 + excess**2
        return energy, self.size * (1 + white.f**2 / self.weight)

    def _alarm(self, white: White) -> bool:
        energy, expected = self._innovation(white)
        mean, variance, n = self.energy
        sd = math.sqrt(max(variance, 2 / self.size * mean**2))
        z = (energy / expected - mean) / sd
        self.cusum = max(0.0, self.cusum + min(max(z, -3.0), 20.0) - CUSUM_SLACK)
        if z < 4:  # learn what is normal from what is not far from it
            n = min(n + 1, 64)
            x = energy / expected - mean
            self.energy = (mean + x / n, variance + (x * x - variance) / n, n)
        return self.cusum >= CUSUM_LIMIT

    def _forget(self, white: White, whitener: Whitener) -> White:
        energy, expected = self._innovation(white)
        mean, variance, _ = self.energy
        sd = math.sqrt(max(variance, 2 / self.size * mean**2))
        moved = max(energy - expected * mean, CUSUM_SLACK * sd * expected)
        theta = self.theta
        self.weight = 1 / (1 / self.weight + moved / (white.fresh**2 * self.size))
        self.total = theta * self.weight
        self.cusum = 0.0
        return whitener.rebase(theta, white)

    def state(self) -> dict[str, Any]:
        return {
            "total": self.total.tolist(),
            "weight": self.weight,
            "energy": list(self.energy),
            "cusum": self.cusum,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.total = np.array(state["total"], dtype=np.float64)
        self.weight = float(state["weight"])
        mean, variance, n = state["energy"]
        self.energy = (float(mean), float(variance), int(n))
        self.cusum = float(state["cusum"])

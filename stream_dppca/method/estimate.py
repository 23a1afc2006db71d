"""The running estimate of gradients, and its memory. All post-processing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import FloatArray
from .base import kept_share
from .drift import RECENT, DriftAlarm
from .whitening import White, Whitener

__all__ = ["GuidedEstimate"]


class _Estimate:
    """theta from u_t = f_t theta + noise: sum f u / sum f^2, with forgetting."""

    def __init__(self) -> None:
        self.total: FloatArray = np.zeros(())  # sum f u
        self.weight = 0.0  # sum f^2

    @property
    def theta(self) -> FloatArray:
        return np.asarray(self.total / self.weight)

    def add(self, white: White, keep: float) -> None:
        self.total = self.total * keep + white.f * white.u
        self.weight = self.weight * keep + white.f**2

    def rescale(self, factor: FloatArray) -> None:
        """Multiply the rows of theta."""
        if self.weight > 0:
            self.total = self.total * factor[:, np.newaxis]

    def state(self) -> dict[str, Any]:
        return {"total": self.total.tolist(), "weight": self.weight}

    def load(self, state: dict[str, Any], *, shape: tuple[int, ...]) -> None:
        """Resume from a result of `state`; theta must have this shape."""
        self.total = np.array(state["total"], dtype=np.float64)
        self.weight = float(state["weight"])
        if self.total.shape != (shape if self.weight > 0 else ()):  # none before the first release
            raise ValueError("not a state of this estimate")
        if not (np.isfinite(self.total).all() and 0 <= self.weight < math.inf):
            raise ValueError("not a state of this estimate")


class GuidedEstimate(_Estimate):
    """An estimate that forgets if the last few batches are a better guide than all of them.

    It works like `drift` for covariances. Two estimates are kept, and each is tried on the next
    release u = f theta + noise before that is added: by how much is the estimate of the last few
    nearer to it, as a share of f^2 |theta|^2?

    Parameters
    ----------
    size
        Number of values in theta, with noise of variance 1 each.
    memory
        As for `DPPCA`.
    """

    def __init__(self, size: float, memory: float | str = "auto") -> None:
        super().__init__()
        self.size = size
        self.memory = memory
        self.recent = _Estimate()
        self.alarm = DriftAlarm()
        self.dropped = False  # by the newest release

    @property
    def signal(self) -> float:
        """|theta|^2 over the noise in it, with one sd of that noise allowed for."""
        noise = self.size * self.weight * (1 + math.sqrt(2 / self.size))
        return float(np.sum(self.total**2)) / noise

    def take(self, white: White, whitener: Whitener) -> bool:
        """Add a release. Returns True if the past was dropped before."""
        self.dropped = self.memory == "auto" and self.weight > 0 and self._is_worse(white)
        if self.dropped:
            theta = self.recent.theta
            self.total, self.weight = self.recent.total.copy(), self.recent.weight
            white = whitener.rebase(theta, white)
        self.add(white, kept_share(self.memory))
        self.recent.add(white, RECENT)
        return self.dropped

    def _is_worse(self, white: White) -> bool:
        past, recent = white.f * self.theta, white.f * self.recent.theta
        differ = float(np.linalg.norm(past - recent))
        nearer = float(np.sum((white.u - past) ** 2) - np.sum((white.u - recent) ** 2))
        whole = max(float(np.sum(past**2)), 1e-300)
        return self.alarm.judge(nearer / whole, 2 * differ / whole)

    def rescale(self, factor: FloatArray) -> None:
        super().rescale(factor)
        self.recent.rescale(factor)

    def state(self) -> dict[str, Any]:
        return super().state() | {"recent": self.recent.state(), "alarm": self.alarm.state()}

    def load(self, state: dict[str, Any], *, shape: tuple[int, ...]) -> None:
        super().load(state, shape=shape)
        self.recent.load(state["recent"], shape=shape)
        self.alarm.load(state["alarm"])

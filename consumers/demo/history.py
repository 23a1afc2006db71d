"""What a viewer of the output topic knows: the releases so far, and how they move."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..model.releases import PublishedRelease, parse_release
from .telemetry import TRUE_DIRECTION

__all__ = ["History", "direction", "noise_movement", "sine"]

FloatArray = NDArray[np.float64]


@dataclass
class History:
    """What the output topic and the metrics have shown so far."""

    shown: str  #: the task whose component is shown: "0", or "merged" of several shards
    current: PublishedRelease | None = None
    releases: int = 0
    batches: dict[str, int] = field(default_factory=dict)  #: of each task
    moved: float | None = None
    noise: float | None = None
    sines: list[float] = field(default_factory=list)
    seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=256))
    rows: deque[tuple[int, float, float | None, float | None]] = field(
        default_factory=lambda: deque(maxlen=64)
    )
    status: str = "starting"
    lag: int | None = None
    began: float = field(default_factory=time.monotonic)
    first_s: float | None = None  #: seconds until the first release

    def add(self, value: bytes) -> bool:
        """Add a message of the output topic; True if it is a newer release of the shown task."""
        try:
            release = parse_release(value)
        except ValueError:
            return False
        task = str(release.task)
        if release.batch <= self.batches.get(task, 0):
            return False  # published again
        self.batches[task] = release.batch
        if task != self.shown:
            return False
        now = time.monotonic()
        if self.first_s is None:
            self.first_s = now - self.began
        w = direction(release)
        if self.current is not None:
            self.moved = sine(w, direction(self.current))
        self.noise = noise_movement(release)
        self.current = release
        self.releases += 1
        self.sines.append(sine(w, TRUE_DIRECTION))
        self.seen.append((now, release.n_seen))
        self.rows.append((release.batch, self.sines[-1], self.moved, self.noise))
        return True

    def rates(self) -> tuple[float, float] | None:
        """Return records and releases per second, over the last five seconds or so."""
        recent = [at for at in self.seen if at[0] > self.seen[-1][0] - 5.0]
        if len(recent) < 2:
            return None
        took = recent[-1][0] - recent[0][0]
        return (recent[-1][1] - recent[0][1]) / took, (len(recent) - 1) / took


def direction(release: PublishedRelease) -> FloatArray:
    """Return the main component. A direction has no sign: its weights sum to a positive number."""
    w = np.array([release.components[0].loadings[name] for name in release.features])
    return w if w.sum() >= 0 else -w


def sine(w: FloatArray, v: FloatArray) -> float:
    """Return the sine of the angle between two directions, accurate when it is small."""
    return float(np.linalg.norm(w - v * (v @ w)))


def noise_movement(release: PublishedRelease) -> float | None:
    """Estimate how far the noise of this batch alone moves the component.

    To first order in the noise: sigma in each coordinate of the second moment, across the
    component, over the spread along it, times the weight that the batch has.
    """
    spread = release.components[0].spread
    if not spread or release.sigma is None or release.step is None:
        return None
    across = math.sqrt((len(release.features) - 1) / 2)
    return release.step * release.sigma * across / spread

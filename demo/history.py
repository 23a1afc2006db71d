"""The view of somebody who reads the output topic: the releases so far, and their movement."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from consumers.model.releases import ReleaseDocument, parse_release
from consumers.model.uncertainty import angle, noise_movement
from stream_dppca.arrays import FloatArray

from .telemetry import backup_is_stronger, true_direction

__all__ = ["History", "Seen", "angle", "direction", "noise_movement"]


@dataclass(frozen=True)
class Seen:
    """Facts about a release that has a component."""

    batch: int
    angle: float  #: to the truth, in degrees
    moved: float | None  #: since the release before, in degrees
    noise: float | None  #: movement that noise alone would cause, approximately
    drift: bool


@dataclass
class History:
    """The releases on the output topic and the metrics of the services so far."""

    shown: str  #: the task whose component is shown: "0", or "merged" of several shards
    change_after: int | None = None  #: records after which the fleet changes
    current: ReleaseDocument | None = None
    releases: int = 0
    batches: dict[str, int] = field(default_factory=dict)  #: of each task
    angles: list[float] = field(default_factory=list)
    seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=256))
    rows: deque[Seen] = field(default_factory=lambda: deque(maxlen=64))
    drifts: int = 0  #: how often the past was dropped
    status: str = "starting"
    lag: int | None = None
    began: float = field(default_factory=time.monotonic)
    first_s: float | None = None  #: seconds until the first component

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
        before, self.current = self.current, release
        now = time.monotonic()
        self.releases += 1
        self.seen.append((now, release.n_seen))
        if release.learned:
            if self.first_s is None:
                self.first_s = now - self.began
            w = direction(release)
            moved = angle(w, direction(before)) if before is not None and before.learned else None
            self.angles.append(angle(w, self.truth()))
            self.drifts += release.drift
            noise = noise_movement(release)
            self.rows.append(Seen(release.batch, self.angles[-1], moved, noise, release.drift))
        return True

    @property
    def changed(self) -> bool:
        """True if the fleet had changed by the last record of the current release."""
        last = 0 if self.current is None else self.current.n_seen - 1
        return backup_is_stronger(last, self.change_after)

    def truth(self) -> FloatArray:
        """Return the direction that the current release should have."""
        return true_direction(self.changed)

    def rates(self) -> tuple[float, float] | None:
        """Return records and releases per second, over the last five seconds or so."""
        recent = [at for at in self.seen if at[0] > self.seen[-1][0] - 5.0]
        if len(recent) < 2:
            return None
        took = recent[-1][0] - recent[0][0]
        return (recent[-1][1] - recent[0][1]) / took, (len(recent) - 1) / took


def direction(release: ReleaseDocument) -> FloatArray:
    """Return the main component. A direction has no sign: its weights sum to a positive number."""
    w = np.array(release.array(release.components[0].loadings))
    return w if w.sum() >= 0 else -w

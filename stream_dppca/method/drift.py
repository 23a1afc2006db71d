"""Notices that a stream has changed, although its batches differ anyway. All post-processing.

Telemetry is autocorrelated: batches differ by more than noise, day from night, one job from the
next. That is no reason to forget. The question is not whether a batch differs from the past, but
whether the past has become a worse guide than the last few batches. So two estimates are kept, of
all batches and of the last few, and each is tried on the next batch before that batch is added: how
much of its variance lies in the components of the one, how much in those of the other? If the last
few are better by a margin, again and again, the rest of the past is dropped. It is also dropped if
the means of batches are far from that of the past, again and again. Each change doubles what it
takes for the next one, so a stream that comes and goes is soon learned as a whole.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..arrays import FloatArray
from .components import Components

#: Share of the variance along the components by which the last few must be better to count. On
#: server telemetry (SMD) they are better by .02 on average, by .08 in restless weeks; after the
#: component has turned by 30 degrees, by .1 to .2.
MARGIN = 0.06
#: Mean square distance of a batch's mean from that of the past, in standard deviations of each
#: feature, from which on it counts. At the end of a steady climb it is 3; tides are below that.
SHIFT = 6.0
#: A mean explains at least this part of the second moment along it, or it is no shift.
_MEAN_SHARE = 0.1
#: The alarm is a CUSUM of the excess over the margin and half of the normal advantage, in units of
#: the margin (a third of it for means), of the noise, or of the normal advantage, whichever is
#: largest. No batch adds more than `MOST`.
LIMIT, MOST = 5.0, 3.0
#: Every change doubles the limit of the next one: day would drop the night, and night the day, for
#: ever. It halves again within so many batches, and has an end.
_HALVES, _HIGHEST = 10_000, 1e6
#: A batch with less than this share of the usual variance along the components counts for less.
#: Where counters climb through their centre, they have next to none, and the rest says nothing
#: about the past.
USUAL = 0.25
#: Batches from which the normal advantage is learned.
_NORMAL = 64
#: With fewer batches, the normal advantage is not known.
_FIRST = 6


class DriftAlarm:
    """Compares two sets of components on batches that neither has seen.

    The normal advantage is the root mean square so far. Where the last few batches are sometimes
    better and sometimes worse guides than the past, being better means little. A single advantage
    counts for at most twice the normal one before it, so that a change does not hide itself.

    Parameters
    ----------
    margin
        Advantage that does not count.
    unit
        Advantage beyond it that counts as 1.
    """

    def __init__(self, margin: float = MARGIN, unit: float = MARGIN) -> None:
        self.margin, self.unit = margin, unit
        self.limit = LIMIT
        self.begin_again()

    def begin_again(self) -> None:
        """Know nothing of what is normal."""
        self.cusum = 0.0
        self.normal = (0.0, 0)  # mean square of the advantage, as a share; number of batches

    def __call__(self, kept: float, recent: float, sd: float, k: int, usual: float = 0.0) -> bool:
        """True if the past should be dropped.

        Parameters
        ----------
        kept, recent
            Noisy variance of the newest batch along the components from all batches before it, and
            along those from the last few.
        sd
            Noise sd in one coordinate of the covariance.
        k
            Number of components.
        usual
            Variance of all batches before it along their components.
        """
        noise = sd * math.sqrt(2 * k)
        whole = max(kept, recent, noise, 1e-300)
        return self.judge((recent - kept) / whole, noise / whole, whole / max(whole, USUAL * usual))

    def judge(self, advantage: float, noise: float, weight: float = 1.0) -> bool:
        """True if the past should be dropped.

        Parameters
        ----------
        advantage
            Advantage of the last few batches over all of them, as a share of the variance.
        noise
            Sd of the noise in the advantage.
        weight
            By how much the advantage counts; for what is normal it counts in any case.
        """
        largest = 1.0 if self.margin < 1 else 100 * self.margin
        share = min(max(advantage, -largest), largest)
        square, n = self.normal
        normal = math.sqrt(square)
        unit = max(self.unit, noise, normal)
        if n >= _FIRST:
            excess = (weight * share - self.margin - normal / 2) / unit
            self.cusum = max(0.0, self.cusum + min(excess, MOST))
        n = min(n + 1, _NORMAL)
        self.normal = (float(square + (min(share, 2 * unit) ** 2 - square) / n), n)
        self.limit = max(LIMIT, self.limit * 0.5 ** (1 / _HALVES))
        return self.cusum >= self.limit

    def state(self) -> dict[str, Any]:
        return {"cusum": float(self.cusum), "normal": list(self.normal), "limit": self.limit}

    def load(self, state: dict[str, Any]) -> None:
        self.cusum = float(state["cusum"])
        square, n = state["normal"]
        self.normal, self.limit = (float(square), int(n)), float(state["limit"])
        learned = 0 <= self.normal[0] < math.inf and n >= 0
        if not (learned and 0 <= self.cusum < math.inf and LIMIT <= self.limit <= _HIGHEST):
            raise ValueError("not a state of this alarm")


class Change(NamedTuple):
    """The verdict about a batch."""

    dropped: bool  #: the past should be dropped
    shifted: bool  #: and the mean has shifted


class Drift:
    """Both alarms: components that have turned, and means that have shifted.

    Parameters
    ----------
    known_center
        If true, the mean is 0, and does not shift.
    """

    def __init__(self, known_center: bool) -> None:
        self.known_center = known_center
        self.turn, self.shift = DriftAlarm(), DriftAlarm(SHIFT, SHIFT / 3)

    @property
    def most_doubtful(self) -> int:
        """So many batches that hint at a change are not yet part of the past.

        It is compared with later ones, and would soon look like the new state: a sudden change adds
        about `MOST` per batch, and shows within them.
        """
        return math.ceil(self.turn.limit / MOST) + 1

    def begin_again(self) -> None:
        """Judge a new stream, but take twice as much for a change."""
        for alarm in (self.turn, self.shift):
            alarm.limit = min(2 * alarm.limit, _HIGHEST)
            alarm.begin_again()

    @property
    def calm(self) -> bool:
        """True if the newest batches do not hint at a change."""
        return self.turn.cusum == 0 and self.shift.cusum == 0

    def judge(
        self, alone: FloatArray, sd: float, *, b: float, past: Components, recent: FloatArray
    ) -> Change:
        """Tell whether the past should be dropped.

        Parameters
        ----------
        alone, sd
            The moments of (z, b) of the newest step alone, and the sd of their noise.
        past
            Everything that follows from all batches before it.
        recent
            Components from the last few batches.
        """
        mean = np.zeros(len(past.mean)) if self.known_center else past.mean
        own = alone[:-1, -1] / b

        def along(W: FloatArray) -> float:
            """The variance along these components, around the mean of all batches."""
            V = W / past.deviation[:, np.newaxis]
            shift = mean @ V
            moved = past.valid * (shift @ shift) - 2 * (own @ V) @ shift
            return float(np.sum(V * (alone[:-1, :-1] @ V)) + moved) / past.valid

        k, usual = past.W.shape[1], float(past.values.sum())
        turned = self.turn(along(past.W), along(recent), sd / past.valid, k, usual)
        shifted = not self.known_center and self._shifted(alone, sd, b, past)
        return Change(turned or shifted, shifted or (turned and self.shift.cusum > 0))

    def _shifted(self, alone: FloatArray, sd: float, b: float, past: Components) -> bool:
        """Tell whether the means of steps have been far from that of the past."""
        seen = past.varies
        r, n = past.deviation[seen], max(int(np.count_nonzero(seen)), 1)
        # A shift is clipped, so fewer count; but a count that noise made small is none.
        valid = min(max(float(alone[-1, -1]), 4 * sd, 0.01 * b**2) / b**2, 1.0)
        own = alone[:-1, -1] / b
        valid = min(valid, _left(own, alone[:-1, :-1], sd / b, r, past))
        apart = (own[seen] / valid - past.mean[seen]) / r
        noise = 2 * sd / (b * valid) * float(np.linalg.norm(apart / r)) / n
        return self.shift.judge(float(apart @ apart) / n, noise)

    def state(self) -> dict[str, Any]:
        return {"alarm": self.turn.state(), "shift_alarm": self.shift.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.turn.load(state["alarm"])
        self.shift.load(state["shift_alarm"])


def _left(own: FloatArray, second: FloatArray, sd: float, r: FloatArray, past: Components) -> float:
    """The share of records that clipping leaves of a shift, 1 if there is none.

    The count of records says it, too, but drowns in noise. With g the share, m the mean along its
    own direction and l the variance there, the released mean is g m long, and the released second
    moment along it is q = g (m^2 + l). So m + l/m = q/(g m), of which the larger m is a shift, and
    the smaller none. It is taken only if the mean explains a good part of q: a loud batch is no
    shift.

    Parameters
    ----------
    own, second
        Released mean and second moments of a step.
    sd
        sqrt 2 times the sd of the noise in `own`.
    r
        Deviations of the features with spread.
    """
    square = float(own @ own) - len(own) * sd**2 / 2
    along = float(own @ second @ own) / max(float(own @ own), 1e-300)
    if not 0 < _MEAN_SHARE * along < square:
        return 1.0
    length, variance = math.sqrt(square), float(past.values.max()) * float(np.median(r)) ** 2
    ratio = along / length
    mean = (ratio + math.sqrt(max(ratio**2 - 4 * variance, 0.0))) / 2
    return min(length / mean, 1.0)

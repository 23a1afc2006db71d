"""What is remembered of releases, and the noise in it: all of it post-processing.

Every batch has the same weight, except for the newest few, of which a part is held back (`HELD`):
the noise of a release cancels with those that follow it. These weights are close to those of least
squares, and save 9 % of the noise after 16 batches. Least squares would also give early batches
more weight than the rest, but that turns the component of a stream whose batches differ.
"""

from __future__ import annotations

import base64
import copy
import math
from functools import lru_cache
from typing import Any, Self

import numpy as np

from ..arrays import FloatArray
from ..mechanisms.correlated import DECAYS, Released

#: Share of the newest batches that is held back: this share of the newest, half of it of the batch
#: before, and so on.
HELD = 0.4
#: Share of itself that the mean of the last few batches keeps: effectively two batches.
RECENT = 0.5
#: No mean of a saved state is larger, nor its noise, so that nothing overflows later.
_LARGEST = 1e12
#: By about this much the share of valid units may differ from that of the first step.
_STEADY = 0.1


def constant(d: int) -> float:
    """b of y = (z, b): b^2 = d/20 costs 5 % more noise and measures means well enough."""
    return math.sqrt(d / 20)


class RunningMean:
    """The mean of the releases of all batches so far, with or without forgetting.

    Parameters
    ----------
    shape
        Shape of what a batch releases.
    """

    def __init__(self, *shape: int) -> None:
        self.total = np.zeros(shape)  # weighted
        self.weight = 0.0  # batches
        self.noise = 0.0  # variance of the noise in one coordinate of the total

    @property
    def mean(self) -> FloatArray:
        return np.asarray(self.total / max(self.weight, 1e-300))

    @property
    def sd(self) -> float:
        """Noise sd in one coordinate of the mean."""
        return math.sqrt(self.noise) / max(self.weight, 1e-300)

    def add(self, released: FloatArray, noise: float, keep: float, weight: float = 1.0) -> None:
        """Add the sum of `weight` batches; `noise` is the variance of the total with it."""
        if keep != 1.0:
            self.total *= keep
        self.total += released
        self.weight = keep * self.weight + weight
        self.noise = noise

    def settle(self) -> None:
        """Round the total to the single precision of states, far below its noise.

        A model that is restored then has the same numbers as one that was never stopped.
        """
        self.total[...] = self.total.astype(np.float32)

    def less(self, newest: Self, share: float) -> Self:
        """The same with a share of the newest batches held back.

        The noise of the mean is taken to be the same; in fact it is less (see `HELD`).
        """
        held = copy.copy(self)
        held.total = self.total - share * newest.total
        held.weight -= share * newest.weight
        held.noise *= (held.weight / max(self.weight, 1e-300)) ** 2
        return held

    def copy(self) -> Self:
        return copy.deepcopy(self)

    def _numbers(self) -> FloatArray:
        """The total, as it is written into a state."""
        return self.total

    def _of_numbers(self, numbers: FloatArray) -> FloatArray:
        return numbers

    def state(self) -> dict[str, Any]:
        """Plain JSON; the numbers of the total are base64 of single precision, little-endian."""
        numbers = base64.b64encode(self._numbers().astype("<f4").tobytes()).decode()
        return {"total": numbers, "weight": self.weight, "noise": self.noise}

    def load(self, state: dict[str, Any]) -> None:
        numbers = np.frombuffer(base64.b64decode(state["total"], validate=True), "<f4")
        numbers = numbers.astype(np.float64)
        weight, noise = float(state["weight"]), float(state["noise"])
        if numbers.shape != self._numbers().shape or not np.isfinite(numbers).all():
            raise ValueError("not a mean of this method")
        if not (0 <= weight < math.inf and 0 <= noise <= (_LARGEST * weight) ** 2):
            raise ValueError("not a mean of this method")
        if np.abs(numbers).max(initial=0.0) > _LARGEST * weight:
            raise ValueError("not a mean of this method")
        self.total, self.weight, self.noise = self._of_numbers(numbers), weight, noise


class RunningMoments(RunningMean):
    """The mean of the released moments of y = (z, b), a symmetric matrix.

    Parameters
    ----------
    d
        Number of features.
    """

    def __init__(self, d: int) -> None:
        super().__init__(d + 1, d + 1)
        self.constant = constant(d)  #: b
        self.first_valid = (1.0, 1.0)  #: share of valid units in the first step, and its noise sd

    @property
    def valid(self) -> float:
        """w, the share of valid units.

        All variances are divided by it, and a few thousand records show it to .3 only. So it is
        moved towards the answer of the first step, by the variances of both.
        """
        square = self.constant**2
        found = float(self.total[-1, -1]) / (max(self.weight, 1e-300) * square)
        asked, sd = self.first_valid
        own, first = (self.sd / square) ** 2, sd**2 + _STEADY**2
        return min(max((found * first + asked * own) / (first + own), 0.05), 1.0)

    def mean_and_variance(self) -> tuple[FloatArray, FloatArray, float]:
        """Mean and variance of z, and the noise sd of a variance."""
        weight = max(self.weight, 1e-300) * self.valid
        m = self.total[:-1, -1] / (weight * self.constant)
        return m, np.diag(self.total)[:-1] / weight - m**2, self.sd / self.valid

    def rescale(self, factor: FloatArray) -> None:
        """Turn z_j into factor_j z_j, as if it had been measured like that."""
        full = np.append(factor, 1.0)
        self.total *= np.outer(full, full)  # symmetric to the last bit, as it is in states

    def shift(self, by: FloatArray) -> None:
        """Turn z into z - by: the constant in y makes that a linear map."""
        by = np.append(by / self.constant, 0.0)
        self.total -= np.outer(by, self.total[-1])
        self.total -= np.outer(self.total[:, -1], by)
        self.total = self._of_numbers(self._numbers())  # symmetric to the last bit

    def _numbers(self) -> FloatArray:
        return np.asarray(self.total[np.triu_indices(len(self.total))])

    def _of_numbers(self, numbers: FloatArray) -> FloatArray:
        total, upper = np.zeros(self.total.shape), np.triu_indices(len(self.total))
        total[upper] = total.T[upper] = numbers
        return total


class Memory:
    """The moments of all batches so far, and of the last few.

    Parameters
    ----------
    d
        Number of features.
    keep
        Share of the past that is kept with every batch.
    """

    def __init__(self, d: int, keep: float) -> None:
        self.keep = keep
        self.all, self.recent = RunningMoments(d), RunningMoments(d)
        # The batches that hint at a change, with the variance of the noise in `all` before them.
        self.doubtful = RunningMoments(d)
        self._noise = NoiseOfSums((keep, RECENT), DECAYS)

    @property
    def empty(self) -> bool:
        return self.all.weight == self.recent.weight == self.doubtful.weight == 0

    def begin(self, valid: tuple[float, float]) -> None:
        """Take over the share of valid units in the first step, and the sd of its noise."""
        for moments in (self.all, self.recent, self.doubtful):
            moments.first_valid = valid

    def sd_of_next(self, released: Released) -> float:
        """Noise sd of `alone` in a release that has not been added yet, in units of its noise."""
        return self._noise.of_next(released)

    def add(
        self,
        released: Released,
        alone: FloatArray,
        gain: float,
        weight: float = 1.0,
        doubtful: bool = False,
    ) -> None:
        """Add a step's own moments.

        Parameters
        ----------
        alone
            The moments: those of the release times `gain`, as a matrix.
        weight
            Batches of the step.
        doubtful
            The step hints at a change, and is not yet part of what is trusted.
        """
        self._noise.add(released, gain)
        of_all, of_recent = self._noise.variances
        self.all.add(alone, of_all, self.keep, weight)
        self.recent.add(alone, of_recent, RECENT, weight)
        if doubtful:
            self.doubtful.add(alone, self.doubtful.noise, 1.0, weight)
        else:
            self.trust()

    def trust(self) -> None:
        """Take all batches so far for the past that later ones are compared with."""
        if self.doubtful.weight:  # most of the time there is nothing to forget
            self.doubtful.total[...], self.doubtful.weight = 0.0, 0.0
        self.doubtful.noise = self.all.noise

    def trusted(self) -> RunningMoments:
        """The moments of all batches up to the last call of `trust`."""
        past = self.all.less(self.doubtful, 1.0)
        past.noise = self.doubtful.noise
        return past

    def drop_past(self) -> None:
        """Drop all but the last few batches."""
        self.all = self.recent.copy()
        self._noise.copy_sum(1, 0)
        self.trust()

    def held_back(self, share: float) -> RunningMoments:
        """The moments of all batches, with a share of the newest held back."""
        return self.all.less(self.recent, share)

    def rescale(self, factor: FloatArray) -> None:
        """Turn z_j into factor_j z_j, as if it had been measured like that."""
        if (factor != 1.0).any():
            self.all.rescale(factor)
            self.recent.rescale(factor)
            self.doubtful.rescale(factor)

    def shift(self, by: FloatArray) -> None:
        """Turn z into z - by."""
        self.all.shift(by)
        self.recent.shift(by)
        self.doubtful.shift(by)

    def settle(self) -> None:
        """Leave the moments as a state holds them, at the end of a step."""
        self.all.settle()
        self.recent.settle()
        if self.doubtful.weight:
            self.doubtful.settle()

    def state(self) -> dict[str, Any]:
        return {
            "moments": self.all.state(),
            "recent": self.recent.state(),
            "doubtful": self.doubtful.state() if self.doubtful.weight else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`, or raise a ValueError."""
        self.all.load(state["moments"])
        self.recent.load(state["recent"])
        self.trust()
        if state["doubtful"] is not None:
            self.doubtful.load(state["doubtful"])
        if not (self.doubtful.weight < self.all.weight or self.empty):
            raise ValueError("not a memory of this method")
        self._noise.begin((self.all.noise, self.recent.noise))


class NoiseOfSums:
    """Variance of the noise in running sums of `alone` of `CorrelatedRelease`, one coordinate.

    The noise in the release of batch t is fresh, xi_t. With s_b the noise in the running sums of
    `alone` there, that in `alone` is

        a = (xi_t - sum_b s_b)/own,

    after which s_b becomes decay_b s_b + later_b a, and a running sum n becomes keep n + gain a. So
    all these are linear in the vector (n, s) and xi_t, and the covariance of (n, s) follows from
    batch to batch, whatever weights, gains and keeps are. For a constant column and gain 1 it is
    what one expects: the noise xi of k batches ago is in n with the weight
    h_k = keep h_{k-1} + (1/C)_k, and the variance of n is the sum of all h_k^2. (With keep = 1, h_k
    is a sum in which the series 1/C cancels; with any other keep less of it does.)

    Parameters
    ----------
    keeps
        Share that each running sum keeps of itself with every batch.
    decays
        Decays of the sums in `CorrelatedRelease`.
    """

    def __init__(self, keeps: tuple[float, ...], decays: tuple[float, ...]) -> None:
        self._sums = len(keeps)
        self._stay = np.array((*keeps, *decays))
        self.begin((0.0,) * len(keeps))

    def begin(self, noise: tuple[float, ...]) -> None:
        """Begin a new C with sums of these variances."""
        self._covariance = np.diag((*noise, *(0.0,) * (len(self._stay) - len(noise))))

    @property
    def variances(self) -> tuple[float, ...]:
        """Variance of the noise in each running sum."""
        return tuple(np.diag(self._covariance)[: self._sums].tolist())

    def of_next(self, released: Released) -> float:
        """Noise sd of `alone` in a release that has not been added yet."""
        n = self._sums
        earlier = 0.0 if released.first else float(self._covariance[n:, n:].sum())
        return math.sqrt(1 + earlier) / released.weights.own

    def add(self, released: Released, gain: float) -> None:
        """Add `alone` of a release, times `gain`, to all running sums."""
        n, own, later = self._sums, released.weights.own, released.weights.later
        if released.first:
            self._covariance[n:], self._covariance[:, n:] = 0.0, 0.0
        enters = np.array((*(gain,) * n, *later)) / own
        step = np.diag(self._stay)
        step[:, n:] -= enters[:, np.newaxis]
        self._covariance = step @ self._covariance @ step.T + np.outer(enters, enters)

    def copy_sum(self, source: int, to: int) -> None:
        """Replace a running sum by a copy of another one."""
        which = np.arange(len(self._stay))
        which[to] = source
        self._covariance = self._covariance[np.ix_(which, which)]


@lru_cache(maxsize=16)
def noise_of_sums(
    own: float, later: tuple[float, ...], decays: tuple[float, ...], batches: int = 1024
) -> tuple[float, ...]:
    """Noise variance that each batch adds to a sum of `alone` of `CorrelatedRelease`.

    The noise in these is C^-1 xi for a Toeplitz matrix C with these weights, so that in the sum of
    n of them is xi times the running sums of the series 1/C, and the nth batch adds the square of
    the nth running sum.
    """
    inverse, sums = [], np.zeros(len(decays))
    for t in range(batches):
        alone = (float(t == 0) - float(sums.sum())) / own
        inverse.append(alone)
        sums = np.array(decays) * sums + np.array(later) * alone
    return tuple((np.cumsum(inverse) ** 2).tolist())

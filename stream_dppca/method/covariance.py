"""Components from released moments of (z, b): all of it post-processing.

The moment of y = (z, b) holds the share of valid records w, the mean m and the second moment of z
at once: with M its blocks, w = M_bb/b^2, m = M_zb/(b w), C = M_zz/w - m m^T. All three are linear
in the release or follow from it afterwards, so batches whose means differ add up to the total
covariance, and nulls and clip weights divide out.

Every batch has the same weight, except for the newest few, of which a part is held back (`HELD`):
the noise of a release cancels with those that follow it. These are about the weights of least
squares, and save 9 % of the noise after 16 batches. Least squares would also give early batches
more weight than the rest, but that turns the component of a stream whose batches differ.
"""

from __future__ import annotations

import base64
import copy
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from ..arrays import BoolArray, FloatArray
from ..mechanisms.correlated import Released
from ..mechanisms.eigen import leading

__all__ = [
    "HEAVY",
    "HELD",
    "Components",
    "NoiseOfSums",
    "RunningMean",
    "RunningMoments",
    "components",
    "noise_of_sums",
]

#: Share of the newest batches that is held back: this share of the newest, half of it of the batch
#: before, and so on.
HELD = 0.4

#: A variance is taken to be at least this many sds of its noise.
_FLOOR_SDS = 3.0
#: A feature whose spread is unknown is left out unless its variance is this many sds above zero.
_SEEN_SDS = 4.0
#: Most eigenvalues that are released.
_MOST_EIGENVALUES = 20
#: An eigenvalue stands out if it is this many sds of its noise above what noise alone would make.
_OUT_SDS = 2.0
#: Relative sd of an eigenvalue because of heavy tails, fitted to real streams.
HEAVY = 0.03


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
        self.total = self.total.astype(np.float32).astype(np.float64)

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
        other = copy.copy(self)
        other.total = self.total.copy()
        return other

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
        if not (0 <= weight < math.inf and 0 <= noise < math.inf):
            raise ValueError("not a mean of this method")
        self.total, self.weight, self.noise = self._of_numbers(numbers), weight, noise


class RunningMoments(RunningMean):
    """The mean of the released moments: a symmetric matrix, whose upper triangle is in states.

    Parameters
    ----------
    size
        Size of y: the number of features plus one.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.size = size

    def spread(self, constant: float) -> tuple[float, FloatArray, FloatArray, float]:
        """The share of valid units, mean and variance of z, and the noise sd of a variance."""
        weight, d = max(self.weight, 1e-300), self.size - 1
        w = min(max(float(self.total[d, d]) / (weight * constant**2), 0.05), 1.0)
        m = self.total[:d, d] / (weight * constant * w)
        return w, m, np.diag(self.total)[:d] / (weight * w) - m**2, self.sd / w

    def rescale(self, factor: FloatArray) -> None:
        """Turn z_j into factor_j z_j, as if it had been measured like that."""
        full = np.append(factor, 1.0)
        self.total *= np.outer(full, full)  # symmetric to the last bit, as it is in states

    def shift(self, by: FloatArray, constant: float) -> None:
        """Turn z into z - by: the constant in y makes that a linear map."""
        by = np.append(by / constant, 0.0)
        self.total -= np.outer(by, self.total[-1])
        self.total -= np.outer(self.total[:, -1], by)
        self.total = self._of_numbers(self._numbers())  # symmetric to the last bit

    def _numbers(self) -> FloatArray:
        return np.asarray(self.total[np.triu_indices(self.size)])

    def _of_numbers(self, numbers: FloatArray) -> FloatArray:
        total, upper = np.zeros((self.size, self.size)), np.triu_indices(self.size)
        total[upper] = total.T[upper] = numbers
        return total


@dataclass(frozen=True, eq=False)
class Components:
    """Mean, spread and components that follow from the running moments."""

    mean: FloatArray  #: m
    variance: FloatArray  #: of z, noisy
    spread: FloatArray  #: r, positive; infinite for features without spread: their loading is 0
    W: FloatArray  #: d x k, orthonormal columns, largest variance first
    values: FloatArray  #: variance along each, of (z - m)/r
    total: float  #: the sum of all variances
    sd: float  #: noise sd of a variance
    valid: float  #: w
    spectrum: FloatArray  #: all eigenvalues, of features with spread, descending; noisy
    in_one_unit: bool  #: features are not standardised

    @property
    def whole(self) -> float:
        """The variance of all features, seen or not: d of standardised ones."""
        return self.total if self.in_one_unit else float(len(self.mean))

    def eigenvalues(self, records: float, cut: float) -> tuple[FloatArray, FloatArray]:
        """The eigenvalues that stand out of the noise, and the sd of each.

        Noise alone reaches to sqrt(2 n) s. Those that are larger by two sds stand out.
        """
        edge = self.sd * (math.sqrt(2 * len(self.spectrum)) + _OUT_SDS)
        out = int(np.count_nonzero(self.spectrum > edge))
        return self.told(self.spectrum[: min(_MOST_EIGENVALUES, out)], records, cut)

    def told(self, values: FloatArray, records: float, cut: float) -> tuple[FloatArray, FloatArray]:
        """The largest eigenvalues of the spectrum, less what noise adds to them, and their sds.

        The noise E of the matrix has the sd s on the diagonal and s/sqrt 2 beside it, so w^T E w
        has the sd s for every w of length 1. To second order it moves the jth eigenvalue up by
        s^2/2 times the sum over all others of 1/(l_j - l_i), which is taken back. The stated sd has
        these parts:

        - noise: s, and half of what is taken back;
        - sampling: sqrt(2/n) of the value;
        - clipping: the share of the records beyond the radius times the radius in units of the mean
          squared length; half of what the variances of features with little spread lack, because
          their deviations are not taken to be smaller than noise allows; and `HEAVY` of the value
          for tails that are cut off. On real streams, eigenvalues of clamped records differ from
          those of raw ones by 1 to 5 %.

        Parameters
        ----------
        records
            n, from which the moments are.
        cut
            Share of the records that are clipped, times the length at which they are.
        """
        apart = values[:, np.newaxis] - self.spectrum
        # Neighbours within the noise exchange places: they push each other apart by no more.
        apart = np.where(np.abs(apart) < self.sd, np.inf, apart)
        up = self.sd**2 / 2 * np.sum(1 / apart, axis=1)
        found = np.minimum.accumulate(np.maximum(values - up, 0.0))
        seen = max(len(self.spectrum), 1)
        lacks = 0.0 if self.in_one_unit else max(1 - self.total / seen, 0.0) / 2
        relative = math.hypot(math.sqrt(2 / max(records, 1.0)), cut, lacks, HEAVY)
        return found, np.hypot(np.hypot(self.sd, up / 2), relative * found)


def components(
    moments: RunningMoments,
    *,
    constant: float,
    k: int,
    known: BoolArray,
    known_center: bool,
    spread: FloatArray | None,
    whole: bool = False,
) -> Components:
    """Read off mean, spread and components.

    Parameters
    ----------
    known
        Features whose spread has been seen.
    known_center
        If true, the mean is 0, and second moments take the place of the covariance.
    spread
        r if features are in one unit; None to take the released standard deviations.
    whole
        True to compute all eigenvalues.
    """
    M, d = moments.mean, moments.size - 1
    w, m, variance, sd = moments.spread(constant)
    if known_center:
        variance, m = variance + m**2, np.zeros(d)
    C = M[:d, :d] / w - np.outer(m, m)
    learned = np.sqrt(np.maximum(variance, max(_FLOOR_SDS * sd, 1e-12)))
    seen = known | (variance > _SEEN_SDS * sd)
    r = np.where(seen, learned if spread is None else spread, np.inf)
    which = np.flatnonzero(seen)
    found = min(k, len(which))
    C /= r
    C /= r[:, np.newaxis]
    if len(which) < d:
        C = C[np.ix_(which, which)]
    # Features without spread fill up if there are fewer with spread than components.
    W = np.eye(d)[:, np.r_[which, np.flatnonzero(~seen)][:k]]
    W[:, :found] = 0.0
    along = np.zeros(k)
    along[:found], W[which, :found] = leading(C, found) if found else ((), 0.0)
    spectrum = np.asarray(np.linalg.eigvalsh(C)[::-1] if whole else along, dtype=np.float64)
    total = float(np.sum(variance[seen] / r[seen] ** 2))
    typical = float(np.median(1 / r[seen] ** 2)) if seen.any() else 1.0
    # A total that drowns in its noise is taken to be that noise.
    total = max(total, sd * typical, 1e-300)
    return Components(
        m, variance, r, W, along, total, sd * typical, w, spectrum, spread is not None
    )


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
        earlier = (
            0.0 if released.first else float(self._covariance[self._sums :, self._sums :].sum())
        )
        return math.sqrt(1 + earlier) / released.weights.own

    def add(self, released: Released, gain: float) -> None:
        """Add `alone` of a release, times `gain`, to all running sums."""
        n, own, later = self._sums, released.weights.own, released.weights.later
        if released.first:
            self._covariance[n:], self._covariance[:, n:] = 0.0, 0.0
        enters = np.r_[np.full(n, gain), later] / own
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

"""The default method: the paper's shape (range, mean, step), each part made tight.

One batch, in order:

1. **Range.** A clip radius by noisy binary search (`radius`), on all records of the batch.
2. **Mean.** The clipped mean of the gradients (`GradientMethod`) or, for few features, of the
   second moments (`MomentMethod`), with noise that cancels over batches (`correlated`). `scout`
   chooses between the two.
3. **Step.** The releases so far are combined with the weights of least squares (`whitening`,
   `estimate`), and the components are read off.

1 and 2 use the same records and share mu^2. Everything else, the centre, the weights and the step
included, is post-processing of the releases of 1 and 2.

**Subjects** (`participation`). The number of places of a round that are taken is not public, so the
counts of 1 begin with one more: the noisy number of subjects n^, which takes the place of the
number of rows wherever a share is needed. Sums are divided by the number of places, a public
number, and everything computed from n^ is post-processing. Noise is not correlated over rounds
(`independent`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..arrays import FloatArray
from ..errors import BatchSizeError
from ..method import FEW_SUBJECTS, Outcome, checked_basis
from ..noise import Noise
from ..oja import column_signs, orthonormal
from ..participation import PerSubject, mu_of, size_words
from ..statistics import Form, Rows
from .correlated import DECAYS, CorrelatedRelease, Released
from .eigen import leading
from .estimate import RunningEstimate
from .independent import IndependentRelease
from .queries import Gradients, MeanGradients, SecondMoments, unpack
from .radius import FIRST, LAST, count_of_counts, noisy_radius, radius
from .whitening import Whitener

__all__ = ["AdaptiveMethod", "GradientMethod", "MomentMethod", "range_share", "smallest_batch"]

#: Weights of a batch in later releases fall as (1 + age)^-power.
MOMENT_POWER, GRADIENT_POWER = 0.57, 0.65

#: Eigenvalues in a saved state are at most this: those of records of norm 1e18 are below 2^120.
_LARGEST = 2.0**160


#: At least this many sds of the noise of a count may lie beyond the radius. With 2 of them, a count
#: of zero is taken for too many once in 44 times, several counts are near zero, and the radius is
#: then octaves too large: in 8 % of all batches with 3 features, B = 1000 and epsilon 4.
_SURE_OF_RADIUS = 4.0
#: n^ must be this many sds of its noise above zero, or nothing is learned from the round.
_SURE_OF_SUBJECTS = 3.0


def _counts(subjects: bool) -> int:
    """Counts per batch: those of the search, and with subjects their number."""
    return count_of_counts(FIRST, LAST) + subjects


def range_share(rows: int, mu: float, subjects: bool = False) -> float:
    """Share of mu^2 for the range: counts with sd 3 % of the batch, for 0.5 to 20 %."""
    return min(0.2, max(0.005, _counts(subjects) / (0.03 * rows * mu) ** 2))


def smallest_batch(mu: float, subjects: bool = False) -> int:
    """Rows with which a count of the range search has sd 10 % of the batch at the largest share."""
    return math.ceil(math.sqrt(_counts(subjects) / 0.2) / (0.1 * mu))


class AdaptiveMethod(ABC):
    """Base class of the two forms.

    Parameters
    ----------
    W
        d x k, the start.
    epsilon, delta
        The guarantee of every batch.
    rows
        Rows per batch.
    quantile
        Quantile of the distances at which to clip.
    sampling
        Public guess of sampling variance over privacy variance of one batch and coordinate.
    size
        As for `RunningEstimate`.
    subjects
        Given if the rows of a batch are subjects.
    part
        Part of mu^2 for range and mean; the rest is left for other queries of the caller.
    """

    def __init__(
        self,
        *,
        W: FloatArray,
        epsilon: float,
        delta: float,
        rows: int,
        quantile: float,
        sampling: float,
        size: float,
        subjects: PerSubject | None = None,
        part: float = 1.0,
    ) -> None:
        self.W = W
        self.rows = rows
        self.quantile = quantile
        self.subjects = subjects
        self.mu = mu_of(epsilon, delta, subjects, rows) * math.sqrt(part)
        share = range_share(rows, self.mu, subjects is not None)
        self.mu_range = self.mu * math.sqrt(share)
        self.mu_mean = self.mu * math.sqrt(1 - share)
        self.correlated: CorrelatedRelease | IndependentRelease
        if subjects is None:
            self.correlated = CorrelatedRelease(mu=self.mu_mean, decays=DECAYS)
        else:
            self.correlated = IndependentRelease(mu=self.mu_mean)
        self.whitener = Whitener(sampling=sampling, decays=DECAYS)
        self.estimate = RunningEstimate(size)

    def remember(self, memory: float | str) -> None:
        """Forget the past on alarm ("auto"), never ("all"), or after a number of batches."""
        self.estimate.memory = memory

    def check_batch(self, rows: int) -> None:
        smallest = smallest_batch(self.mu, self.subjects is not None)
        if rows < smallest:
            what, name = size_words(self.subjects)
            why = f"with fewer {what} the range cannot be found within the noise"
            raise BatchSizeError(rows, smallest, why, name)

    def step(self, rows: Rows, t: int, noise: Noise) -> Outcome:
        """Learn from one batch."""
        form = self._form()
        answers = rows.ranged(form)
        # 1. Range.
        mu_range, taken, found = self.mu_range, float(self.rows), None
        if self.subjects is not None:
            mu_range, found = self._count(rows, noise)
            taken = min(max(found, 0.0), taken)
        j = noisy_radius(
            lambda j: answers.beyond(radius(j)),
            beyond=self.beyond(taken),
            mu=mu_range,
            noise=noise,
        )
        if found is not None and found < _SURE_OF_SUBJECTS * self.count_sd:
            return Outcome.skip(FEW_SUBJECTS, units=found)
        if j == FIRST:
            why = "no spread: almost all records seem to be zero, or nulls"
            return Outcome.skip(why, units=found)
        rho = self._radius(j)
        # 2. Mean.
        mean = form.mean(answers.clipped_sum(rho), rho, self.rows)
        sensitivity = form.sensitivity(rho, self.rows)
        released = self.correlated.release(
            mean, sensitivity=sensitivity, power=self._power(), noise=noise
        )
        # 3. Step. From here on, post-processing.
        if released.first:
            self.whitener.forget()
        unit = self.mu_mean / sensitivity
        weight_before = self.estimate.weight
        spread = self._learn(released, sensitivity, unit, taken / self.rows)
        gained = self.estimate.weight - weight_before
        return Outcome(
            spread=spread,
            range=rho,
            step=min(max(gained / self.estimate.weight, 0.0), 1.0),
            sigma=1 / unit,
            drift=self.estimate.dropped,
            units=found,
        )

    @property
    def count_sd(self) -> float:
        """Noise sd of each count of a batch."""
        return math.sqrt(_counts(self.subjects is not None)) / self.mu_range

    def beyond(self, taken: float) -> float:
        """Number of units, out of `taken`, that may lie beyond the radius."""
        sure = min(_SURE_OF_RADIUS * self.count_sd, taken / 2)
        return max((1 - self.quantile) * taken, sure)

    def _count(self, rows: Rows, noise: Noise) -> tuple[float, float]:
        """Budget of the counts of the search, and the noisy number of subjects.

        Adjacency: everything that one subject sends in the round is replaced.
        Sensitivity: 1.
        Noise: as that of each count of the search, so that all of them spend mu_range together.
        Delta: none beyond that of mu.
        """
        counts = _counts(subjects=True)
        mu_count = self.mu_range / math.sqrt(counts)
        found = noise.gaussian(np.array([float(rows.present())]), sensitivity=1.0, mu=mu_count)
        return mu_count * math.sqrt(counts - 1), float(found[0])

    def _radius(self, j: int) -> float:
        """The radius to clip at, from the index that the search has found."""
        return radius(j)

    @abstractmethod
    def _form(self) -> Form: ...

    @abstractmethod
    def _power(self) -> float: ...

    @abstractmethod
    def _theta_shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def _learn(
        self, released: Released, sensitivity: float, unit: float, presence: float
    ) -> FloatArray:
        """Update the estimate and W. Returns the noisy spread along each component.

        Parameters
        ----------
        unit
            Unit of the release: 1 over the sd of the noise in the mean.
        presence
            Noisy share of the places that are taken: 1 for records.
        """

    def state(self) -> dict[str, Any]:
        return {"W": self.W.tolist(), "estimate": self.estimate.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.W = checked_basis(state["W"], like=self.W)
        self.estimate.load(state["estimate"], shape=self._theta_shape())
        self.correlated.forget()
        self.whitener.forget()


class MomentMethod(AdaptiveMethod):
    """Form for few features: theta is the clipped second moment, W its top eigenvectors."""

    def __init__(
        self,
        *,
        W: FloatArray,
        epsilon: float,
        delta: float,
        rows: int,
        subjects: PerSubject | None = None,
    ) -> None:
        d, k = W.shape
        sampling = 0.5 * rows * mu_of(epsilon, delta, subjects, rows) ** 2 / d**1.5
        # Clipping at the median turns the first component where records are not elliptical: with
        # 784 features by .07 on Fashion-MNIST, at .86 by .03. There noise allows .86: 10 % more on
        # eigenvalues 1/i. Up to 64 features, and for more components, noise would be the larger
        # error.
        tightest = 0.5 + 0.36 / k**2 * min(max(d - 64, 0) / 448, 1.0)
        super().__init__(
            W=W,
            epsilon=epsilon,
            delta=delta,
            rows=rows,
            # The more the noise matters, the tighter the clip.
            quantile=tightest + (0.95 - tightest) * sampling / (sampling + 2),
            sampling=sampling,
            size=W.shape[1] * (d + 1) / 2,  # of theta W: off the diagonal the variance is 1/2
            subjects=subjects,
        )
        self.power = MOMENT_POWER

    def _form(self) -> SecondMoments:
        return SecondMoments(1 if self.subjects is None else self.subjects.records)

    def _power(self) -> float:
        return self.power

    def _theta_shape(self) -> tuple[int, ...]:
        d = self.W.shape[0]
        return (d * (d + 1) // 2,)

    def _learn(
        self, released: Released, sensitivity: float, unit: float, presence: float
    ) -> FloatArray:
        white = self.whitener(released.weights, released.y, gain=unit * presence)
        self.estimate.add(white, self.whitener, view=lambda v: unpack(v) @ self.W)
        values, vectors = leading(unpack(self.estimate.theta), self.W.shape[1])
        self.W = orthonormal(vectors, like=self.W)
        return values


class GradientMethod(AdaptiveMethod):
    """Form for many features: theta is A W less its bulk, a few directions times their strength.

    Model of a release: (A - bulk I) V_{t-1} = gain_t theta, where gain_t is the part of the
    components that V_{t-1} already holds. Releases made while V was poor count little, but none is
    thrown away.
    """

    def __init__(
        self,
        *,
        W: FloatArray,
        epsilon: float,
        delta: float,
        rows: int,
        subjects: PerSubject | None = None,
        part: float = 1.0,
    ) -> None:
        d, k = W.shape
        mu = mu_of(epsilon, delta, subjects, rows) * math.sqrt(part)
        quantile = min(0.7, 0.15 + 0.35 * rows * mu**2 / d)
        super().__init__(
            W=W,
            epsilon=epsilon,
            delta=delta,
            rows=rows,
            quantile=quantile,
            sampling=rows * mu**2 * (1 - 0.7 * quantile) / (4 * d * k),
            size=d * k,
            subjects=subjects,
            part=part,
        )
        self.V = W  # the iterate; W is V turned so that its columns are components
        self.L = np.zeros((k, k))  # noisy V^T A V: the centre is V L
        self.bulk = 0.0  # noisy mean eigenvalue
        self.first_sensitivity = 0.0
        self.gain = math.sqrt(k / d)

    def begin(self, *, values: FloatArray, bulk: float, gain: float, weight: float) -> None:
        """Start with W as components that were found before, of these eigenvalues.

        Parameters
        ----------
        gain
            Part of the components that W holds.
        weight
            1 / variance of each number in W times its eigenvalue.
        """
        d = self.V.shape[0]
        self.L = np.diag(values)
        self.bulk, self.gain = bulk, gain
        # As from a random start, where a gradient has length |x| |x.v|: at 1.5 times that in the
        # mean, little of the bulk is clipped.
        trace = float(values.sum()) + (d - len(values)) * bulk
        self.first_sensitivity = 2 * 1.5 * math.sqrt(trace * bulk) / self.rows
        self.estimate.begin(self.V * (values - bulk), weight)

    def _form(self) -> Gradients:
        return (Gradients if self.subjects is None else MeanGradients)(self.V, self.L)

    def _power(self) -> float:
        # The more accurate V is, the more later releases measure the same quantity.
        return GRADIENT_POWER + 1 - self.gain**2

    def _theta_shape(self) -> tuple[int, ...]:
        return self.V.shape

    def _learn(
        self, released: Released, sensitivity: float, unit: float, presence: float
    ) -> FloatArray:
        d, k = self.V.shape
        rayleigh = self.V.T @ released.alone[:d] / unit / presence
        if self.first_sensitivity == 0.0:
            self.first_sensitivity = sensitivity
            if self.estimate.weight == 0.0:  # V is random, so V^T A V is the mean eigenvalue
                self.bulk = max(0.0, float(np.trace(rayleigh)) / k)
        # Add the subtracted centre back, less the level that would be there without any signal.
        factor = Gradients.mean_factor(released.alone[d, 0] / unit, sensitivity, self.rows)
        bulk = self.bulk * presence * min(1.0, sensitivity / self.first_sensitivity)
        offset = self.V @ (factor * self.L - bulk * np.eye(k)) * unit
        self.L = self.L + (rayleigh + rayleigh.T) / 2

        white = self.whitener(
            released.weights, released.y[:d], offset=offset, gain=self.gain * unit * presence
        )
        if self.estimate.add(white, self.whitener):
            self.gain = math.sqrt(k / d)
        cosine = math.sqrt(max(1 - 1 / self.estimate.signal, 0.0))
        self.gain = max(self.gain, min(2 * self.gain, (2 / (d * k)) ** 0.25), cosine)
        if k == 1:
            V = orthonormal(self.estimate.theta, like=self.V)
            self.V = V * column_signs(V, self.estimate.theta)
            self.W = V * column_signs(V, self.W)
            return np.asarray(self.L[0])
        U, _, Vt = np.linalg.svd(self.estimate.theta, full_matrices=False)
        self.V = U @ Vt
        values, turn = np.linalg.eigh(self.L)
        self.W = orthonormal(self.V @ turn[:, ::-1], like=self.W)
        return np.asarray(values[::-1])

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "V": self.V.tolist(),
            "L": self.L.tolist(),
            "bulk": self.bulk,
            "first_sensitivity": self.first_sensitivity,
            "gain": self.gain,
        }

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.V = checked_basis(state["V"], like=self.V)
        L = np.array(state["L"], dtype=np.float64).reshape(self.L.shape)
        scalars = [float(state[name]) for name in ("bulk", "first_sensitivity", "gain")]
        # With numbers up to this size, lengths of gradients stay far from overflow. Otherwise a
        # valid record could have a length of NaN, which would pass the clip.
        if not (np.abs([*L.ravel(), *scalars]) <= _LARGEST).all():  # true for NaN
            raise ValueError("not a state of this method")
        if not (np.array_equal(L, L.T) and min(scalars) >= 0 and 0 < scalars[-1] <= 2):
            raise ValueError("not a state of this method")
        self.L = L
        self.bulk, self.first_sensitivity, self.gain = scalars

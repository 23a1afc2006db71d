"""Expected batch sizes, noise, error and time, before any data is touched.

The predictions are rules of thumb for the default method, fitted to simulations
(`benchmarks/accuracy.py` compares them with measurements). They use public numbers and two guesses
about the data, and spend no budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from .adaptive.correlated import DECAYS, weights
from .adaptive.method import range_share, smallest_batch
from .adaptive.scout import SCOUT_COMPONENTS, STAY, edge_of_noise, form_for, scout_noise
from .calibration import gaussian_mu
from .checks import one_of, positive, whole
from .errors import BatchSizeError, ParameterError
from .learned.base import POWER, smallest_learned_batch
from .learned.covariance import noise_of_sums
from .learned.method import MOST_FEATURES
from .learned.warmup import BALL, RECORDS, warm_up_batches
from .learned.wide import ALONG, BESIDE
from .wording import counted, error_lines, warm_up_line

__all__ = ["Plan", "guesses", "is_learned", "plan"]

#: A component is called useful below this sine of its angle to the truth.
USEFUL = 0.3
#: A batch size is recommended if the expected sine is below `GOOD` after `SOON` batches.
GOOD, SOON = 0.1, 16


class Plan(BaseModel):
    """The prediction of `plan`."""

    model_config = ConfigDict(frozen=True)

    dimension: int
    n_components: int
    epsilon: float
    delta: float
    batch_size: int
    #: Batches in which centre and scales are learned, and nothing else.
    warm_up_batches: int
    #: Below this, `DPPCA` refuses.
    minimum_batch_size: int
    #: The smallest round number with a good component after 16 batches.
    recommended_batch_size: int
    #: Noise sd in one coordinate of one release, in units of the top eigenvalue.
    noise_per_step: float
    #: The guess behind the fields below: the share of the variance along the first component.
    first_share: float
    #: (records, expected sine of the angle to the truth) after 1, 2, 4, ... batches.
    expected_error: tuple[tuple[int, float], ...]
    #: Records until the component is useful (sine below 0.3); None if that is not in sight.
    useful_after_records: int | None
    useful_after_seconds: float | None

    def sine_after(self, records: int) -> float:
        """Expected sine after this many records, by the figures of `expected_error`."""
        before = [sine for at, sine in self.expected_error if at <= records]
        later = [(at, sine) for at, sine in self.expected_error if at > records]
        if not before:
            return 1.0
        if not later:
            return before[-1]
        (at, sine), (last, start) = later[0], self.expected_error[len(before) - 1]
        part = math.log(records / last) / math.log(at / last)
        return float(start ** (1 - part) * sine**part)

    def __str__(self) -> str:
        lines = [
            f"{self.dimension} features, {counted(self.n_components, 'component')}, "
            f"epsilon = {self.epsilon:g}, delta = {self.delta:g}",
            f"batches of {self.batch_size} records (at least {self.minimum_batch_size}, "
            f"recommended {self.recommended_batch_size})",
            warm_up_line(self.warm_up_batches, "batch", "batches"),
            f"noise of a release, in each coordinate: {100 * self.noise_per_step:.2g} % of the "
            "variance along the first component",
            *error_lines(self.expected_error, "records", self.first_share),
        ]
        if self.useful_after_records is None:
            lines.append("no useful component in sight: use larger batches or more budget")
        else:
            seconds = self.useful_after_seconds
            when = "" if seconds is None else f", {seconds:.3g} s"
            records = self.useful_after_records
            lines.append(
                f"first useful component (error below {USEFUL}) after {records} records{when}"
            )
        return "\n".join(lines)


def plan(
    *,
    d: int,
    epsilon: float,
    delta: float,
    batch_size: int | None = None,
    rate: float | None = None,
    n_components: int = 1,
    center: str = "mean",
    scales: Any = "learn",
    trace_ratio: float | None = None,
    gap: float = 0.9,
    range_ratio: float | None = None,
) -> Plan:
    """Predict the error and the delay of `DPPCA`; `plan_subjects` is for privacy per subject.

    Parameters
    ----------
    d
        Number of features.
    epsilon, delta, batch_size, n_components, center, scales
        As for `DPPCA`. Without a batch size, the recommended one is taken.
    rate
        Records per second, for the time to a first useful component.
    trace_ratio
        Guess of the total variance over that of the first component; 1 + (d - 1)/10 by default,
        as if every other direction had a tenth of its variance.
    gap
        Guess of (lambda_k - lambda_{k+1}) / lambda_1, by which the components stand out.
    range_ratio
        Guess of the typical distance of a gradient x (x.w) to the mean gradient, over the top
        eigenvalue; that of Gaussian data by default. Data that hardly varies except along the
        component, such as +-v plus a little noise of sd s, has s sqrt(d). It matters where
        gradients are released: with more than 64 features.

    Examples
    --------
    >>> p = plan(d=50, epsilon=1.0, delta=1e-6, batch_size=2500, rate=1000.0)
    >>> p.warm_up_batches
    1
    >>> print(p)
    50 features, 1 component, epsilon = 1, delta = 1e-06
    batches of 2500 records (at least ..., recommended ...)
    warm-up: 1 batch, in which nothing else is learned
    ...
    """
    mu = gaussian_mu(epsilon, delta)
    one_of("center", center, ("mean", "none"))
    if rate is not None:
        positive("rate", rate)
    ratio, reach = guesses(d, n_components, trace_ratio, gap, range_ratio)
    learns = is_learned(center, scales)
    guess: _Guess = _Guess(d, n_components, epsilon, delta, ratio, gap, reach)
    minimum = smallest_batch(mu)
    if learns:
        known = center != "mean"
        kind = _WideGuess if d > MOST_FEATURES else _LearnedGuess
        guess = kind(d, n_components, epsilon, delta, ratio, gap, reach, known)
        minimum = smallest_learned_batch(d=d, mu=mu, known_center=known)
    recommended = next((n for n in _round_numbers(minimum) if guess.sine(n, SOON) <= GOOD), 10**9)
    size = recommended if batch_size is None else batch_size
    if size < minimum:
        raise BatchSizeError(size, minimum, "the range drowns in noise")
    useful = next((t for t in range(1, 1001) if guess.sine(size, t) <= USEFUL), None)
    records = None if useful is None else useful * size
    spread = ratio * math.sqrt(2) if guess.form(size) == "moment" else 2 * reach
    warm_up = guess.warm_up(size)
    return Plan(
        dimension=d,
        n_components=n_components,
        epsilon=epsilon,
        delta=delta,
        batch_size=size,
        warm_up_batches=warm_up,
        minimum_batch_size=minimum,
        recommended_batch_size=recommended,
        noise_per_step=spread / (size * mu * math.sqrt(1 - range_share(size, mu))),
        first_share=1 / ratio,
        expected_error=tuple(
            ((warm_up + 2**i) * size, guess.sine(size, warm_up + 2**i)) for i in range(7)
        ),
        useful_after_records=records,
        useful_after_seconds=None if records is None or rate is None else records / rate,
    )


def is_learned(center: str, scales: Any) -> bool:
    """Tell whether a centre or scales are learned, in a warm-up."""
    if isinstance(scales, str):
        one_of("scales", scales, ("learn",))
    return center == "mean" or isinstance(scales, str)


def guesses(
    d: int, n_components: int, trace_ratio: float | None, gap: float, range_ratio: float | None
) -> tuple[float, float]:
    """The total variance and the reach of a gradient over the top eigenvalue, after checks."""
    whole("d", d)
    whole("n_components", n_components, high=d)
    if not 0 < gap <= 1:
        raise ParameterError("gap", "must lie in (0, 1]", gap)
    ratio = 1 + (d - 1) / 10 if trace_ratio is None else trace_ratio
    if not (math.isfinite(ratio) and ratio >= 1):
        raise ParameterError("trace_ratio", "must be finite and at least 1", ratio)
    reach = 1.45 * math.sqrt(ratio * n_components) if range_ratio is None else range_ratio
    positive("range_ratio", reach)
    return ratio, reach


@dataclass(frozen=True)
class _Guess:
    """Public numbers and guesses. Eigenvalues are in units of the first."""

    d: int
    k: int
    epsilon: float
    delta: float
    ratio: float
    gap: float
    reach: float

    def warm_up(self, rows: int) -> int:
        """Batches of the warm-up."""
        return 0

    def form(self, rows: int) -> str:
        """Form of the releases: "moment"; "gradient", from a random start; "scouted" or "late".

        The last two are gradients after a first second moment, which shows a component or not.
        """
        form = form_for(d=self.d, epsilon=self.epsilon, delta=self.delta, rows=rows)
        if form != "scout":
            return form
        # As `ScoutMethod` decides, with what it should see of eigenvalues 1 and 1 - gap.
        radius, others = self._scout_radius(rows), max(self.d - self.k, 1)
        bulk = max(self.ratio - self.k, 0.0) / others
        edge = edge_of_noise(bulk, radius, d=self.d, rows=rows)
        stay = edge_of_noise(bulk, radius, d=self.d, rows=rows, margin=STAY)
        if self.k > SCOUT_COMPONENTS or _lifted(1 - self.gap, radius) > stay:
            return "moment"
        return "scouted" if _lifted(1.0, radius) > edge else "late"

    def _scout_radius(self, rows: int) -> float:
        noise = scout_noise(
            d=self.d, epsilon=self.epsilon, delta=self.delta, rows=rows, ratio=self.ratio
        )
        return noise / 2

    def sine(self, rows: int, batches: int) -> float:
        """Expected sine after this many batches.

        Sampling: the variance of a sample eigenvector. Noise: that of one release of everything,
        times the cost of a release after every batch: about 1.75 up to 96 batches, then as sqrt(t)
        (computed for the running sums of `correlated`).
        """
        d, k, gap, mu = self.d, self.k, self.gap, gaussian_mu(self.epsilon, self.delta)
        cost = 1.75 * max(1.0, math.sqrt(batches / 96))
        form, n = self.form(rows), float(batches * rows)
        if form == "moment":
            noise = cost * 1.25 * self.ratio * math.sqrt(d * k) / (n * mu * gap)
        elif form == "scouted" and batches == 1:
            noise = self._scout_radius(rows) * math.sqrt(k) / gap
        else:
            # From a random start each batch multiplies the signal by 1 + gain, to 1 from 1/sqrt(d).
            gain = 0.4 * gap * rows * mu / (self.ratio * math.sqrt(k))
            burn_in = 0.5 if form == "scouted" else 0.5 * math.log(d) / math.log1p(gain)
            burn_in += form == "late"
            if batches <= burn_in + 0.5:
                return 1.0
            n -= burn_in * rows
            noise = cost * 2 * self.reach * math.sqrt(d * k) / (n * mu * gap)
        sampling = 1.15 * k * max(self.ratio - k, 0.0) / (n * gap**2)
        square = sampling + noise**2
        return math.sqrt(square / (1 + square))


@dataclass(frozen=True)
class _LearnedGuess(_Guess):
    """The same with a learned centre or learned scales."""

    known_center: bool

    def warm_up(self, rows: int) -> int:
        mu = gaussian_mu(self.epsilon, self.delta)
        return warm_up_batches(d=self.d, mu=mu, units=rows, known_center=self.known_center)

    def form(self, rows: int) -> str:
        return "moment"

    def sine(self, rows: int, batches: int) -> float:
        """Expected sine after this many batches, those of the warm-up included.

        Noise: records of 1.8 times the mean squared length pass unclipped, all batches count the
        same. An allowance for real data (clamps, scales found in a small sample, batches of the
        warm-up that are missing from the rest) was fitted to the real data of docs/accuracy.md; x
        is the size that the warm-up needs over the size of the batch.
        """
        mu = gaussian_mu(self.epsilon, self.delta)
        learned = batches - self.warm_up(rows)
        if learned < 1:
            return 1.0
        column = weights(POWER)
        adds = noise_of_sums(column.own, column.later, DECAYS)
        cost = math.sqrt(sum(adds[: min(learned, len(adds))]))
        cost *= max(1.0, math.sqrt(learned / len(adds)))
        n = float(learned * rows)
        noise = cost * 1.8 * self.ratio * math.sqrt(self.d * self.k)
        noise /= n * mu * self.gap
        x = RECORDS * math.sqrt(self.d) / mu / rows
        real = (0.0045 * math.sqrt(self.d) + 0.06 * x**3) / self.gap
        sampling = 1.15 * self.k * max(self.ratio - self.k, 0.0) / (n * self.gap**2)
        square = sampling + noise**2 + real**2
        return math.sqrt(square / (1 + square))


@dataclass(frozen=True)
class _WideGuess(_LearnedGuess):
    """The same with so many features that gradients are released."""

    def form(self, rows: int) -> str:
        return "gradient"

    def sine(self, rows: int, batches: int) -> float:
        """Expected sine after this many batches, those of the warm-up included.

        It is that of gradients with known centre and scales and their part of mu^2, combined with
        the error of the deviations that features are divided by.
        """
        learned = batches - self.warm_up(rows)
        if learned < 1:
            return 1.0
        known = _Guess.sine(self, rows, learned)
        if known >= 1:
            return 1.0
        mu = gaussian_mu(self.epsilon, self.delta)
        apart = 1.75 * 2 * math.sqrt(BALL * self.d) / (learned * rows * mu * math.sqrt(BESIDE))
        square = known**2 / (1 - known**2) / (1 - BESIDE - ALONG) + apart**2
        return math.sqrt(square / (1 + square))


def _lifted(value: float, radius: float) -> float:
    """The value at which an eigenvalue is seen in noise; 0 if it drowns."""
    return value + radius**2 / value if value > radius else 0.0


def _round_numbers(start: int) -> list[int]:
    """1, 2, 3, 5, 7 times powers of ten, from `start` on."""
    numbers = (m * 10**e for e in range(1, 9) for m in (1, 2, 3, 5, 7))
    return [n for n in numbers if n >= start]

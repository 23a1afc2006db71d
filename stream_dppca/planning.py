"""Batch sizes, and the error due to noise, before any data is touched.

The predictions are rules of thumb for the method, fitted to simulations
(`benchmarks/accuracy.py` compares them with measurements). They use public numbers and two guesses
about the data, and spend no budget. They are about noise and the number of records only: heavy
tails that are cut off, and streams that change, add to the error, and no rule was found for how
much (docs/accuracy.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from .calibration import gaussian_mu
from .checks import one_of, positive, whole
from .errors import BatchSizeError, ParameterError
from .mechanisms.correlated import DECAYS, POWER, weights
from .method.memory import noise_of_sums
from .method.parameters import check_features, first_batches, smallest_batch_of, smallest_if_known
from .wording import counted, error_lines, first_step_line

#: A component is called useful below this sine of its angle to the truth.
USEFUL = 0.3
#: A batch size is recommended if the expected sine is below `GOOD` after `SOON` batches.
GOOD, SOON = 0.1, 16
#: Records of up to this many times the mean squared length are taken not to be clipped.
UNCLIPPED = 1.8


class Plan(BaseModel):
    """The prediction of `plan`."""

    model_config = ConfigDict(frozen=True)

    dimension: int
    n_components: int
    epsilon: float
    delta: float
    batch_size: int
    #: Batches that the first step takes at once, and the memory that they need, in bytes.
    first_batches: int
    first_memory: int
    #: Below this, `DPPCA` refuses.
    minimum_batch_size: int
    #: The smallest round number with a good component after 16 batches; None if there is none.
    recommended_batch_size: int | None
    #: Noise sd in one coordinate of one release, in units of the top eigenvalue.
    noise_per_step: float
    #: The guess behind the fields below: the share of the variance along the first component.
    first_share: float
    #: Records, and the sine of the angle to the truth that noise leaves, after 1, 2, 4, ... steps.
    noise_error: tuple[tuple[int, float], ...]
    #: Records until the component is useful (sine below 0.3); None if that is not in sight.
    useful_after_records: int | None
    useful_after_seconds: float | None

    def sine_after(self, records: int) -> float:
        """The sine after this many records, by the figures of `noise_error`."""
        return min((sine for at, sine in self.noise_error if at <= records), default=1.0)

    def __str__(self) -> str:
        lines = [
            f"{counted(self.dimension, 'feature')}, {counted(self.n_components, 'component')}, "
            f"epsilon = {self.epsilon:g}, delta = {self.delta:g}",
            f"batches of {self.batch_size} records (at least {self.minimum_batch_size}, "
            f"recommended {self.recommended_batch_size or 'more'})",
            first_step_line(self.first_batches, self.first_memory),
            f"noise of a release, in each coordinate: {100 * self.noise_per_step:.2g} % of the "
            "variance along the first component",
            *error_lines(self.noise_error, "records", self.first_share),
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
) -> Plan:
    """Predict the error due to noise, and the delay; `plan_subjects` is for privacy per subject.

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

    Examples
    --------
    >>> p = plan(d=50, epsilon=1.0, delta=1e-6, batch_size=2500, rate=1000.0)
    >>> p.first_batches
    2
    >>> print(p)
    50 features, 1 component, epsilon = 1, delta = 1e-06
    batches of 2500 records (at least ..., recommended ...)
    the first step takes 2 batches at once (2 MB)
    ...
    """
    mu = gaussian_mu(epsilon, delta)
    one_of("center", center, ("mean", "none"))
    if isinstance(scales, str):
        one_of("scales", scales, ("learn",))
    if rate is not None:
        positive("rate", rate)
    ratio = guesses(d, n_components, trace_ratio, gap)
    known = center != "mean" and not isinstance(scales, str)
    guess = _Guess(d, n_components, mu, ratio, gap, known)
    minimum = smallest_if_known(mu) if known else smallest_batch_of(d=d, mu=mu)
    recommended = next((n for n in _round_numbers(minimum) if guess.sine(n, SOON) <= GOOD), None)
    if recommended is None and batch_size is None:
        rule = "must be given: no batch of up to a billion records has a good component soon"
        raise ParameterError("batch_size", rule, None)
    size = recommended if batch_size is None else batch_size
    if size is None or size < minimum:
        raise BatchSizeError(size or 0, minimum, "the questions of the first step drown in noise")
    first = guess.first(size)
    useful = next((t for t in range(first, 1001) if guess.sine(size, t) <= USEFUL), None)
    records = None if useful is None else useful * size
    return Plan(
        dimension=d,
        n_components=n_components,
        epsilon=epsilon,
        delta=delta,
        batch_size=size,
        first_batches=first,
        first_memory=first * size * d * 8,
        minimum_batch_size=minimum,
        recommended_batch_size=recommended,
        noise_per_step=math.sqrt(2) * UNCLIPPED * ratio / (size * mu),
        first_share=1 / ratio,
        noise_error=tuple(
            (batches * size, guess.sine(size, batches))
            for batches in (first - 1 + 2**i for i in range(7))
        ),
        useful_after_records=records,
        useful_after_seconds=None if records is None or rate is None else records / rate,
    )


def guesses(d: int, n_components: int, trace_ratio: float | None, gap: float) -> float:
    """The total variance over the top eigenvalue, after checks."""
    whole("d", d)
    check_features("d", d)
    whole("n_components", n_components, high=d)
    if not 0 < gap <= 1:
        raise ParameterError("gap", "must lie in (0, 1]", gap)
    ratio = 1 + (d - 1) / 10 if trace_ratio is None else trace_ratio
    if not (math.isfinite(ratio) and ratio >= 1):
        raise ParameterError("trace_ratio", "must be finite and at least 1", ratio)
    return ratio


@dataclass(frozen=True)
class _Guess:
    """Public numbers and guesses. Eigenvalues are in units of the first."""

    d: int
    k: int
    mu: float
    ratio: float
    gap: float
    known: bool  #: centre and scales are known

    def first(self, rows: int) -> int:
        """Batches that the first step takes at once."""
        return first_batches(d=self.d, mu=self.mu, units=rows, known=self.known)

    def sine(self, rows: int, batches: int) -> float:
        """The sine of the angle that noise and sampling leave after this many batches.

        Sampling: the variance of a sample eigenvector. Noise: records of `UNCLIPPED` times the
        mean squared length pass unclipped, and all of them count the same.
        """
        if batches < self.first(rows):
            return 1.0
        n, steps = float(batches * rows), batches - self.first(rows) + 1
        noise = _cost(steps) * UNCLIPPED * self.ratio * math.sqrt(self.d * self.k)
        noise /= n * self.mu * self.gap
        sampling = 1.15 * self.k * max(self.ratio - self.k, 0.0) / (n * self.gap**2)
        square = sampling + noise**2
        return math.sqrt(square / (1 + square))


def _cost(steps: int) -> float:
    """Noise of the sum of several steps over that of one, in units of fresh noise."""
    column = weights(POWER)
    adds = noise_of_sums(column.own, column.later, DECAYS)
    return math.sqrt(sum(adds[:steps])) * max(1.0, math.sqrt(steps / len(adds)))


def _round_numbers(start: int) -> list[int]:
    """1, 2, 3, 5, 7 times powers of ten, from `start` on."""
    numbers = (m * 10**e for e in range(1, 9) for m in (1, 2, 3, 5, 7))
    return [n for n in numbers if n >= start]

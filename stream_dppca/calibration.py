"""Noise that a guarantee needs: exact formulas, no accounting at run time.

A Gaussian mechanism is described by one number, ``mu = (L2 sensitivity) / (noise sd)``.
Mechanisms that run one after the other on the same records, each allowed to use the results of
the earlier ones, compose by ``mu^2 = mu_1^2 + mu_2^2 + ...``; mechanisms on disjoint records
compose to the largest. `gaussian_delta` turns mu into (epsilon, delta), `gaussian_mu` turns it
back [^1].

Exact noise (`stream_dppca.noise`) spends its mu and no more: docs/privacy.md, "The grid".

[^1]: Balle, Wang. Improving the Gaussian mechanism for differential privacy. ICML 2018.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from .checks import between
from .errors import ParameterError
from .wording import counted

#: From here on e^epsilon may overflow.
_LARGE = 700.0
#: Start of searches for mu: private for every budget that `check_budget` accepts.
_LEAST_MU = 1e-6
#: Larger batches have the noise of this many units.
_NOISY_UNITS = 2.0**22


def check_budget(epsilon: float, delta: float) -> None:
    """Raise unless (epsilon, delta) is a guarantee that Gaussian noise can give.

    Examples
    --------
    >>> check_budget(1.0, 0.0)
    Traceback (most recent call last):
    ...
    stream_dppca.errors.ParameterError: `delta` must lie between 1e-30 and 0.5. Found 0.0.
    """
    between("epsilon", epsilon, 1e-3, 100.0)
    between("delta", delta, 1e-30, 0.5)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The smallest delta for which a Gaussian mechanism with this mu is (epsilon, delta)-DP.

    Examples
    --------
    >>> f"{gaussian_delta(1.0, 1 / 4.2247):.1e}"
    '1.0e-06'
    """
    if mu <= 0.0:
        return 0.0
    if epsilon > _LARGE:
        # e^epsilon overflows. With x = mu/2 + epsilon/mu, above sqrt(2 epsilon), we have
        # epsilon - x^2/2 = -(mu/2 - epsilon/mu)^2/2, and the tail from below is a short series.
        x, z = mu / 2 + epsilon / mu, mu / 2 - epsilon / mu
        series = 1 - 1 / x**2 + 3 / x**4 - 15 / x**6
        lower = math.exp(-z * z / 2) / (x * math.sqrt(2 * math.pi)) * series
    else:
        lower = math.exp(epsilon) * _phi(-mu / 2 - epsilon / mu)
    return max(_phi(mu / 2 - epsilon / mu) - lower, 0.0)


def _phi(x: float) -> float:
    """The normal distribution function, with all its digits in the lower tail."""
    return math.erfc(-x / math.sqrt(2)) / 2


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-DP.

    Examples
    --------
    >>> round(1 / gaussian_mu(1.0, 1e-6), 4)
    4.2247
    """
    check_budget(epsilon, delta)
    return _largest_mu(epsilon, delta)


def _largest_mu(epsilon: float, delta: float) -> float:
    low, high = _LEAST_MU, 1e3  # delta rises with mu; bisect until the floats run out
    while low < (middle := math.sqrt(low * high)) < high:
        low, high = (middle, high) if gaussian_delta(epsilon, middle) <= delta else (low, middle)
    return low * (1 - 1e-9)  # inside, whatever the last digits of erfc


def batch_mu(epsilon: float, delta: float, units: int) -> float:
    """The mu that a batch of this many units spends: that of (epsilon, delta), or less.

    A query over n units is up to n mu noise sds long. Beyond 2^27 sds it leaves the grid of exact
    noise, and its rounding grows with its length. So a batch of more than 2^22 units has the noise
    of 2^22 units, relative to its clip radius 10^-6: far below the sampling error of any mean.

    Examples
    --------
    >>> batch_mu(1.0, 1e-6, 2**22) == gaussian_mu(1.0, 1e-6)
    True
    >>> batch_mu(1.0, 1e-6, 2**26) == gaussian_mu(1.0, 1e-6) / 16
    True
    """
    return gaussian_mu(epsilon, delta) / max(1.0, units / _NOISY_UNITS)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon for which a Gaussian mechanism with this mu is (epsilon, delta)-DP.

    Rounded upwards, by less than 1e-12 of itself.

    Examples
    --------
    >>> round(gaussian_epsilon(1 / 4.2247, 1e-6), 3)
    1.0
    """
    low, high = 0.0, 1.0
    while gaussian_delta(high, mu) > delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:  # delta falls with epsilon
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu) > delta else (low, middle)
    return high * (1 + 1e-12)


def epsilon_of_periods(epsilon: float, delta: float, periods: float) -> float:
    """Epsilon over many periods, at the same delta, if each period has (epsilon, delta).

    Rounds compose as Gaussian mechanisms, so n periods have mu sqrt(n). The slack of the grid is
    reserved in every one of them.

    Examples
    --------
    >>> [round(epsilon_of_periods(1.0, 1e-6, n), 2) for n in (1, 7, 30, 365)]
    [1.0, 2.89, 6.58, 31.04]
    """
    if periods == 1:
        return float(epsilon)
    return gaussian_epsilon(gaussian_mu(epsilon, delta) * math.sqrt(periods), delta)


def epsilon_over(
    epsilon: float,
    delta: float,
    *,
    period: int,
    horizon: int | None,
    round_seconds: float | None = None,
) -> dict[str, float]:
    """Epsilon, at the same delta, for all that a subject sends in longer times, by their names.

    Parameters
    ----------
    period, horizon
        Rounds that have (epsilon, delta), and after which nothing more is learned.
    round_seconds
        Length of a round. If it is known, the times are days: 1, 7, 30 and 365. Otherwise they are
        as many periods.

    Examples
    --------
    >>> minutes = epsilon_over(1.0, 1e-6, period=1, horizon=None, round_seconds=60)
    >>> {time: round(epsilon) for time, epsilon in minutes.items()}
    {'1 day': 82, '7 days': 394, '30 days': 1443, '365 days': 15539}
    >>> list(epsilon_over(1.0, 1e-6, period=1, horizon=30))
    ['1 period', '7 periods', '30 periods', 'all rounds']
    """
    last = math.inf if horizon is None else horizon
    found: dict[str, float] = {}
    for n in (1, 7, 30, 365):
        if round_seconds is not None:
            name, rounds = "day", min(math.ceil(n * 86_400 / round_seconds), last)
        elif n * period <= last:
            name, rounds = "period", n * period
        else:
            continue
        found[counted(n, name)] = epsilon_of_periods(epsilon, delta, rounds / period)
    if horizon is not None:
        found["all rounds"] = epsilon_of_periods(epsilon, delta, max(horizon / period, 1.0))
    return found


def laplace_threshold(epsilon: float, delta: float) -> int:
    """Threshold T of the stability histogram with discrete Laplace noise of scale 2/epsilon.

    A bin is released when its noisy count is *above* T. A record alone in its bin has count 1, so
    it surfaces with probability P(1 + L > T) = P(L >= T) = e^(-T/s) / (1 + e^(-1/s)), s = 2/eps,
    which this T keeps at or below delta. It is within one count of the continuous
    1 + (2/eps) ln(1/(2 delta)).

    Examples
    --------
    >>> laplace_threshold(1.0, 1e-6)
    27
    """
    check_budget(epsilon, delta)
    scale = 2.0 / epsilon
    return math.ceil(scale * -math.log(delta * (1 + math.exp(-1 / scale))))


def gaussian_threshold(sigma: float, delta: float, dimension: int) -> float:
    """Threshold above which a (coordinate, bin) count with N(0, sigma^2) noise is released.

    One record can be alone in at most one bin of each of `dimension` coordinates; none of them
    surfaces with probability at least 1 - delta.
    """
    # Phi^-1((1 - delta)^(1/d)) = -Phi^-1(1 - (1 - delta)^(1/d)), and the tail keeps its digits.
    tail = -math.expm1(math.log1p(-delta) / dimension)
    return 1.0 - sigma * NormalDist().inv_cdf(tail)


def mu_with_threshold(epsilon: float, delta: float, delta_threshold: float) -> float:
    """Largest mu when lone bins surface with probability at most `delta_threshold`.

    The total is delta <= delta_threshold + delta_G(epsilon + ln(1 - delta_threshold); mu).
    """
    check_budget(epsilon, delta)
    left = epsilon + math.log1p(-delta_threshold)
    # Below zero, no noise at all reaches delta < 1 - e^left: there the search would find nothing.
    if gaussian_delta(left, _LEAST_MU) > delta - delta_threshold:
        rule = f"leaves nothing of epsilon = {epsilon:g} and delta = {delta:g} for the noise"
        raise ParameterError("delta_threshold", rule, delta_threshold)
    return _largest_mu(left, delta - delta_threshold)

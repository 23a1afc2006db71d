"""Privacy amplification by shuffling: the value of a secret random order of the records.

Setting: n records in a uniformly random secret order; step i applies a local randomizer R_i to
one record and *may choose R_i from all earlier outputs* (Private Oja does: w feeds the next step);
all outputs are seen. Adjacency: replace one record; unit: a record. The bound is the numerical one
of "Hiding among the clones" [^1], section 3, which is proven for this adaptive setting. (The same
authors' later bound [^2] is up to ln 2 more generous in epsilon0; this one has the proof below.)

Pure randomizers (epsilon0). Neighbours differ in one record, x or x'. At any step and history let
p, p' be the densities of R(x), R(x'), E = e^epsilon0. Then q = (E p - p')/(E - 1) and
q' = (E p' - p)/(E - 1) are densities, p = (E q + q')/(E + 1), p' = (q + E q')/(E + 1), and any
other record y has R(y) >= max(p, p')/E >= (p + p')/(2E) = (q + q')/(2E). So y outputs a clone, q
or q' by a fair coin, with probability 1/E, whatever the history. Everything seen is a function of
the numbers of q's and q''s, and the records that are not clones are a uniform choice among the
others:

    C ~ Bin(n - 1, 1/E), A ~ Bin(C, 1/2), D ~ Bernoulli(E/(E + 1)),
    (A + D, C - A + 1 - D)  against  (A + 1 - D, C - A + D).

`clone_delta` is the hockey-stick divergence of this pair (the same in both directions: swap the
coordinates), from above.

Approximate randomizers (epsilon0, delta0). [^1], Theorem 3.8, adds
(e^epsilon + 1)(1 + e^-epsilon0 / 2) n delta0, which `shuffled_delta` uses. For noise with
reflection symmetry it follows like this: where p > E p', move (p - E p')/(E + 1) from p to p', and
likewise with the roles exchanged. The new p, p' satisfy epsilon0 and have moved by
t <= delta0/(E + 1) each in total variation. R(y) falls short of (p + p')/(2E) by mass at most
(delta0 + t)/E; fill that up. Over n steps, whatever the history, old and new outputs differ with
probability at most h = (n - 1)(delta0 + t)/E + t, hence (e^epsilon + 1) h is added to delta, and
h <= (1 + 1/(2E)) n delta0.

[^1]: Feldman, McMillan, Talwar. Hiding among the clones: a simple and nearly optimal analysis of
    privacy amplification by shuffling. FOCS 2021, arXiv 2012.12803.
[^2]: Feldman, McMillan, Talwar. Stronger privacy amplification by shuffling for Renyi and
    approximate differential privacy. SODA 2023, arXiv 2208.04591.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from stream_dppca.calibration import check_budget, gaussian_mu
from stream_dppca.checks import whole
from stream_dppca.errors import ParameterError

from ._common import in_range

__all__ = [
    "clone_delta",
    "epsilon_limit",
    "largest_epsilon0",
    "shuffled_delta",
    "shuffled_gaussian_mu",
]

#: Relative accuracy granted to scipy's binomial functions, on the safe side.
_ACCURACY = 1e-9
#: ln of the probability beyond which C is not followed term by term.
_LOG_TAIL = 100.0


def clone_delta(epsilon: float, epsilon0: float, n: int) -> float:
    """The delta of n shuffled epsilon0-DP local randomizers at this epsilon; an upper bound.

    Given C = c the first count a has likelihood ratio above e^epsilon exactly from some a* on, so
    the divergence is u P(A = a* - 1) - (e^epsilon - 1) P(A >= a*),
    u = (E - e^epsilon)/(E + 1). It is averaged over c within about 14 sds of the mean of C; it
    falls with c (one more clone is post-processing), so the tails are bounded by their ends.

    Examples
    --------
    >>> f"{clone_delta(0.1, 1.0, 10_000):.1e}"
    '6.4e-14'
    >>> clone_delta(1.0, 1.0, 10)
    0.0
    """
    in_range("epsilon", epsilon, 0.0, 100.0)
    in_range("epsilon0", epsilon0, 0.0, 100.0)
    whole("n", n, high=10**9)
    if epsilon >= epsilon0:
        return 0.0
    p = math.exp(-epsilon0)
    mean = (n - 1) * p
    # Bernstein: C is outside mean -+ width with probability at most 2 e^-_LOG_TAIL.
    width = _LOG_TAIL / 3 + math.sqrt(_LOG_TAIL**2 / 9 + 2 * _LOG_TAIL * mean * (1 - p))
    low, high = max(0, math.floor(mean - width)), min(n - 1, math.ceil(mean + width))
    c = np.arange(low, high + 1, dtype=np.float64)

    u = math.exp(-epsilon0) * math.expm1(epsilon0 - epsilon) * math.exp(epsilon) / (1 + p)
    cutoff = (math.exp(epsilon) - p) / (math.exp(epsilon) + 1) / (-math.expm1(-epsilon0))
    first = np.minimum(np.floor(cutoff * (c + 1)), c) + 1  # a*; the minimum is for rounding
    gain = u * binom.pmf(first - 1, c, 0.5)
    loss = math.expm1(epsilon) * binom.sf(first - 1, c, 0.5)
    per_c = np.maximum(gain - loss, 0.0) + _ACCURACY * (gain + loss)

    inside = float(binom.pmf(c, n - 1, p) @ per_c)
    below = float(binom.cdf(low - 1, n - 1, p)) * u
    above = float(binom.sf(high, n - 1, p)) * float(per_c[-1])
    return min((inside + below + above) * (1 + _ACCURACY), 1.0)


def shuffled_delta(epsilon: float, epsilon0: float, delta0: float, n: int) -> float:
    """The delta of n shuffled (epsilon0, delta0)-DP local randomizers; an upper bound.

    Examples
    --------
    >>> shuffled_delta(0.1, 1.0, 0.0, 10_000) == clone_delta(0.1, 1.0, 10_000)
    True
    """
    in_range("delta0", delta0, 0.0, 1.0)
    return min(clone_delta(epsilon, epsilon0, n) + _price(epsilon, epsilon0, n) * delta0, 1.0)


def _price(epsilon: float, epsilon0: float, n: int) -> float:
    """The amount that a delta0 of 1 would add to delta."""
    return (math.exp(epsilon) + 1) * (1 + math.exp(-epsilon0) / 2) * n


def largest_epsilon0(epsilon: float, delta: float, n: int, delta0: float = 0.0) -> float:
    """The largest epsilon0, up to 1e-6 below, whose shuffled randomizers are (epsilon, delta)-DP.

    Examples
    --------
    >>> round(largest_epsilon0(1.0, 1e-6, 100_000), 2)
    7.07
    """
    check_budget(epsilon, delta)
    if shuffled_delta(epsilon, epsilon, delta0, n) > delta:
        price = _price(epsilon, epsilon, n)
        raise ParameterError("delta0", f"must be at most {delta / price:.3g}", delta0)
    # With more than this, every record but one is alone with high probability: far above any use.
    low, high = epsilon, max(epsilon, math.log(n)) + 20.0
    if shuffled_delta(epsilon, high, delta0, n) <= delta:
        return high
    while high - low > 1e-6:
        middle = (low + high) / 2
        if shuffled_delta(epsilon, middle, delta0, n) <= delta:
            low = middle
        else:
            high = middle
    return low


def epsilon_limit(n: int, delta: float) -> float:
    """The largest epsilon that `shuffled_gaussian_mu` serves with n records; 0 if none.

    The theorem of [^1] is stated for epsilon0 <= ln(n / (16 ln(2/delta'))); here delta' = delta/2,
    the other half is for delta0. This is the epsilon that the largest such epsilon0 reaches: about
    0.55 for any large n. (The paper asks for epsilon = O(sqrt(ln(n/delta)/n)), far less.)

    Examples
    --------
    >>> round(epsilon_limit(100_000, 1e-6), 2), epsilon_limit(200, 1e-6)
    (0.55, 0.0)
    """
    check_budget(1.0, delta)
    whole("n", n)
    high = epsilon0 = _epsilon0_limit(n, delta)
    if epsilon0 <= 0:
        return 0.0
    low = 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if clone_delta(middle, epsilon0, n) <= delta / 2:
            high = middle
        else:
            low = middle
    return high


def _epsilon0_limit(n: int, delta: float) -> float:
    return math.log(n / (16 * math.log(4 / delta)))


@lru_cache(maxsize=64)
def shuffled_gaussian_mu(epsilon: float, delta: float, n: int) -> float:
    """The largest mu of a Gaussian local randomizer whose n shuffled runs are (epsilon, delta)-DP.

    A Gaussian randomizer is (epsilon0, delta0)-DP for a whole curve of pairs. Every epsilon0 that
    leaves some of delta allows a delta0, and the two together allow a mu; the largest mu is taken.
    All of them are valid, so the search need not be exact.

    Raises
    ------
    ParameterError
        If epsilon is above `epsilon_limit`; the message gives the range.

    Examples
    --------
    >>> mu = shuffled_gaussian_mu(0.5, 1e-6, 10_000)
    >>> round(1 / mu, 2), round(1 / gaussian_mu(0.5, 1e-6), 2)  # noise with and without shuffling
    (1.79, 8.06)
    """
    check_budget(epsilon, delta)
    limit = epsilon_limit(n, delta)
    if epsilon > limit:
        shown = math.floor(limit * 1e4) / 1e4  # not rounded up, so that it is itself accepted
        rule = (
            f"must lie between 0.001 and {shown:g} for shuffling to amplify {n} records at "
            f"delta = {delta:g}"
            if limit >= 1e-3
            else f"has no valid range with {n} records at delta = {delta:g}"
        )
        raise ParameterError("epsilon", rule, epsilon, hint="Use more records, or clipped_oja.")

    def mu_at(epsilon0: float) -> float:
        left = delta - clone_delta(epsilon, epsilon0, n)
        delta0 = left / _price(epsilon, epsilon0, n)
        return gaussian_mu(epsilon0, delta0) if delta0 >= 1e-30 else 0.0

    high = min(largest_epsilon0(epsilon, delta, n), _epsilon0_limit(n, delta))
    best = minimize_scalar(
        lambda e: -mu_at(e), bounds=(epsilon, high), method="bounded", options={"xatol": 1e-4}
    )
    return max(mu_at(float(best.x)), mu_at(epsilon))

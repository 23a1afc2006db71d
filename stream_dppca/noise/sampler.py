"""Exact noise at the speed of numpy: inversion in floating point, decided in integers if in doubt.

`rounded_gaussian` draws round(a + S X) with X ~ N(0, 1), `discrete_laplace` the difference of two
floor(s E) with E ~ Exp(1). Both invert a distribution function at a uniform number U, of whose bits
the first 64 or 128 come from the operating system at once. In floating point the result before
rounding is off by less than a bound that is proven below. Where it lies farther than that from the
nearest jump of the rounding, its rounding is the true one, whatever the further bits are. Otherwise
`exact` decides, with as many further bits of U as it needs. So, given ideal bits and the
hypothesis, the law is exact.

**Hypothesis.** `scipy.special.ndtri` is off by at most 2^-43 on [2^-64, 1/2], `numpy.log` by at
most 2^-45 on [2^-64, 1]. Measured in tests/test_sampler.py: 2^-48.2 and 2^-48. A library that is
off by more than half of the allowed error, on a grid of points, is refused at the first draw.

**The float u.** Let v be the first word, 63 bits next to a sign, or 64.

- Of a Gaussian with v >= 2^42, one word is enough. U is in [v, v+1)/2^64, and at least 2^-22.
  Converting v takes one rounding, so u = v/2^64 is within 2^-64 + 2^-53 U of U.
- All others have a second word w, so that U is in [V, V+1)/2^128 with V = 2^64 v + w, and
  U >= 2^-64. Converting v and w, and adding them up, takes four roundings of at most 2^-53 u each,
  and U is within 2^-64 U of V/2^128. So u is within 2^-50 U of U.

**Bound for the Gaussian.** S < 2^25. Let phi be the density at the quantile. The quantile of u is
within 2^-50 U/phi, at most 1.26 times 2^-50 (Mills), of that of U; with one word also within
2^-64/phi: there the quantile is above -5.04, so phi > 2^-20, and that is below 2^-44. With the
hypothesis: less than 2^-43 + 2^-44 + 2^-49. Times S: 2^-18 + 2^-19 + 2^-24. The quantile is above
-9.2, so that the product and the sum are below 2^29, and each is off by at most 2^-25. Together
that is less than 2^-17.

**Bound for the exponential.** The logarithm of u is within 2^-49 of that of U; the hypothesis adds
2^-45. The product with s is below 45 s, so it is off by at most 2^-47 s. Together that is less than
2^-44 s.

**Time.** `exact` takes 100 microseconds. It is asked in two cases. If a + S X, which is S times as
fine as what is released, lies near a jump, once in 65,000 draws: that depends on a + S X alone, so
it tells no more than a release that is not rounded, which has the same mu. If U is below 2^-64:
that depends on the noise alone, so it would tell how far the result is from the exact value; but
with 2^-63 it is rarer than any delta. The smallest of up to `_BLOCK` words has a second one in any
case, so that a request for second words, which takes a microsecond, does not tell that noise is
large; each further one takes tens of nanoseconds, less than the other branches of `ndtri`, which
also depend on U.
"""

from __future__ import annotations

import os
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import FloatArray, IntArray
from ..errors import DPPCAError
from .exact import Entropy, exponential, floor_exponential, normal_cdf, round_normal

#: Standard deviations in units of the grid are at least this, and below twice this.
SMALLEST_SD = 2.0**24
#: Largest number in units of the grid: whole numbers and their sum with the noise are exact.
LARGEST = 2.0**52

#: Hypothesis about the libraries: largest errors of the normal quantile and of the logarithm.
NDTRI_ERROR, LOG_ERROR = 2.0**-43, 2.0**-45
#: The hypothesis holds from here up. Smaller U, once in 2^63 draws, are left to `exact`.
SMALLEST_U = 2.0**-64
#: Bound on the error of a + S X before it is rounded, and of s E relative to s.
GAUSSIAN_ROOM, EXPONENTIAL_ROOM = 2.0**-17, 2.0**-44
#: First words below this, 5 sds out, have a second word.
_SHORT = 2**42
#: Draws at a time: their temporary arrays stay in the cache.
_BLOCK = 8192


def rounded_gaussian(values: FloatArray, sd: float, entropy: Entropy = os.urandom) -> FloatArray:
    """round(values + sd X) with fresh X ~ N(0, 1) for each value: whole numbers, as float64.

    Parameters
    ----------
    values
        One-dimensional, at most `LARGEST` in absolute value.
    sd
        At least `SMALLEST_SD`, less than twice that.
    """
    from scipy.special import ndtri

    _check_libraries()
    found = np.empty(len(values))
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        words = np.frombuffer(entropy(8 * len(block)), dtype="<i8")
        v = words & 0x7FFF_FFFF_FFFF_FFFF
        u = v * 2.0**-64
        # The smallest has a second one in any case, so that asking for it tells nothing.
        low = (v < max(_SHORT, int(v.min()) + 1)).nonzero()[0]
        w = np.frombuffer(entropy(8 * len(low)), dtype="<u8")
        u[low], second = _joined(v[low], w), dict(zip(low.tolist(), w.tolist(), strict=True))
        # Both exact: |values| <= 2^52, and a number less its nearest integer has no new digits.
        whole = np.rint(block)
        rest = block - whole
        z = ndtri(u)
        z *= np.where(words < 0, -sd, sd)
        z += rest
        near = np.rint(z)
        z -= near
        np.abs(z, out=z)
        doubtful = (z >= 0.5 - GAUSSIAN_ROOM) | (u < SMALLEST_U)
        for i in doubtful.nonzero()[0].tolist():
            sign = -1 if words[i] < 0 else 1
            further = second[i] if i in second else int.from_bytes(entropy(8), "little")
            near[i] = sign * round_normal(
                int(v[i]) << 64 | further,
                shift=sign * float(rest[i]),
                sd=sd,
                guess=sign * int(near[i]),
                entropy=entropy,
            )
        whole += near
        # -0.0 becomes 0.0: the sign of a zero would reveal more than the whole number.
        np.add(whole, 0.0, out=found[start : start + _BLOCK])
    return found


def discrete_laplace(size: int, scale: float, entropy: Entropy = os.urandom) -> IntArray:
    """Whole numbers k with probability proportional to e^(-|k|/scale)."""
    if not 2.0**-20 <= scale <= 2.0**30:
        raise DPPCAError("the scale of the noise is out of range")
    return _geometric(size, scale, entropy) - _geometric(size, scale, entropy)


def _geometric(size: int, scale: float, entropy: Entropy) -> IntArray:
    """floor(scale E), E ~ Exp(1): at least k with probability e^(-k/scale)."""
    _check_libraries()
    v, w = np.frombuffer(entropy(16 * size), dtype="<u8").reshape(2, -1)
    u = _joined(v, w)
    z = -scale * np.log(u)
    below = np.floor(z)
    z -= below
    room = max(scale, 1.0) * EXPONENTIAL_ROOM
    for i in ((z <= room) | (z >= 1 - room) | (u < SMALLEST_U)).nonzero()[0]:
        U = int(v[i]) << 64 | int(w[i])
        below[i] = floor_exponential(U, scale=scale, guess=int(below[i]), entropy=entropy)
    return below.astype(np.int64)


def _joined(v: NDArray[np.integer[Any]], w: NDArray[np.uint64]) -> FloatArray:
    """Uniform numbers from their first and second words, never 0."""
    return np.asarray(v * 2.0**-64 + (w * 2.0**-128 + 2.0**-129))


@lru_cache(maxsize=1)
def _check_libraries() -> None:
    """Raise unless `ndtri` and `log` are well within the hypothesis on a grid of points."""
    from scipy.special import ndtri

    # Powers of two, and both sides of e^-2, where ndtri changes formula, as it does at e^-32.
    u = np.r_[2.0 ** np.arange(-64, -18, 2.0), 2.0 ** np.arange(-18, -1, 0.5), 0.13533, 0.13534]
    u = np.r_[u, 0.25, 0.3, 0.4, 0.49]
    for found, curve, allowed, what in (
        (-np.asarray(ndtri(u)), normal_cdf, NDTRI_ERROR / 2, "scipy.special.ndtri"),
        (-np.log(u), exponential, LOG_ERROR / 2, "numpy.log"),
    ):
        for point, x in zip(u.tolist(), found.tolist(), strict=True):
            # Both curves fall: the point must lie between their values on both sides of x.
            early, late = Fraction(x) - Fraction(allowed), Fraction(x) + Fraction(allowed)
            above = curve(early.numerator, early.denominator, 128)
            below = curve(late.numerator, late.denominator, 128)
            if not (
                Fraction(below.value + below.error, 2**below.precision)
                < Fraction(point)
                < Fraction(above.value - above.error, 2**above.precision)
            ):
                raise DPPCAError(
                    f"{what} is less accurate here than exact noise needs: found {-x!r} at "
                    f"{point!r}. Use another build of the library."
                )

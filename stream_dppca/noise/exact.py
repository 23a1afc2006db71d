"""Comparisons that decide a draw without floating point.

A uniform number U is known by its first bits; more of them are drawn when they are needed. It is
compared with Phi(-t) or e^-x for a rational t or x, whose value comes from one alternating series
in integers with a counted error. If the interval of U and that of the value overlap, U gets 64 more
bits and the value as many more digits, so every comparison ends, with probability 1.

*The error of the series.* With an integer a_0 and y >= 0, let a_{n+1} = a_n y/(n+1). Computed with
a floor at every step, a_n is too small by less than e^y: the loss at step j is below 1 and reaches
step n times y^(n-j)/((j+1) ... n) <= y^(n-j)/(n-j)!, and these add up to at most e^y. The computed
a_n can become 0 only at some N > y, because floor(a x) >= a for x >= 1. From there on the true
terms alternate and fall, so the rest of the series is at most a_N < e^y. Hence N terms, each
divided with one more floor, are off by less than (N + 1)(e^y + 1) units of the last digit.

*Time.* The number of terms grows with y, so it would tell how large the noise is to somebody who
can time a draw. So a series of the normal distribution has at least `LEAST_TERMS`: after its last
term, the same arithmetic is done on another number, and thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

#: Returns a number of random bytes: `os.urandom`, or something repeatable in a test.
Entropy = Callable[[int], bytes]

#: Terms that a series of the normal distribution has at least: those for 6 sd and 128 bits. Noise
#: beyond that, which is decided here once in 10^12 draws, takes longer.
LEAST_TERMS = 136


class Value(NamedTuple):
    """A real number: (value +- error) / 2^precision."""

    value: int
    error: int
    precision: int


def round_normal(
    v: int, *, shift: float, sd: float, guess: int, entropy: Entropy, bits: int = 128
) -> int:
    """The integer nearest to shift + sd Q, where Q < 0 is the quantile of U in [v, v+1) / 2^bits.

    Parameters
    ----------
    v
        The first bits of U, which is uniform on (0, 1/2).
    guess
        Start of the search. Only the time depends on it.
    """
    uniform = _Uniform(v, bits, entropy)
    (a, b), (c, e) = shift.as_integer_ratio(), sd.as_integer_ratio()

    def reaches(k: int) -> bool:
        """Decide shift + sd Q < k + 1/2 in integers: U < Phi(-t) with t = (shift - k - 1/2)/sd."""
        numerator = (2 * a - (2 * k + 1) * b) * e
        return numerator <= 0 or uniform.below(lambda n: normal_cdf(numerator, 2 * b * c, n))

    return _smallest(reaches, guess)


def floor_exponential(
    v: int, *, scale: float, guess: int, entropy: Entropy, bits: int = 128
) -> int:
    """The floor of scale times -ln U, where U in [v, v+1) / 2^bits is uniform on (0, 1)."""
    uniform = _Uniform(v, bits, entropy)
    a, b = scale.as_integer_ratio()

    def reaches(k: int) -> bool:
        """Decide scale E < k + 1: U > e^(-(k+1)/scale)."""
        return k >= 0 and not uniform.below(lambda n: exponential((k + 1) * b, a, n))

    return _smallest(reaches, guess)


class _Uniform:
    """A uniform number, with as many bits as were needed so far."""

    def __init__(self, v: int, bits: int, entropy: Entropy) -> None:
        self._v, self._bits, self._entropy = v, bits, entropy

    def below(self, curve: Callable[[int], Value]) -> bool:
        """Decide U < the number that `curve` gives to any number of bits."""
        while True:
            value, error, precision = curve(self._bits)
            place = precision - self._bits
            if (self._v + 1) << place <= value - error:
                return True
            if self._v << place >= value + error:
                return False
            self._v = self._v << 64 | int.from_bytes(self._entropy(8), "little")
            self._bits += 64


def _smallest(reaches: Callable[[int], bool], guess: int) -> int:
    """The smallest integer that reaches, if all larger ones do: steps that double, then halves."""
    step = 1
    if reaches(guess):
        low, high = guess - 1, guess
        while reaches(low):
            low, high, step = low - 2 * step, low, 2 * step
    else:
        low, high = guess, guess + 1
        while not reaches(high):
            low, high, step = high, high + 2 * step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def normal_cdf(numerator: int, denominator: int, bits: int) -> Value:
    """Phi(-t) = 1/2 - sum (-1)^n t (t^2/2)^n / (n! (2n+1)) / sqrt(2 pi) for a rational t >= 0.

    In units of the last digit the sum is off by (N + 1)(e^y + 1), y = t^2/2, before it is divided
    by 2.5. The constant, off by 2, a floor, and cutting t to p digits add less than 5. Together
    that is below (N + 2) 2^(guard + 1).
    """
    # e^(t^2/2) = 2^(0.72 t^2) < 2^guard.
    guard = 3 * numerator * numerator // (4 * denominator * denominator) + 1
    p = _precision(bits, guard)
    t = (numerator << p) // denominator
    total, terms = _alternating(t, t * t, 2 * p + 1, odd=True, least=LEAST_TERMS)
    value = (1 << p - 1) - (total * _inverse_root_of_two_pi(p) >> p)
    return Value(value, terms + 2 << guard + 1, p)


def exponential(numerator: int, denominator: int, bits: int) -> Value:
    """e^-x = sum (-1)^n x^n / n! for a rational x >= 0; the error as for `normal_cdf`, y = x."""
    guard = 3 * numerator // (2 * denominator) + 1  # e^x = 2^(1.44 x) < 2^guard
    p = _precision(bits, guard)
    total, terms = _alternating(1 << p, (numerator << p) // denominator, p, odd=False, least=0)
    return Value(total, terms + 2 << guard + 1, p)


def _precision(bits: int, guard: int) -> int:
    """Digits that leave an error far below 2^-bits; in steps of 64, to share the constants."""
    return -(-(bits + guard + 16) // 64) * 64


def _alternating(first: int, y: int, shift: int, *, odd: bool, least: int) -> tuple[int, int]:
    """Sum of (-1)^n a_n, or a_n/(2n+1), with a_0 = first, a_{n+1} = a_n y/(n+1); and its length.

    y is y / 2^shift. The work is that of `least` terms or more.
    """
    total = terms = n = other = 0
    term = first
    while term or n < least:
        a = term or first
        part = a // (2 * n + 1) if odd else a
        signed = -part if n & 1 else part
        n += 1
        after = (a * y >> shift) // n
        if term:
            total, term, terms = total + signed, after, n
        else:
            other, _, _ = other + signed, after, n
    return total, terms


@lru_cache(maxsize=16)
def _inverse_root_of_two_pi(p: int) -> int:
    """2^p / sqrt(2 pi), off by less than 2."""
    q = p + 32  # Machin's formula loses less than 1 per term: far below 2^32
    pi = 16 * _inverse_tangent(5, q) - 4 * _inverse_tangent(239, q)
    return math.isqrt((1 << 2 * p + q) // (2 * pi))


def _inverse_tangent(m: int, q: int) -> int:
    """2^q arctan(1/m)."""
    total, n, power = 0, 0, (1 << q) // m
    while power:
        part = power // (2 * n + 1)
        total += -part if n & 1 else part
        n += 1
        power //= m * m
    return total

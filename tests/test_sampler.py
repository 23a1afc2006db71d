"""Exact noise: its law, its arithmetic, and defects that must be caught.

Random words come from the operating system in the statistical tests. Each of these raises a false
alarm once in 10^8 runs, all of them together less than once in 10^6. Everything else is
deterministic, or true for every word.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from types import FrameType
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from stream_dppca.errors import DPPCAError
from stream_dppca.noise import exact, sampler
from tests.audit.mutants import Mutant

FALSE_ALARM = 1e-8
SD = 1.37 * 2.0**24

mpmath.mp.prec = 400


class Words:
    """Entropy that returns these words first, with the next 64 bits of each, then real ones.

    Of a Gaussian, only low words have their next bits at once. One that has not is given the last
    of them, if it asks.

    Parameters
    ----------
    seconds
        The next bits; random ones if there are none.
    further
        The next ones after these.
    """

    def __init__(
        self, words: np.ndarray, seconds: np.ndarray | None = None, further: int | None = None
    ) -> None:
        self.words = words
        self.seconds = random_words(len(words)) if seconds is None else np.ravel(seconds)
        v = words & np.uint64(2**63 - 1)
        self.low = v < max(sampler._SHORT, int(v.min()) + 1)
        self.further = [] if further is None else [further]
        self.asked = 0

    def __call__(self, n: int) -> bytes:
        self.asked += 1
        if self.asked == 1:
            both = self.words.tobytes() + self.seconds.tobytes()
            assert n in (len(both), len(both) // 2)
            if n == len(both):
                self.asked, self.low[:] = 2, True
            return both[:n]
        if self.asked == 2:
            assert n == 8 * np.count_nonzero(self.low)
            return self.seconds[self.low].tobytes()
        if not self.low.all():
            self.low[:] = len(self.low) == 1
            return self.seconds[-1:].tobytes()
        return self.further.pop().to_bytes(8, "little") if self.further else os.urandom(n)


def random_words(n: int) -> np.ndarray:
    return np.frombuffer(os.urandom(8 * n), dtype=np.uint64).copy()


def chi_square(observed: np.ndarray, probability: np.ndarray) -> None:
    expected = probability * observed.sum()
    assert expected.min() > 10
    p = stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(observed) - 1)
    assert p > FALSE_ALARM


# The law


def check_gaussian_law() -> None:
    """Two hundred cells against their exact probabilities; Kolmogorov and Smirnov."""
    n, a = 1_000_000, 12345.3
    k = sampler.rounded_gaussian(np.full(n, a), SD)
    edges = np.floor(a + SD * stats.norm.ppf(np.arange(1, 200) / 200)) + 0.5  # between integers
    cells = np.bincount(np.searchsorted(edges, k), minlength=200)
    chi_square(cells, np.diff(np.r_[0.0, stats.norm.cdf((edges - a) / SD), 1.0]))
    assert stats.kstest((k[:200_000] - a) / SD, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("a, sd", [(0.3, 0.8), (-7.5, 2.6), (2.0**40 + 0.25, 1.9), (0.0, 5.0)])
def test_the_law_of_each_integer(a: float, sd: float) -> None:
    """With a small sd, every integer has its own probability; fractions of the query matter."""
    check_each_integer(a, sd)


def check_each_integer(a: float = 0.3, sd: float = 0.8) -> None:
    k = sampler.rounded_gaussian(np.full(1_000_000, a), sd) - np.rint(a)
    cells = np.arange(math.ceil(-3 * sd), math.floor(3 * sd) + 1)
    edges = np.r_[cells - 0.5, cells[-1] + 0.5] - (a - np.rint(a))
    probability = np.diff(stats.norm.cdf(edges / sd))
    observed = np.array([(k == c).sum() for c in cells])
    chi_square(np.r_[observed, len(k) - observed.sum()], np.r_[probability, 1 - probability.sum()])


@pytest.mark.audit
def test_the_law_in_the_tails() -> None:
    """Beyond 3, 4 and 5 sd, on both sides."""
    k = np.concatenate([sampler.rounded_gaussian(np.zeros(500_000), SD) for _ in range(8)])
    for bound in (3.0, 4.0, 5.0):
        for side in (k < -bound * SD, k > bound * SD):
            p = stats.binomtest(int(side.sum()), len(k), stats.norm.sf(bound)).pvalue
            assert p > FALSE_ALARM


@pytest.mark.audit
@pytest.mark.parametrize("bits", [46, 20, 3, 0])
def test_the_law_far_out(bits: int) -> None:
    """Given U < 2^-18, 2^-44, 2^-61, or 2^-64, where `exact` decides, U is uniform there."""
    n = 4000
    words = random_words(n) & np.uint64(2**bits - 1 | 2**63)
    k = sampler.rounded_gaussian(np.zeros(n), SD, Words(words))
    uniform = special.ndtr(-np.abs(k) / SD) / 2.0 ** (bits - 64)
    assert stats.kstest(uniform, "uniform").pvalue > FALSE_ALARM
    assert np.array_equal(k > 0, words >= 2**63)


@pytest.mark.parametrize("bits", [63, 46, 30, 10, 1])
def test_the_tails_take_no_longer(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether integers decide a draw says nothing about how far out it is.

    Otherwise the time of a draw would tell: beyond 4.4 sd it took 60 microseconds longer.
    """
    asked: list[int] = []
    for name in ("round_normal", "floor_exponential"):
        decide = getattr(sampler, name)

        def count(v: int, decide: Callable[..., int] = decide, **how: Any) -> int:
            asked.append(v)
            return int(decide(v, **how))

        monkeypatch.setattr(sampler, name, count)
    n = 40_000
    words = random_words(n) & np.uint64(2**bits - 1 | 2**63) | np.uint64(2 ** (bits - 1))
    sampler.rounded_gaussian(np.zeros(n)[: sampler._BLOCK], SD, Words(words[: sampler._BLOCK]))
    expected = sampler._BLOCK * 2 * sampler.GAUSSIAN_ROOM
    assert len(asked) < stats.poisson.isf(FALSE_ALARM, expected)
    asked.clear()
    sampler._geometric(n, 77.7, Words(words))
    assert not asked


def test_the_work_of_a_series_does_not_tell_how_far_out_it_is() -> None:
    """All lines that run, for noise up to 6 sd."""

    def lines(sds: float) -> list[int]:
        ran: list[int] = []

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            if frame.f_code is not exact._alternating.__code__:
                return None
            if event == "line":
                ran.append(frame.f_lineno)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            exact.normal_cdf(*sds.as_integer_ratio(), 128)
        finally:
            sys.settrace(before)
        return ran

    counts = {len(lines(sds)) for sds in (0.001, 0.3, 1.1, 2.7, 4.4, 5.9)}
    assert len(counts) == 1 and min(counts) > exact.LEAST_TERMS
    assert len(lines(9.0)) > max(counts), "the test sees terms"


def check_low_bits() -> None:
    """The remainder modulo 16 is uniform, whatever the query."""
    k = sampler.rounded_gaussian(np.full(1_000_000, 0.49), SD)
    chi_square(np.bincount((k % 16).astype(int), minlength=16), np.full(16, 1 / 16))


def check_independence() -> None:
    """Values, sizes and low bits have nothing to do with those before them, or a block before."""
    n = 400_000
    k = sampler.rounded_gaussian(np.zeros(n), SD) / SD
    for x in (k, np.abs(k), (k * SD) % 2):
        x = (x - x.mean()) / x.std()
        for lag in (1, 2, 3, 4, 5, sampler._BLOCK):
            r = float(np.mean(x[lag:] * x[:-lag]))
            assert abs(r) * math.sqrt(n - lag) < stats.norm.isf(FALSE_ALARM / 40)


def check_laplace_law(scale: float = 2.0) -> None:
    z = sampler.discrete_laplace(500_000, scale)
    q = math.exp(-1 / scale)
    reach = max(int(5 * scale), 1)
    cells = np.unique(np.round(np.linspace(-reach, reach, 41))).astype(int)
    upper = np.where(cells < 0, q ** -cells.clip(max=0) / (1 + q), 1 - q ** (cells + 1) / (1 + q))
    observed = np.bincount(np.searchsorted(cells, z), minlength=len(cells) + 1)
    chi_square(observed, np.diff(np.r_[0.0, upper, 1.0]))
    r = np.corrcoef(z[1:], z[:-1])[0, 1]
    assert abs(r) * math.sqrt(len(z)) < stats.norm.isf(FALSE_ALARM)


def test_gaussian_law() -> None:
    check_gaussian_law()


def test_low_bits() -> None:
    check_low_bits()


def test_independence() -> None:
    check_independence()


@pytest.mark.parametrize("scale", [0.4, 2.0, 333.3])
def test_laplace_law(scale: float) -> None:
    check_laplace_law(scale)


# The fallback, and the float path against it


def check_fallback_agrees() -> None:
    """All draws decided in integers are those that floating point found."""
    n = 8000
    # All sizes of U, down to the smallest.
    rng = np.random.default_rng(1)
    words = random_words(n) & ((np.uint64(2) ** rng.integers(0, 63, n).astype(np.uint64)) - 1)
    words[::2], seconds = random_words(n)[::2], random_words(n)
    values = rng.uniform(-1, 1, n) * 2.0 ** rng.integers(-20, 52, n)
    fast = sampler.rounded_gaussian(values, SD, Words(words, seconds))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "GAUSSIAN_ROOM", 1.0)
        slow = sampler.rounded_gaussian(values, SD, Words(words, seconds))
    assert np.array_equal(fast, slow)


def test_the_fallback_agrees() -> None:
    check_fallback_agrees()


def test_the_fallback_of_laplace_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    words, seconds = random_words(5000), random_words(5000)
    words[::2] >>= (np.arange(2500) % 64).astype(np.uint64)
    fast = sampler._geometric(5000, 77.7, Words(words, seconds))
    monkeypatch.setattr(sampler, "EXPONENTIAL_ROOM", 1.0)
    assert np.array_equal(fast, sampler._geometric(5000, 77.7, Words(words, seconds)))


def test_the_fallback_finds_its_way_from_any_guess() -> None:
    for v in (0, 1, 2**20, 2**64, 2**110, 2**126, 2**127 - 1):
        found = {
            exact.round_normal(v, shift=0.25, sd=SD, guess=guess, entropy=lambda n: b"\x05" * n)
            for guess in (0, -3, int(4 * SD), -int(37 * SD))
        }
        assert len(found) == 1


def words_around(boundary: mpmath.mpf) -> list[tuple[np.ndarray, int | None, bool]]:
    """Two words on both sides of a number, with 64 more bits where they matter; if below it."""
    scaled = boundary * mpmath.mpf(2) ** 128
    V = int(mpmath.floor(scaled))
    rest = int(mpmath.floor((scaled - V) * mpmath.mpf(2) ** 64))
    around = [
        (V - 2**64, None, True),
        (V - 1, None, True),
        (V, max(rest - 1, 0), True),
        (V, min(rest + 1, 2**64 - 1), False),
        (V + 1, None, False),
        (V + 2**64, None, False),
    ]
    return [
        (np.array(divmod(number, 2**64), dtype=np.uint64), further, below)
        for number, further, below in around
        if 0 <= number < 2**128
    ]


def check_boundary_words() -> None:
    """Words next to a jump of the rounding, whose place mpmath says, fall on the right side.

    Queries of all sizes, with all the fractions that they can have.
    """
    rng = np.random.default_rng(2)
    for i in range(1000):
        sd = float(sampler.SMALLEST_SD * rng.uniform(1, 2))
        a = float(rng.uniform(-1, 1) * 2.0 ** rng.integers(-40, 52)) if i % 8 else -sampler.LARGEST
        down = float(-rng.uniform(0.001, 12.5) * sd)  # the lower half of the law
        k = math.floor(Fraction(a) + Fraction(down))
        t = (mpmath.mpf(k) + 0.5 - mpmath.mpf(a)) / mpmath.mpf(sd)
        negative = bool(rng.integers(2))
        for (v, w), further, below in words_around(mpmath.ncdf(t)):
            if v >= 2**63:
                continue
            word = np.array([v | np.uint64(2**63 if negative else 0)])
            # The sign mirrors the law: -(round(a + sd Q)) = round(-a + sd (-Q)).
            value = np.array([-a if negative else a])
            found = float(sampler.rounded_gaussian(value, sd, Words(word, w, further))[0])
            found = -found if negative else found
            assert (found <= k) == below
            # One step of U is less than a unit wide, but in the tails; its further bits always are.
            if further is not None or t > -4:
                assert found == (k if below else k + 1)


def test_boundary_words() -> None:
    check_boundary_words()


def check_laplace_boundary_words() -> None:
    rng = np.random.default_rng(3)
    for _ in range(600):
        scale = float(2.0 ** rng.uniform(-3, 20))
        k = math.floor(rng.exponential() * scale * rng.choice([1, 10])) + 1
        around = words_around(mpmath.exp(-mpmath.mpf(k) / mpmath.mpf(scale)))
        for (v, w), further, below in around:
            found = int(sampler._geometric(1, scale, Words(np.array([v]), w, further))[0])
            assert (found >= k) == below
            if further is not None:
                assert found == (k if below else k - 1)


def test_laplace_boundary_words() -> None:
    check_laplace_boundary_words()


@pytest.mark.parametrize("bits", [64, 128, 300])
def test_the_series_enclose_the_truth(bits: int) -> None:
    """And their error is below a thousandth of the last bit that is compared."""
    rng = np.random.default_rng(bits)
    for _ in range(150):
        x = Fraction(float(rng.uniform(0, 12))) / int(rng.integers(1, 1000))
        for curve, true in (
            (exact.normal_cdf, lambda x: mpmath.ncdf(-x)),
            (exact.exponential, lambda x: mpmath.exp(-x)),
        ):
            value, error, precision = curve(x.numerator, x.denominator, bits)
            truth = true(mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** precision
            assert abs(truth - value) <= error
            assert error < 2 ** (precision - bits) / 100
    assert exact.normal_cdf(0, 1, bits).value == 2 ** (exact.normal_cdf(0, 1, bits).precision - 1)


# The hypothesis about the libraries


def structured_grid() -> np.ndarray:
    """All binades of [2^-64, 1/2]: even and random points, and floats next to each other."""
    rng = np.random.default_rng(4)
    binades = 2.0 ** -np.arange(2.0, 65.0)[:, None]
    grid = np.concatenate(
        [
            (binades * (1 + np.linspace(0, 1, 100))).ravel(),
            (binades * rng.uniform(1, 2, 100)).ravel(),
        ]
    )
    special_points = np.r_[binades.ravel(), math.exp(-2), math.exp(-32), 0.5 - 2.0**-54]
    ulps = np.arange(-20, 21)
    near = (special_points[:, None] * (1 + ulps * 2.0**-52)).ravel()
    grid = np.r_[grid, near]
    return grid[(grid >= 2.0**-64) & (grid < 0.5)]


def largest_error(found: np.ndarray, curve: Callable[..., exact.Value], slope: np.ndarray) -> float:
    """Of inverse functions: (curve(x) - u) / slope(x), the curve exactly."""
    worst = 0.0
    for u, x, s in zip(structured_grid().tolist(), found.tolist(), slope.tolist(), strict=True):
        n, d = x.as_integer_ratio()
        value, _, precision = curve(n, d, 160)
        worst = max(worst, abs(float(Fraction(value, 2**precision) - Fraction(u))) / s)
    return worst


def test_the_normal_quantile_is_as_accurate_as_assumed() -> None:
    """Sixteen times as accurate, at 11,000 points."""
    x = -special.ndtri(structured_grid())
    assert len(x) > 10_000
    assert largest_error(x, exact.normal_cdf, stats.norm.pdf(x)) < sampler.NDTRI_ERROR / 16


def test_the_logarithm_is_as_accurate_as_assumed() -> None:
    u = structured_grid()
    assert largest_error(-np.log(u), exact.exponential, u) < sampler.LOG_ERROR / 4


@pytest.mark.parametrize("where", [special, np], ids=["ndtri", "log"])
@pytest.mark.parametrize("off", [1e-12, -1e-12])
def test_a_worse_library_is_refused(
    where: object, off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ndtri" if where is special else "log"
    good = getattr(where, name)
    monkeypatch.setattr(where, name, lambda u: good(u) + off)
    sampler._check_libraries.cache_clear()
    with pytest.raises(DPPCAError, match=name):
        sampler.rounded_gaussian(np.zeros(1), SD)
    with pytest.raises(DPPCAError, match=name):
        sampler.discrete_laplace(1, 2.0)
    monkeypatch.undo()
    sampler.rounded_gaussian(np.zeros(1), SD)


# Nothing is kept


def test_zero_has_one_sign() -> None:
    """-0.0 would reveal on which side of zero the query was."""
    word = np.array([2**63 - 1], dtype=np.uint64)  # the median
    for a in (-0.3, -0.0, 0.0, 0.3):
        found = sampler.rounded_gaussian(np.array([a]), SD, Words(word))
        assert found.tobytes() == np.zeros(1).tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forks_draw_their_own() -> None:
    sampler.rounded_gaussian(np.zeros(1), SD)
    draws = []
    for _ in range(3):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:  # in the child: write and leave at once
            os.write(writer, sampler.rounded_gaussian(np.zeros(4), SD).tobytes())
            os._exit(0)
        os.waitpid(pid, 0)
        draws.append(os.read(reader, 1000))
        os.close(reader)
        os.close(writer)
    draws.append(sampler.rounded_gaussian(np.zeros(4), SD).tobytes())
    assert len(set(draws)) == 4 and all(len(d) == 32 for d in draws)


def test_threads_draw_their_own() -> None:
    """From the first draw on, with the check of the libraries among them."""
    sampler._check_libraries.cache_clear()
    found: list[np.ndarray] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(sampler.rounded_gaussian(np.zeros(50_000), SD))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({f.tobytes() for f in found}) == 4
    for f in found:
        assert stats.kstest(f / SD, "norm").pvalue > FALSE_ALARM


# What must be caught

GAUSSIAN = "noise.sampler:rounded_gaussian"
CHECKS: dict[str, Callable[[], None]] = {
    "boundary words": check_boundary_words,
    "Laplace boundary words": check_laplace_boundary_words,
    "independence": check_independence,
    "each integer": check_each_integer,
    "fallback": check_fallback_agrees,
    "law": check_gaussian_law,
}
MUTANTS = (
    Mutant(
        "filter too narrow", GAUSSIAN, "0.5 - GAUSSIAN_ROOM", "0.5 - 2.0**-28", "boundary words", ()
    ),
    Mutant("one-sided filter", GAUSSIAN, "np.abs(z, out=z)", "pass", "boundary words", ()),
    Mutant(
        "tails left to floating point", GAUSSIAN, "| (u < SMALLEST_U)", "", "boundary words", ()
    ),
    Mutant(
        "the second word left out",
        GAUSSIAN,
        "_joined(v[low], w)",
        "_joined(v[low], 0 * w)",
        "boundary words",
        (),
    ),
    Mutant(
        "one word in the tails",
        GAUSSIAN,
        "max(_SHORT, int(v.min()) + 1)",
        "1",
        "boundary words",
        (),
    ),
    Mutant(
        "the second word used twice",
        GAUSSIAN,
        "second[i] if",
        "int(w[0]) if",
        "fallback",
        (),
    ),
    Mutant(
        "one-sided fallback",
        "noise.exact:_smallest",
        "    if reaches(guess):",
        "    if reaches(guess):\n        return guess",
        "boundary words",
        (),
    ),
    Mutant(
        "fallback without a half",
        "noise.exact:round_normal",
        "(2 * k + 1) * b",
        "2 * k * b",
        "fallback",
        (),
    ),
    Mutant(
        "further bits reused",
        "noise.exact:_Uniform.below",
        'int.from_bytes(self._entropy(8), "little")',
        "(self._v & 2**64 - 1)",
        "boundary words",
        (),
    ),
    Mutant(
        "one word for all",
        GAUSSIAN,
        "entropy(8 * len(block))",
        "entropy(8) * len(block)",
        "independence",
        (),
    ),
    Mutant(
        "words reused by the next block",
        GAUSSIAN,
        "u = v * 2.0**-64",
        "v0 = v = v0[: len(v)] if start else v\n        u = v * 2.0**-64",
        "independence",
        (),
    ),
    Mutant(
        "the query rounded first",
        GAUSSIAN,
        "rest = block - whole",
        "rest = 0 * block",
        "each integer",
        (),
    ),
    Mutant(
        "the query in the float sum",
        GAUSSIAN,
        "whole = np.rint(block)",
        "whole = 0 * block",
        "boundary words",
        (),
    ),
    Mutant("no sign", GAUSSIAN, "np.where(words < 0, -sd, sd)", "sd", "law", ()),
    Mutant(
        "sd too small",
        GAUSSIAN,
        "np.where(words < 0, -sd, sd)",
        "np.where(words < 0, -sd, sd) * (1 - 2**-6)",
        "law",
        (),
    ),
    Mutant(
        "Laplace filter too narrow",
        "noise.sampler:_geometric",
        "room = max(scale, 1.0) * EXPONENTIAL_ROOM",
        "room = 0.0",
        "Laplace boundary words",
        (),
    ),
)


@pytest.mark.audit
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        CHECKS[mutant.audit]()

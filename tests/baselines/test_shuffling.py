"""The amplification bound, against exact enumeration and against the mechanisms it is for."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.baselines.shuffling import (
    clone_delta,
    epsilon_limit,
    largest_epsilon0,
    shuffled_delta,
    shuffled_gaussian_mu,
)
from stream_dppca.calibration import gaussian_delta, gaussian_mu
from stream_dppca.errors import ParameterError


def hockey_stick(P, Q, epsilon):
    """max over events S of P(S) - e^epsilon Q(S)."""
    return sum(max(p - math.exp(epsilon) * Q.get(z, 0.0), 0.0) for z, p in P.items())


@lru_cache
def counts_of_clones(n, epsilon0, flip):
    """Law of the two counts, record by record from the definition in exact fractions."""
    E = Fraction(math.exp(epsilon0))
    own = {(1, 0): E / (E + 1), (0, 1): 1 / (E + 1)}
    if flip:
        own = {(a, b): own[b, a] for a, b in own}
    other = {(1, 0): 1 / (2 * E), (0, 1): 1 / (2 * E), (0, 0): 1 - 1 / E}
    law = own
    for _ in range(n - 1):
        grown: Counter = Counter()
        for (a, b), p in law.items():
            for (i, j), q in other.items():
                grown[a + i, b + j] += p * q
        law = grown
    return {z: float(p) for z, p in law.items()}


@pytest.mark.parametrize("n", [1, 2, 5, 30])
@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_equals_the_exact_divergence(n, epsilon0, share):
    epsilon = share * epsilon0
    P, Q = (counts_of_clones(n, epsilon0, flip) for flip in (False, True))
    exact = hockey_stick(P, Q, epsilon)
    assert exact == pytest.approx(hockey_stick(Q, P, epsilon), rel=1e-9)
    found = clone_delta(epsilon, epsilon0, n)
    assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-6) + 1e-15


def test_large_n_agrees_with_exact_integers():
    """n = 1500, one c at a time, every coefficient an exact integer."""
    n, epsilon0, epsilon = 1500, 1.5, 0.4
    E = math.exp(epsilon0)
    alpha, p = E / (E + 1), 1 / E
    chance, unit = p.as_integer_ratio()
    total = 0.0
    for c in range(150, 550):  # 335 +- 16: beyond, below e^-60
        row = [math.comb(c, a) / 2**c for a in range(c // 2 - 1, c // 2 + 150) if a <= c]
        b = np.array([0.0, *row])
        below, here = b[1:-1], b[2:]
        one, two = alpha * below + (1 - alpha) * here, (1 - alpha) * below + alpha * here
        divergence = np.maximum(one - math.exp(epsilon) * two, 0.0).sum()
        ways = math.comb(n - 1, c) * chance**c * (unit - chance) ** (n - 1 - c)
        total += ways / unit ** (n - 1) * divergence  # of integers: rounded once
    assert total > 0
    assert clone_delta(epsilon, epsilon0, n) == pytest.approx(total, rel=1e-6)


def test_monotone():
    deltas = [clone_delta(e, 2.0, 1000) for e in np.linspace(0, 2.0, 15)]
    assert deltas == sorted(deltas, reverse=True)
    deltas = [clone_delta(0.3, e0, 1000) for e0 in np.linspace(0.3, 8.0, 15)]
    assert deltas == sorted(deltas)
    deltas = [clone_delta(0.3, 2.0, n) for n in (1, 10, 100, 1000, 10**4, 10**5)]
    assert deltas == sorted(deltas, reverse=True)
    assert clone_delta(0.3, 0.3, 10) == 0.0
    mus = [shuffled_gaussian_mu(0.3, 1e-6, n) for n in (2000, 10**4, 10**5, 10**6)]
    assert mus == sorted(mus)


@pytest.mark.parametrize("n", [1000, 10**4, 10**6])
@pytest.mark.parametrize("delta", [1e-4, 1e-8])
def test_below_the_closed_form(n, delta):
    """Theorem 3.1 of Feldman, McMillan, Talwar 2021, where it applies."""
    limit = math.log(n / (16 * math.log(2 / delta)))
    assert limit > 0
    for epsilon0 in np.linspace(0.1, limit, 5):
        E = math.exp(epsilon0)
        root = 8 * math.sqrt(E * math.log(4 / delta) / n) + 8 * E / n
        closed = math.log1p((E - 1) / (E + 1) * root)
        assert clone_delta(closed, epsilon0, n) < delta


@pytest.mark.parametrize("delta0", [0.0, 1e-13])
def test_inversion(delta0):
    found = largest_epsilon0(0.5, 1e-6, 10**4, delta0)
    assert shuffled_delta(0.5, found, delta0, 10**4) <= 1e-6
    assert shuffled_delta(0.5, found + 2e-6, delta0, 10**4) > 1e-6


def test_inversion_refuses_a_delta0_that_costs_too_much():
    with pytest.raises(ParameterError, match="`delta0` must be at most"):
        largest_epsilon0(0.5, 1e-6, 10**4, 1e-9)


# The mechanisms themselves, enumerated.


def shuffled_law(randomizer, records):
    """Exact law of all outputs in order; randomizer(history, record) -> {output: probability}."""
    law: Counter = Counter()
    orders = list(itertools.permutations(records))
    for order in orders:
        paths = {(): 1.0 / len(orders)}
        for record in order:
            paths = {
                (*past, z): p * q
                for past, p in paths.items()
                for z, q in randomizer(past, record).items()
            }
        law.update(paths)
    return law


def adaptive_response(epsilon0, delta0=0.0, symbols=3):
    """Randomized response on 0..2 whose labels and whose shape depend on the history.

    With probability delta0 the record is shown as it is.
    """

    def randomizer(past, record):
        turn = sum(z if isinstance(z, int) else 1 for z in past) % symbols
        if past and past[-1] == 0:  # two groups only, with the odds of two
            keep = math.exp(epsilon0) / (math.exp(epsilon0) + 1)
            group = int((record + turn) % symbols == 0)
            law = {group: keep, 1 - group: 1 - keep}
        else:
            norm_ = math.exp(epsilon0) + symbols - 1
            law = {
                (z + turn) % symbols: (math.exp(epsilon0) if z == record else 1.0) / norm_
                for z in range(symbols)
            }
        law = {z: (1 - delta0) * p for z, p in law.items()}
        if delta0:
            law[f"shown {record}"] = delta0
        return law

    return randomizer


@pytest.mark.parametrize("epsilon0", [0.5, 1.5])
@pytest.mark.parametrize("others", [(1, 1, 1, 1), (0, 1, 2, 2), (2, 2, 2, 2)])
def test_holds_for_an_adaptive_mechanism(epsilon0, others):
    randomizer = adaptive_response(epsilon0)
    P, Q = (shuffled_law(randomizer, (x, *others)) for x in (0, 1))
    for epsilon in (0.0, 0.1 * epsilon0, 0.4 * epsilon0, 0.8 * epsilon0):
        exact = max(hockey_stick(P, Q, epsilon), hockey_stick(Q, P, epsilon))
        assert exact <= clone_delta(epsilon, epsilon0, 5) + 1e-12


@pytest.mark.parametrize("delta0", [1e-3, 0.02])
def test_holds_for_approximate_randomizers(delta0):
    randomizer = adaptive_response(1.0, delta0)
    P, Q = (shuffled_law(randomizer, (x, 1, 2, 2)) for x in (0, 1))
    for epsilon in (0.1, 0.5, 0.9):
        exact = max(hockey_stick(P, Q, epsilon), hockey_stick(Q, P, epsilon))
        assert exact <= shuffled_delta(epsilon, 1.0, delta0, 4)


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 1.0])
def test_holds_for_shuffled_gaussians(epsilon):
    """Three records, one output each, by integration on a grid; mu = 1 across [-1/2, 1/2]."""
    z = np.arange(-6, 6, 0.12)
    at = {x: norm.pdf(z, x) * 0.12 for x in (-0.5, 0.5)}

    def law(records):
        orders = set(itertools.permutations(records))
        return sum(np.einsum("i,j,k->ijk", *(at[x] for x in order)) for order in orders) / len(
            orders
        )

    P, Q = law((0.5, -0.5, -0.5)), law((-0.5, -0.5, -0.5))
    exact = max(
        np.maximum(P - math.exp(epsilon) * Q, 0).sum(),
        np.maximum(Q - math.exp(epsilon) * P, 0).sum(),
    )
    assert exact > 0
    bound = min(
        shuffled_delta(epsilon, e0, gaussian_delta(e0, 1.0), 3) for e0 in np.arange(0.5, 8, 0.25)
    )
    assert exact <= bound


# The calibration.


@pytest.mark.parametrize(("epsilon", "delta", "n"), [(0.1, 1e-6, 10**4), (0.5, 1e-6, 10**6)])
def test_calibrated_noise_keeps_the_promise(epsilon, delta, n):
    mu = shuffled_gaussian_mu(epsilon, delta, n)
    total = min(
        shuffled_delta(epsilon, e0, gaussian_delta(e0, mu), n)
        for e0 in np.arange(epsilon, 12, 0.02)
    )
    assert 0.5 * delta < total <= delta * 1.01  # 1.01: the grid of epsilon0 here is coarse
    assert mu > gaussian_mu(epsilon, delta)  # shuffling is worth something


def test_the_limit_is_accepted_and_beyond_it_refused():
    limit = epsilon_limit(10**4, 1e-6)
    assert 0.3 < limit < 1.0
    assert shuffled_gaussian_mu(limit, 1e-6, 10**4) > 0
    with pytest.raises(ParameterError, match=r"`epsilon` must lie between 0\.001 and 0\.52"):
        shuffled_gaussian_mu(limit * 1.001, 1e-6, 10**4)
    with pytest.raises(ParameterError, match="no valid range with 200 records"):
        shuffled_gaussian_mu(0.1, 1e-6, 200)

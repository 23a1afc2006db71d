"""Noise that cancels over batches."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from stream_dppca.mechanisms.correlated import (
    DECAYS,
    HORIZON,
    POWER,
    CorrelatedRelease,
    _rounding,
    weights,
)
from stream_dppca.noise import SeededNoise
from tests.audit.mutants import Mutant
from tests.conftest import FrozenNoise


def releases(
    queries: list[np.ndarray], powers: list[float], noise: Any, **how: Any
) -> tuple[np.ndarray, list[Any]]:
    """All releases, and the matrix C that they were made with."""
    correlated = CorrelatedRelease(mu=0.3, **how)
    T = len(queries)
    C, found, begin = np.zeros((T, T)), [], 0
    for t, (q, power) in enumerate(zip(queries, powers, strict=True)):
        found.append(correlated.release(q, sensitivity=0.3, power=power, noise=noise))
        begin = t if found[-1].first else begin
        for s in range(begin, t + 1):
            own, later = found[s].weights.own, found[s].weights.later
            tail = sum(w * d ** (t - s - 1) for w, d in zip(later, correlated.decays, strict=True))
            C[t, s] = own if s == t else tail
    return C, found


def responses(T: int, noise: Any, **how: Any) -> np.ndarray:
    """C as it acts: what each query alone, of length 1, adds to each release."""
    rng = np.random.default_rng(0)
    powers = list(rng.uniform(0.3, 4, T))
    C = np.zeros((T, T))
    for s in range(T):
        queries = [np.full(1, 1000.0 * (t == s)) for t in range(T)]
        C[:, s] = [r.y[0] / 1000.0 for r in releases(queries, powers, noise, **how)[1]]
    return C


def test_no_column_is_longer_than_one() -> None:
    """Whatever the powers, and for as long as there are releases."""
    rng = np.random.default_rng(0)
    for power in [0.0, 0.01, 50.0, *rng.uniform(0, 4, 20)]:
        own, later = weights(power).own, weights(power).later
        assert own > 0 and min(later) >= 0
        assert sum(w / d for w, d in zip(later, DECAYS, strict=True)) <= own * (1 + 1e-9)
        square = own**2
        tail = np.array(later)
        for _ in range(1000):
            square += tail.sum() ** 2
            tail *= DECAYS
        assert 1 - 1e-9 < square <= 1


def check_columns() -> None:
    """Check the columns that releases show: no longer than 1, and no earlier query in a new C."""
    C = responses(60, FrozenNoise(), horizon=40)
    assert (np.linalg.norm(C, axis=0) <= 1 + 1e-6).all()
    assert np.linalg.norm(C[:, 0]) > 0.9
    assert np.array_equal(C, np.tril(C)) and not C[40:, :40].any() and C[40:, 40].all()
    rng = np.random.default_rng(0)
    powers = list(rng.uniform(0.3, 4, 60))
    expected, _ = releases([np.zeros(1)] * 60, powers, FrozenNoise(), horizon=40)
    assert C == pytest.approx(expected, abs=1e-6)


def test_columns_as_they_act() -> None:
    check_columns()


@pytest.mark.audit
@pytest.mark.parametrize(
    "method, old, new",
    [
        ("_moved", "part *= decay", "pass"),
        ("_moved", "total += part", "total += 2 * part"),
        ("_moved", "weight * newest", "newest"),
        ("release", "self._releases >= self.horizon", "False"),
        ("release", "self._releases >= self.horizon", "self._releases > self.horizon"),
        ("_begin", "self._sums: list[FloatArray] = []", "self._sums = getattr(self, '_sums', [])"),
    ],
)
def test_a_mutant_of_the_running_sums_is_caught(method: str, old: str, new: str) -> None:
    function = f"mechanisms.correlated:CorrelatedRelease.{method}"
    with Mutant(old, function, old, new, "", ()).planted(), pytest.raises(AssertionError):
        check_columns()


def test_a_new_c_after_the_horizon() -> None:
    """A new C begins on a public schedule: after the horizon."""
    _, found = releases([np.zeros(2)] * 12, [0.5] * 12, FrozenNoise(), horizon=5)
    assert [t for t, r in enumerate(found) if r.first] == [0, 5, 10]


def asked(queries: np.ndarray, powers: list[float]) -> np.ndarray:
    """The queries that reach the source of noise, in units of its sd."""
    seen = []

    class Watching(FrozenNoise):
        def gaussian(self, query: np.ndarray, **how: Any) -> np.ndarray:
            seen.append(query.copy())
            return super().gaussian(query, **how)

    releases(list(queries), powers, Watching())
    return np.array(seen)


def test_rounding_is_within_its_bound() -> None:
    """Two neighbours in float64 and in exact fractions, the largest query that there can be."""
    rng, T, n = np.random.default_rng(3), 40, 2.0**22
    powers = list(rng.uniform(0.3, 1, T))
    queries = rng.uniform(0.5, 1, (T, 6)) * n * 0.3 / 3
    other = queries.copy()
    other[3] += 0.1
    y, z = asked(queries, powers), asked(other, powers)
    C, _ = releases([np.zeros(1)] * T, powers, FrozenNoise())
    exact = np.outer(C[:, 3], np.full(6, 0.1))
    assert np.linalg.norm(z - y - exact) <= 0.3 * _rounding(DECAYS, HORIZON)


def test_without_noise_the_release_is_c_times_q_and_can_be_undone() -> None:
    rng = np.random.default_rng(1)
    queries = [rng.standard_normal(3) for _ in range(20)]
    C, found = releases(queries, list(rng.uniform(0, 2, 20)), FrozenNoise())
    assert np.array([r.y for r in found]) == pytest.approx(C @ np.array(queries), abs=1e-6)
    assert np.array([r.alone for r in found]) == pytest.approx(np.array(queries), abs=1e-5)


def test_the_noise_has_sd_one_and_is_independent() -> None:
    _, found = releases([np.zeros(2000)] * 12, [0.5] * 12, SeededNoise(4))
    y = np.array([r.y for r in found])
    # 12 x 2000 draws: sd within 2 %, correlations within 0.1; 4 sigma and more.
    assert y.std() == pytest.approx(1.0, abs=0.02)
    correlation = np.corrcoef(y)
    assert np.abs(correlation - np.eye(12)).max() < 0.11


def test_the_sum_of_batches_carries_little_noise() -> None:
    """32 batches, independent noise: sqrt 32 = 5.7. Correlated: below 2."""
    correlated, total, noise = CorrelatedRelease(mu=1.0), np.zeros(4000), SeededNoise(1)
    for _ in range(32):
        r = correlated.release(np.zeros(4000), sensitivity=1.0, power=POWER, noise=noise)
        total += r.alone
    assert float(np.std(total)) < 2.5


def test_two_sums_are_as_good_as_thirty_two_queries() -> None:
    """Information about the mean, against columns that end after 32 entries, all of length 1."""
    column = np.arange(1.0, 33.0) ** -0.55
    column /= np.linalg.norm(column)
    T = 256
    C = sum(np.diag(np.full(T - age, c), -age) for age, c in enumerate(column))
    two, _ = releases([np.zeros(1)] * T, [0.57] * T, FrozenNoise())

    def information(C: np.ndarray, nu: float) -> np.ndarray:
        factor = np.linalg.cholesky(np.eye(T) + nu * C @ C.T)
        return np.cumsum(np.linalg.solve(factor, C @ np.ones(T)) ** 2)

    for nu in (0.0, 0.1, 1.0):
        band, sums = information(C, nu), information(two, nu)
        assert (sums / band).min() > 0.94  # 3 % of the sd
        assert sums[-1] / band[-1] > 1.0


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_leave_the_secret_history_behind(duplicate: Any) -> None:
    correlated = CorrelatedRelease(mu=1.0)
    correlated.release(np.full(2, 1e6), sensitivity=1.0, power=0.5, noise=FrozenNoise())
    twin = duplicate(correlated)
    after = twin.release(np.zeros(2), sensitivity=1.0, power=0.5, noise=FrozenNoise())
    assert after.y.tolist() == [0.0, 0.0]
    assert after.first

"""Correlated noise and the least squares that undoes it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from stream_dppca.adaptive.correlated import CorrelatedRelease
from stream_dppca.adaptive.estimate import RunningEstimate
from stream_dppca.adaptive.radius import FIRST, LAST, count_of_counts, noisy_radius, radius
from stream_dppca.adaptive.whitening import Whitener
from stream_dppca.noise import SeededNoise
from tests.conftest import FrozenNoise

H = 5


def search(sq: np.ndarray, **how: Any) -> int:
    return noisy_radius(lambda j: np.count_nonzero(sq > radius(j) ** 2), **how)


def releases(
    queries: list[np.ndarray], powers: list[float], noise: Any
) -> tuple[np.ndarray, list[Any]]:
    """All releases, and the matrix C that they were made with."""
    correlated = CorrelatedRelease(mu=0.3, bandwidth=H)
    T = len(queries)
    C, found = np.zeros((T, T)), []
    for t, (q, power) in enumerate(zip(queries, powers, strict=True)):
        released = correlated.release(q, sensitivity=0.3, power=power, noise=noise)
        for age, weight in enumerate(released.row):
            C[t, t - age] = weight
        found.append(released)
    return C, found


def test_columns_have_unit_length_whatever_the_powers() -> None:
    rng = np.random.default_rng(0)
    T = 30
    C, _ = releases([np.zeros(2)] * T, list(rng.uniform(0, 4, T)), FrozenNoise())
    lengths = np.linalg.norm(C, axis=0)
    assert lengths[: T - H + 1] == pytest.approx(1.0, abs=1e-12)
    assert (lengths <= 1 + 1e-12).all()
    assert np.array_equal(C, np.tril(C)) and np.array_equal(C, np.triu(C, -H + 1))


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
    correlated = CorrelatedRelease(mu=1.0, bandwidth=32)
    whitener = Whitener(sampling=0.0, bandwidth=32)
    estimate = RunningEstimate(4000)
    noise = SeededNoise(1)
    for _ in range(32):
        r = correlated.release(np.zeros(4000), sensitivity=1.0, power=0.55, noise=noise)
        white = whitener(r.row, r.y, np.zeros(()), 1.0)
        estimate.total = estimate.total + white.f * white.u
        estimate.weight += white.f**2
    assert float(np.std(estimate.theta)) * 32 < 2.0


@pytest.mark.parametrize("nu", [0.0, 0.3, 20.0])
def test_whitening_is_generalised_least_squares(nu: float) -> None:
    """Against the dense solution: theta = (b' S^-1 y) / (b' S^-1 b), S = I + nu C C'."""
    rng = np.random.default_rng(2)
    T = 14
    gains, offsets = rng.uniform(0.2, 3, T), rng.standard_normal((T, 2))
    C, found = releases(
        [rng.standard_normal(2) for _ in range(T)], list(rng.uniform(0, 2, T)), SeededNoise(1)
    )
    whitener = Whitener(sampling=nu, bandwidth=H)
    total, weight = np.zeros(2), 0.0
    for r, offset, gain in zip(found, offsets, gains, strict=True):
        white = whitener(r.row, r.y, offset, gain)
        total, weight = total + white.f * white.u, weight + white.f**2
    S = np.eye(T) + nu * C @ C.T
    b = C @ gains
    y = np.array([r.y for r in found]) + C @ offsets
    solution = b @ np.linalg.solve(S, y) / (b @ np.linalg.solve(S, b))
    assert total / weight == pytest.approx(solution, rel=1e-6)
    assert weight == pytest.approx(b @ np.linalg.solve(S, b), rel=1e-9)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_leave_the_secret_history_behind(duplicate: Any) -> None:
    correlated = CorrelatedRelease(mu=1.0, bandwidth=H)
    correlated.release(np.full(2, 1e6), sensitivity=1.0, power=0.5, noise=FrozenNoise())
    twin = duplicate(correlated)
    after = twin.release(np.zeros(2), sensitivity=1.0, power=0.5, noise=FrozenNoise())
    assert after.y.tolist() == [0.0, 0.0]
    assert len(after.row) == 1


# The range


def test_the_search_asks_a_fixed_number_of_counts() -> None:
    rng = np.random.default_rng(3)
    for sq in (np.zeros(100), np.full(100, 1e300), rng.lognormal(0, 50, 100)):
        noise = FrozenNoise()
        search(sq, beyond=20, mu=1.0, noise=noise)
        assert len(noise.asked) == count_of_counts(FIRST, LAST) == 11


def test_the_search_finds_the_smallest_radius() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        sq = np.exp(rng.normal(rng.uniform(-80, 80), 3, 500))
        beyond = float(rng.integers(1, 499)) + 0.5
        j = search(sq, beyond=beyond, mu=1.0, noise=FrozenNoise())
        assert np.count_nonzero(sq > radius(j) ** 2) <= beyond
        assert np.count_nonzero(sq > radius(j - 1) ** 2) > beyond


def test_the_ends_of_the_grid() -> None:
    assert search(np.zeros(9), beyond=3, mu=1.0, noise=FrozenNoise()) == FIRST
    assert search(np.full(9, 1e300), beyond=3, mu=1.0, noise=FrozenNoise()) == LAST


# The estimate


def stream(rng: np.random.Generator, thetas: list[np.ndarray]) -> list[float]:
    whitener, estimate, errors = Whitener(sampling=0.1, bandwidth=32), RunningEstimate(50), []
    correlated, noise = CorrelatedRelease(mu=1.0, bandwidth=32), SeededNoise(int(rng.integers(99)))
    for theta in thetas:
        r = correlated.release(theta, sensitivity=1.0, power=0.55, noise=noise)
        estimate.add(whitener(r.row, r.y, np.zeros(()), 1.0), whitener)
        errors.append(float(np.linalg.norm(estimate.theta - theta)))
    return errors


def test_a_jump_is_followed() -> None:
    rng = np.random.default_rng(5)
    before, after = 30 * rng.standard_normal((2, 50))
    for _ in range(5):
        errors = stream(rng, [before] * 40 + [after] * 8)
        assert errors[39] < 3
        assert errors[40 + 5] < 0.1 * np.linalg.norm(after - before)


def test_a_steady_stream_is_left_alone() -> None:
    rng = np.random.default_rng(6)
    theta = 30 * rng.standard_normal(50)
    for _ in range(5):
        errors = stream(rng, [theta] * 200)
        assert errors[-1] < 1.5

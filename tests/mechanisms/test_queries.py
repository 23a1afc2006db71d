"""No record moves a query further than its sensitivity, as computed, whatever the record."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dppca.mechanisms.queries import SIDE, Gradients, pack, unpack
from tests.conftest import batch_of, clipped_mean, moments_in, replaced

FAR = [0.0, 1e-300, 1e-9, 1.0, 30.0, 1e6, 4e17, math.nan, 1e300]


def orthonormal(rng: np.random.Generator, d: int, k: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


def centre(rng: np.random.Generator, k: int, size: float) -> np.ndarray:
    L = rng.standard_normal((k, k)) * size
    return (L + L.T) / 2


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 40),
    d=st.integers(1, 8),
    log_rho=st.integers(-20, 20),
    log_centre=st.sampled_from([-30, 0, 3]),
    lengths=st.tuples(st.sampled_from(FAR), st.sampled_from(FAR)),
)
@settings(max_examples=300, deadline=None)
def test_gradient_sensitivity(
    seed: int, n: int, d: int, log_rho: int, log_centre: int, lengths: tuple[float, float]
) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, d + 1))
    W, L = orthonormal(rng, d, k), centre(rng, k, 10.0**log_centre)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-2, 3)
    i = int(rng.integers(n))
    rho = 2.0**log_rho
    (one, s1), (two, s2) = (
        clipped_mean(batch_of(replaced(rng, X, i, length)), Gradients(W, L), rho)
        for length in lengths
    )
    assert s1 == s2  # the sensitivity itself is public
    assert np.linalg.norm(one - two) <= s1
    assert np.isfinite(one).all()


def test_the_gradient_bound_is_reached() -> None:
    """Opposite points of the ball are possible, so a smaller sensitivity would be wrong."""
    rng = np.random.default_rng(0)
    W, L = np.eye(3)[:, :1], np.zeros((1, 1))
    X = rng.standard_normal((10, 3))
    X[4] = [1e-3, 1e6, 0]
    Y = X.copy()
    Y[4] = [1e-3, -1e6, 0]
    (one, s), (two, _) = (clipped_mean(batch_of(Z), Gradients(W, L), 2.0) for Z in (X, Y))
    assert np.linalg.norm(one[:3] - two[:3]) == pytest.approx(2 * 2.0 / 10, rel=1e-6)
    assert s == pytest.approx(math.hypot(4.0, SIDE * 2.0) / 10, rel=1e-9)


@pytest.mark.parametrize("k", [1, 3])
def test_the_gradient_is_what_it_says(k: int) -> None:
    rng = np.random.default_rng(1)
    n, d, rho = 200, 6, 1.3
    X, W, L = rng.standard_normal((n, d)), orthonormal(rng, d, k), centre(rng, k, 0.5)
    X[7] = np.nan
    batch, form = batch_of(X), Gradients(W, L)
    sq_length = batch.ranged(form)._sq_length
    expected, factors = np.zeros((d, k)), 0.0
    for i, x in enumerate(X):
        if i == 7:
            assert sq_length[i] == 0.0
            continue
        off = np.outer(x, x @ W) - W @ L
        r = np.linalg.norm(off)
        assert sq_length[i] >= r**2
        assert sq_length[i] == pytest.approx(r**2, rel=1e-9)
        expected += off * min(1.0, rho / r)
        factors += min(1.0, rho / r)
    mean, sensitivity = clipped_mean(batch, form, rho)
    assert mean[:d] == pytest.approx(expected / n, abs=1e-9)
    assert form.mean_factor(mean[d, 0], sensitivity, n) == pytest.approx(factors / n, rel=1e-6)


def test_distances_survive_cancellation() -> None:
    """Records almost at the centre: the over-estimate stays an over-estimate, and stays small."""
    rng = np.random.default_rng(2)
    W = orthonormal(rng, 50, 1)
    X = np.outer(rng.choice([-1.0, 1.0], 500), W[:, 0]) + 1e-7 * rng.standard_normal((500, 50))
    sq_length = batch_of(X).ranged(Gradients(W, np.ones((1, 1))))._sq_length
    exact = np.array(
        [float(sum((x * (x @ W[:, 0]) - W[:, 0]).astype(np.longdouble) ** 2)) for x in X]
    )
    assert (sq_length >= exact).all()
    assert np.sqrt(sq_length).max() < 1e-5


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 40),
    d=st.integers(1, 8),
    log_rho=st.integers(-20, 20),
    lengths=st.tuples(st.sampled_from(FAR), st.sampled_from(FAR)),
)
@settings(max_examples=300, deadline=None)
def test_moment_sensitivity(
    seed: int, n: int, d: int, log_rho: int, lengths: tuple[float, float]
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-2, 3)
    i, rho = int(rng.integers(n)), 2.0**log_rho
    moments = moments_in(d, rho)
    one, two = (batch_of(replaced(rng, X, i, length)).total(moments) for length in lengths)
    assert np.linalg.norm(pack(one) - pack(two)) <= moments.sensitivity(n)


def test_the_moment_bound_is_reached() -> None:
    X = np.zeros((10, 2))
    Y = X.copy()
    X[3], Y[3] = [1e6, 0], [0, 1e6]
    moments = moments_in(2, 4.0)
    one, two = (pack(batch_of(Z).total(moments)) for Z in (X, Y))
    assert np.linalg.norm(one - two) == pytest.approx(math.sqrt(2) * 4.0, rel=1e-9)
    assert moments.sensitivity(10) == pytest.approx(math.sqrt(2) * 4.0, rel=1e-9)


def test_the_moment_is_what_it_says() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((3000, 4))  # more than one chunk
    X[7] = np.inf
    clean = np.where(np.isfinite(X), X, 0.0)
    norm = np.linalg.norm(clean, axis=1, keepdims=True)
    clipped = clean * np.minimum(1.0, math.sqrt(3.0) / np.maximum(norm, 1e-9))
    total = batch_of(X).total(moments_in(4, 3.0))[:4, :4]
    assert total == pytest.approx(clipped.T @ clipped, abs=1e-6)


@pytest.mark.parametrize("d", [1, 2, 3, 10, 57])
def test_packing_keeps_lengths(d: int) -> None:
    S = np.random.default_rng(d).standard_normal((d, d))
    S = S + S.T
    assert len(pack(S)) == d * (d + 1) // 2
    assert np.linalg.norm(pack(S)) == pytest.approx(np.linalg.norm(S))
    assert unpack(pack(S)) == pytest.approx(S)

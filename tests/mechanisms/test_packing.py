"""No record moves packed moments further than their sensitivity, as computed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dppca.mechanisms.packing import pack, unpack
from tests.conftest import batch_of, moments_in, replaced

FAR = [0.0, 1e-300, 1e-9, 1.0, 30.0, 1e6, 4e17, math.nan, 1e300]


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
    assert np.linalg.norm(one - two) <= moments.sensitivity(n)


def test_the_moment_bound_is_reached() -> None:
    X = np.zeros((10, 2))
    Y = X.copy()
    X[3], Y[3] = [1e6, 0], [0, 1e6]
    moments = moments_in(2, 4.0)
    one, two = (batch_of(Z).total(moments) for Z in (X, Y))
    assert np.linalg.norm(one - two) == pytest.approx(math.sqrt(2) * 4.0, rel=1e-9)
    assert moments.sensitivity(10) == pytest.approx(math.sqrt(2) * 4.0, rel=1e-9)


def test_the_moment_is_what_it_says() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((3000, 4))  # more than one chunk
    X[7] = np.inf
    clean = np.where(np.isfinite(X), X, 0.0)
    norm = np.linalg.norm(clean, axis=1, keepdims=True)
    clipped = clean * np.minimum(1.0, math.sqrt(3.0) / np.maximum(norm, 1e-9))
    total = unpack(batch_of(X).total(moments_in(4, 3.0)))[:4, :4]
    assert total == pytest.approx(clipped.T @ clipped, abs=1e-6)


@pytest.mark.parametrize("d", [1, 2, 3, 10, 57])
def test_packing_keeps_lengths(d: int) -> None:
    S = np.random.default_rng(d).standard_normal((d, d))
    S = S + S.T
    assert len(pack(S)) == d * (d + 1) // 2
    assert np.linalg.norm(pack(S)) == pytest.approx(np.linalg.norm(S))
    assert unpack(pack(S)) == pytest.approx(S)

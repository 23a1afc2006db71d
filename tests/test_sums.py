"""Sums of many terms: few roundings, and sensitivities that stay tight for very large batches."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stream_dppca import DPPCA
from stream_dppca.arrays import ROUNDOFF, FloatArray
from stream_dppca.batch import block_size
from stream_dppca.estimator import LARGEST_BATCH
from stream_dppca.method.statistics import AugmentedMoments, MomentsInBall
from stream_dppca.sums import LARGEST_BLOCK, pairwise_sum, roundings


def depth_of(n: int) -> int:
    """Additions that some part of n goes through, found by adding depths instead of numbers."""

    def add(a: FloatArray, b: FloatArray, out: FloatArray) -> FloatArray:
        out[0] = max(a[0], b[0]) + 1
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "add", add)
        return int(pairwise_sum(np.zeros(1) for _ in range(n))[0])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 1000, 1023, 1024, 1025, 4097])
def test_a_part_goes_through_few_additions(n: int) -> None:
    assert depth_of(n) <= math.floor(math.log2(n)) + 1


def test_it_is_the_sum() -> None:
    for n in (1, 2, 3, 10, 97):
        parts = np.random.default_rng(n).integers(-1000, 1000, (n, 3)).astype(float)
        assert pairwise_sum(part.copy() for part in parts).tolist() == parts.sum(axis=0).tolist()
    with pytest.raises(ValueError, match="at least one"):
        pairwise_sum([])


def test_three_levels_of_the_largest_batch_are_paid_for() -> None:
    """Blocks, pieces and groups: no level has more parts than there are units."""
    levels = 3 * (math.floor(math.log2(LARGEST_BATCH)) + 1)
    assert roundings(LARGEST_BATCH) >= LARGEST_BLOCK + levels + 8
    assert all(block_size(d) <= LARGEST_BLOCK for d in (1, 10, 10**6))


def test_the_bound_holds_with_room_on_real_sums() -> None:
    n, d = 2**14, 3
    X = np.random.default_rng(0).standard_normal((n, d)) * np.exp(
        np.random.default_rng(1).standard_normal((n, 1))
    )
    block = block_size(d)
    found = pairwise_sum(X[i : i + block].T @ X[i : i + block] for i in range(0, n, block))
    exact = sum(Fraction(x) * Fraction(x) for x in X[:, 0].tolist())
    largest = float(np.einsum("ij,ij->i", X, X).max())
    assert abs(Fraction(found[0, 0].item()) - exact) < n * roundings(n) * ROUNDOFF * largest


def test_rounding_costs_next_to_nothing_up_to_the_largest_batch() -> None:
    """Far below 1 % of every sensitivity: with n + 8 roundings it would be 9 % at 2^24."""
    for units in (2**10, 2**22, 2**24, 2**26):
        for sensitivity, exact in (
            (MomentsInBall((0.0,), (1.0,), (5.0,), 7.0).sensitivity(units), 2 * 7.0),
            (
                AugmentedMoments((0.0,), (1.0,), (5.0,), 1.0, 7.0).sensitivity(units),
                math.sqrt(2) * 7.0,
            ),
        ):
            assert exact < sensitivity < exact * 1.001


@pytest.mark.parametrize("learned", [False, True])
def test_the_largest_batches_have_the_noise_of_smaller_ones(learned: bool) -> None:
    """Otherwise a query would leave the grid of exact noise, and be cut off silently."""
    how: dict[str, Any] = {} if learned else {"center": "none", "scales": None}
    methods = {
        units: DPPCA(
            features=("a", "b"), epsilon=1.0, delta=1e-6, batch_size=units, seed=1, **how
        )._method
        for units in (2**21, 2**22, 2**26)
    }
    mu = {units: method.budget.mu for units, method in methods.items()}
    assert mu[2**21] == mu[2**22] == 16 * mu[2**26]
    # A query of n sensitivities, over the sd of its noise, with room for running sums.
    assert all(units * mu[units] <= 2**20 for units in mu)

"""Algorithm 3: halves of a batch, and differences of neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from stream_dppca.paper.dppca import differences, halves


def test_halves_are_disjoint_and_complete() -> None:
    X, null = np.arange(14.0).reshape(7, 2), np.array([True] + [False] * 6)
    first, second = halves(X, null)
    assert np.array_equal(np.concatenate([first.X, second.X]), X) and len(first.X) == 3
    assert np.array_equal(np.concatenate([first.null, second.null]), null)


def test_one_record_is_in_one_difference() -> None:
    rng = np.random.default_rng(0)
    X, null = rng.standard_normal((10, 3)), np.zeros(10, dtype=bool)
    rows, none = differences(X, null)
    assert rows.shape == (5, 3) and not none.any()
    for slot in range(10):
        changed = X.copy()
        changed[slot] += 100.0
        moved = (differences(changed, null)[0] != rows).any(axis=1)
        assert np.flatnonzero(moved).tolist() == [slot // 2]


def test_a_pair_with_a_null_is_a_null() -> None:
    X, null = np.ones((6, 2)), np.array([False, True, True, False, False, False])
    X[null], X[4] = 0.0, 3.0
    rows, none = differences(X, null)
    assert none.tolist() == [True, True, False]
    assert rows[:2].tolist() == [[0.0, 0.0]] * 2
    assert rows[2] == pytest.approx(-2 * 0.5**0.5)


def test_differences_have_the_covariance_of_a_record() -> None:
    X = np.random.default_rng(1).standard_normal((200_000, 2)) * [3.0, 1.0] + 50.0
    rows, _ = differences(X, np.zeros(len(X), dtype=bool))
    assert rows.T @ rows / len(rows) == pytest.approx(np.diag([9.0, 1.0]), abs=0.15)

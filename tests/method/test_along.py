"""Variance along the components as the basis turns, from noisy moments."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stream_dppca.mechanisms.queries import pack
from stream_dppca.method.along import LENGTH, Along, RunningExcess, constant, within

UNITS = 4000


def told(second: Any, sd: float, rng: np.random.Generator, expected: Any = None) -> Along:
    """Moments of a batch with this second moment and mean 0, with noise of this sd in its sum."""
    k = len(second)
    expected = second if expected is None else expected
    values, vectors = np.linalg.eigh(expected)
    whiten = (vectors / np.sqrt(values)) @ vectors.T
    M = np.zeros((k + 2, k + 2))
    M[:k, :k], M[k, k], M[-1, -1] = whiten @ second @ whiten, LENGTH**2, constant(k) ** 2
    packed = pack(UNITS * M)
    packed = packed + sd * rng.standard_normal(packed.shape)
    return Along.read(packed, sd, expected=expected, whiten=whiten, units=UNITS)


def test_the_excess_is_carried_over_to_a_better_basis() -> None:
    """Each basis is the next one plus something that the next one no longer has."""
    rng, e, level = np.random.default_rng(1), 9.0, 0.5
    w = np.eye(40)[:, 0]
    bases = [w]
    for step, angle in enumerate(np.linspace(0.05, 1.2, 12)):
        bases.append(math.cos(angle) * bases[-1] + math.sin(angle) * np.eye(40)[:, step + 1])
    bases.reverse()
    running = RunningExcess(1)
    for V, after in pairwise(bases):
        second = np.array([[level + e * float(V @ w) ** 2]])
        running.add(told(second, 0.0, rng), second, level, keep=1.0)
        running.turn(np.array([[float(V @ after)]]))
    assert running.known
    assert running.excess[0, 0] == pytest.approx(e, rel=1e-4)
    assert running.weight < len(bases) - 2  # early ones count for less


def test_a_turn_within_the_components_loses_nothing() -> None:
    second, rng = np.array([[5.0, 1.0], [1.0, 3.0]]), np.random.default_rng(2)
    c, s = math.cos(0.7), math.sin(0.7)
    turn = np.array([[c, -s], [s, c]])
    running = RunningExcess(2)
    running.add(told(second, 0.0, rng), second, 1.0, keep=1.0)
    running.turn(turn)
    assert np.allclose(running.excess, turn.T @ (second - np.eye(2)) @ turn)
    assert running.weight == pytest.approx(1.0)


def test_another_basis_is_not_known() -> None:
    second, rng = np.array([[5.0]]), np.random.default_rng(3)
    running = RunningExcess(1)
    running.add(told(second, 0.0, rng), second, 1.0, keep=1.0)
    assert running.known
    running.turn(np.array([[0.1]]))
    assert not running.known


def test_a_batch_that_was_clipped_too_much_only_says_what_to_expect() -> None:
    rng, running = np.random.default_rng(4), RunningExcess(1)
    second = np.array([[20.0]])
    along = told(second, 1.0, rng, expected=np.array([[1.0]]))
    assert along.surprising
    running.add(along, along.second, 1.0, keep=1.0)
    assert not running.known and running.expected[0, 0] > 15


@pytest.mark.parametrize("k", [1, 3])
def test_the_noise_is_as_large_as_stated(k: int) -> None:
    rng, sd = np.random.default_rng(5), 0.2 * UNITS
    second = np.diag([8.0, 4.0, 2.0][:k])
    z = []
    for _ in range(200):
        running = RunningExcess(k)
        for _ in range(6):
            along = told(second, sd, rng)
            running.add(along, along.second, 1.0, keep=1.0)
        stated = running.sd(np.eye(k), np.diag(second))
        z.append((np.diag(running.excess) - np.diag(second) + 1) / stated)
    # 200 k numbers: 4 sds of their root mean square are 20 % at most.
    assert 0.8 < math.sqrt(np.mean(np.square(z))) < 1.2


def test_gaussian_numbers_are_hardly_ever_clipped() -> None:
    rng = np.random.default_rng(6)
    for k in (1, 3, 10):
        assert np.mean(np.sum(rng.standard_normal((20_000, k)) ** 2, axis=1) > within(k)) < 1e-3


def test_a_tampered_state_is_refused() -> None:
    running = RunningExcess(2)
    good = running.state()
    running.load(good)
    for change in (
        {"excess": [[1.0]]},
        {"weight": -1.0},
        {"held": 1.0},
        {"noise": math.inf},
        {"expected": [[math.nan, 0], [0, 1]]},
        {"scale": [[1e300, 0], [0, 1]]},
    ):
        with pytest.raises(ValueError, match="not a state"):
            running.load(good | change)

"""Sources of noise and streams that the tests share; and a list of skipped tests at the end."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from stream_dppca.arrays import FloatArray
from stream_dppca.batch import Batch, Reading
from stream_dppca.method.statistics import AugmentedMoments
from stream_dppca.noise import Noise


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count and name skipped tests: a test that did not run proves nothing."""
    skipped: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        skipped[reason.removeprefix("Skipped: ")].append(report.nodeid)
    if not skipped:
        return
    terminalreporter.section(f"{sum(map(len, skipped.values()))} tests were skipped")
    for reason, names in skipped.items():
        terminalreporter.write_line(f"{len(names)} because {reason}")
        for name in sorted(names):
            terminalreporter.write_line(f"    {name}")


class FrozenNoise(Noise):
    """The same fixed noise for the same query, or none at all: two runs differ by data alone."""

    private = False

    def __init__(self, scale: float = 0.0) -> None:
        self.scale = scale
        self.asked: list[FloatArray] = []

    def at_batch(self, batch: int) -> FrozenNoise:
        return self

    def direction(self, dimension: int, columns: int) -> FloatArray:
        return np.random.default_rng(0).standard_normal((dimension, columns))

    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        self.asked.append(values)
        draws = np.random.default_rng(len(values)).standard_normal(len(values))
        return np.rint(values + self.scale * sd * draws)

    def _discrete_laplace(self, values: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
        self.asked.append(values.astype(float))
        return values


def batch_of(X: FloatArray, max_norm: float = 1e18, **reading: Any) -> Batch:
    """A batch in memory, as `SlotBuffer` makes it."""
    return Batch(X, Reading(max_norm, **reading))


def moments_in(d: int, radius: float, each: int = 1) -> AugmentedMoments:
    """Second moments of plain records, each clipped to this radius."""
    return AugmentedMoments((0.0,) * d, (1.0,) * d, (math.inf,) * d, 0.0, radius, each)


def replaced(rng: np.random.Generator, X: FloatArray, i: int, length: float) -> FloatArray:
    """Rows in which one is replaced by another of this length, in a random direction."""
    Y = X.copy()
    direction = rng.standard_normal(X.shape[1])
    Y[i] = length * direction / np.linalg.norm(direction)
    return Y


@pytest.fixture
def several_threads() -> Iterator[None]:
    """BLAS with several threads, as in production.

    `make test` gives it one thread, because tests that run in parallel would wait for each other.
    """
    with threadpool_limits(2, user_api="blas"):
        yield


@pytest.fixture
def no_noise() -> FrozenNoise:
    return FrozenNoise()


def spiked(
    rng: np.random.Generator, n: int, d: int, second: float
) -> tuple[FloatArray, FloatArray]:
    """G(l2): Gaussian records with eigenvalues 1, l2, l2, ..., and the top eigenvector."""
    v = rng.standard_normal(d)
    v /= np.linalg.norm(v)
    X = rng.standard_normal((n, d)) * np.sqrt(second)
    X += np.outer(rng.standard_normal(n) * np.sqrt(1 - second), v)
    return X, v


def signal_plus_noise(
    rng: np.random.Generator, n: int, d: int, sigma: float
) -> tuple[FloatArray, FloatArray]:
    """T(s), Example 4.1 of the paper: x = +-v + N(0, s^2 I), and v."""
    v = rng.standard_normal(d)
    v /= np.linalg.norm(v)
    signs = rng.choice([-1.0, 1.0], n)
    return np.outer(signs, v) + sigma * rng.standard_normal((n, d)), v


def sine(w: FloatArray, v: FloatArray) -> float:
    """Sine of the angle between two unit vectors, accurate when small."""
    w = np.ravel(w)
    return float(np.linalg.norm(w - v * (v @ w)))

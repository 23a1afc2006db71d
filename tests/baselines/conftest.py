"""Fixtures of the baselines' tests: data with a known answer, and a source without noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.baselines import _common
from stream_dppca.noise import Noise


class Still(Noise):
    """Returns the queries as computed (rounded to the grid)."""

    private = False

    def __init__(self) -> None:
        self.queries: list[np.ndarray] = []
        self.sensitivities: list[float] = []
        self.mus: list[float] = []

    def gaussian(self, query, *, sensitivity, mu):
        self.queries.append(query)  # as computed; the grid's rounding is paid for apart
        self.sensitivities.append(sensitivity)
        self.mus.append(mu)
        return super().gaussian(query, sensitivity=sensitivity, mu=mu)

    def at_batch(self, batch):
        return self

    def direction(self, dimension, columns):
        return np.eye(dimension, columns) + 0.1

    def _rounded_gaussian(self, values, sd):
        return np.rint(values)

    def _discrete_laplace(self, values, scale):
        return values


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Still:
    """Every baseline gets the same still noise, which records its queries."""
    source = Still()
    monkeypatch.setattr(_common, "make_noise", lambda seed: source)
    return source


@pytest.fixture
def gaussian() -> Callable[..., np.ndarray]:
    """G(l2) of ACCURACY.md: eigenvalues 1, l2, l2, ...; the answer is the first axis."""

    def draw(n: int, d: int, seed: int, l2: float = 0.1) -> np.ndarray:
        scales = np.full(d, math.sqrt(l2))
        scales[0] = 1.0
        return np.random.default_rng(seed).normal(size=(n, d)) * scales

    return draw


@pytest.fixture
def toy() -> Callable[..., np.ndarray]:
    """T(s), the paper's Example: x = +-e_1 + N(0, s^2 I)."""

    def draw(n: int, d: int, seed: int, s: float) -> np.ndarray:
        rng = np.random.default_rng(seed)
        X = s * rng.normal(size=(n, d))
        X[:, 0] += rng.choice([-1.0, 1.0], size=n)
        return X

    return draw


@pytest.fixture
def sine() -> Callable[..., float]:
    """Sine of the angle between a fit and the first axis."""
    return lambda fit: float(np.linalg.norm(fit.components[0, 1:]))

"""Brokers come from the fixtures of `tests/integration`."""

from __future__ import annotations

import datetime
import functools
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from consumers import crashpoints
from consumers.model import learner
from stream_dppca.noise import SeededNoise

from ..integration.conftest import (  # noqa: F401
    broker,
    brokers,
    fresh_name,
    pytest_generate_tests,
)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("DPPCA_"):
            monkeypatch.delenv(name)
    yield
    crashpoints.on_reach.clear()


@pytest.fixture
def fixed_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every release of a seeded model is drawn without looking at the query, and so is every id.

    So whatever depends on the records only through releases is the same for all records.
    """

    def gaussian(noise: Any, values: np.ndarray, sd: float) -> np.ndarray:
        return np.rint(noise._rng.standard_normal(values.size) * 9 * sd)

    def gaussian_each(
        noise: Any, count: int, *, sensitivity: float, mu: float
    ) -> Callable[[int], float]:
        draws = iter((noise._rng.standard_normal(count) * 30 * sensitivity / mu).tolist())
        return lambda number: next(draws)

    def laplace(noise: Any, values: np.ndarray, scale: float) -> np.ndarray:
        return noise._rng.integers(0, 200, values.size)

    monkeypatch.setattr(SeededNoise, "_rounded_gaussian", gaussian)
    monkeypatch.setattr(SeededNoise, "gaussian_each", gaussian_each)
    monkeypatch.setattr(SeededNoise, "_discrete_laplace", laplace)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    timeless = functools.partial(learner.release_message, now=now)
    monkeypatch.setattr(learner, "release_message", timeless)

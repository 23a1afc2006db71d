"""Brokers come from the fixtures of `tests/integration`."""

from __future__ import annotations

import copy
import datetime
import functools
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

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


class Outputs:
    """The outputs of mechanisms: recorded in a first run, and given again in the next ones."""

    def __init__(self) -> None:
        self._recorded: list[Any] = []
        self._next: int | None = None

    def again(self) -> None:
        """Give the recorded outputs again, from the first one on, whatever the queries are."""
        self._next = 0

    def of(self, draw: Callable[[], Any]) -> Any:
        if self._next is None:
            self._recorded.append(draw())
            return copy.copy(self._recorded[-1])
        self._next += 1
        return copy.copy(self._recorded[self._next - 1])


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """Releases of seeded models that can be given again to models of other records.

    Whatever depends on records only through releases is then the same for all records. There are
    neither clocks nor random ids.
    """
    found = Outputs()
    gaussian, laplace = SeededNoise._rounded_gaussian, SeededNoise._discrete_laplace
    for name, method in (("_rounded_gaussian", gaussian), ("_discrete_laplace", laplace)):
        monkeypatch.setattr(
            SeededNoise, name, lambda *given, method=method: found.of(lambda: method(*given))
        )
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    timeless = functools.partial(learner.release_message, now=now)
    monkeypatch.setattr(learner, "release_message", timeless)
    return found

"""Brokers come from the fixtures of `tests/integration`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from consumers import crashpoints

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

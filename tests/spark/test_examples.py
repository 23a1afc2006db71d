"""The example for Spark runs on a real cluster, and shows what it claims to show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from tests.support.processes import ROOT


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / "examples" / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_spark_frames(session: Any, tmp_path: Path) -> None:
    example = load("spark_frames.py")
    example.write_telemetry(tmp_path)
    model = example.learn(session, tmp_path)
    assert model.n_batches == example.BATCHES and model.privacy.private
    assert abs(model.components[0] @ example.true_direction()) > 0.99

"""The benchmark on real streams: its truth, its measures, and one small run of it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import real, real_data
from benchmarks.real_data import SETS, Missing, Paths, captured, sine, truth

HOST = next(data for data in SETS if data.name == "host-levels")


def test_truth_is_the_pca_of_complete_records() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 4)) * [1.0, 1e3, 1e-3, 1.0] + 7
    X[:, 1] += 1e3 * X[:, 0]
    X[:, 3] = 2.5  # never varies
    X[::10, 2] = np.nan
    found = truth(X)
    whole = X[np.isfinite(X).all(axis=1)]
    correlation = np.corrcoef(whole[:, :3].T)
    assert found.values[:3] == pytest.approx(np.linalg.eigvalsh(correlation)[::-1])
    assert sine(found.vectors[:3, :1], np.linalg.eigh(correlation)[1][:, -1:]) < 1e-9
    assert np.abs(found.vectors[3, :3]).max() < 1e-12


def test_variance_that_is_captured() -> None:
    X = np.random.default_rng(1).normal(size=(1000, 3)) @ np.array(
        [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    )
    found = truth(X)
    assert captured(found.vectors[:, :2], found) == pytest.approx(1.0)
    last = captured(found.vectors[:, 2:], found)
    assert last == pytest.approx(found.values[2] / found.values[0])
    assert sine(np.eye(3)[:, :1], np.eye(3)[:, 1:2]) == pytest.approx(1.0)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(Missing, match="no file"):
        real_data.smd_interleaved(Paths(smd=Path("nowhere.npz")))


def test_the_recording_is_committed() -> None:
    X = HOST.load(Paths())
    assert X.shape[1] == 28 and len(X) >= 16 * HOST.batch_size and np.isfinite(X).all()
    assert Paths().host.stat().st_size < 1_000_000


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(HOST, load=lambda paths: HOST.load(paths)[: 5 * 1390])
    monkeypatch.setattr(real, "SETS", (short,))
    monkeypatch.setattr(sys, "argv", ["real", "--seeds", "1", "--ours", "--out", str(tmp_path)])
    real.main()
    cells = json.loads((tmp_path / "real.json").read_text())["cells"]
    found = cells["host-levels k=1"]
    assert 0 <= found["sine"][0] <= 1 and found["first_batches"] == 3 and found["plan"] is not None
    assert "host telemetry, levels" in (tmp_path / "real.md").read_text()
    monkeypatch.setattr(real, "IN_README", ("host",))
    assert "| host telemetry, levels |" in real.summary({"cells": cells})


def test_streams_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told more, or all at once, beside the default; Analyze-Gauss told everything is a limit."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((32_000, 4)) + 2 * rng.standard_normal((32_000, 1)) + 5
    np.savez(tmp_path / "streams.npz", mine=X.astype(np.float32), label=np.zeros(3))
    arguments = ["--seeds", "1", "--only", "mine", "--out", str(tmp_path)]
    arguments += ["--streams", str(tmp_path / "streams.npz")]
    monkeypatch.setattr(sys, "argv", ["real", *arguments])
    real.main()
    cells = json.loads((tmp_path / "real.json").read_text())["cells"]
    assert list(cells) == ["mine k=1", "mine k=3"]
    found = cells["mine k=1"]
    for name in ("sine", "all", "once", "scales", "both"):
        assert len(found[name]) == 1 and found[name][0] < 0.1, name
    assert found["not private"] < found["analyze_gauss"] < 0.05 and found["batch_size"] == 2000
    assert "| mine |" in (tmp_path / "real.md").read_text()

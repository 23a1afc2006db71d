"""The benchmark of fleets: its streams, and one small run of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rich")  # the progress bar

from benchmarks import fleet


def test_zipf_has_the_mean_that_is_said() -> None:
    drawn = fleet.zipf(np.random.default_rng(0), 200_000)
    assert drawn.mean() == pytest.approx(7.5, rel=0.03)
    assert np.mean(drawn == 1) > 0.4 and drawn.max() <= 200


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = (
        fleet.Cell("small", 4, 400, 2.0, 0.3, presence=0.9, rounds=2),
        fleet.Cell("busy", 4, 400, 2.0, 0.9, busy=True),
        fleet.Cell("learned", 4, 800, 4.0, rounds=2, settings=fleet.LEARNED),
    )
    monkeypatch.setattr(fleet, "CELLS", cells)
    monkeypatch.setattr(fleet, "run_table", lambda: {"us_per_record": {}, "bytes_per_subject": 9})
    argv = ["fleet", "--seeds", "2", "--out", str(tmp_path), "--smd", str(tmp_path / "none.npz")]
    monkeypatch.setattr(sys, "argv", argv)
    fleet.main()
    found = json.loads((tmp_path / "fleet.json").read_text())
    assert list(found["cells"]) == ["small", "busy", "learned"] and "smd" not in found
    for cell in found["cells"].values():
        assert len(cell["sine"]) == 2 and max(cell["sine"]) < 0.5
    assert "| 400 | 4 | 2 | 1 |" in (tmp_path / "fleet.md").read_text()


def test_days_of_servers_are_subjects(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    loads = {
        f"machine-{m}_{part}": (
            rng.standard_normal((1440 * 60, 1)) + 0.3 * rng.random((1440 * 60, 3))
        )
        for m in (1, 2)
        for part in ("train", "test")
    }
    file = tmp_path / "smd.npz"
    np.savez(file, **loads)
    found = fleet.run_smd(fleet.Paths(smd=file), 1, lambda: None, epsilon=8.0, rows=8)
    assert found["subjects"] == 240 and found["sine"][0] < 0.3

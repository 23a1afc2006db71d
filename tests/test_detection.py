"""The benchmark of detection: its references, its figures, and one small run of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rich")  # the progress bar

from benchmarks import detection
from benchmarks.detection import Machine, judge, later, learned, machines, textbook


def fleet(n: int = 6000) -> list[Machine]:
    made = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((2 * n, 1)) * [3.0, 2.0, 1.0, 1.0, 0.0] + rng.standard_normal(5)
        X += rng.standard_normal(X.shape)
        labels = rng.random(n) < 0.05
        X[n:][labels, 3] += 12.0
        made.append(Machine(X[:n], X[n:], labels))
    return made


def test_the_references_find_what_is_there() -> None:
    two = fleet()
    X = two[0].train
    book, exact = textbook(X, 1), learned(X, 1000, 1, None, 0)
    assert exact is not None
    assert abs(book.W[:, 0] @ exact.W[:, 0]) > 0.99
    assert np.mean(book.spe(X) > book.limits["spe"][2].value) == pytest.approx(0.01, abs=1e-3)
    found = judge([book, book], [two[0], two[0]])
    assert found["spe auc"] > 0.99 and found["spe f1"] > 0.85 and found["spe false"] < 0.02
    assert found["either known"] == 1.0
    nothing = judge([None], two[:1])
    assert nothing["spe auc"] == 0.5 and nothing["spe known"] == 0.0 and "spe f1" not in nothing


def test_limits_hold_on_later_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "BATCH", 2000)
    shares = later(np.concatenate([m.train for m in fleet(20_000)]), 1, 3.0, 0)
    assert 0.08 < shares["spe 0.1"] < 0.12 and 0.08 < shares["t2 0.1"] < 0.12


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = fleet()
    rows = {
        f"m{i}_{part}": getattr(m, part) for i, m in enumerate(two) for part in ("train", "test")
    }
    bits = {f"m{i}": np.packbits(m.labels) for i, m in enumerate(two)}
    np.savez(tmp_path / "smd.npz", **rows)
    np.savez(
        tmp_path / "labels.npz", **bits, **{f"m{i}_n": len(m.labels) for i, m in enumerate(two)}
    )
    read = machines(tmp_path / "smd.npz", tmp_path / "labels.npz")
    assert np.array_equal(read[1].labels, two[1].labels)
    for name, value in {
        "BATCH": 2000,
        "OWN_BATCH": 1000,
        "COMPONENTS": (1,),
        "EPSILONS": (3.0,),
    }.items():
        monkeypatch.setattr(detection, name, value)
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "detection",
            "--smd",
            str(tmp_path / "smd.npz"),
            "--labels",
            str(tmp_path / "labels.npz"),
            "--seeds",
            "2",
            "--out",
            str(tmp_path),
        ],
    )
    detection.main()
    cells = json.loads((tmp_path / "detection.json").read_text())["cells"]
    assert min(cells["fleet k=1 epsilon=3"]["spe auc"]) > 0.9
    assert len(cells["own k=1 epsilon=3"]["spe ap"]) == 2
    assert "| one for the fleet | 1 | SPE |" in (tmp_path / "detection.md").read_text()

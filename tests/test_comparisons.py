"""`benchmarks.comparisons` runs on a small setting, and gives peers the noise that they state."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rich")  # the progress bar

from benchmarks import comparisons, peers, published
from benchmarks.real_data import Paths, sine

#: In place of the libraries: it prints the first component, or does not return with 7 features.
STAND_IN = """
import sys, json
import numpy as np
X = np.load(sys.argv[2])
while sys.argv[1] == "OpenDP" and X.shape[1] == 7:
    pass
print(json.dumps(np.linalg.eigh(X.T @ X)[1][:, -1].tolist()))
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every table, with little data."""
    monkeypatch.setattr(peers, "CODE", STAND_IN)
    monkeypatch.setattr(peers, "install", lambda: Path(sys.executable))
    monkeypatch.setattr(comparisons, "LIBRARY_SYNTHETIC", ((4, 2000), (7, 2000)))
    monkeypatch.setattr(comparisons, "LIBRARY_STREAMS", ("shuttle",))
    monkeypatch.setattr(comparisons, "ENERGY", (("synthetic", 3, 3000), ("cover", 2, 3000)))
    monkeypatch.setattr(published, "EPSILONS", (1.0,))
    monkeypatch.setattr(published, "CAPE_BY_N", {})
    monkeypatch.setattr(published, "CAPE", {"synthetic": ((200, 3, 3000), (0.5,))} | CAPE)
    monkeypatch.setattr(comparisons, "SPIKED", ((0.025, 3000),))
    monkeypatch.setattr(comparisons, "ALPHAS", (1.0,))
    monkeypatch.setattr(comparisons, "POWER_EPSILONS", (4.0,))
    monkeypatch.setattr(comparisons, "PAGE", tmp_path / "page.md")
    parts = ("libraries", "energy", "spiked", "power-law")
    marks = [f"<!-- comparisons-{p}: begin -->\n<!-- comparisons-{p}: end -->\n" for p in parts]
    (tmp_path / "page.md").write_text("".join(marks))
    return tmp_path


CAPE = {"covtype": ((54, 2, 5000), (0.9,))}


@pytest.mark.slow
def test_a_run_writes_what_it_measured_and_resumes(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    streams = {"shuttle": rng.normal(size=(6000, 9)), "cover": rng.normal(size=(6000, 5))}
    np.savez(small / "streams.npz", **streams)
    command = ["--data", str(small), "--out", str(small), "--trials", "1", "--limit", "1"]
    comparisons.main([*command, "--only", "library*"])
    comparisons.main([*command, "--docs"])
    assert "left out" not in capsys.readouterr().out
    stored = json.loads((small / "comparisons.json").read_text())
    found = stored["cells"]
    assert list(found) == [cell.key for cell in comparisons.cells()]
    assert found["library: G(.1), d = 4"]["OpenDP"][0] < 0.05
    assert found["library: G(.1), d = 7"]["OpenDP"] == "did not return in 1 s"
    assert found["library: G(.1), d = 7"]["diffprivlib"][0] < 0.05
    page = (small / "page.md").read_text()
    assert "did not return in 1 s" in page
    assert page.count("| 200 | 3 | 3000 | 1 | 0.50 |") == 1
    assert "| 0.025 | 3000 |" in page
    assert "| 1 | 4 | 0.94 | 0.94 |" in page

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a cell was measured again")

    learned = found["library: G(.1), d = 4"]["DPPCA, one batch"]
    with monkeypatch.context() as changed:  # only ours is measured again
        changed.setattr(comparisons, "gauss", fail)
        changed.setattr(comparisons, "ours", lambda X, *_, **__: np.eye(X.shape[1])[:, :1])
        comparisons.main([*command, "--ours", "--only", "library: G*"])
    again = json.loads((small / "comparisons.json").read_text())["cells"]["library: G(.1), d = 4"]
    assert again["OpenDP"] == found["library: G(.1), d = 4"]["OpenDP"]
    assert again["DPPCA, one batch"] != learned
    monkeypatch.setattr(comparisons, "ours", fail)
    comparisons.main(command)
    with pytest.raises(AssertionError, match="measured again"):
        comparisons.main([*command, "--again"])


def test_missing_data_is_left_out(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparisons.main(["--out", str(small), "--only", "*cover*", "--trials", "1"])
    assert "energy: cover, epsilon 1: left out, no file" in " ".join(
        capsys.readouterr().out.split()
    )
    assert not (small / "comparisons.json").exists()


def test_no_share_of_energy_exceeds_the_whole(tmp_path: Path) -> None:
    """Each feature has its own unit, in every trial: the largest one is not the first component."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 4)) @ [[1.0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.savez(tmp_path / "streams.npz", adult_onehot=rows * [1, 1, 1, 1000])
    context = comparisons.Context(tmp_path / "streams.npz", Paths(), limit=1, trials=3)
    found = comparisons.energy(context, "adult_onehot", 1, 5000, 10.0)
    for column in ("as published", "Analyze-Gauss", "DPPCA, one batch", "DPPCA"):
        np.testing.assert_allclose(found[column], 1.0, atol=0.03)


def test_a_batch_that_is_refused_is_no_number() -> None:
    X = np.random.default_rng(0).normal(size=(100, 300))
    assert comparisons.ours(X, 2, 0.1, 0.01, seed=0, batch=20) is None
    result: dict[str, Any] = {}
    columns = {"a": lambda: None, "b": lambda: X[:, :0]}
    comparisons.keep(result, columns, lambda _: 0.5, others=True)
    assert [comparisons.shown(result, column) for column in "ab"] == ["refused", "no release"]
    result["b"].append(0.5)
    assert comparisons.shown(result, "b") == "0.75"
    assert comparisons.shown(result, "b", worst=0.0) == "0.25"


def test_a_library_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "CODE", "raise ValueError('too many features')")
    with pytest.raises(peers.NoAnswer, match="failed: ValueError: too many features"):
        peers.fit(Path(sys.executable), "OpenDP", np.eye(2), clip=1.0, epsilon=1.0, limit=5)


def test_noise_of_others_is_as_published() -> None:
    """The first component of e1 e1^T turns by the noise beside it."""
    X = np.zeros((1000, 6))
    X[:, 0] = np.tile([1.0, -1.0], 500)  # S = e1 e1^T, the largest norm is 1
    loud = [published.mod_sulq(X, 1e9, 0.05, s) for s in range(3)]
    loud += [published.cape_analyze_gauss(X, 1, 1e9, 0.01, s) for s in range(3)]
    assert max(sine(U, np.eye(6)[:, :1]) for U in loud) < 1e-6
    spread = [published.cape_analyze_gauss(X, 1, 1.0, 0.01, s)[1, 0] for s in range(3000)]
    assert np.std(spread) == pytest.approx(np.sqrt(2 * np.log(125)) / 1000, rel=0.05)
    spread = [published.mod_sulq(X, 1.0, 0.05, s)[1, 0] for s in range(3000)]
    sd = 7 / 1000 * np.sqrt(2 * np.log(42 / (0.05 * 2 * np.sqrt(2 * np.pi)))) + 1 / 1000
    assert np.std(spread) == pytest.approx(sd, rel=0.05)


def test_pairs_use_each_record_once() -> None:
    X = np.eye(7)
    D = comparisons.pairs(X, seed=0)
    assert D.shape == (3, 7)
    assert np.abs(D).sum(axis=0).max() == 1
    np.testing.assert_allclose(D.sum(axis=1), 0)

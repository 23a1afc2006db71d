"""The benchmark's own code: its faster baselines are those of the package, and it runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rich")  # the progress bar

from benchmarks import accuracy, figures, methods, speed
from benchmarks.baselines import analyze_gauss, clipped_oja, noisy_power_method
from benchmarks.problems import Cell, Drift
from benchmarks.streams import FACTORS, Correlation, SignPlusNoise, Spectrum, Spiked, sine
from stream_dppca import InverseTime
from stream_dppca.calibration import gaussian_mu

CELL = Cell("test", Spiked(8, 0.3), 6000, 1000, seeds=2, slow_seeds=2)
#: A budget so large that the noise is below every tolerance here.
LOUD = {"epsilon": 100.0, "delta": 0.1}


def test_moments_are_those_of_the_clipped_records() -> None:
    data = methods.Data(CELL, seed=0)
    norms = np.linalg.norm(data.X, axis=1)
    for clip, moment in zip(data.moments.clips, data.moments.clipped, strict=True):
        rows = data.X * np.minimum(1, clip / norms)[:, None]
        np.testing.assert_allclose(moment, rows.T @ rows / data.n, rtol=1e-9, atol=1e-12)
    unit = data.X / norms[:, None]
    np.testing.assert_allclose(data.moments.unit_norm, unit.T @ unit / data.n, atol=1e-12)


def test_analyze_gauss_is_that_of_the_package() -> None:
    """The same vectors where noise does not matter, the same sd of the noise everywhere."""
    data = methods.Data(replace(CELL, **LOUD), seed=0)
    for found, clip in zip(methods.analyze_gauss(data).values(), data.moments.clips, strict=True):
        fit = analyze_gauss(data.X, clip=float(clip), seed=1, **LOUD)
        assert sine(found, fit.components.T) < 0.02
        assert fit.sigma == pytest.approx(math.sqrt(2) * clip**2 / (data.n * data.mu), rel=1e-6)
    noise = [methods.symmetric_noise(data) for _ in range(2000)]
    np.testing.assert_allclose(np.var(noise, axis=0), (np.eye(8) + 1) / 2, atol=0.15)


def test_oja_abreast_is_that_of_the_package() -> None:
    """A single column draws the same noise."""
    X = Spiked(8, 0.3).stream(0).draw(4000)
    mu = gaussian_mu(1.0, 1e-6)
    ours = methods.oja_abreast(X, 500, np.array([2.0]), [(4.0, 1.0)], mu, seed=3)
    fit = clipped_oja(
        X, epsilon=1.0, delta=1e-6, clip=2.0, batch_size=500, steps=InverseTime(4.0, 1.0), seed=3
    )
    assert sine(ours, fit.components.T) < 1e-6


def test_the_power_method_is_that_of_the_package() -> None:
    data = methods.Data(replace(CELL, **LOUD), seed=0)
    start = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 1)))[0]
    rng = np.random.default_rng(1)
    ours = methods.gradient_power(data.X, start, [(2.0, 12)], data.mu, rng)[0]
    fit = noisy_power_method(data.X, clip=2.0, n_iterations=12, clip_on="gradient", seed=1, **LOUD)
    assert sine(ours, fit.components.T) < 0.05


@pytest.mark.parametrize("law", FACTORS)
def test_factors_have_variance_one(law: str) -> None:
    problem = Spectrum((4.0, 1.0, 0.25), law, factors=law)
    stream = problem.stream(0)
    X = stream.draw(400_000) @ stream.components
    np.testing.assert_allclose(np.var(X, axis=0), problem.values, rtol=0.15)
    assert abs(X.mean()) < 0.02


def test_streams_know_their_truth() -> None:
    for problem in (Spiked(6), SignPlusNoise(6, 0.2)):
        stream = problem.stream(1)
        X = stream.draw(50_000)
        values, vectors = np.linalg.eigh(X.T @ X / len(X))
        assert sine(vectors[:, [-1]], stream.components) < 0.05
        np.testing.assert_allclose(values[::-1], problem.eigenvalues(), rtol=0.05)
        found = Correlation(problem, stream.components, 1)
        np.testing.assert_allclose(found.sd, X.std(axis=0), rtol=0.05)
        correlation = np.corrcoef(X.T)
        np.testing.assert_allclose(found @ np.eye(6), correlation, atol=0.05)
        assert sine(np.linalg.eigh(correlation)[1][:, [-1]], found.vectors) < 0.05
        assert found.missed(found.vectors) == pytest.approx(0)
    drifting = Spiked(6, path=lambda i: math.pi / 2 * (i >= 100)).stream(1)
    drifting.draw(100)
    before = drifting.components
    drifting.draw(100)
    assert sine(before, drifting.components) == pytest.approx(1)


def test_many_features_have_the_same_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Spiked(30).stream(0)
    dense = Correlation(Spiked(30), stream.components, 2)
    monkeypatch.setattr("benchmarks.streams.LARGE", 30)
    sparse = Correlation(Spiked(30), stream.components, 2)
    assert sine(dense.vectors[:, :1], sparse.vectors) < 1e-6
    np.testing.assert_allclose(sparse.values, dense.values[:3], rtol=1e-6)


def test_every_cell_has_its_own_name() -> None:
    keys = [c.key for c in accuracy.CELLS] + [c.key for c in accuracy.DRIFTS]
    assert len(set(keys)) == len(keys)
    assert [c.target for c in accuracy.CELLS if c.group == "target"] == [
        1.15,
        1.4,
        1.2,
        1.45,
        0.8,
        1.45,
        0.85,
        0.12,
    ]


def test_a_run_writes_json_and_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = replace(CELL, group="target", target=1.4)
    drift = Drift("jump", 8, 1000, lambda t: float(t > 1), batches=4, change=2, seeds=2)
    monkeypatch.setattr(accuracy, "CELLS", (target, replace(CELL, k=2)))
    monkeypatch.setattr(accuracy, "DRIFTS", (drift,))
    accuracy.main(["--only", "t*", "--out", str(tmp_path)])
    accuracy.main(["--only", "drift*", "--out", str(tmp_path)])  # adds to what is there
    stored = json.loads((tmp_path / "accuracy.json").read_text())
    assert set(stored["cells"]) == {target.key, accuracy.CELLS[1].key, drift.key}
    assert "### The targets" in (tmp_path / "accuracy.md").read_text()
    assert "G(0.3)" in capsys.readouterr().out
    found = stored["cells"][target.key]["methods"]
    found["Analyze-Gauss"]["median"] = 0.125  # kept, where only ours is measured again
    found["DPPCA"]["median"] = 0.125
    (tmp_path / "accuracy.json").write_text(json.dumps(stored))
    accuracy.main(["--ours", "--only", "t*", "--out", str(tmp_path)])
    again = json.loads((tmp_path / "accuracy.json").read_text())["cells"][target.key]["methods"]
    assert again["Analyze-Gauss"]["median"] == 0.125 != again["DPPCA"]["median"]


def test_docs_are_written_between_the_markers(tmp_path: Path) -> None:
    begin, end = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"
    page = tmp_path / "accuracy.md"
    page.write_text(f"by hand\n{begin}\nold\n{end}\nby hand too\n")
    for _ in range(2):
        figures.write_docs("new", page)
    assert page.read_text() == f"by hand\n{begin}\n\nnew\n{end}\nby hand too\n"


def test_a_missed_target_says_why(tmp_path: Path) -> None:
    rows = [
        speed.Row("this", "that", 0.5, 0.6, limit="it is far"),
        speed.Row("these", "those", 0.5, 0.6, True, limit="never said"),
        *(
            speed.Row(
                f"cost against {x}, 1 to 2",
                "linear",
                1.0,
                1.15,
                True,
                unit="",
                detail={f"{x} = 1, ms": 1.0, f"{x} = 2, ms": 2.0},
            )
            for x in ("d", "B")
        ),
    ]
    text = speed.markdown(rows, {"cpu": "abacus"})
    assert "| **no** |" in text and "- this, against that: it is far" in text
    assert "never said" not in text and "abacus" in text
    pytest.importorskip("matplotlib")
    speed.plot(rows, tmp_path / "speed.svg")
    assert "linear" in (tmp_path / "speed.svg").read_text()


def test_the_lower_bound_has_the_shape_of_the_theorem() -> None:
    r = {"problem": "G(0.5)", "d": 100, "n": 10_000, "epsilon": 1.0}
    assert figures.lower_bound(r) == pytest.approx(2 * (0.1 + 0.01) * math.sqrt(0.5))
    assert figures.lower_bound({**r, "n": 1}) == 1

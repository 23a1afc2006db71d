"""The code of docs/results.md runs, from top to bottom, on a release as it is published, and the
fleet of docs/telemetry.md sends what the settings there read."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consumers.messages.recipe import MessageRecipe
from consumers.messages.sample import describe_sample
from consumers.model.releases import PublishedRelease
from stream_dppca import DPPCA, Limit

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
TELEMETRY = PAGE.with_name("telemetry.md")


def test_the_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = ("cpu", "memory", "disk.read")
    pca = DPPCA(features=features, epsilon=5.0, delta=1e-5, batch_size=2000, n_components=2)
    rng = np.random.default_rng(0)
    load = rng.standard_normal((6000, 1))
    # cpu and memory go together, and the disk goes its own way.
    X = [40, 8e9, 5] + [15, 2e9, 1] * (
        load * [1, 1, 0] + rng.standard_normal((6000, 3)) * [0.3, 0.3, 1]
    )
    pca.learn_array(X)
    assert pca.last_release is not None
    limits = {"spe": (Limit(rate=0.01, value=1.0, sd=0.1),)}
    release = PublishedRelease.of(pca.last_release, "m").model_copy(update={"limits": limits})
    (tmp_path / "release.json").write_text(release.model_dump_json())
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    *blocks, biplot = blocks
    assert len(blocks) == 6 and "matplotlib" in biplot
    names: dict[str, Any] = {"records": X[:100]}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for block in blocks:
            exec(block, names)  # noqa: S102
    assert "1: " in said.getvalue() and ", learned" in said.getvalue()
    assert re.search(r"(cpu is too high|memory is too low) for this record", said.getvalue())
    assert names["spe"] > 1
    assert names["beyond"].tolist() == [True, False] and names["unknown"].tolist() == [False, True]
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    exec(biplot, names)  # noqa: S102
    assert (tmp_path / "biplot.png").stat().st_size > 1000


def test_the_simulated_fleet_sends_what_the_settings_of_the_page_read() -> None:
    text = TELEMETRY.read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    fleet: dict[str, Any] = {"__name__": "fleet"}
    exec(code, fleet)  # noqa: S102
    [features] = re.findall(r"export DPPCA_FEATURES='(.*)'", text)
    names = features.split(",")
    received, start = [0.0] * fleet["HOSTS"], 10**18
    sent = [fleet["message"](h, received, start + t * 10**9) for t in (0, 5) for h in range(4)]
    recipe = MessageRecipe("otlp-json", tuple(names), 1 << 20, subject="host.name")
    found = describe_sample(sent, recipe)
    assert len(names) == 3 and found.fits and "4 have all features" in found.lines[0]

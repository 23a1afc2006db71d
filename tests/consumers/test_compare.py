"""`stream-dppca compare`: what changed, against what noise and sampling alone change."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

from consumers import cli
from consumers.model.releases import PublishedRelease, release_message
from demo.telemetry import FEATURES, telemetry
from stream_dppca import DPPCA, Limit
from tests.support.memory import MemoryBroker

from .test_cli import on

Releases = list[PublishedRelease]
LIMITS = {"spe": (Limit(rate=0.01, value=20.0, sd=1.0), Limit(rate=0.001, value=30.0, sd=9.0))}
HIGHER = {"spe": (Limit(rate=0.01, value=40.0, sd=1.0), Limit(rate=0.001, value=40.0, sd=9.0))}


@pytest.fixture(scope="module")
def releases() -> Releases:
    """The fleet changes after six of twelve batches."""
    model = DPPCA(features=FEATURES, epsilon=2, delta=1e-6, batch_size=5000, seed=1)
    found = []
    for X in islice(telemetry(seed=1, chunk=5000, change_after=30_000), 12):
        model.learn_array(X)
        assert model.last_release is not None
        limits = LIMITS if len(found) < 6 else HIGHER
        release = model.last_release.model_copy(update={"limits": limits})
        found.append(PublishedRelease.of(release, "m"))
    return found


def test_files(releases: Releases, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, one = tmp_path / "all.jsonl", tmp_path / "last.jsonl"
    lines.write_text("\n".join(release.model_dump_json() for release in releases))
    one.write_text(releases[-1].model_dump_json() + "\n")
    assert cli.main(["compare", f"{lines}@5", f"{lines}@6"]) == 0
    same = capsys.readouterr().out
    assert "within 3 times that" in same and ": more than" not in same
    shown = []
    for last in (str(lines), str(one), f"{lines}@12"):
        assert cli.main(["compare", f"{lines}@6", last]) == 0
        shown.append(capsys.readouterr().out)
    bare = tmp_path / "library.jsonl"  # as `DPPCA.last_release` gives them
    bare.write_text("\n".join(r.model_dump_json(exclude={"model", "round"}) for r in releases))
    assert cli.main(["compare", f"{bare}@6", str(bare)]) == 0
    shown.append(capsys.readouterr().out)
    assert len(set(shown)) == 1
    assert re.search(r"component 0: .*° apart, noise and .* about .*: more than 3 times", shown[0])
    assert "all components together" in shown[0]
    (moved,) = re.findall(r"loadings that moved most: (.*)", shown[0])
    assert re.match(r"\w+ [+-]0\.\d\d → [+-]0\.\d\d, \w+ ", moved) and "moved most" not in same
    (noise,) = re.findall(r"alone move a mean by about ± ([\d.]+) sd", shown[0])
    assert 0 < float(noise) < 0.1
    # The means and the spread of what a backup does are larger; the largest change comes first.
    listed = re.findall(r"^(\w+) +\+\d\.\d+ sd +[\d.]+$", shown[0], re.MULTILINE)
    assert set(listed[:2]) == {"disk_read_bytes_per_s", "disk_write_bytes_per_s"}
    assert "spe, 1 % of the records exceed: 20 → 40 (more than 3 times the uncertainty)" in shown[0]
    assert "spe, 0.1 % of the records exceed: 30 → 40 (within 3 times the uncertainty)" in shown[0]


def test_topics_and_what_is_refused(
    releases: Releases,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    broker = MemoryBroker()
    broker.create("m.components", 1)
    on(broker, monkeypatch)
    for release in releases:
        message = release_message(release)
        broker.produce("m.components", message.value, 0, message.key, message.headers)
    assert cli.main(["compare", "--model", "m", "@6", "@12"]) == 0
    assert ": more than 3 times that" in capsys.readouterr().out
    assert cli.main(["compare", "--model", "m", "@6", "@13"]) == 78
    assert "there is no such release" in capsys.readouterr().err
    other = releases[-1].model_copy(update={"features": tuple(map(str.upper, FEATURES))})
    files = {
        "other.json": other.model_dump_json(),
        "text.json": "text",
        "one.json": releases[0].model_dump_json(),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, why in {
        "other.json": "other features",
        "text.json": "no such release",
        "none.json": "cannot be read",
    }.items():
        assert cli.main(["compare", str(tmp_path / "one.json"), str(tmp_path / name)]) == 78
        assert why in capsys.readouterr().err

"""The examples run, and show what they claim to show."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consumers.model.releases import PublishedRelease, release_message
from stream_dppca import DPPCA, Projector

from ..support.processes import PATIENCE_SECONDS, ROOT
from .conftest import RunningBroker

EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_listed_and_tested() -> None:
    listed = re.findall(r"\]\((\w+\.(?:go|py))\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(
        path.name for path in EXAMPLES.iterdir() if path.suffix in (".go", ".py")
    )
    texts = (Path(__file__).read_text(), (ROOT / "tests/spark/test_examples.py").read_text())
    tested = re.findall(r'(?:run|load|score)\(\s*"(\w+\.(?:go|py))"', "".join(texts))
    assert sorted(set(tested)) == sorted(listed)


@pytest.mark.slow
def test_anomalies() -> None:
    """The noise is not seeded, and far below these bounds."""
    shown = run("anomalies.py")
    found = re.search(r"alarms: (\d+) of (\d+) anomalies, and (\d+) of (\d+) ordinary", shown)
    caught, anomalies, false, ordinary = map(int, found.groups())  # type: ignore[union-attr]
    assert caught > 0.9 * anomalies > 900 and false < 0.1 * ordinary
    assert "limits of spe: 10 % >" in shown and re.search(r"strangest: T2 \d+; f\d [+-]", shown)
    assert "private: True, epsilon 2 per record" in shown


def test_subjects() -> None:
    """The correlations of the simulated features make every loading about 1/sqrt 3; the device that
    floods the last round does not change that."""
    shown = run("subjects.py")
    assert "hour 0: learned" in shown and "hour 11: learned" in shown
    devices = [float(found) for found in re.findall(r"about (\d+) devices", shown)]
    assert len(devices) == 12 and np.median(devices) == pytest.approx(2700, rel=0.1)
    (component,) = re.findall(r"(?m)^component: (.*)", shown)
    loadings = np.abs([float(found) for found in re.findall(r"[+-][\d.]+", component)])
    assert loadings == pytest.approx(3**-0.5, abs=0.1)
    assert "private: True, epsilon 2 per subject, over any 24 consecutive rounds" in shown


@pytest.fixture(scope="module")
def release() -> bytes:
    """A release as the service publishes it."""
    features = ("cpu", "memory", "disk.read")
    pca = DPPCA(features=features, epsilon=5.0, delta=1e-5, batch_size=2000, n_components=2)
    rng = np.random.default_rng(0)
    load = rng.standard_normal((6000, 1))
    pca.learn_array([40, 8e9, 5] + [15, 2e9, 1] * (load + rng.standard_normal((6000, 3)) / 3))
    made = pca.last_release
    assert made is not None
    return release_message(PublishedRelease.of(made, "m")).value


def test_project_release(release: bytes, tmp_path: Path) -> None:
    """The formula alone gives the result of `Projector`, for records of all kinds."""
    spec = importlib.util.spec_from_file_location("project", EXAMPLES / "project_release.py")
    assert spec is not None and spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    projector, fields = Projector.from_release(release), json.loads(release)
    for record in (
        {"cpu": 55.0, "memory": 1e10, "disk.read": 6},
        {"cpu": 55.0},
        {},
        {"cpu": "text"},
        {"cpu": 1e30, "memory": -1e30, "disk.read": 0.0},
        {"cpu": 70.0, "disk.read": 4},
    ):
        u = example.standardised(fields, record)
        if len(record) < 3:  # `Projector` fills in one of three, the example nothing
            assert u is None and math.isnan(projector.spe(record)) is (len(record) < 2)
            continue
        along = list(projector.transform(record).values())
        assert example.scores(fields, u) == pytest.approx(along)
        assert example.spe(fields, u) == pytest.approx(projector.spe(record))
        assert example.t2(fields, u) == pytest.approx(projector.t2(record))
    path = tmp_path / "release.json"
    path.write_bytes(release)
    shown = run("project_release.py", str(path), '{"cpu": 93.0, "memory": 2e10, "disk.read": 7}')
    assert re.search(r"scores: -?\d.*\nspe: \d.*\nt2: \d", shown)


@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_score_in_go(release: bytes, tmp_path: Path) -> None:
    """The bytes of a release are enough in another language: the results are those of `Projector`,
    with limits and without, and for a release that has hardly any numbers."""

    def score(name: str, message: bytes, lines: str) -> list[dict[str, Any]]:
        path = tmp_path / "release.json"
        path.write_bytes(message)
        done = subprocess.run(
            ["go", "run", str(EXAMPLES / name), str(path)],
            input=lines,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def same(found: float | None, expected: float) -> bool:
        return math.isnan(expected) if found is None else found == pytest.approx(expected, rel=1e-9)

    fields = json.loads(release)
    limits = {
        "spe": [{"rate": 0.01, "value": 0.5, "sd": 0.1}, {"rate": 0.001, "value": 9.0, "sd": 0.1}],
        "t2": [{"rate": 0.01, "value": 3.0, "sd": 0.1}],
    }
    bare = dict.fromkeys(("center", "scale", "clamp", "mean", "deviation", "spread"))
    rng = np.random.default_rng(1)
    X = [40, 8e9, 5] + [15, 2e9, 1] * rng.standard_normal((200, 3)) * 10.0 ** rng.integers(
        -1, 4, (200, 3)
    )
    records = [dict(zip(fields["features"], row, strict=True)) for row in X.tolist()]
    records += [
        {"cpu": 55.0},
        {},
        {"cpu": "text", "memory": 1e10, "disk.read": True},
        {"cpu": 1e300, "memory": -1e300, "disk.read": 0},
    ]
    lines = "\n".join(map(json.dumps, records)) + "\nnot a record\n"
    one = {"t2": limits["t2"]}
    for known, expected in (
        (fields, {None}),
        ({**fields, "limits": limits}, {True, False}),
        ({**fields, "limits": one}, {True, None}),
        ({**fields, **bare, "limits": limits}, {True}),
    ):
        message = json.dumps(known).encode()
        projector = Projector.from_release(message)
        found = score("score.go", message, lines)
        flags = set()
        for record, line in zip([*records, {}], found, strict=True):
            if projector.n_read(record) < 3:  # nothing is filled in
                assert {*line["scores"], line["spe"], line["t2"], line["flag"]} == {None}
                continue
            along = list(projector.transform(record).values())
            assert all(map(same, line["scores"], along)) and len(along) == len(line["scores"])
            assert same(line["spe"], projector.spe(record)) and same(
                line["t2"], projector.t2(record)
            )
            assert line["flag"] is projector.is_anomaly(record)
            flags.add(line["flag"])
        assert flags == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_lines_of_the_docs_score_a_record(release: bytes, tmp_path: Path) -> None:
    """Somebody who has only the JSON and docs/service.md gets the result of `Projector`."""
    page = (EXAMPLES.parent / "docs" / "service.md").read_text()
    [code] = re.findall(r"```js\n(function scores.*?)```", page, re.DOTALL)
    projector = Projector.from_release(release)
    records = [
        {"cpu": 55.0, "memory": 1e10, "disk.read": 6},
        {"cpu": 1e30, "memory": 5e9, "disk.read": 0},
        {"cpu": 1e30, "memory": 5e9, "disk.read": "x"},
        {},
    ]
    script = tmp_path / "score.js"
    script.write_text(
        f"{code}\nconst release = {release.decode()};\n"
        f"console.log(JSON.stringify({json.dumps(records)}.map((x) => scores(release, x))));"
    )
    found = subprocess.run(["node", str(script)], capture_output=True, check=True).stdout
    for record, scores in zip(records, json.loads(found), strict=True):
        if projector.n_read(record) == 3:
            assert scores == pytest.approx(list(projector.transform(record).values()))
        else:
            assert scores is None


@pytest.mark.slow
def test_examples_run_where_only_the_wheel_is_installed(tmp_path: Path) -> None:
    """The wheel has no `demo`: an example that needs it finds it in its clone."""
    for name in ("stream_dppca", "consumers"):
        (tmp_path / name).symlink_to(ROOT / name)
    paths = [str(tmp_path), *map(sysconfig.get_path, ("purelib", "platlib"))]
    for example in ("anomalies", "kafka_end_to_end", "project_release", "subjects"):
        done = subprocess.run(  # -S: the clone may be on the path of this Python
            [
                sys.executable,
                "-S",
                "-c",
                f"__import__('runpy').run_path('{EXAMPLES / example}.py')",
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert done.returncode == 0, done.stderr


def test_kafka_end_to_end(broker: RunningBroker) -> None:
    shown = run("kafka_end_to_end.py", KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap_servers)
    assert "release of batch 5: learned" in shown
    ordinary, strange = (
        float(re.search(rf"{what}: .*anomaly ([\d.]+)", shown)[1])  # type: ignore[index]
        for what in ("ordinary", "strange")
    )
    assert strange > 3 * ordinary

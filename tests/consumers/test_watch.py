"""Views of a model: `watch`, and `inspect` of topics, histories and state files."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from consumers import cli
from consumers.cli import commands
from consumers.cli.screen import screen
from consumers.model.releases import PublishedRelease, release_message
from consumers.web.tracker import Tracker
from stream_dppca.release import Limit
from tests.support.memory import MemoryBroker

from ..support.processes import ROOT, wait_for
from .test_cli import on
from .test_releases import Fleet
from .test_web import message

TOPIC = "m.components"


def fleet(batches: int = 6) -> list[PublishedRelease]:
    made = Fleet()
    return [made.learn(1) for _ in range(batches)]


def broker_with(releases: list[PublishedRelease]) -> MemoryBroker:
    broker = MemoryBroker()
    broker.create(TOPIC, 1)
    for i, release in enumerate(releases):
        m = message(release, i)
        for _ in range(1 + (i == 2)):  # one of them is published again
            broker.produce(TOPIC, m.value, 0, m.key, m.headers)
    return broker


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> list[PublishedRelease]:
    found = fleet()
    on(broker_with(found), monkeypatch)
    monkeypatch.setattr(commands, "_stop_on_signals", threading.Event)
    return found


@pytest.mark.parametrize("command", ["inspect", "watch"])
def test_the_name_of_the_model_suffices(
    command: str,
    releases: list[PublishedRelease],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cli.main([command]) == 78
    assert capsys.readouterr().err == (
        "`model`: must be set: DPPCA_MODEL, --model, or in the file; or `input_topic`, which gives "
        "the model its default name\n"
    )
    more = ["--releases", "1"] if command == "watch" else []
    assert cli.main([command, "--model", "m", *more]) == 0
    if command != "watch":  # which would wait
        assert cli.main([command, "--model", "x", "--output-topic", TOPIC]) == 1
    monkeypatch.setenv("DPPCA_INPUT_TOPIC", "m")
    assert cli.main([command, *more]) == 0


def test_inspect_history(
    releases: list[PublishedRelease], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", "--model", "m", "--history"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["batch", "published", "status", "explained", "moved", "noise", "alone"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4", "5", "6"]
    assert "learned" in lines[0] and "learned" in lines[-1] and lines[-1].count("°") == 2
    assert cli.main(["inspect", "--model", "m", "--history", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [release["batch"] for release in found] == [1, 2, 3, 4, 5, 6]
    assert found[-1] == json.loads(release_message(releases[-1]).value)


def test_inspect_a_state_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, state = tmp_path / "data.csv", tmp_path / "state.json"
    rows = np.random.default_rng(0).standard_normal((900, 3)) * [3, 1, 0.3]
    np.savetxt(data, rows, delimiter=",", header="a,b,c", comments="")
    model = [
        "--features",
        "a,b,c",
        "--epsilon",
        "8",
        "--delta",
        "1e-3",
        "--batch-size",
        "300",
        "--center",
        "none",
        "--scales",
        "none",
    ]
    assert cli.main(["run", "--input", str(data), "--state", str(state), *model]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert cli.main(["inspect", "--state", str(state)]) == 0
    text = capsys.readouterr().out
    assert "model data, batch 3" in text and "component 0" in text
    assert cli.main(["inspect", "--state", str(state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(last)
    assert cli.main(["inspect", "--state", str(data)]) == 65
    assert "is not a state file" in capsys.readouterr().err
    assert cli.main(["inspect", "--state", str(tmp_path / "none")]) == 78


def test_watch_writes_lines_into_a_pipe(
    releases: list[PublishedRelease],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cli.main(["watch", "--model", "m", "--releases", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[-1].startswith("batch 6  published 20")

    def wait_for_all(tracker: Tracker, *_: Any) -> None:
        wait_for("all releases", lambda: tracker.history()[0] == 6)

    monkeypatch.setattr(Tracker, "wait", wait_for_all)
    assert cli.main(["watch", "--model", "m", "--releases", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == lines[:2]


def test_watch_says_that_there_is_no_such_model(
    releases: list[PublishedRelease], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["watch", "--model", "typo", "--releases", "0"]) == 0
    assert "no topic 'typo.components' yet" in capsys.readouterr().err
    assert cli.main(["watch", "--model", "m", "--releases", "0"]) == 0
    assert not capsys.readouterr().err


def test_watch_serves_a_page(
    releases: list[PublishedRelease],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()
    monkeypatch.setattr(commands, "_stop_on_signals", lambda: stop)
    command = ["watch", "--model", "m", "--web", "--port", "0"]
    thread = threading.Thread(target=cli.main, args=(command,))
    thread.start()
    try:
        said: list[str] = []

        def address() -> str | None:
            said.append(capsys.readouterr().out)
            words = "".join(said).split()
            return next((word for word in words if word.startswith("http://")), None)

        url = wait_for("the address", address)
        with urllib.request.urlopen(f"{url}events") as events:  # noqa: S310
            text = ""
            while '"batch":6' not in text:
                text += events.readline().decode()
    finally:
        stop.set()
        thread.join()


def drawn(tracker: Tracker, width: int = 100, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    now = 1893499200.0 + 29 * 60 + 600
    points = tracker.history()[1].points
    console.print(screen(tracker.release, points, "nothing there", now, height))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width, height", [(100, 40), (80, 24), (40, 16), (200, 60)])
def test_the_view_fits_a_terminal(width: int, height: int) -> None:
    tracker = Tracker("m")
    assert "waiting for the first release: nothing there" in drawn(tracker, 80)
    for i, release in enumerate(fleet(30)):
        tracker.add(message(release, i))
        if i < 5 or i == 29:  # nothing has moved at the first component
            text = drawn(tracker, width, height)
            assert len(text.splitlines()) == height
            assert all(len(line) <= width for line in text.splitlines())
            assert f"batch {i + 1}" in text
    if height >= 24:
        for word in ("cpu", "temperature", "█", "0:10:00", "learned", "What varies", "Not private"):
            assert word in text, word


def test_the_view_shows_limits_and_eigenvalues() -> None:
    tracker = Tracker("m")
    limits = {
        "spe": (Limit(rate=0.1, value=7, sd=0.1), Limit(rate=0.01, value=12.34, sd=0.2)),
        "t2": (Limit(rate=0.01, value=9, sd=0.1),),
    }
    known = {"limits": limits, "eigenvalues": (3.5, 1.25), "eigenvalues_sd": (0.1, 0.05)}
    tracker.add(message(fleet(3)[-1].model_copy(update=known), 0))
    text = " ".join(drawn(tracker, 120, 40).replace("│", " ").split())
    assert "limits of spe: 10 % of the records exceed 7 ± 0.2, 1 % of the records exceed" in text
    assert "eigenvalues that stand out of the noise: 3.5 ± 0.2, 1.25 ± 0.1 " in text


def test_watch_draws_on_a_terminal() -> None:
    """On a real terminal, for a moment: the view appears, and a sentence remains."""
    code = """
import sys, threading
import pytest
from consumers import cli
from consumers.cli import commands
from tests.consumers.test_cli import on
from tests.consumers.test_watch import broker_with, fleet
patch = pytest.MonkeyPatch()
on(broker_with(fleet(4)), patch)
sys.exit(cli.main(["watch", "--model", "m", "--releases", "4"]))
"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        env=environment,
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert process.wait() == 0, text.decode()
    assert "What varies most" in text.decode() and "Not private" in text.decode()


def test_the_parts_of_a_history_are_each_shown_once() -> None:
    from consumers.cli.history import published

    found: Any = published([message(release, i) for i, release in enumerate(fleet(3))] * 2, "m")
    assert [release.batch for _, release in found] == [1, 2, 3]

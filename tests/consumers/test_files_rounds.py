"""`stream-dppca run --subject COLUMN --round 1h --time COLUMN`: rounds of data at rest."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consumers import crashpoints
from consumers.cli import main
from consumers.files.stamped import read_stamped_blocks
from stream_dppca import DPPCA

from ..launch import silence
from .helpers import FEATURES
from .test_file_streams import on_a_terminal
from .test_task import Crash, crash_at

HOUR = 3600
START = 1_700_000_000 // HOUR * HOUR
PLACES = 60
FLAGS = ["--features", ",".join(FEATURES), "--epsilon", "8", "--delta", "1e-3", "--batch-size",
         str(PLACES), "--center", "none", "--scales", "none", "--subject", "device", "--round",
         "1h", "--time", "at", "--quiet"]  # fmt: skip

Row = dict[str, Any]


def fleet(hours: Sequence[int], devices: int = 50, seed: int = 0) -> list[Row]:
    """Two rows of each device in each of these hours."""
    rng = np.random.default_rng(seed)
    return [
        {"device": f"d{i % devices}", "at": START + hour * HOUR + i,
         **dict(zip(FEATURES, (rng.standard_normal(3) * [3.0, 1.0, 0.3]).tolist(), strict=True))}
        for hour in hours
        for i in range(2 * devices)
    ]  # fmt: skip


def write(path: Path, rows: Sequence[Row]) -> Path:
    if path.suffix == ".csv":
        lines = [",".join(map(str, row.values())) for row in rows]
        path.write_text("\n".join([",".join(["device", "at", *FEATURES]), *lines]) + "\n")
    elif path.suffix == ".jsonl":
        nested = [{**row, "disk": {"read": row["disk.read"]}} for row in rows]
        path.write_text("\n".join(map(json.dumps, nested)) + "\n")
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    silence(monkeypatch.setattr)
    yield
    crashpoints.on_reach.clear()


def run(path: Path, *more: str, seed: str = "0") -> int:
    return main(["run", "--input", str(path), *FLAGS, "--seed", seed, *more])


def released(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def expected(rows: Sequence[Row], hours: int) -> list[Any]:
    """What the estimator makes of each hour."""
    told = DPPCA(features=FEATURES, epsilon=8, delta=1e-3, batch_size=PLACES, center="none",
                 scales=None, unit="subject", subject="device", seed=0)  # fmt: skip
    found = []
    for hour in range(hours):
        mine = [r for r in rows if (r["at"] - START) // HOUR == hour]
        for row in mine:
            told.learn_one(row)
        found.append(told.close_round())
    return found


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_hour_is_a_round(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = fleet([0, 1, 3])  # nobody comes in hour 2
    assert run(write(tmp_path / f"day.{kind}", rows)) == 0
    found, wanted = released(capsys), expected(rows, 4)
    assert [r["batch"] for r in found] == [1, 2, 3, 4]
    for release, made in zip(found, wanted, strict=True):
        assert release["status"] == made.status
        assert release["subjects"] == pytest.approx(made.subjects)
        for component, w in zip(release["components"], made.components, strict=True):
            assert list(component["loadings"].values()) == pytest.approx(list(w), abs=1e-9)
    assert found[0]["round"]["start"] == "2023-11-14T22:00:00+00:00"
    assert found[0]["privacy"]["scope"] == "any round of one hour, time column at"
    assert found[2]["subjects"] == pytest.approx(0, abs=1)


def test_times_in_any_spelling(tmp_path: Path) -> None:
    def spelled(seconds: int, how: int) -> Any:
        when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        spellings = (seconds, when.isoformat(), f"{when:%Y-%m-%d %H:%M:%S}", str(seconds))
        return spellings[how]

    rows = [
        {**row, "at": spelled(row["at"], i % 4)} for i, row in enumerate(fleet([0, 1], devices=4))
    ]
    blocks = list(
        read_stamped_blocks(str(write(tmp_path / "a.csv", rows)), "csv", FEATURES, "device", "at")
    )
    times = [t for block in blocks for t in block.times_ms]
    assert times == [1000 * row["at"] for row in fleet([0, 1], devices=4)]


def test_rows_of_nobody_are_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = fleet([0, 1])
    odd = [
        {**rows[0], "device": ""},
        {**rows[0], "at": "yesterday"},
        {**rows[0], "at": "nan"},
        {**rows[0], "at": ""},
    ]
    assert run(write(tmp_path / "a.csv", [*odd, *rows[:100], *odd, *rows[100:], *odd])) == 0
    with_odd = released(capsys)
    assert run(write(tmp_path / "a.csv", rows)) == 0
    assert released(capsys) == with_odd


def test_rows_may_be_in_any_order_within_a_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = fleet([0, 1])
    assert run(write(tmp_path / "a.csv", rows)) == 0
    in_order = released(capsys)
    assert run(write(tmp_path / "a.csv", [*rows[99::-1], *rows[:99:-1]])) == 0
    mixed = released(capsys)
    assert [r["subjects"] for r in mixed] == pytest.approx([r["subjects"] for r in in_order])


def test_rows_of_an_earlier_round_are_refused_before_anything_is_released(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row with a wrong time must not close a round for others."""
    rows = fleet([0, 1, 2])
    late = {**rows[0], "device": "nobody-must-read-this"}
    state = tmp_path / "state"
    code = run(write(tmp_path / "a.csv", [*rows, late]), "--state", str(state))
    out, err = capsys.readouterr()
    assert code == 78 and not out and not state.exists()
    assert "in the order of their rounds" in err and "column at" in err
    assert "nobody-must" not in err and "d0" not in err
    far = {**rows[0], "at": START + 10**10}
    assert run(write(tmp_path / "a.csv", [*rows, far])) == 78
    assert "within 100000 rounds" in capsys.readouterr().err


def test_a_second_run_resumes_and_no_round_is_released_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, state = fleet([0, 1, 2, 3]), tmp_path / "state"
    whole = expected(rows, 4)
    first = write(tmp_path / "a.csv", rows[:200])
    assert run(first, "--state", str(state)) == 0
    assert [r["batch"] for r in released(capsys)] == [1, 2]
    assert run(first, "--state", str(state)) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["batch"] for line in out.splitlines()] == [2]
    assert "no rows of new rounds" in err
    # The rest in another file, which also has rows of a round that is over.
    second = write(tmp_path / "b.csv", rows[150:])
    assert run(second, "--state", str(state)) == 65
    capsys.readouterr()
    assert run(second, "--state", str(state), "--new-records") == 0
    found = released(capsys)
    assert [r["batch"] for r in found] == [2, 3, 4]
    for release, made in zip(found, whole[1:], strict=True):
        assert release["subjects"] == pytest.approx(made.subjects)
    assert run(second, "--state", str(state), "--new-records") == 0
    assert [r["batch"] for r in released(capsys)] == [4]
    text = state.read_text()
    assert '"d1"' not in text and "digest" in text


@pytest.mark.parametrize("point", [p for p in crashpoints.POINTS if p != "closing"])
def test_a_run_that_is_stopped_anywhere(
    tmp_path: Path, point: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, state = fleet([0, 1, 2, 3]), tmp_path / "state"
    path = write(tmp_path / "a.csv", rows)
    assert run(path) == 0
    wanted = {r["batch"]: r for r in released(capsys)}
    crash_at(point, 2 if point != "polling" else 1)
    with pytest.raises(Crash):
        run(path, "--state", str(state))
    crashpoints.on_reach.clear()
    assert run(path, "--state", str(state)) == 0
    found: dict[int, list[Any]] = {}
    for release in released(capsys):
        found.setdefault(release["batch"], []).append(release)
    assert sorted(found) == [1, 2, 3, 4]
    for batch, payloads in found.items():
        assert all(payload == wanted[batch] for payload in payloads)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--round", "2h"], "round '1h'"),
        (["--period", "24h"], "period"),
        (["--time", "when"], "clock"),
    ],
)
def test_a_state_with_other_rounds_is_refused(
    tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, state = write(tmp_path / "a.csv", fleet([0])), tmp_path / "state"
    assert run(path, "--state", str(state)) == 0
    if "--time" in more:
        path.write_text(path.read_text().replace(",at,", ",when,", 1))
    assert run(path, "--state", str(state), *more) == 65
    assert said in capsys.readouterr().err


def test_the_horizon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, state = write(tmp_path / "a.csv", fleet(range(5))), str(tmp_path / "state")
    for batches in ([1, 2, 3], [3]):
        assert run(path, "--state", state, "--horizon", "3h") == 0
        out, err = capsys.readouterr()
        assert [json.loads(line)["batch"] for line in out.splitlines()] == batches
        assert "the horizon is reached" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--input", "-", "--format", "csv"], "read twice"),
        (["--subject", "@key"], "a column of the file"),
        (["--time", "when"], "no column when"),
        (["--subject", "who"], "no column who"),
        (["--subject", "cpu"], "must not be one of the features"),
        (["--round", "500ms"], "at least 1s"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write(tmp_path / "a.csv", fleet([0])), *flags) == 78
    assert said in capsys.readouterr().err


def test_time_and_subject_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "a.csv", fleet([0])))
    plain = FLAGS[:10]
    assert main(["run", "--input", path, *plain, "--time", "at", "--quiet"]) == 78
    assert "--time is for --subject" in capsys.readouterr().err
    subject = ["--subject", "device", "--round", "1h"]
    assert main(["run", "--input", path, *plain, *subject, "--quiet"]) == 78
    assert "--time must be given" in capsys.readouterr().err
    np.save(tmp_path / "a.npy", np.zeros((5, 3)))
    assert run(tmp_path / "a.npy") == 78
    assert "columns with names" in capsys.readouterr().err


def test_a_terminal_shows_the_last_release_in_full(tmp_path: Path) -> None:
    shown = on_a_terminal("run", "--input", str(write(tmp_path / "x.csv", fleet([0, 1]))), *FLAGS)
    assert "component 0" in shown and '{"' not in shown

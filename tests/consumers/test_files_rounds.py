"""`stream-dppca run --subject COLUMN --round 1h --time COLUMN`: rounds of data at rest."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers import crashpoints
from consumers.cli import main
from consumers.files import rounds
from consumers.files.blocks import FileRows, read_columns
from consumers.files.sorting import sorted_rounds
from consumers.files.times import parse_time
from consumers.settings import RoundRule
from stream_dppca import DPPCA, PerSubject
from stream_dppca.subjects.ids import canonical

from ..support.launch import silence
from .helpers import BATCH_POINTS, FEATURES
from .test_file_streams import on_a_terminal
from .test_task import Crash, crash_at

HOUR = 3600
START = 1_700_000_000 // HOUR * HOUR
PLACES = 60
FLAGS = [
    "--features",
    ",".join(FEATURES),
    "--epsilon",
    "8",
    "--delta",
    "1e-3",
    "--places",
    str(PLACES),
    "--center",
    "none",
    "--scales",
    "none",
    "--subject",
    "device",
    "--round",
    "1h",
    "--time",
    "at",
]

Row = dict[str, Any]


def fleet(hours: Sequence[int], devices: int = 50, seed: int = 0) -> list[Row]:
    """Two rows of each device in each of these hours."""
    rng = np.random.default_rng(seed)
    return [
        {
            "device": f"d{i % devices}",
            "at": START + hour * HOUR + i,
            **dict(zip(FEATURES, (rng.standard_normal(3) * [3.0, 1.0, 0.3]).tolist(), strict=True)),
        }
        for hour in hours
        for i in range(2 * devices)
    ]


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


@pytest.mark.parametrize("cell", ["", "NA", "x", "NaN"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_row_with_a_missing_cell_keeps_its_subject(
    tmp_path: Path, suffix: str, cell: str
) -> None:
    """In each format the same cells of the same rows are missing, and nothing else is."""
    rows = fleet([0])
    expected = np.array([[row[name] for name in FEATURES] for row in rows])
    expected[3, 1] = np.nan
    changed = [{**row, FEATURES[1]: str(row[FEATURES[1]])} for row in rows]
    changed[3][FEATURES[1]] = cell
    file = write(tmp_path / f"in{suffix}", changed)
    (block,) = read_columns(str(file), suffix[1:], FEATURES, ("device", "at"))  # type: ignore[arg-type]
    np.testing.assert_array_equal(block.rows, expected)
    subjects, times = block.others
    assert list(map(canonical, subjects)) == [canonical(row["device"]) for row in rows]
    assert None not in map(parse_time, times)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_rows_with_a_long_id_are_in_no_round(tmp_path: Path, suffix: str) -> None:
    rows = fleet([0])
    rows[3]["device"] = "\u0301\u0316" * 32_000  # a CSV cell of this length is still read
    file = write(tmp_path / f"in{suffix}", rows)

    def read() -> Iterator[FileRows]:
        return read_columns(str(file), suffix[1:], FEATURES, ("device", "at"))  # type: ignore[arg-type]

    rule, first = RoundRule("device", HOUR * 1000, 1), START // HOUR
    one = range(first, first + 1)
    ((_, kept),) = sorted_rounds(read, rule, one, at_once=1, places=PLACES, records=4)
    assert len(kept.subjects) == len(rows) - 1


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    silence(monkeypatch.setattr)
    yield
    crashpoints.on_reach.clear()


def at(hour: int) -> str:
    """The beginning of an hour as text."""
    return f"{datetime.datetime.fromtimestamp(START + hour * HOUR, datetime.UTC):%Y-%m-%dT%H:%MZ}"


def run(path: Path, *more: str, until: int = 4, begin: int | None = 0, seed: str = "0") -> int:
    times = [*([] if begin is None else ["--from", at(begin)]), "--until", at(until)]
    return main(["run", "--input", str(path), *FLAGS, "--seed", seed, *times, *more])


def released(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def expected(rows: Sequence[Row], hours: int) -> list[Any]:
    """The releases of the estimator, hour by hour."""
    told = DPPCA(
        features=FEATURES,
        epsilon=8,
        delta=1e-3,
        unit=PerSubject("device", places=PLACES),
        center="none",
        scales=None,
        seed=0,
    )
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
            assert component == pytest.approx(list(w), abs=1e-9)
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
    file = str(write(tmp_path / "a.csv", rows))
    blocks = list(read_columns(file, "csv", FEATURES, ("device", "at")))
    times = [parse_time(t) for block in blocks for t in block.others[1]]
    assert times == [1000 * row["at"] for row in fleet([0, 1], devices=4)]


def test_rows_of_nobody_are_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = fleet([0, 1])
    odd = [
        {**rows[0], "device": ""},
        {**rows[0], "at": "yesterday"},
        {**rows[0], "at": "nan"},
        {**rows[0], "at": ""},
    ]
    mixed = [*odd, *rows[:100], *odd, *rows[100:], *odd]
    assert run(write(tmp_path / "a.csv", mixed), until=2) == 0
    with_odd = released(capsys)
    assert run(write(tmp_path / "a.csv", rows), until=2) == 0
    assert released(capsys) == with_odd


NOBODY = "nobody-must-read-this"
#: All that one subject might do to the others with the times of its rows.
ODD_TIMES = {
    "late": [START + 4 * HOUR],
    "far in the future": ["2326-01-01", "9999-12-31T23:59:59Z", START + 10**10],
    "long ago": [START - 1, START - 10**6, "0001-01-01"],
    "not times": ["yesterday", "nan", "", "1e400", "-inf"],
    "out of order": [START + 2 * HOUR],
}


@pytest.mark.parametrize("odd", ODD_TIMES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_the_times_of_one_subject_change_nothing_for_others(
    tmp_path: Path, odd: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files that differ in one subject: as many releases, and the same of the others.

    A row in a declared round counts there, wherever it stands: rounds before it are the same.
    """
    rows = fleet([0, 1, 2])
    canary = [{**rows[0], "device": NOBODY, "at": when} for when in ODD_TIMES[odd]]
    place = {"first": 0, "middle": 150, "last": len(rows)}[where]
    found = []
    for name, day in ("with", [*rows[:place], *canary, *rows[place:]]), ("without", rows):
        folder = tmp_path / name
        folder.mkdir()
        state = str(folder / "state")
        assert run(write(folder / "a.csv", day), "--state", state, until=3) == 0
        said = capsys.readouterr()
        assert NOBODY not in said.err and str(canary[0]["at"] or NOBODY) not in said.err
        second = write(folder / "b.csv", fleet([3], seed=1))
        more = ("--state", state, "--new-records")
        assert run(second, *more, until=4, begin=None) == 0
        later = capsys.readouterr()
        assert later.err.splitlines()[-1] == f"began at {at(3)}, where the state ended"
        lines = [json.loads(line) for line in (said.out + later.out).splitlines()]
        found.append((said.err, later.err, lines))
    (_, _, there), (_, _, absent) = found
    assert found[0][:2] == found[1][:2]
    assert [r["batch"] for r in there] == [r["batch"] for r in absent] == [1, 2, 3, 3, 4]
    same = 2 if odd == "out of order" else 5
    assert there[:same] == absent[:same]
    assert [r["subjects"] for r in there] == pytest.approx(
        [r["subjects"] for r in absent], abs=1.01
    )


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_rows_may_be_in_any_order(
    tmp_path: Path,
    kind: str,
    at_once: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row is in the round of its time, however often the file is read for that."""
    rows = fleet([0, 1, 2, 3])
    assert run(write(tmp_path / f"a.{kind}", rows)) == 0
    in_order = released(capsys)
    monkeypatch.setattr(rounds, "rounds_at_once", lambda *numbers: at_once)
    # One row of each hour in turn: the rows of an hour are in the same order as before.
    turns = [rows[hour * 100 + i] for i in range(100) for hour in (2, 0, 3, 1)]
    for mixed in (turns, [*rows[200:], *rows[:200]]):
        assert run(write(tmp_path / f"a.{kind}", mixed)) == 0
        assert released(capsys) == in_order


def test_a_busy_subject_keeps_no_more_than_its_records() -> None:
    """Memory is bounded by places and records, whatever one subject sends."""
    rule, n = RoundRule("device", 1000, 1), 5000
    X = np.arange(3.0 * n).reshape(n, 3)
    busy = FileRows(X, (["1", 1] * (n // 2), [1.5] * n))
    others = FileRows(X[:4], (["a", "b", "c", None], [1.0, 1.999, 2.0, 1.0]))
    found = dict(
        sorted_rounds(lambda: [busy, others], rule, range(1, 4), at_once=2, places=2, records=4)
    )
    assert {r: kept.subjects for r, kept in found.items()} == {
        1: [b"1"] * 4 + [b"a"],
        2: [b"c"],
        3: [],
    }


moments = st.sampled_from([None, -1, *range(0, 6500, 500)])  # of six rounds, and of none
stamps = st.tuples(st.sampled_from("abcd"), moments)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(stamps, min_size=10, max_size=30),
    st.lists(st.tuples(st.integers(0, 30), moments), max_size=9),
    st.integers(1, 6),
    st.integers(2, 5),
)
def test_one_subject_takes_one_place_and_moves_no_row_of_others(
    rows: list[tuple[str, int | None]],
    canary: list[tuple[int, int | None]],
    at_once: int,
    size: int,
) -> None:
    """Any rows of one subject, inserted anywhere, with places for all (5) and for fewer."""
    numbered = [(who, when, float(i)) for i, (who, when) in enumerate(rows)]
    more: list[tuple[str, int | None, float]] = list(numbered)
    for place, when in canary:
        more.insert(min(place, len(more)), ("canary", when, -1.0))

    def kept(of: list[tuple[str, int | None, float]]) -> list[dict[bytes, list[float]]]:
        parts = [of[i : i + size] for i in range(0, len(of), size)]
        blocks = [
            FileRows(
                np.array([[row[2]] for row in part]),
                ([r[0] for r in part], [None if r[1] is None else r[1] / 1000 for r in part]),
            )
            for part in parts
        ]
        found: list[dict[bytes, list[float]]] = []
        for _, kept in sorted_rounds(
            lambda: blocks,
            RoundRule("device", 1000, 1),
            range(6),
            at_once=at_once,
            places=size,
            records=2,
        ):
            found.append({})
            for subject, row in zip(kept.subjects, kept.rows(1), strict=True):
                found[-1].setdefault(subject, []).append(float(row[0]))
        return found

    without, with_canary = kept(numbered), kept(more)
    assert len(without) == len(with_canary) == 6
    for number, (one, other) in enumerate(zip(without, with_canary, strict=True)):
        there = any(when is not None and when // 1000 == number for _, when in canary)
        assert other.pop(b"canary", None) is None or there
        lost = one.keys() - other.keys()
        assert len(lost) <= (1 if there and len(one) == size else 0)
        assert other == {who: rows for who, rows in one.items() if who not in lost}
        # The result is the same as for this round alone.
        alone: dict[bytes, list[float]] = {}
        for who, when, x in numbered:
            if when is not None and when // 1000 == number:
                mine = alone.setdefault(who.encode(), []) if len(alone) < size else []
                alone.get(who.encode(), mine).append(x)
        assert one == {who: values[:2] for who, values in alone.items()}


def test_a_second_run_resumes_and_no_round_is_released_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, state = fleet([0, 1, 2, 3]), tmp_path / "state"
    whole = expected(rows, 4)
    first = write(tmp_path / "a.csv", rows[:200])
    assert run(first, "--state", str(state), until=2) == 0
    assert [r["batch"] for r in released(capsys)] == [1, 2]
    assert run(first, "--state", str(state), until=2) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["batch"] for line in out.splitlines()] == [2]
    assert "no round before --until is left to release" in err
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
    assert '"d1"' not in text and not (tmp_path / "state.secret").exists()
    # No round is skipped.
    assert run(second, "--state", str(state), begin=6, until=7) == 78
    assert f"--from must not be later than {at(4)}, where the state ended" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("point", BATCH_POINTS)
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
    assert run(path, "--state", str(state), until=1) == 0
    if "--time" in more:
        path.write_text(path.read_text().replace(",at,", ",when,", 1))
    assert run(path, "--state", str(state), *more, until=1) == 65
    assert said in capsys.readouterr().err


def test_the_horizon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, state = write(tmp_path / "a.csv", fleet(range(5))), str(tmp_path / "state")
    for batches in ([1, 2, 3], [3]):
        assert run(path, "--state", state, "--horizon", "3h", until=5) == 0
        out, err = capsys.readouterr()
        assert [json.loads(line)["batch"] for line in out.splitlines()] == batches
        assert "the horizon is reached" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--input", "-", "--format", "csv"], "not standard input"),
        (["--subject", "@key"], "a column of the file"),
        (["--time", "when"], "no column when"),
        (["--subject", "who"], "no column who"),
        (["--subject", "cpu"], "must not be one of the features"),
        (["--round", "500ms"], "at least 1s"),
        (["--from", "31.1.2026"], "--from must be a date or a time in ISO 8601"),
        (
            ["--until", "1700000000"],
            "Found 1700000000; the rounds around it begin at 2023-11",
        ),
        (["--until", at(0)], f"--until must be later than --from. Found --from {at(0)} and"),
        (["--until", "2326-01-01"], "--until must be at most 100000 rounds of 1h after 2023-11"),
        (
            ["--from", "2023-11-14T22:30"],
            "--from must be the beginning of a round, a multiple of 1h. "
            "Found 2023-11-14T22:30; the rounds around it begin at 2023-11-14T22:00Z and "
            "2023-11-14T23:00Z.",
        ),
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
    plain = [*FLAGS[:6], "--batch-size", str(PLACES), *FLAGS[8:12]]
    assert main(["run", "--input", path, *plain, "--time", "at"]) == 78
    assert "--time is for --subject" in capsys.readouterr().err
    assert main(["run", "--input", path, *FLAGS[:-2]]) == 78
    assert "--time must be given" in capsys.readouterr().err
    for option in ("--from", "--until"):
        assert main(["run", "--input", path, *plain, option, "2026-01-31"]) == 78
        assert f"{option} is for --subject" in capsys.readouterr().err
    np.save(tmp_path / "a.npy", np.zeros((5, 3)))
    assert run(tmp_path / "a.npy") == 78
    assert "columns with names" in capsys.readouterr().err


def test_the_rounds_must_be_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error explains why they are not derived from the file, and what to type."""
    path = str(write(tmp_path / "a.csv", fleet([0])))
    assert main(["run", "--input", path, *FLAGS, "--from", at(0)]) == 78
    said = capsys.readouterr().err
    assert "--until must be given with --subject" in said and "when its subject sent it" in said
    assert said.rstrip().endswith("For example: --from 2026-01-31 --until 2026-02-01")
    assert main(["run", "--input", path, *FLAGS, "--until", at(1)]) == 78
    assert "--from must be given for a new model" in capsys.readouterr().err


def test_a_terminal_shows_the_last_release_in_full(tmp_path: Path) -> None:
    path, times = str(write(tmp_path / "x.csv", fleet([0, 1]))), ["--from", at(0), "--until", at(2)]
    shown = on_a_terminal("run", "--input", path, *FLAGS, *times)
    assert "component 0" in shown and '{"' not in shown

"""`stream-dppca run`: formats, resuming, kills."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consumers import crashpoints
from consumers.cli import main
from consumers.errors import ConfigurationError, Fenced
from consumers.files.blocks import read_blocks
from consumers.files.store import StateFile
from consumers.files.streams import longest_line
from consumers.protocols import Message

from ..support import zygote
from ..support.launch import CRASH_AT, NOISE
from ..support.processes import PATIENCE_SECONDS, ROOT
from .conftest import Outputs
from .helpers import BATCH_POINTS, FEATURES, as_json, rows

BATCH = 300
FLAGS = [
    "--features",
    ",".join(FEATURES),
    "--epsilon",
    "8",
    "--delta",
    "1e-3",
    "--batch-size",
    str(BATCH),
    "--center",
    "none",
    "--scales",
    "none",
]


def write(folder: Path, format: str, X: np.ndarray) -> Path:
    path = folder / f"data.{format}"
    if format == "csv":
        lines = [
            ",".join(["other", *FEATURES]),
            *(",".join(["x", *map(repr, r)]) for r in X.tolist()),
        ]
        path.write_text("\n".join(lines) + "\n")
    elif format == "jsonl":
        path.write_bytes(b"\n".join(as_json(r) for r in X) + b"\n")
    elif format == "npy":
        np.save(path, X)
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.table({f: X[:, i] for i, f in enumerate(FEATURES)}), path)
    return path


def read(path: Path, format: str) -> np.ndarray:
    return np.concatenate(list(read_blocks(str(path), format, FEATURES)))  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "npy"])
def test_every_format_gives_the_same_rows(tmp_path: Path, format: str) -> None:
    X = rows(5000)
    assert read(write(tmp_path, format, X), format).tolist() == X.tolist()


def test_bad_cells_are_missing_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(
        b'\xef\xbb\xbfcpu,memory,disk.read\r\n1,2,3\r\n1,2\n,,\n1,x,3\n\n"1,2,3\n\xff,1,2\n4,5,6\n'
    )
    nan, nothing = np.nan, [np.nan] * 3
    expected = [
        [1, 2, 3],
        [1, 2, nan],
        nothing,
        [1, nan, 3],
        nothing,
        nothing,
        [nan, 1, 2],
        [4, 5, 6],
    ]
    np.testing.assert_array_equal(read(path, "csv"), expected)
    path = tmp_path / "x.jsonl"
    path.write_bytes(as_json([1, 2, 3]) + b"\n{\n\n[]\n7\n" + as_json([4, 5, 6]))
    np.testing.assert_array_equal(read(path, "jsonl"), [[1, 2, 3], *[nothing] * 4, [4, 5, 6]])


MISSING = ("", "NA", "NaN", "nan", "null", " ", "x", "\xff")
NUMBERS = {
    "1.5": 1.5,
    " 2 ": 2.0,
    "1e400": np.inf,
    "true": 1.0,
    "False": 0.0,
    "-0": 0.0,
    "9007199254740993": 2.0**53,
}


@pytest.mark.parametrize("text", [*MISSING, *NUMBERS])
def test_a_row_is_the_same_row_in_every_format(tmp_path: Path, text: str) -> None:
    """Empty cells, NA, NaN and null are missing in all formats, and in their own cell only."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "x"
    expected = [[1.0, NUMBERS.get(text, np.nan), 3.0]]
    raw = text.encode("latin-1")
    path.write_bytes(b"cpu,memory,disk.read\n1," + raw + b",3\n")
    np.testing.assert_array_equal(read(path, "csv"), expected)
    values = [b'"' + raw + b'"']
    if text in ("NaN", "null", "true", "1.5", "1e400", "-0", "9007199254740993"):
        values.append(raw)  # as it is, too
    for value in values:
        path.write_bytes(b'{"cpu": 1, "memory": ' + value + b', "disk": {"read": 3.0}}\n')
        np.testing.assert_array_equal(read(path, "jsonl"), expected)
    cells = [pa.array([raw]).view(pa.string()), pa.array([raw])]
    if text in MISSING:
        cells += [pa.array([None], pa.float64()), pa.array([np.nan])]
    elif text in ("true", "False"):
        cells.append(pa.array([text == "true"]))
    else:
        cells.append(pa.array([NUMBERS[text]]))
    for column in cells:
        pq.write_table(pa.table({"cpu": [1], "memory": column, "disk.read": [3.0]}), path)
        np.testing.assert_array_equal(read(path, "parquet"), expected)


@pytest.mark.parametrize(
    "line",
    [
        b'{"cpu": 1, "disk": {"read": 3}}',
        b'{"cpu": "1", "memory": {}, "disk": {"read": "3"}}',
        b'{"cpu": 1, "memory": [], "disk": {"read": 3}}',
    ],
)
def test_a_row_without_a_member_is_a_row_with_a_missing_cell(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(line)
    np.testing.assert_array_equal(read(path, "jsonl"), [[1, np.nan, 3]])


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_long_line_takes_bounded_memory(tmp_path: Path, format: str, ending: str) -> None:
    """It is a null, whatever is in it, and the lines around it are read."""
    one, two = as_json([1, 2, 3]), as_json([4, 5, 6])
    if format == "csv":
        one, two = b"cpu,memory,disk.read\n1,2,3", b"4,5,6"
    compress: Any = {".gz": gzip.compress}
    for line in (b"0" * (1 << 26), b'"' + b",0" * (1 << 25)):
        path = tmp_path / f"x{ending}"
        path.write_bytes(compress.get(ending, bytes)(b"\n".join([one, line, two])))
        tracemalloc.start()
        try:
            found = np.concatenate(list(read_blocks(str(path), format, FEATURES)))  # type: ignore[arg-type]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1 << 25
        np.testing.assert_array_equal(found, [[1, 2, 3], [np.nan] * 3, [4, 5, 6]])


def test_empty_lines_take_bounded_memory(tmp_path: Path) -> None:
    """The number of rows in a block is bounded, too: here a MiB would be 16 GB."""
    names = [f"x{i}" for i in range(2000)]
    path = tmp_path / "x.csv"
    path.write_text(",".join(names) + "\n" * (1 << 20))
    blocks = read_blocks(str(path), "csv", names)
    assert len(next(blocks)) == len(next(blocks)) == 2097


def test_a_line_is_as_long_as_it_may_be_or_a_null(tmp_path: Path) -> None:
    path, most = tmp_path / "x.csv", longest_line(3)
    for length, read_as in ((most - 1, [1, 2, 3]), (most, [np.nan] * 3), (most + 1, [np.nan] * 3)):
        comment = "," + ",".join(["c" * 9] * (length // 10))
        line = ("1,2,3" + comment)[:length].ljust(length, "c")
        for end in ("\n4,5,6\n", "\n4,5,6", ""):
            path.write_text("cpu,memory,disk.read\n" + line + end)
            np.testing.assert_array_equal(
                read(path, "csv"), [read_as, *([[4, 5, 6]] if end else [])]
            )
    # A header that is too long ends somewhere; the first row is the line after it.
    path.write_text("cpu,memory,disk.read," + "other," * most + "\n1,2,3\n")
    assert read(path, "csv").tolist() == [[1, 2, 3]]


def test_one_line_is_one_record(tmp_path: Path) -> None:
    """A line break in quotes ends a record, so a quote can never swallow the records after it."""
    path = tmp_path / "x.csv"
    header, others = "cpu,memory,disk.read,comment\n", "4,5,6,ok\n7,8,9,ok\n"
    nothing = [np.nan] * 3
    for comment, lines in {
        "ok": [[1, 2, 3]],
        '"o\nk"': [[1, 2, 3], nothing],  # its first line can be read, the rest of it is a null
        '"o\r\nk': [[1, 2, 3], nothing],
        '"o\n\n\nk"': [[1, 2, 3], nothing, nothing, nothing],
        '"o\n10,11,12,k"': [[1, 2, 3], [10, 11, 12]],  # a line that reads as a record is one
        '"': [[1, 2, 3]],
    }.items():
        path.write_text(f"{header}1,2,3,{comment}\n{others}", newline="")
        np.testing.assert_array_equal(read(path, "csv"), [*lines, [4, 5, 6], [7, 8, 9]])


def test_a_cell_that_python_cannot_hold_is_a_null(tmp_path: Path) -> None:
    """A date beyond the year 9999, and text that is not UTF-8: pyarrow raises for the column."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    text = pa.array([b"x", b"\xff", b"z"]).view(pa.string())
    dates = pa.array([1, 2**60, 3]).view(pa.timestamp("ms"))
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"cpu": [1.5, 2.5, 3.5], "memory": text, "disk.read": dates}), path)
    for column in (text, dates):
        with pytest.raises(Exception, match=r"."):
            column.to_pylist()
    X = read(path, "parquet")
    assert X[:, 0].tolist() == [1.5, 2.5, 3.5] and np.isnan(X[:, 1:]).all()


def test_numbers_too_large_for_a_float_give_no_warning(tmp_path: Path) -> None:
    """A warning would say something about the records. Here it would be an error."""
    path = tmp_path / "x.npy"
    X = np.ones((2, 3), dtype=np.longdouble)
    X[0, 1] *= np.longdouble("1e4000")
    np.save(path, X)
    assert read(path, "npy").tolist() == [[1, np.inf, 1], [1, 1, 1]]


@pytest.mark.parametrize("format", ["csv", "parquet", "npy"])
def test_missing_columns_are_said_at_once(tmp_path: Path, format: str) -> None:
    path = write(tmp_path, format, rows(3))
    with pytest.raises(ConfigurationError, match=r"column y|shape") as caught:
        list(read_blocks(str(path), format, ("cpu", "y")))  # type: ignore[arg-type]
    assert ("columns are separated by commas" in str(caught.value)) == (format == "csv")


def test_other_formats_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--input", "book.xlsx", *FLAGS]) == 78
    said = capsys.readouterr().err
    assert "xlsx and others cannot be read" in said and "csv, jsonl, parquet or npy" in said


def test_what_is_no_such_file_is_said(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    np.save(tmp_path / "objects.npy", np.array([[1, "a", None]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "several.npz", rows(3))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    for name in ("empty.npy", "empty.parquet"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "text.parquet").write_bytes(b"cpu,memory\n987654,2\n" * 9)
    for name, said in (
        ("objects.npy", "holds objects, not numbers"),
        ("several.npy", "is not a .npy file"),
        ("empty.npy", "is not a .npy file"),
        ("empty.parquet", "is not a valid Parquet file"),
        ("text.parquet", "is not a valid Parquet file"),
        ("none.npy", "there is no file"),
    ):
        path = tmp_path / name
        with pytest.raises(ConfigurationError, match=said) as caught:
            list(read_blocks(str(path), path.suffix[1:], FEATURES))  # type: ignore[arg-type]
        assert "987654" not in str(caught.value)


def run(*arguments: Any, module: str = "", **environment: str) -> Any:
    """Run the command in a fork that has imported it, or a module in a new interpreter."""
    given = ["run", *map(str, arguments), *FLAGS]
    if not module:
        return zygote.run(given, environment, PATIENCE_SECONDS)
    command = [sys.executable, "-m", module, *given]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, env=env)


def batches(output: bytes) -> dict[int, set[bytes]]:
    found: dict[int, set[bytes]] = {}
    for line in output.splitlines():
        found.setdefault(json.loads(line)["batch"], set()).add(line)
    return found


def test_a_run_that_is_killed_everywhere_and_goes_on(tmp_path: Path) -> None:
    """Every point once, one after the other, on the same state."""
    path, state = write(tmp_path, "csv", rows(8 * BATCH + 17)), tmp_path / "state.json"
    output = b""
    for point in (*BATCH_POINTS, "closing"):
        times = ":2" if point == "batch_full" else ""
        done = run("--input", path, "--state", state, **{CRASH_AT: point + times})
        assert done.returncode == -9, (point, done.stderr)
        output += done.stdout
    done = run("--input", path, "--state", state)
    assert done.returncode == 0
    assert b"17 rows wait" in done.stderr
    found = batches(output + done.stdout)
    assert sorted(found) == list(range(1, 9))
    assert all(len(payloads) == 1 for payloads in found.values())


def test_only_the_launcher_of_the_tests_silences_noise(tmp_path: Path) -> None:
    path = write(tmp_path, "npy", rows(BATCH))

    def released(module: str = "") -> tuple[bool, str]:
        done = run("--input", path, module=module, **{NOISE: "off"})
        assert done.returncode == 0, done.stderr
        [release] = [json.loads(line) for line in done.stdout.splitlines()]
        return release["privacy"]["private"], json.dumps(release["components"])

    silent = {released() for _ in range(2)}
    assert len(silent) == 1 and not silent.pop()[0]
    noisy = {released("consumers.cli") for _ in range(2)}
    assert len(noisy) == 2 and all(private for private, _ in noisy)


def test_a_file_that_teaches_nothing_is_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """After three batches that cannot be read the rest of the file is left alone."""
    path, text = tmp_path / "text.csv", "cpu,host\n" + "1.5,web\n" * 3000
    path.write_text(text)
    arguments = [
        "run",
        "--input",
        str(path),
        "--features",
        "cpu,host",
        "--epsilon",
        "5",
        "--delta",
        "1e-5",
    ]
    for size, released, code in (("500", 3, 78), ("1500", 2, 1)):
        assert main([*arguments, "--batch-size", size]) == code
        said = capfd.readouterr()
        assert len(said.out.splitlines()) == released
        assert "hardly any record could be read" in said.err and "check the feature" in said.err
        assert "columns hold numbers" in said.err and "is spent" in said.err
    state = ["--state", str(tmp_path / "state"), "--batch-size", "1500"]
    assert main([*arguments, *state]) == 1
    assert main([*arguments, *state, "--epsilon", "4"]) == 65
    said = capfd.readouterr()
    assert "--state" in said.err and "group" not in said.err


def test_the_end_is_the_last_release_again(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path, state = write(tmp_path, "jsonl", rows(2 * BATCH)), tmp_path / "state.json"
    arguments = ["run", "--input", str(path), "--state", str(state), *FLAGS]
    assert main(arguments) == 0
    first = capfdbinary.readouterr().out.splitlines()
    assert main(arguments) == 0
    assert capfdbinary.readouterr().out.splitlines() == first[-1:]
    assert len(first) == 2


def test_once_takes_the_whole_file_as_one_batch(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path, state = write(tmp_path, "csv", rows(3 * BATCH + 17)), tmp_path / "state.json"
    arguments = ["run", "--input", str(path), "--once", *FLAGS[:6], *FLAGS[8:]]
    assert main([*arguments, "--state", str(state)]) == 0
    [release] = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert (release["status"], release["n_seen"]) == ("learned", 3 * BATCH + 17)
    assert release["first_batches"] == 1
    few = write(tmp_path, "jsonl", rows(BATCH // 10))
    main(["run", "--input", str(few), "--once", *FLAGS[:6]])  # centre and scales are learned
    assert f"{BATCH // 10} rows are few for".encode() in capfdbinary.readouterr().err
    assert main([*arguments, "--state", str(state)]) == 0
    again = capfdbinary.readouterr()
    assert json.loads(again.out) == release and b"were used before" in again.err
    several = write(tmp_path, "jsonl", rows(3 * BATCH))
    in_batches = ["run", "--input", str(several), "--state", str(tmp_path / "batches.json")]
    assert main([*in_batches, *FLAGS]) == 0
    assert main([*in_batches, "--once", *FLAGS[:6], *FLAGS[8:]]) == 65
    assert b"has learned in batches, and --once is" in capfdbinary.readouterr().err
    write(tmp_path, "csv", rows(3 * BATCH + 20))
    (tmp_path / "empty.jsonl").touch()
    for changes, said in (
        (["--state", str(state)], b"a model learns from one file once"),
        (["--input", "-", "--format", "csv"], b"cannot be read twice"),
        (["--input", str(tmp_path / "empty.jsonl")], b"there were no records"),
        (["--batch-size", "300"], b"--batch-size must be left out with --once"),
    ):
        assert main([*arguments, *changes]) != 0
        assert said in capfdbinary.readouterr().err


def test_new_records_on_standard_input(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.json"
    X = rows(2 * BATCH)
    arguments = [
        "run",
        "--input",
        "-",
        "--format",
        "jsonl",
        "--state",
        str(state),
        "--new-records",
        *FLAGS,
    ]
    for part in (X[:BATCH], X[BATCH:]):
        data = b"\n".join(as_json(r) for r in part)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert main(arguments) == 0
    found = batches(capfdbinary.readouterr().out)
    assert sorted(found) == [1, 2]


def test_one_file_after_the_other(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    state, X = tmp_path / "state.json", rows(2 * BATCH + 7)
    paths = [tmp_path / "day1.npy", tmp_path / "day2.npy"]
    np.save(paths[0], X[:BATCH])
    np.save(paths[1], X[BATCH:])

    def learn(path: Path, *more: str) -> int:
        return main(["run", "--input", str(path), "--state", str(state), *FLAGS, *more])

    assert learn(paths[0]) == 0
    assert learn(paths[1]) == 65
    said = capfdbinary.readouterr().err.decode()
    assert "another input: day1, not day2" in said and "--new-records" in said
    assert "topic" not in said
    assert learn(paths[1], "--new-records", "--model", "other") == 65
    assert "is of model day1" in capfdbinary.readouterr().err.decode()
    assert learn(paths[1], "--new-records") == 0
    done = capfdbinary.readouterr()
    assert sorted(batches(done.out)) == [1, 2]
    assert {json.loads(line)["model"] for line in done.out.splitlines()} == {"day1"}
    assert b"7 rows were left over" in done.err


def test_what_is_left_over_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "csv", rows(7))
    assert main(["run", "--input", str(path), *FLAGS]) == 0
    assert "7 rows were left over: fewer than a step of 300" in capsys.readouterr().err
    assert main(["run", "--input", str(path), *FLAGS, "--state", str(tmp_path / "s")]) == 0
    assert "7 rows wait" in capsys.readouterr().err
    path = write(tmp_path, "csv", rows(0))
    assert main(["run", "--input", str(path), *FLAGS]) == 0
    assert "no records" in capsys.readouterr().err


def test_a_state_that_is_none_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "npy", rows(3))
    arguments = ["run", "--input", str(path), *FLAGS, "--state"]
    assert main([*arguments, str(tmp_path)]) == 78
    assert "is a folder" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "nope" / "x.json")]) == 78
    assert f"there is no {tmp_path / 'nope'}" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    assert main([*arguments, str(tmp_path / "bad.json")]) == 65
    said = capsys.readouterr().err
    assert "bad.json cannot be read" in said and "topic" not in said


@pytest.mark.parametrize(
    "more, said",
    [
        ((), "stopped; without --state nothing was kept."),
        (("--state",), "stopped after batch 1; run again to resume"),
        (("--state", "--new-records"), "stopped after batch 1; run again without --new-records to"),
    ],
)
def test_an_interrupt_says_how_far_it_came(
    more: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path, "npy", rows(3 * BATCH))
    given = [part for m in more for part in ((m, str(tmp_path / "s")) if m == "--state" else (m,))]
    released = []

    def interrupt(point: str) -> None:
        released.append(point == "before_transaction")
        if sum(released) == 2:
            raise KeyboardInterrupt

    crashpoints.on_reach.append(interrupt)
    assert main(["run", "--input", str(path), *FLAGS, *given]) == 130
    told = capsys.readouterr().err
    assert told[told.find("stopped") :].startswith(said)
    # Its advice must not lead to using a record twice.
    assert ("run again to" in told) == (more == ("--state",))
    if not more:
        assert "a second time" in told and "--state FILE" in told
    crashpoints.on_reach.clear()
    if more:
        again = ["run", "--input", str(path), *FLAGS, "--state", str(tmp_path / "s")]
        assert main(again) == 0
        assert sorted(batches(capsys.readouterr().out.encode())) == [1, 2, 3]


def test_an_interrupt_before_the_first_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "npy", rows(BATCH))

    def interrupt(point: str) -> None:
        raise KeyboardInterrupt

    crashpoints.on_reach.append(interrupt)
    assert main(["run", "--input", str(path), *FLAGS, "--state", str(tmp_path / "s")]) == 130
    assert "before the end of the first batch; run again" in capsys.readouterr().err


# Inputs that were used before


def learn(state: Path, path: Path, *more: str) -> int:
    return main(["run", "--input", str(path), "--state", str(state), *FLAGS, *more])


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "npy"])
def test_an_input_that_has_grown_is_resumed(
    tmp_path: Path, format: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    X, state = rows(4 * BATCH), tmp_path / "state"
    assert learn(state, write(tmp_path, format, X[: 2 * BATCH + 50])) == 0
    assert learn(state, write(tmp_path, format, X)) == 0
    output, said = capfdbinary.readouterr()
    assert sorted(batches(output)) == [1, 2, 3, 4] and len(output.splitlines()) == 5
    assert said.count(b"resuming after 600 rows\n") == 1 and b"epsilon" not in said


def test_without_a_state_a_run_says_that_nothing_remembers_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--input", str(write(tmp_path, "npy", rows(BATCH))), *FLAGS]) == 0
    assert "another run on them spends epsilon again" in capsys.readouterr().err


def test_the_same_input_in_another_format_is_the_same(tmp_path: Path) -> None:
    X, state = rows(3 * BATCH), tmp_path / "state"
    assert learn(state, write(tmp_path, "npy", X[: 2 * BATCH])) == 0
    assert learn(state, write(tmp_path, "csv", X)) == 0
    assert learn(state, write(tmp_path, "jsonl", X), "--new-records") == 65


def test_rows_with_missing_cells_are_known_in_every_format(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    pd = pytest.importorskip("pandas")
    X, state = rows(2 * BATCH), tmp_path / "state"
    X[::7, 1], X[::5, 0] = np.nan, 0.0
    table = pd.DataFrame(X, columns=list(FEATURES))
    table.to_csv(tmp_path / "data.csv", index=False)
    table.where(table != 0, -0.0).to_parquet(tmp_path / "data.parquet")
    missing = ("--missing", "center", "--center", "mean", "--scales", "learn")
    assert learn(state, tmp_path / "data.csv", *missing) == 0
    kept = state.read_bytes()
    assert learn(state, tmp_path / "data.parquet", *missing) == 0  # resumed: nothing is left
    assert learn(state, tmp_path / "data.parquet", *missing, "--new-records") == 65
    assert state.read_bytes() == kept


def test_new_records_that_are_old_are_refused(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    X, state = rows(5 * BATCH), tmp_path / "state"
    for name, part in (("day1", X[: 2 * BATCH + 9]), ("day2", X[3 * BATCH :])):
        np.save(tmp_path / f"{name}.npy", part)
    np.save(tmp_path / "copy.npy", X[: 2 * BATCH + 9])
    assert learn(state, tmp_path / "day1.npy", "--new-records") == 0
    before = state.read_bytes()
    capfdbinary.readouterr()
    for name in ("day1", "copy"):
        assert learn(state, tmp_path / f"{name}.npy", "--new-records") == 65
        done = capfdbinary.readouterr()
        assert b"day1, which is already used up to row 600. To resume it, run again" in done.err
        assert sorted(batches(done.out)) == [2]  # the last release again, and nothing new
        assert state.read_bytes() == before
    assert learn(state, tmp_path / "day2.npy", "--new-records") == 0
    capfdbinary.readouterr()
    assert learn(state, tmp_path / "day1.npy", "--new-records") == 65
    assert b"already used up to row 600. If rows were added" in capfdbinary.readouterr().err


def test_new_records_can_be_resumed_without_the_flag(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    X, state = rows(4 * BATCH), tmp_path / "state"
    np.save(tmp_path / "day1.npy", X[:BATCH])
    np.save(tmp_path / "day2.npy", X[BATCH : 3 * BATCH])
    assert learn(state, tmp_path / "day1.npy") == 0
    assert learn(state, tmp_path / "day2.npy", "--new-records") == 0
    np.save(tmp_path / "day2.npy", X[BATCH:])
    assert learn(state, tmp_path / "day1.npy") == 65
    assert b"another input: day2, not day1" in capfdbinary.readouterr().err
    assert learn(state, tmp_path / "day2.npy") == 0
    done = capfdbinary.readouterr()
    assert sorted(batches(done.out)) == [3, 4]
    assert {json.loads(line)["model"] for line in done.out.splitlines()} == {"day1"}


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda X: X[: BATCH // 2], "has 150 rows, but the state has used 600 rows"),
        (lambda X: X[::-1], "its first 600 rows differ"),
        (lambda X: np.vstack([X[:599], 2 * X[599:600], X[600:]]), "its first 600 rows differ"),
    ],
    ids=["fewer rows", "other rows", "one row changed"],
)
def test_another_file_of_the_same_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, said: str
) -> None:
    X, state = rows(2 * BATCH + 20), tmp_path / "state"
    (tmp_path / "other").mkdir()
    assert learn(state, write(tmp_path, "npy", X)) == 0
    before = state.read_bytes()
    assert learn(state, write(tmp_path / "other", "npy", change(X))) == 65
    told = capsys.readouterr().err
    assert said in told and "--new-records" in told
    assert state.read_bytes() == before


def neighbours() -> tuple[np.ndarray, np.ndarray]:
    X = rows(2 * BATCH)
    Y = X.copy()
    Y[BATCH + 7] = [5.0, -3.0, 0.1]
    return X, Y


def test_a_state_tells_no_row(tmp_path: Path, outputs: Outputs) -> None:
    """With the same releases, neighbours have the same state, byte by byte."""
    kept = []
    for name, X in zip(("one", "other"), neighbours(), strict=True):
        (tmp_path / name).mkdir()
        path, state = write(tmp_path / name, "npy", X), tmp_path / name / "state"
        assert learn(state, path, "--seed", "1") == 0
        kept.append((state.read_bytes(), (tmp_path / name / "state.secret").read_bytes()))
        outputs.again()
    assert kept[0][0] == kept[1][0] and kept[0][1] != kept[1][1]
    assert state_of(tmp_path / "one" / "state")["inputs"] == [{"name": "data", "rows": 2 * BATCH}]


def state_of(path: Path) -> Any:
    return json.loads(path.read_bytes())


@pytest.mark.parametrize("more", [(), ("--new-records",)])
def test_a_state_without_its_secret_is_refused(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], more: tuple[str, ...]
) -> None:
    X, state, secret = rows(3 * BATCH), tmp_path / "state", tmp_path / "state.secret"
    assert learn(state, write(tmp_path, "npy", X[: 2 * BATCH])) == 0
    before, kept = state.read_bytes(), secret.read_bytes()
    path = write(tmp_path, "npy", X)
    secret.unlink()
    capfdbinary.readouterr()
    assert learn(state, path, *more) == 65
    said = capfdbinary.readouterr()
    assert b"state.secret is missing" in said.err and b"begin a new --state" in said.err
    assert not said.out and not secret.exists()
    for content in (b"", b"[]", kept.replace(b"600", b"900"), kept.replace(b"data", b"dato")):
        secret.write_bytes(content)
        assert learn(state, path, *more) == 65
        assert b"does not belong to" in capfdbinary.readouterr().err
    assert state.read_bytes() == before
    secret.write_bytes(kept)
    assert learn(state, path) == 0


def test_the_secret_is_durable_before_the_state(tmp_path: Path) -> None:
    """It may be a batch ahead, of this input or the next, and fits the state all the same."""
    X, state, secret = rows(4 * BATCH), tmp_path / "state", tmp_path / "state.secret"
    np.save(tmp_path / "next.npy", X[2 * BATCH :])
    first = write(tmp_path, "npy", X[: 2 * BATCH])
    (tmp_path / "cut").mkdir()
    for path in (first, tmp_path / "next.npy"):
        for times in (1, 2):
            more = ["--new-records"] if path != first and times == 1 else []
            crash = {CRASH_AT: "before_transaction"}
            done = run("--input", path, "--state", state, *more, **crash)
            assert done.returncode == -9, done.stderr
            ahead = json.loads(secret.read_bytes())[-1]
            assert ahead["name"] == path.stem and ahead["marks"][-1][0] == times * BATCH
            cut = tmp_path / "cut" / path.name
            np.save(cut, np.load(path)[: times * BATCH])
            assert learn(state, cut, *more) == 0
    assert [i["rows"] for i in state_of(state)["inputs"]] == [2 * BATCH, 2 * BATCH]


def test_a_state_is_resumed_after_a_long_step_that_did_not_end(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A first step of three batches from which nothing can be read is followed by another one."""
    more = ("--epsilon", "2", "--delta", "1e-6", "--center", "mean", "--scales", "learn")
    state = tmp_path / "state"
    X = np.concatenate([np.full((9 * BATCH, 3), np.nan), rows(3 * BATCH)])
    for number in (3, 5, 8, 11, 12):  # batches in the file
        code = learn(state, write(tmp_path, "npy", X[: number * BATCH]), *more)
        assert code == (0 if number == 12 else 1)  # nothing was learned before
        out, said = capfdbinary.readouterr()
        seen = {json.loads(line)["n_seen"] for line in out.splitlines()}
        assert max(seen) == number // 3 * 3 * BATCH
        waiting = f"{number % 3 * BATCH} rows wait for a full step of {3 * BATCH}".encode()
        assert (waiting in said) == (number % 3 > 0)
    wrong = write(tmp_path, "npy", np.concatenate([rows(9 * BATCH), X[9 * BATCH :]]))
    assert learn(state, wrong, *more) == 65


def test_a_state_that_names_no_input_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, state = write(tmp_path, "npy", rows(BATCH)), tmp_path / "state"
    assert learn(state, path) == 0
    state.write_text(json.dumps(state_of(state) | {"inputs": []}))
    for options in ((), ("--new-records",)):
        assert learn(state, path, *options) == 65
        assert "not the state of a file" in capsys.readouterr().err


def test_a_state_that_was_fully_written_is_the_state(tmp_path: Path) -> None:
    """A process that is killed before the rename has left a result on the disk: no second one."""
    path, state, part = write(tmp_path, "npy", rows(2 * BATCH)), tmp_path / "s", tmp_path / "s.part"
    for batch in (1, 2):
        done = run("--input", path, "--state", state, **{CRASH_AT: "inside_transaction"})
        assert done.returncode == -9
        written = part.read_bytes()
        assert len(batches(done.stdout)) == batch - 1
        done = run("--input", path, "--state", state, **{CRASH_AT: "polling"})
        assert done.returncode == -9 and state.read_bytes() == written and not part.exists()
        release = state_of(state)["release"]["value"].encode()
        assert done.stdout.splitlines() == [release] and json.loads(release)["batch"] == batch


@pytest.mark.parametrize(
    "torn",
    [
        lambda b: b[:-1],
        lambda b: b[: len(b) // 2],
        lambda b: b"",
        lambda b: b + b"{",
        lambda b: b[:-9] + bytes(9),
        lambda b: bytes(4096) + b[4096:],
        lambda b: b.replace(b'"parent":"', b'"parent":"0'),
    ],
    ids=["cut", "half", "empty", "longer", "zeros", "a hole", "another parent"],
)
def test_a_torn_state_is_computed_again(tmp_path: Path, torn: Any) -> None:
    path, state, part = write(tmp_path, "npy", rows(2 * BATCH)), tmp_path / "s", tmp_path / "s.part"
    done = run("--input", path, "--state", state, **{CRASH_AT: "inside_transaction:2"})
    assert done.returncode == -9
    before = state.read_bytes()
    part.write_bytes(torn(part.read_bytes()))
    done = run("--input", path, "--state", state, **{CRASH_AT: "polling"})
    assert done.returncode == -9 and state.read_bytes() == before
    done = run("--input", path, "--state", state)
    assert done.returncode == 0 and sorted(batches(done.stdout)) == [1, 2]


def test_a_damaged_state_is_replaced_by_nothing(tmp_path: Path) -> None:
    """What is no state is refused, whatever lies next to it."""
    path, state = write(tmp_path, "npy", rows(BATCH)), tmp_path / "s"
    assert (
        run("--input", path, "--state", state, **{CRASH_AT: "inside_transaction"}).returncode == -9
    )
    state.write_bytes(b"damaged")
    assert learn(state, path) == 65 and state.read_bytes() == b"damaged"


def test_a_state_file_is_for_its_owner(tmp_path: Path) -> None:
    path, state = write(tmp_path, "npy", rows(2 * BATCH)), tmp_path / "state"
    part = tmp_path / "state.part"
    part.write_bytes(b"left behind")
    part.chmod(0o666)
    modes = set()

    def look(point: str) -> None:
        if point == "inside_transaction":
            modes.add(part.stat().st_mode & 0o777)

    crashpoints.on_reach.append(look)
    before = os.umask(0)
    try:
        assert learn(state, path) == 0
    finally:
        os.umask(before)
    assert modes == {0o600}
    assert {p.stat().st_mode & 0o777 for p in tmp_path.glob("state*")} == {0o600}


def test_an_old_state_file_is_for_its_owner_once_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = StateFile(path, print)
    store.commit(b"state", {})
    path.chmod(0o644)
    assert store.load() == [b"state"] and path.stat().st_mode & 0o777 == 0o600
    store.close()


def test_a_link_to_a_state_file_stays_a_link(tmp_path: Path) -> None:
    """The file behind the link is replaced, and locked, whichever name is given."""
    real, link = tmp_path / "real" / "state", tmp_path / "link"
    real.parent.mkdir()
    link.symlink_to(real)
    store = StateFile(link, print)
    with pytest.raises(Fenced):
        StateFile(real, print)
    store.commit(b"1", {0: 1})
    store.close()
    assert link.is_symlink() and real.read_bytes() == b"1"
    assert not list(tmp_path.glob("link.*"))


def test_links_that_others_have_left_are_not_followed(tmp_path: Path) -> None:
    """In a folder that others may write to, somebody may guess the names that are used."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / "state.part").symlink_to(precious)
    store = StateFile(tmp_path / "state", print)
    store.commit(b"1", {0: 1})
    store.close()
    (tmp_path / "other.lock").symlink_to(precious)
    with pytest.raises(ConfigurationError, match="can be written"):
        StateFile(tmp_path / "other", print)
    assert precious.read_bytes() == b"precious" and not (tmp_path / "state").is_symlink()


def test_nobody_reads_any_more(tmp_path: Path) -> None:
    path = write(tmp_path, "npy", rows(20 * BATCH))
    command = [
        sys.executable,
        "-m",
        "consumers.cli",
        "run",
        "--input",
        str(path),
        *FLAGS,
        "--state",
        str(tmp_path / "state"),
    ]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = StateFile(tmp_path / "s", print)
    with pytest.raises(Fenced, match="another process"):
        StateFile(tmp_path / "s", print)
    first.close()
    StateFile(tmp_path / "s", print).close()


def test_the_state_file_is_a_store(tmp_path: Path) -> None:
    """The contract of `consumers.protocols.Store`, which the ledgers keep in `test_contract.py`."""
    printed: list[bytes] = []
    store = StateFile(tmp_path / "s", printed.append)
    one, two, three = (Message(b"k", b"release %d" % i) for i in (1, 2, 3))
    assert store.load() == []
    store.commit(b"1", {0: 1})
    assert store.load() == [b"1"] and printed == []

    def crash(point: str) -> None:
        raise KeyboardInterrupt

    crashpoints.on_reach.append(crash)
    with pytest.raises(KeyboardInterrupt):
        store.commit(b"2", {0: 2}, [one])
    crashpoints.on_reach.clear()
    # The message was durable, and the batch is, too: it had reached the disk.
    assert store.load() == [b"1"] and store.unfinished() == [b"2"] and printed == [b"release 1"]
    store.commit(b"2", {0: 2})
    assert store.load() == [b"2"] and store.unfinished() == []
    store.commit(b"3", {0: 3}, [one])
    assert store.load()[-1] == b"3" and printed == [b"release 1"] * 2
    store.publish([two, three], {0: 3})
    assert printed[2:] == [b"release 2", b"release 3"]
    store.close()


def test_another_epsilon_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, state = write(tmp_path, "npy", rows(BATCH)), tmp_path / "state.json"
    arguments = ["run", "--input", str(path), "--state", str(state), *FLAGS]
    assert main(arguments) == 0
    assert main([*arguments, "--epsilon", "2"]) == 65
    assert "epsilon" in capsys.readouterr().err

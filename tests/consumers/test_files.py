"""`stream-dppca run`: formats, resuming, kills."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consumers import crashpoints
from consumers.cli import main
from consumers.errors import ConfigurationError, Fenced
from consumers.files.run import StateFile, read_blocks

from ..launch import CRASH_AT, NOISE
from ..processes import ROOT
from .helpers import FEATURES, as_json, rows

BATCH = 300
FLAGS = ["--features", ",".join(FEATURES), "--epsilon", "8", "--delta", "1e-3",
         "--batch-size", str(BATCH)]  # fmt: skip
POINTS = ("polling", "batch_full", "before_transaction", "inside_transaction", "after_commit",
          "after_publish", "closing")  # fmt: skip


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


def test_bad_lines_are_nulls(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(
        b'\xef\xbb\xbfcpu,memory,disk.read\r\n1,2,3\r\n1,2\n,,\n1,x,3\n\n"1,2,3\n\xff,1,2\n4,5,6\n'
    )
    X = read(path, "csv")
    assert np.isnan(X).all(axis=1).tolist() == [False, *[True] * 6, False]
    path = tmp_path / "x.jsonl"
    path.write_bytes(as_json([1, 2, 3]) + b"\n{\n\n[]\n" + as_json([4, 5, 6]))
    assert np.isnan(read(path, "jsonl")).all(axis=1).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("format", ["csv", "parquet", "npy"])
def test_missing_columns_are_said_at_once(tmp_path: Path, format: str) -> None:
    path = write(tmp_path, format, rows(3))
    with pytest.raises(ConfigurationError, match=r"column y|shape"):
        list(read_blocks(str(path), format, ("cpu", "y")))  # type: ignore[arg-type]


def test_what_is_no_such_file_is_said(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    np.save(tmp_path / "objects.npy", np.array([[1, "a", None]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "several.npz", rows(3))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    for name in ("empty.npy", "empty.parquet"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "text.parquet").write_bytes(b"cpu,memory\n987654,2\n" * 9)
    for name, said in (
        ("objects.npy", "holds objects, not numbers"), ("several.npy", "is no .npy file"),
        ("empty.npy", "is no .npy file"), ("empty.parquet", "is no parquet file"),
        ("text.parquet", "is no parquet file"), ("none.npy", "there is no file"),
    ):  # fmt: skip
        path = tmp_path / name
        with pytest.raises(ConfigurationError, match=said) as caught:
            list(read_blocks(str(path), path.suffix[1:], FEATURES))  # type: ignore[arg-type]
        assert "987654" not in str(caught.value)


def run(*arguments: Any, module: str = "tests.launch", **environment: str) -> Any:
    command = [sys.executable, "-m", module, "run", *map(str, arguments), *FLAGS]
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
    for point in POINTS:
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

    def released(module: str) -> tuple[bool, str]:
        done = run("--input", path, module=module, **{NOISE: "off"})
        assert done.returncode == 0, done.stderr
        [release] = [json.loads(line) for line in done.stdout.splitlines()]
        return release["privacy"]["private"], json.dumps(release["components"])

    silent = {released("tests.launch") for _ in range(2)}
    assert len(silent) == 1 and not silent.pop()[0]
    noisy = {released("consumers.cli") for _ in range(2)}
    assert len(noisy) == 2 and all(private for private, _ in noisy)


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


def test_new_records_on_standard_input(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.json"
    X = rows(2 * BATCH)
    arguments = ["run", "--input", "-", "--format", "jsonl", "--state", str(state),
                 "--new-records", *FLAGS]  # fmt: skip
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
    assert "7 rows were left over: fewer than a batch of 300" in capsys.readouterr().err
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
    [((), "stopped after batch 1; with --state, run again to go on"),
     (("--state",), "stopped after batch 1; run again to go on"),
     (("--state", "--new-records"), "stopped after batch 1; the first 300 rows of this input are")],
)  # fmt: skip
def test_an_interrupt_says_how_far_it_came(
    more: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = write(tmp_path, "npy", rows(3 * BATCH))
    given = [part for m in more for part in ((m, str(tmp_path / "s")) if m == "--state" else (m,))]
    released = []

    def interrupt(point: str) -> None:
        released.append(point == "before_transaction")
        if sum(released) == 2:
            raise KeyboardInterrupt

    crashpoints.on_reach.append(interrupt)
    assert main(["run", "--input", str(path), *FLAGS, *given]) == 130
    assert capsys.readouterr().err.startswith(said)


def test_nobody_reads_any_more(tmp_path: Path) -> None:
    path = write(tmp_path, "npy", rows(20 * BATCH))
    command = [sys.executable, "-m", "consumers.cli", "run", "--input", str(path), *FLAGS]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = StateFile(tmp_path / "s")
    with pytest.raises(Fenced, match="another process"):
        StateFile(tmp_path / "s")
    first.close()
    StateFile(tmp_path / "s").close()


def test_another_epsilon_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, state = write(tmp_path, "npy", rows(BATCH)), tmp_path / "state.json"
    arguments = ["run", "--input", str(path), "--state", str(state), *FLAGS]
    assert main(arguments) == 0
    assert main([*arguments, "--epsilon", "2"]) == 65
    assert "epsilon" in capsys.readouterr().err

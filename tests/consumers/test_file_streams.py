"""Compressed files, missing columns, and the output of a run on a terminal."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consumers.cli import main
from consumers.errors import ConfigurationError
from consumers.files.blocks import read_blocks, read_columns
from consumers.model.describe import summary
from consumers.model.releases import parse_release

from ..support import zygote
from ..support.processes import PATIENCE_SECONDS, ROOT

FEATURES = ("a", "b")
SETTINGS = (
    "--features",
    "a,b",
    "--epsilon",
    "5",
    "--delta",
    "1e-3",
    "--batch-size",
    "500",
    "--center",
    "none",
    "--scales",
    "none",
)


def csv(n: int = 1200) -> bytes:
    X = np.random.default_rng(0).standard_normal((n, 2)) * [3.0, 1.0]
    return pd.DataFrame(X, columns=list(FEATURES)).to_csv(index=False).encode()


def compressed(content: bytes, ending: str) -> bytes:
    if ending == ".gz":  # of two parts, as `cat` makes it
        return gzip.compress(content[:500]) + gzip.compress(content[500:])
    return content


def rows_of(path: Path, format: Any = "csv") -> np.ndarray:
    return np.concatenate(list(read_blocks(str(path), format, FEATURES)))


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_compressed_files_hold_the_same_rows(tmp_path: Path, format: str, ending: str) -> None:
    content = csv(40_000)
    expected = pd.read_csv(io.BytesIO(content))
    if format == "jsonl":
        content = expected.to_json(orient="records", lines=True, double_precision=15).encode()
    path = tmp_path / f"x.{format}{ending}"
    path.write_bytes(compressed(content, ending))
    np.testing.assert_allclose(rows_of(path, format), expected.to_numpy(), atol=1e-12)


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"SECRET" + b, lambda b: b[:9]])
def test_damaged_files(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(damage(compressed(csv(), ".gz")))
    with pytest.raises(ConfigurationError, match=r"is not a valid \.gz file$") as caught:
        rows_of(path)
    assert "SECRET" not in str(caught.value)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    """Those that are there are not: they may be a record."""
    path = tmp_path / "x.csv"
    path.write_text("device,aa,memory\n1,2,3\n")
    header = r"the CSV \(a header, then one record per line; columns are separated by commas\)"
    with pytest.raises(
        ConfigurationError, match=rf"^{header} has no column memroy, zzz\."
    ) as caught:
        list(read_blocks(str(path), "csv", ("memroy", "aa", "zzz")))
    assert "memory" not in str(caught.value) and "device" not in str(caught.value)
    assert 'as a JSON list: ["a", " b"]' in str(caught.value)
    pd.DataFrame({"cpu": [1.0]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ConfigurationError, match=r"x\.parquet has no column a, b\.") as caught:
        rows_of(tmp_path / "x.parquet", "parquet")
    assert "CSV" not in str(caught.value)


def test_a_record_is_not_taken_for_a_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a header, the first line is a record: its content changes no byte of the error."""
    said = set()
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        for record in ("host-77,0.123,9", "host-77,2026-01-01T00:00:00Z,", "aa,bb", ""):
            path = tmp_path / "x.csv"
            path.write_text(f"{record}\nhost-78,0.456,9\n")
            assert main(["run", "--input", str(path), *SETTINGS]) == 78
            out, err = capsys.readouterr()
            assert not out and "host" not in err
            said.add(re.sub(r"\x1b\[[\d;?]*\w|\r", "", err).splitlines()[-1])  # below a bar
    (only,) = said
    assert "has no column a, b. The columns that it has are not" in only


def on_a_terminal(*arguments: str) -> str:
    """Run a command whose output is a terminal; return what the terminal shows."""
    ours, theirs = pty.openpty()
    process = zygote.start_on(theirs, arguments, {"TERM": "xterm", "COLUMNS": "140"})
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 1 << 16):
            shown += piece
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    code = process.wait(PATIENCE_SECONDS)
    process.close()
    assert code == 0, shown.decode()
    return shown.decode()


def test_a_terminal_shows_a_table_and_a_program_gets_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(compressed(csv(), ".gz"))
    shown = on_a_terminal("run", "--input", str(path), *SETTINGS)
    assert "batch 1  " in shown and "batch 2  " in shown
    assert '{"' not in shown and "component 0" in shown
    assert "200 rows were left over" in shown
    assert "100%" in shown  # of the bar
    shown = on_a_terminal("run", "--input", str(path), *SETTINGS, "--json")
    assert len([json.loads(line) for line in shown.splitlines() if line.startswith("{")]) == 2
    assert "100%" not in shown  # it would stand between the lines


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.npy", "x.parquet"])
def test_blocks_say_how_much_of_the_file_has_been_read(tmp_path: Path, name: str) -> None:
    path, kind = tmp_path / name, name.split(".")[1]
    content = csv(20_000)
    table = pd.read_csv(io.BytesIO(content))
    if kind == "npy":
        np.save(path, table.to_numpy())
    elif kind == "parquet":
        table.to_parquet(path)
    else:
        path.write_bytes(compressed(content, path.suffix))
    columns: Any = read_columns(str(path), kind, FEATURES, ())  # type: ignore[arg-type]
    shares = [block.share for block in columns]
    assert len(shares) > 1 and shares[0] > 0 and shares[-1] == 1.0 and shares == sorted(shares)


BLOCKED = "confluent_kafka crc32c kafka lz4 pandas prometheus_client pyarrow snappy zstandard"


def test_the_cli_extra_suffices_for_csv(tmp_path: Path) -> None:
    """Without the packages of the service."""
    path = tmp_path / "x.csv.gz"
    path.write_bytes(compressed(csv(), ".gz"))
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({BLOCKED.split()!r}))\n"
        "from consumers.cli import main; raise SystemExit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "run", "--input", str(path), *SETTINGS]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [parse_release(line).batch for line in lines] == [1, 2]
    assert re.search(r"^batch 2 .* records .*a [+](1[.]00|0[.]9)", summary(parse_release(lines[1])))

"""The same job on files: `stream-dppca run`.

The rules are those of the service. A bad row is a null in its slot; a batch's state is on disk,
whole and fsynced, before its release is printed; whoever starts again prints the last release
again, with the same bytes, and goes on at the row after it. A short last batch is not processed.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stream_dppca.slots import number

from . import testhooks
from .codecs import make_codec
from .errors import ConfigurationError, Fenced
from .log import Position
from .releases import make_record, make_release
from .settings import Settings
from .states import (
    VERSION,
    Published,
    StateRecord,
    decode_state,
    encode_state,
    make_estimator,
    restore_estimator,
)

__all__ = ["FILE_FORMATS", "FileFormat", "read_blocks", "run_file"]

FileFormat = Literal["csv", "jsonl", "parquet", "npy"]
FILE_FORMATS: Final[tuple[str, ...]] = get_args(FileFormat)
ROWS: Final = 4096  #: read at once

Rows = NDArray[np.floating[Any]]


def read_blocks(source: str, format: FileFormat, features: Sequence[str]) -> Iterator[Rows]:
    """The rows of a file (`-`: standard input) in blocks, columns in the order of `features`."""
    if format == "npy":
        yield from _npy(source, len(features))
    elif format == "parquet":
        yield from _parquet(source, features)
    else:
        with _opened(source) as stream:
            yield from (_csv if format == "csv" else _jsonl)(stream, features)


@contextlib.contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    if source == "-":
        yield sys.stdin.buffer
    else:
        with _file(source).open("rb") as stream:
            yield stream


def _file(source: str) -> Path:
    if source == "-":
        raise ConfigurationError("this format cannot be read from standard input: give a file")
    path = Path(source)
    if not path.is_file():
        raise ConfigurationError(f"there is no file {source}")
    return path


def _lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    while lines := stream.readlines(1 << 20):
        yield lines


def _jsonl(stream: IO[bytes], features: Sequence[str]) -> Iterator[Rows]:
    codec = make_codec("json", features, 1 << 20)
    for lines in _lines(stream):
        yield codec.decode(lines).rows


def _csv(stream: IO[bytes], features: Sequence[str]) -> Iterator[Rows]:
    """One line, one row: a quote that is not closed must not swallow the lines after it."""
    header = next(csv.reader([stream.readline().decode("utf-8-sig", "replace").rstrip("\r\n")]), [])
    missing = [name for name in features if name not in header]
    if missing:
        raise ConfigurationError(f"the header of the CSV has no column {', '.join(missing)}")
    columns = [header.index(name) for name in features]
    for lines in _lines(stream):
        rows = np.empty((len(lines), len(features)))
        for i, line in enumerate(lines):
            try:
                cells = next(csv.reader([line.decode().rstrip("\r\n")]))
                rows[i] = [float(cells[c]) for c in columns]
            except Exception:  # whatever a line does wrong, it is a null
                rows[i] = np.nan
        yield rows


def _npy(source: str, width: int) -> Iterator[Rows]:
    try:
        array = np.load(_file(source), mmap_mode="r", allow_pickle=False)
    except ValueError:
        raise ConfigurationError(f"{source} is no .npy file") from None
    if array.ndim != 2 or array.shape[1] != width or array.dtype.kind not in "fiu":
        raise ConfigurationError(f"{source} must hold numbers of shape (n, {width})")
    for start in range(0, len(array), ROWS):
        yield np.array(array[start : start + ROWS], dtype=np.float64)


def _parquet(source: str, features: Sequence[str]) -> Iterator[Rows]:
    try:
        pq = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigurationError("parquet needs pyarrow: pip install pyarrow") from None
    file = pq.ParquetFile(_file(source))
    missing = [name for name in features if name not in file.schema_arrow.names]
    if missing:
        raise ConfigurationError(f"{source} has no column {', '.join(missing)}")
    for batch in file.iter_batches(ROWS, columns=list(features)):
        rows = np.empty((batch.num_rows, len(features)))
        for j, name in enumerate(features):
            column = batch.column(batch.schema.get_field_index(name))
            rows[:, j] = [number(value) for value in column.to_pylist()]
        yield rows


class StateFile:
    """The state on disk: replaced whole, fsynced, and held by one process at a time."""

    def __init__(self, path: Path) -> None:
        import fcntl

        self._path = path
        self._lock = path.with_name(path.name + ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise Fenced(f"another process works with {path}") from None

    def load(self) -> bytes | None:
        return self._path.read_bytes() if self._path.exists() else None

    def save(self, state: bytes) -> None:
        part = self._path.with_name(self._path.name + ".part")
        with part.open("wb") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        testhooks.reach("inside_transaction")
        part.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        self._lock.close()


def run_file(
    settings: Settings,
    source: str,
    format: FileFormat,
    *,
    state: Path | None,
    out: Callable[[bytes], None],
    progress: Callable[[int, int], None] = lambda slots, batches: None,
    new_records: bool = False,
) -> int:
    """Learn from a file; releases go to `out`. Returns the rows that wait for a full batch.

    Parameters
    ----------
    state
        Where to keep the state; without one, nothing is kept.
    new_records
        The input holds only what comes after the state. Otherwise it is the same input again, and
        the rows that the state has used are passed over.
    """
    file = StateFile(state) if state is not None else None
    try:
        same = {"model": settings.model, "task": 0, "shards": 1, "input": settings.input_topic}
        stored = file.load() if file is not None else None
        if stored is None:
            estimator = make_estimator(settings.estimator())
        else:
            last = decode_state(stored, **same)  # type: ignore[arg-type]
            estimator = restore_estimator(last.estimator, settings.estimator())
            out(last.release.record().value)
        used = 0 if new_records else estimator.n_seen
        for block in read_blocks(source, format, settings.features):
            testhooks.reach("polling")
            rows = block[used:]
            used = max(0, used - len(block))
            while len(rows):
                room = settings.batch_size - estimator.n_seen % settings.batch_size
                estimator.learn_array(rows[:room])
                full, rows = len(rows) >= room, rows[room:]
                release = estimator.last_release
                if full and release is not None:
                    testhooks.reach("batch_full")
                    made = make_release(release, model=settings.model, task=0, shards=1,
                                        features=settings.features)  # fmt: skip
                    record = make_record(made)
                    testhooks.reach("before_transaction")
                    if file is not None:
                        stand = StateRecord(
                            version=VERSION, batch=release.batch, writer=uuid.uuid4().hex,
                            positions={"0": Position(estimator.n_seen)},
                            estimator=estimator.state(), release=Published.of(record),
                            model=settings.model, task=0, shards=1, input=settings.input_topic,
                        )  # fmt: skip
                        file.save(encode_state(stand))
                    testhooks.reach("after_commit")
                    out(record.value)
                    testhooks.reach("after_publish")
                progress(estimator.n_seen, estimator.n_batches)
        testhooks.reach("closing")
        return estimator.n_seen % settings.batch_size
    finally:
        if file is not None:
            file.close()

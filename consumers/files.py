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
from typing import IO, Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stream_dppca.values import number

from . import testhooks
from .codecs import make_codec
from .errors import ConfigurationError, Fenced, StateRefused
from .log import Position
from .releases import make_record, make_release
from .settings import Settings
from .states import (
    VERSION,
    Published,
    StateRecord,
    check_state,
    encode_state,
    make_estimator,
    parse_state,
    restore_estimator,
)

__all__ = ["FILE_FORMATS", "Counted", "FileFormat", "read_blocks", "run_file"]

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
    except (ValueError, EOFError) as error:
        what = "holds objects, not numbers" if "objects" in str(error) else "is no .npy file"
        raise ConfigurationError(f"{source} {what}") from None
    if not isinstance(array, np.ndarray):
        raise ConfigurationError(f"{source} is no .npy file")
    if array.ndim != 2 or array.shape[1] != width or array.dtype.kind not in "fiu":
        raise ConfigurationError(f"{source} must hold numbers of shape (n, {width})")
    for start in range(0, len(array), ROWS):
        yield np.array(array[start : start + ROWS], dtype=np.float64)


def _parquet(source: str, features: Sequence[str]) -> Iterator[Rows]:
    try:
        pa = importlib.import_module("pyarrow")
        pq = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigurationError("parquet needs pyarrow: pip install pyarrow") from None
    try:
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
    except (pa.ArrowException, OSError):  # their texts may quote the file
        raise ConfigurationError(f"{source} is no parquet file, or a damaged one") from None


class StateFile:
    """The state on disk: replaced whole, fsynced, and held by one process at a time."""

    def __init__(self, path: Path) -> None:
        import fcntl

        self._path = path
        if path.is_dir():
            raise ConfigurationError(f"--state must be a file: {path} is a folder")
        if not path.parent.is_dir():
            raise ConfigurationError(f"--state must be in a folder: there is no {path.parent}")
        try:
            self._lock = path.with_name(path.name + ".lock").open("w")
        except OSError as error:
            raise ConfigurationError(
                f"--state must be a file that can be written: {path} ({error.strerror})"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise Fenced(f"another process works with {path}") from None

    def stand(self) -> StateRecord | None:
        """What was saved last."""
        if not self._path.exists():
            return None
        refusal = f"--state {self._path} cannot be read: is it a state that `run` has written?"
        return parse_state(self._path.read_bytes(), refusal)

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


class Counted(NamedTuple):
    """Rows of an input."""

    read: int
    waiting: int  #: of these, for a full batch


def run_file(
    settings: Settings,
    source: str,
    format: FileFormat,
    *,
    state: Path | None,
    out: Callable[[bytes], None],
    progress: Callable[[int, int], None] = lambda slots, batches: None,
    new_records: bool = False,
) -> Counted:
    """Learn from a file; releases go to `out`. An interrupt says how far it came.

    Parameters
    ----------
    state
        Where to keep the state; without one, nothing is kept.
    new_records
        The input holds only what comes after the state. Otherwise it is the same input again, and
        the rows that the state has used are passed over.
    """
    file = StateFile(state) if state is not None else None
    read = printed = before = 0
    try:
        last = file.stand() if file is not None else None
        if last is None:
            estimator = make_estimator(settings.estimator())
        else:
            settings = _named(settings, last, state, new_records)
            before = last.next_positions()[0].offset
            estimator = restore_estimator(last.estimator, settings.estimator())
            out(last.release.record().value)
            printed = last.batch
        used = 0 if new_records else estimator.n_seen
        for block in read_blocks(source, format, settings.features):
            testhooks.reach("polling")
            read += len(block)
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
                    printed = release.batch
                    testhooks.reach("after_publish")
                progress(estimator.n_seen, estimator.n_batches)
        testhooks.reach("closing")
        return Counted(read, estimator.n_seen % settings.batch_size)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_far(file, printed, before, new_records)) from None
    finally:
        if file is not None:
            file.close()


def _how_far(file: StateFile | None, printed: int, before: int, new_records: bool) -> str:
    if file is None:
        return f"stopped after batch {printed}; with --state, run again to go on"
    last = file.stand()
    batch, used = (last.batch, last.next_positions()[0].offset) if last else (0, 0)
    if not new_records:
        return f"stopped after batch {batch}; run again to go on"
    # The same command again would use rows twice.
    return (
        f"stopped after batch {batch}; the first {used - before} rows of this input are used: "
        "go on with those after them"
    )


def _named(settings: Settings, last: StateRecord, path: Path | None, new: bool) -> Settings:
    """The settings with the names of the state, where they may follow it."""
    if settings.input_topic != last.input:
        if not new:
            raise StateRefused(
                f"--state {path} was made from another input: {last.input}, not "
                f"{settings.input_topic}. To go on with new records, give --new-records."
            )
        follows = settings.model == settings.input_topic
        names = {"input_topic": last.input, **({"model": last.model} if follows else {})}
        settings = settings.model_copy(update=names)
    if settings.model != last.model:
        raise StateRefused(
            f"--state {path} is of model {last.model}, not {settings.model}. Go back to the old "
            "name, or give the new model another state."
        )
    check_state(last, model=last.model, task=0, shards=1, input=last.input)
    return settings

"""Reads the rows of a file in blocks: CSV, JSON lines, Parquet, NumPy."""

from __future__ import annotations

import codecs
import csv
import difflib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from ..messages.codecs import make_member_parser
from ..messages.recipe import MessageRecipe
from .cells import cell, cells_of_csv, members
from .streams import existing_file, first_line, line_blocks, longest_line, opened

FileFormat = Literal["csv", "jsonl", "parquet", "npy"]
ROWS: Final = 4096  #: read at once

Rows = NDArray[np.float64]


class FileRows(NamedTuple):
    """Rows, in order, and the cells of other columns as they are in the file."""

    rows: Rows
    others: Sequence[Sequence[Any]] = ()


#: Decodes some lines.
Decode = Callable[[list[bytes]], FileRows]


def read_blocks(
    source: str,
    format: FileFormat,
    features: Sequence[str],
    share: Callable[[float], None] = lambda share: None,
) -> Iterator[Rows]:
    """The rows of a file (`-`: standard input) in blocks, columns in the order of `features`.

    `share` is called with the share of the file that has been read, where that is known.
    """
    return (block.rows for block in read_columns(source, format, features, (), share))


def read_columns(
    source: str,
    format: FileFormat,
    features: Sequence[str],
    others: Sequence[str],
    share: Callable[[float], None] = lambda share: None,
    wanted: Callable[[int], bool] = lambda block: True,
) -> Iterator[FileRows]:
    """The rows of a file in blocks, with the cells of other columns.

    `wanted` tells whether to read or skip the block of this number, counted from 0. The blocks of a
    file are the same each time that it is read.
    """
    if format == "npy":
        yield from _npy(source, len(features), share)
    elif format == "parquet":
        yield from _parquet(source, features, others, share, wanted)
    else:
        with opened(source) as (stream, read):
            decode = (_csv if format == "csv" else _jsonl)(stream, features, others)
            for number, lines in enumerate(line_blocks(stream, len(features))):
                if wanted(number):
                    block = decode(lines)
                    if (so_far := read()) is not None:
                        share(so_far)
                    yield block


def _jsonl(stream: IO[bytes], features: Sequence[str], others: Sequence[str]) -> Decode:
    codec = MessageRecipe("json", tuple(features), longest_line(len(features))).codec()
    finders = [make_member_parser(name) for name in others]

    def decode(lines: list[bytes]) -> FileRows:
        rows, found = codec.decode(lines), [[*map(find, lines)] for find in finders]
        nothing = set(np.flatnonzero(np.isnan(rows).all(axis=1)).tolist())
        nothing |= {i for cells in found for i, value in enumerate(cells) if value is None}
        for i in nothing:  # perhaps not all of it is bad
            values = members(lines[i], [*features, *others])
            rows[i] = [*map(cell, values[: len(features)])]
            for cells, value in zip(found, values[len(features) :], strict=True):
                cells[i] = value
        return FileRows(rows, found)

    return decode


def csv_columns(stream: IO[bytes], names: Sequence[str]) -> list[int]:
    """Read the header of a CSV; return the positions of the columns with these names."""
    header = csv_cells(first_line(stream, len(names)).removeprefix(codecs.BOM_UTF8))
    what = "the CSV (its header is its first line, and each line after it is one record)"
    _require(what, header, names)
    return [header.index(name) for name in names]


def _csv(stream: IO[bytes], features: Sequence[str], others: Sequence[str]) -> Decode:
    """Each line is one row: a quote that is not closed must not swallow the lines after it."""
    columns = csv_columns(stream, [*features, *others])
    first, rest = columns[: len(features)], columns[len(features) :]

    def decode(lines: list[bytes]) -> FileRows:
        cells = [*map(csv_cells, lines)]
        rows = np.array([cells_of_csv(line, first) for line in cells])
        return FileRows(rows, [[c[at] if at < len(c) else None for c in cells] for at in rest])

    return decode


def csv_cells(line: bytes) -> list[str]:
    """The cells of a line, none if they cannot be read."""
    try:
        return next(csv.reader([line.decode("utf-8", "surrogateescape").rstrip("\r\n")]), [])
    except csv.Error:  # a cell is too long
        return []


class MissingColumns(ConfigurationError):
    """A file lacks columns.

    The text names those that are missing, and none of those that the file has: if a CSV has no
    header, its first line is a record.

    Parameters
    ----------
    source
        The file, in words.
    missing
        Requested names.
    found
        Names that the file has, or the cells of its first record.
    """

    def __init__(self, source: str, missing: Sequence[str], found: Sequence[str]) -> None:
        text = f"{source} has no column {', '.join(missing)}"
        super().__init__(
            f"{text}. The columns that it has are shown on a terminal only: run the command there "
            "to see them."
        )
        self.on_terminal = _with_columns(text, missing, found)  #: for the operator only


def _require(source: str, columns: Sequence[str], features: Sequence[str]) -> None:
    """Raise unless all features are among the columns."""
    missing = [name for name in features if name not in columns]
    if missing:
        raise MissingColumns(source, missing, columns)


def _with_columns(text: str, missing: Sequence[str], columns: Sequence[str]) -> str:
    """Add the columns that the file has, and those that were probably meant."""
    if text.startswith("the CSV") and any(map(_is_number, columns)):  # not names, but a record
        return f"{text}: its first line is not a header, it has numbers in it"
    close = [difflib.get_close_matches(name, columns, n=1) for name in missing]
    meant = ", ".join(found[0] for found in close if found)
    hint = f"; did you mean {meant}?" if meant else "."
    return f"{text}{hint} Its columns are: {', '.join(columns) or '(none)'}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _npy(source: str, width: int, share: Callable[[float], None]) -> Iterator[FileRows]:
    try:
        array = np.load(existing_file(source), mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        what = "holds objects, not numbers" if "objects" in str(error) else "is not a .npy file"
        raise ConfigurationError(f"{source} {what}") from None
    if not isinstance(array, np.ndarray):
        raise ConfigurationError(f"{source} is not a .npy file")
    if array.ndim != 2 or array.shape[1] != width or array.dtype.kind not in "fiu":
        raise ConfigurationError(f"{source} must hold numbers of shape (n, {width})")
    for start in range(0, len(array), ROWS):
        with np.errstate(all="ignore"):  # a warning would say something about the records
            rows = np.array(array[start : start + ROWS], dtype=np.float64)
        share(min(1.0, (start + ROWS) / len(array)))
        yield FileRows(rows)


def _parquet(
    source: str,
    features: Sequence[str],
    others: Sequence[str],
    share: Callable[[float], None],
    wanted: Callable[[int], bool],
) -> Iterator[FileRows]:
    names = [*features, *others]
    try:
        pa = importlib.import_module("pyarrow")
        pq = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigurationError("parquet needs pyarrow: pip install pyarrow") from None
    try:
        file = pq.ParquetFile(existing_file(source))
        _require(source, file.schema_arrow.names, names)
        read, total = 0, max(1, file.metadata.num_rows)
        for index, batch in enumerate(file.iter_batches(ROWS, columns=names)):
            read += batch.num_rows
            share(read / total)
            if wanted(index):
                at = map(batch.schema.get_field_index, names)
                columns = [_cells(batch.column(number)) for number in at]
                numbers = [[*map(cell, column)] for column in columns[: len(features)]]
                yield FileRows(np.array(numbers, dtype=np.float64).T, columns[len(features) :])
    except (pa.ArrowException, OSError):  # their texts may quote the file
        raise ConfigurationError(f"{source} is not a valid Parquet file") from None


def _cells(column: Any) -> list[Any]:
    """The values of a column; None for a value that Python cannot hold, such as the year 300000.

    `to_pylist` alone would raise for the whole column.
    """
    try:
        return list(column.to_pylist())
    except Exception:  # whatever is wrong with a cell, it alone is a null

        def cell(scalar: Any) -> Any:
            try:
                return scalar.as_py()
            except Exception:
                return None

        return [cell(scalar) for scalar in column]

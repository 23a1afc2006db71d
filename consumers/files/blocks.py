"""Reads the rows of a file in blocks: CSV, JSON lines, Parquet, NumPy."""

from __future__ import annotations

import codecs
import csv
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Final, Literal, NamedTuple

import numpy as np

from stream_dppca.arrays import FloatArray
from stream_dppca.frames import each_by_itself

from ..errors import ConfigurationError
from ..messages.codecs import JsonObjects
from ..messages.paths import feature_tree
from .cells import cell, cells_of_csv, members
from .streams import existing_file, first_line, line_blocks, longest_line, opened, share_read

FileFormat = Literal["csv", "jsonl", "parquet", "npy"]
ROWS: Final = 4096  #: read at once


class FileRows(NamedTuple):
    """Rows, in order, and the cells of other columns as they are in the file."""

    rows: FloatArray
    others: Sequence[Sequence[Any]] = ()
    share: float | None = None  #: of the file, up to and with these rows; None if not known


#: Decodes some lines.
Decode = Callable[[list[bytes]], FileRows]


def read_blocks(source: str, format: FileFormat, features: Sequence[str]) -> Iterator[FloatArray]:
    """The rows of a file (`-`: standard input) in blocks, columns in the order of `features`."""
    return (block.rows for block in read_columns(source, format, features, ()))


def read_columns(
    source: str, format: FileFormat, features: Sequence[str], others: Sequence[str]
) -> Iterator[FileRows]:
    """The rows of a file in blocks, with the cells of other columns."""
    if format == "npy":
        yield from _npy(source, len(features))
    elif format == "parquet":
        yield from _parquet(source, features, others)
    else:
        with opened(source) as stream:
            decode = (_csv if format == "csv" else _jsonl)(stream, features, others)
            for lines in line_blocks(stream, len(features)):
                yield decode(lines)._replace(share=share_read(stream))


def _jsonl(stream: IO[bytes], features: Sequence[str], others: Sequence[str]) -> Decode:
    longest = longest_line(len(features))
    codec = JsonObjects(feature_tree(features), len(features), longest, number=cell)
    finders = [JsonObjects(feature_tree([name], with_id=True), 0, longest, True) for name in others]

    def decode(lines: list[bytes]) -> FileRows:
        rows, found = codec.decode(lines), [find.decode_with_ids(lines)[1] for find in finders]
        nothing = set(np.flatnonzero(np.isnan(rows).all(axis=1)).tolist())
        nothing |= {i for cells in found for i, value in enumerate(cells) if value is None}
        for i in nothing:  # perhaps not all of it is bad
            values = members(lines[i], [*features, *others])
            rows[i] = [*map(cell, values[: len(features)])]
            for cells, value in zip(found, values[len(features) :], strict=True):
                cells[i] = value
        return FileRows(rows, found)

    return decode


def _csv(stream: IO[bytes], features: Sequence[str], others: Sequence[str]) -> Decode:
    """Each line is one row: a quote that is not closed must not swallow the lines after it."""
    header = csv_cells(first_line(stream, len(features)).removeprefix(codecs.BOM_UTF8))
    what = "the CSV (a header, then one record per line; columns are separated by commas)"
    _require(what, header, [*features, *others])
    first, rest = [*map(header.index, features)], [*map(header.index, others)]

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


def _require(source: str, columns: Sequence[str], names: Sequence[str]) -> None:
    """Raise unless all these names are among the columns.

    None of the columns is named: if a CSV has no header, its first line is a record.
    """
    if missing := [name for name in names if name not in columns]:
        raise ConfigurationError(
            f"{source} has no column {', '.join(missing)}. The columns that it has are not shown "
            "here, because the first line of a file without a header is a record. Give names with "
            'blanks around them or commas in them as a JSON list: ["a", " b"].'
        )


def _npy(source: str, width: int) -> Iterator[FileRows]:
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
        yield FileRows(rows, (), (start + len(rows)) / len(array))


def _parquet(source: str, features: Sequence[str], others: Sequence[str]) -> Iterator[FileRows]:
    names = [*features, *others]
    try:
        pa = importlib.import_module("pyarrow")
        pq = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigurationError("parquet needs pyarrow: pip install pyarrow") from None
    try:
        file = pq.ParquetFile(existing_file(source))
        _require(source, file.schema_arrow.names, names)
        read, total = 0, file.metadata.num_rows
        for batch in file.iter_batches(ROWS, columns=names):
            at = map(batch.schema.get_field_index, names)
            columns = [_cells(batch.column(number)) for number in at]
            numbers = [[*map(cell, column)] for column in columns[: len(features)]]
            read += batch.num_rows
            rows = np.array(numbers, dtype=np.float64).T
            yield FileRows(rows, columns[len(features) :], read / total)
    except (pa.ArrowException, OSError):  # their texts may quote the file
        raise ConfigurationError(f"{source} is not a valid Parquet file") from None


def _cells(column: Any) -> list[Any]:
    """The values of a column; None for a value that Python cannot hold, such as the year 300000."""
    return each_by_itself(column.to_pylist, lambda i: column[i].as_py(), len(column))

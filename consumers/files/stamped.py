"""Reads the rows of a file with the subject and the time of each, for privacy per subject.

The time of a row is ISO 8601 (UTC unless it says otherwise) or the number of seconds since 1970.
Each row is read by itself. A row without a usable time or subject is ignored.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

import numpy as np

from ..errors import ConfigurationError
from ..messages.codecs import JsonObjects, Subject, SubjectInMessage, make_member_parser
from .blocks import FileFormat, Rows, csv_cells, csv_columns, parquet_batches
from .cells import cell, cells_of_csv, members
from .cells import subject as subject_of
from .streams import line_blocks, longest_line, opened

#: The years 1 to 9998, in seconds since 1970: other times cannot be written as dates.
EARLIEST: Final = -62_135_596_800
LATEST: Final = 253_370_764_800


class StampedRows(NamedTuple):
    """Rows, in order, with the subject and the time of each."""

    rows: Rows
    subjects: Sequence[Subject]
    times_ms: Sequence[int | None]


def parse_time(value: Any) -> int | None:
    """Return a time in milliseconds since 1970; None if it is not one.

    Examples
    --------
    >>> [parse_time(text) for text in ("1970-01-01T00:01Z", "1970-01-01 01:00:00+01:00", "2.5", 7)]
    [60000, 0, 2500, 7000]
    >>> parse_time("19700102") == parse_time("1970-01-02")  # eight digits: a date
    True
    >>> parse_time(datetime.date(1970, 1, 2))
    86400000
    >>> parse_time("yesterday"), parse_time(float("nan")), parse_time(True), parse_time(1e15)
    (None, None, None, None)
    """
    if isinstance(value, bool):
        return None
    with suppress(ValueError, OverflowError, TypeError):
        if isinstance(value, str):
            text = value.strip()
            found = _date(text) or _seconds(text)
            value = datetime.datetime.fromisoformat(text) if found is None else found
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC)
        if isinstance(value, datetime.datetime):
            if value.tzinfo is None:
                value = value.replace(tzinfo=datetime.UTC)
            value = value.timestamp()
        if isinstance(value, int | float) and EARLIEST <= value < LATEST:  # false for NaN
            return math.floor(value * 1000)
    return None


def _date(text: str) -> datetime.datetime | None:
    """A date in the basic format of ISO 8601."""
    with suppress(ValueError):
        if len(text) == 8 and text.isdecimal():
            return datetime.datetime.fromisoformat(text)
    return None


def _seconds(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


def read_stamped_blocks(
    source: str,
    format: FileFormat,
    features: Sequence[str],
    subject: str,
    time: str,
    wanted: Callable[[int], bool] = lambda block: True,
) -> Iterator[StampedRows]:
    """The rows of a file in blocks, columns in the order of `features`.

    Parameters
    ----------
    subject, time
        The columns with the subject and the time of each row.
    wanted
        Tells whether to read or skip the block of this number, counted from 0. The blocks of a file
        are the same each time that it is read.
    """
    if format == "npy":
        raise ConfigurationError("--subject needs columns with names: csv, jsonl or parquet")
    if format == "parquet":
        yield from _parquet(source, features, subject, time, wanted)
    else:
        with opened(source) as (stream, _):
            read = _csv if format == "csv" else _jsonl
            yield from read(stream, features, subject, time, wanted)


def _jsonl(
    stream: IO[bytes],
    features: Sequence[str],
    subject: str,
    time: str,
    wanted: Callable[[int], bool],
) -> Iterator[StampedRows]:
    longest = longest_line(len(features))
    codec = SubjectInMessage(JsonObjects(features, longest, True, subject))
    find_time = make_member_parser(time)
    for lines in _among(line_blocks(stream, len(features)), wanted):
        rows, subjects = codec.decode(lines, ())
        times = [parse_time(find_time(line)) for line in lines]
        for i, row in enumerate(rows):
            if subjects[i] is None or times[i] is None or np.isnan(row).all():
                # Perhaps not all of it is bad.
                *values, who, when = members(lines[i], [*features, subject, time])
                rows[i], times[i] = [*map(cell, values)], parse_time(when)
                subjects[i] = subject_of(who)
        yield StampedRows(rows, subjects, times)


def _csv(
    stream: IO[bytes],
    features: Sequence[str],
    subject: str,
    time: str,
    wanted: Callable[[int], bool],
) -> Iterator[StampedRows]:
    *columns, who, when = csv_columns(stream, [*features, subject, time])
    for lines in _among(line_blocks(stream, len(features)), wanted):
        cells = [csv_cells(line) for line in lines]
        rows = np.array([cells_of_csv(line, columns) for line in cells])
        subjects = [subject_of(line[who]) if who < len(line) else None for line in cells]
        times = [parse_time(line[when]) if when < len(line) else None for line in cells]
        yield StampedRows(rows, subjects, times)


def _parquet(
    source: str, features: Sequence[str], subject: str, time: str, wanted: Callable[[int], bool]
) -> Iterator[StampedRows]:
    for columns in parquet_batches(source, [*features, subject, time], wanted=wanted):
        *values, subjects, times = columns
        rows = np.array([[*map(cell, column)] for column in values], dtype=np.float64).T
        yield StampedRows(rows, subjects, [parse_time(x) for x in times])


def _among(blocks: Iterator[list[bytes]], wanted: Callable[[int], bool]) -> Iterator[list[bytes]]:
    return (block for number, block in enumerate(blocks) if wanted(number))

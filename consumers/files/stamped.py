"""Reads the rows of a file with the subject and the time of each, for privacy per subject.

The time of a row is ISO 8601 (UTC unless it says otherwise) or the number of seconds since 1970.
Each row is read by itself. A row without a usable time or subject is ignored.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ..errors import ConfigurationError
from .blocks import FileFormat, Rows, read_columns

#: The years 1 to 9998, in seconds since 1970: other times cannot be written as dates.
EARLIEST: Final = -62_135_596_800
LATEST: Final = 253_370_764_800


class StampedRows(NamedTuple):
    """Rows, in order, with the subject and the time of each."""

    rows: Rows
    subjects: Sequence[Any]  #: as they are in the file
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
    for rows, (subjects, times) in read_columns(
        source, format, features, (subject, time), wanted=wanted
    ):
        yield StampedRows(rows, subjects, [*map(parse_time, times)])

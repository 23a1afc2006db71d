"""One rule for the cells of a file, so that a row is the same row in every format.

A number is a number, and so is a text that Python reads as one, and `true` or `false`. **Everything
else is missing**: an empty cell, `NA`, `NaN`, `null`, a cell that a line lacks, other text. The
estimator decides what happens to a row with missing cells (`missing`). Each cell is read by itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

from stream_dppca.paths import member, path_of
from stream_dppca.values import number

_WORDS: Final = {"true": 1.0, "false": 0.0}


def cell(value: Any) -> float:
    """A cell as a number; NaN if it is missing.

    Examples
    --------
    >>> [cell(value) for value in (2, "2.5", " 1e3 ", b"7", "True", False)]
    [2.0, 2.5, 1000.0, 7.0, 1.0, 0.0]
    >>> [cell(value) for value in ("", "NA", "NaN", "null", None, "x", [])]
    [nan, nan, nan, nan, nan, nan, nan]
    """
    if not isinstance(value, str | bytes):
        return number(value)
    try:
        return float(value)
    except ValueError:
        text = value if isinstance(value, str) else value.decode("ascii", "replace")
        return _WORDS.get(text.strip().lower(), math.nan)


def cells_of_csv(cells: Sequence[str], columns: Sequence[int]) -> list[float]:
    """The cells of a line of CSV in these columns.

    Examples
    --------
    >>> cells_of_csv(["1", "", "3"], [2, 0, 1, 7])
    [3.0, 1.0, nan, nan]
    """
    try:
        return [float(cells[c]) for c in columns]
    except (IndexError, ValueError):
        return [cell(cells[c]) if c < len(cells) else math.nan for c in columns]


def members(line: bytes, names: Sequence[str]) -> list[Any]:
    """The members of a JSON object as they are; None for those that it does not have.

    It also reads what Python writes for a missing number, `NaN`, which is no JSON.

    Examples
    --------
    >>> members(b'{"a": NaN, "b": {"c": "x"}, "v": [5, 6]}', ["a", "b.c", "b.d", "v[1]", "v[2]"])
    [nan, 'x', None, 6, None]
    """
    try:
        found = json.loads(line.decode("utf-8", "surrogateescape"))
    except Exception:  # whatever is wrong with a line, it has nothing
        found = None
    return [member(found, path_of(name)) for name in names]

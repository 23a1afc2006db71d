"""One rule for reading a value, wherever it comes from: a dict, a frame, an object column.

**A number** is a Python int, float or bool, a `Decimal`, any other `numbers.Real`, or a real scalar
of numpy. A complex value whose imaginary part is zero is its real part; any other complex value is
not a number. Everything else is not a number either: text, dates, durations, lists, arrays, None,
`pandas.NA`. A number becomes the nearest float64; one that is too large for that is bad.

Complex values need their rule because a single one turns a whole column complex. The others must
still count as the numbers they were.

Each value is read by itself. The type of a column, which one record can change for all others,
decides only how fast the values are read, never what is read.
"""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import FloatArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PLAIN", "column", "number", "plain"]

#: Types of which `float` and `struct` read every value as `number` does.
PLAIN = frozenset(
    {float, int, bool, np.bool_}
    | {np.float16, np.float32, np.float64, np.longdouble}
    | {np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64}
)


def number(value: Any) -> float:
    """A value as a float; NaN if it is not a number.

    Examples
    --------
    >>> number(True), number(2 + 0j), number("2"), number(2 + 1j), number(10**400)
    (1.0, 2.0, nan, nan, nan)
    """
    try:  # whatever is wrong with a value, it is not a number
        if isinstance(value, complex | np.complexfloating):
            return float(value.real) if value.imag == 0 else math.nan
        if isinstance(value, np.timedelta64):  # which numpy counts among its integers
            return math.nan
        if isinstance(value, Real | Decimal | np.bool_):
            return float(value)
    except Exception:  # noqa: S110
        pass
    return math.nan


def plain(dtype: Any) -> bool:
    """True for numpy's real numbers, all of which numpy converts as `number` does."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def column(frame: pd.DataFrame, name: Any) -> FloatArray | float:
    """The column of a frame as floats, value by value; NaN unless it exists exactly once."""
    if name not in frame.columns:
        return math.nan
    values = frame[name]
    if values.ndim != 1:  # there are two columns with this name: it is not known which is meant
        return math.nan
    kind = getattr(values.dtype, "kind", "O")
    if kind in "biuf":
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.fromiter(map(number, values.astype(object)), np.float64, len(values))

"""One rule for reading a value, wherever it comes from: a dict, a frame, an array, a list.

**A number** is a Python int, float or bool, a `Decimal`, any other `numbers.Real`, or a real scalar
of numpy. A complex value whose imaginary part is zero is its real part; any other complex value is
not a number. Everything else is not a number either: text, dates, durations, lists, arrays, None,
`pandas.NA`. A number becomes the nearest float64; one that is too large for that is bad.

Complex values need their rule because a single one turns a whole column complex. The others must
still count as the numbers they were.

Each value is read by itself. The type of a column or an array, which one record can change for all
others, decides only how fast the values are read, never what is read. What a library has already
changed when it chose the type cannot be undone here (docs/privacy.md says how to declare types).
"""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from .arrays import FloatArray

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
    if type(value) is float:  # most values are
        return value
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


def numbers(X: Any) -> FloatArray:
    """An array, or a list of rows, as floats; NaN for each cell that is not a number.

    Examples
    --------
    >>> numbers([[1, None], ["2", 2 + 0j]]).tolist()
    [[1.0, nan], [nan, 2.0]]
    """
    if not hasattr(X, "__array__"):
        return np.array([[number(cell) for cell in row] for row in X], dtype=np.float64)
    array = np.asarray(X)
    if plain(array.dtype):
        with np.errstate(all="ignore"):  # a warning would say something about the records
            return array.astype(np.float64, copy=False)
    if array.dtype.kind not in "Oc":  # text, dates
        return np.full(array.shape, np.nan)
    cells = array.ravel().tolist()
    return np.fromiter(map(number, cells), np.float64, len(cells)).reshape(array.shape)

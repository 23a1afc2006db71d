"""Frames of any kind: pandas, polars, pyarrow and all others that narwhals knows.

A column is read value by value, by the rule of `stream_dppca.values`, in any kind of frame. Its
type decides only the speed: numbers are converted as a whole, everything else one by one. Results
for a frame are returned in a frame of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.dependencies import is_pandas_dataframe

from .arrays import FloatArray
from .errors import ParameterError
from .values import column as pandas_column
from .values import number

__all__ = ["all_columns", "column", "column_names", "frame_like", "is_frame", "raw_column",
           "require_frame", "with_columns"]  # fmt: skip


#: Types that numpy has, too, so that whole columns are converted as `number` does.
_PLAIN = frozenset({
    nw.Float32, nw.Float64, nw.Int8, nw.Int16, nw.Int32, nw.Int64,
    nw.UInt8, nw.UInt16, nw.UInt32, nw.UInt64,
})  # fmt: skip


def is_frame(X: Any) -> bool:
    """True for a frame in memory."""
    return is_pandas_dataframe(X) or isinstance(
        nw.from_native(X, eager_only=True, pass_through=True), nw.DataFrame
    )


def require_frame(X: Any) -> None:
    """Raise unless X is a frame in memory."""
    if not is_frame(X):
        rule = "must be a frame in memory: pandas, polars, pyarrow"
        raise ParameterError("X", rule, type(X).__name__)


def column(frame: Any, name: Any) -> FloatArray | float:
    """The column of a frame as floats, value by value; NaN unless it exists exactly once."""
    if is_pandas_dataframe(frame):
        return pandas_column(frame, name)
    wrapped = nw.from_native(frame, eager_only=True)
    if not isinstance(name, str) or list(wrapped.columns).count(name) != 1:
        return math.nan
    values = wrapped.get_column(name)
    if values.dtype in _PLAIN:
        found = values.to_numpy()
        if found.dtype.kind in "biuf":  # missing values are NaN
            return np.asarray(found, dtype=np.float64)
    cells = _cells(values)
    return np.fromiter(map(number, cells), np.float64, len(cells))


def raw_column(frame: Any, name: Any) -> Any:
    """The values of a column as they are; None unless it exists exactly once."""
    if column_names(frame).count(name) != 1:
        return None
    if is_pandas_dataframe(frame):
        values = frame[name]
        # Types other than numpy's would turn integers into floats if one is missing, and large ids
        # would become equal: one record would change how all others are read.
        plain = isinstance(values.dtype, np.dtype)
        return (values if plain else values.astype(object)).to_numpy()
    return _cells(nw.from_native(frame, eager_only=True).get_column(name))


def _cells(values: nw.Series[Any]) -> list[Any]:
    try:
        return values.to_list()
    except Exception:  # Python has no type for some value, such as a time in nanoseconds
        return [_cell(values, i) for i in range(len(values))]


def _cell(values: nw.Series[Any], i: int) -> Any:
    try:
        return values.item(i)
    except Exception:  # whatever is wrong with a cell, it alone is not a number
        return None


def column_names(frame: Any) -> list[Any]:
    """The names of the columns of a frame, in order."""
    wrapped: Any = frame if is_pandas_dataframe(frame) else nw.from_native(frame, eager_only=True)
    return list(wrapped.columns)


def all_columns(frame: Any) -> FloatArray:
    """Every column of a frame, in order, as the rows of an array."""
    names = column_names(frame)
    X = np.empty((len(frame), len(names)))
    for j, name in enumerate(names):
        X[:, j] = column(frame, name)
    return X


def frame_like(frame: Any, values: FloatArray, names: Sequence[Any]) -> Any:
    """A frame of the same kind, with the same index if it has one, and these columns.

    Only pandas has names that are not text; elsewhere 0 is called "0".
    """
    if is_pandas_dataframe(frame):
        import pandas as pd

        return pd.DataFrame(values, index=frame.index, columns=list(names))
    data = {str(name): np.ascontiguousarray(values[:, j]) for j, name in enumerate(names)}
    wrapped = nw.from_native(frame, eager_only=True)
    made = nw.from_dict(data, backend=wrapped.implementation) if data else wrapped.select()
    return made.to_native()


def with_columns(frame: Any, columns: Mapping[Any, FloatArray | float]) -> Any:
    """A copy of a frame in which these columns have other values."""
    if is_pandas_dataframe(frame):
        out = frame.copy()
        for name, values in columns.items():
            out[name] = values
        return out
    wrapped = nw.from_native(frame, eager_only=True)
    made = [
        nw.new_series(
            name, np.zeros(len(wrapped)) + values, nw.Float64(), backend=wrapped.implementation
        )
        for name, values in columns.items()
    ]
    return wrapped.with_columns(*made).to_native()

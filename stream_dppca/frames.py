"""Frames of any kind: pandas, polars, pyarrow and all others that narwhals knows.

A column is read value by value, by the rule of `stream_dppca.values`, in any kind of frame. Its
type decides only the speed: numbers are converted as a whole, everything else one by one. Results
for a frame are returned in a frame of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.dependencies import is_pandas_dataframe, is_pandas_index, is_pandas_series
from numpy.typing import NDArray

from .arrays import FloatArray, aligned
from .errors import ParameterError
from .values import number, plain

if TYPE_CHECKING:
    import pandas as pd

#: Whole numbers that numpy does not have: their columns are read one by one.
_WIDE = (nw.Int128, nw.UInt128)


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
    values = _series(frame, name)
    if values is None:
        return math.nan
    if not isinstance(values, nw.Series):
        if getattr(values.dtype, "kind", "O") in "biuf":
            return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    elif values.dtype.is_float() or (values.dtype.is_integer() and values.dtype not in _WIDE):
        found = values.to_numpy()
        if found.dtype.kind in "biuf":  # missing values are NaN
            return np.asarray(found, dtype=np.float64)
    cells = _cells(values)
    return np.fromiter(map(number, cells), np.float64, len(cells))


def raw_column(frame: Any, name: Any) -> Sequence[Any] | NDArray[Any] | None:
    """The values of a column as they are; None unless it exists exactly once."""
    values = _series(frame, name)
    return None if values is None else _cells(values)


def cells_of(values: Any) -> Sequence[Any] | NDArray[Any]:
    """The values of a series of any kind, an array, or anything else that has values.

    Examples
    --------
    >>> cells_of(iter("ab"))
    ['a', 'b']
    """
    if is_pandas_series(values) or is_pandas_index(values):
        return _cells(values)
    wrapped = nw.from_native(values, series_only=True, pass_through=True)
    if isinstance(wrapped, nw.Series):
        return _cells(wrapped)
    return values if isinstance(values, Sequence | np.ndarray) else list(values)


def _series(frame: Any, name: Any) -> Any:
    """A column: a series of pandas or narwhals; None unless it exists exactly once."""
    if column_names(frame).count(name) != 1:
        return None
    if is_pandas_dataframe(frame):
        return frame[name]
    return nw.from_native(frame, eager_only=True).get_column(name)


def _cells(values: Any) -> Sequence[Any] | NDArray[Any]:
    """The values of a series of pandas or narwhals, each by itself; None for one that is neither
    a number nor an id, or for which Python has no value."""
    if isinstance(values, nw.Series):
        if values.dtype.is_temporal() or values.dtype.is_nested():
            return [None] * len(values)
        cells, one = values.to_list, values.item
    else:
        kind = getattr(values.dtype, "kind", "O")
        if kind in "Mm":
            return [None] * len(values)
        if isinstance(values.dtype, np.dtype) and kind in "biuf":
            return np.asarray(values.to_numpy())
        # Other types would turn integers into floats if one is missing, and large ids would become
        # equal.
        cells, one = lambda: values.astype(object).tolist(), values.array.__getitem__
    return each_by_itself(cells, one, len(values))


def each_by_itself(cells: Callable[[], Any], one: Callable[[int], Any], n: int) -> list[Any]:
    """All cells of a column; if one cannot be had, it alone is None, whatever is wrong with it."""

    def cell(i: int) -> Any:
        try:
            return one(i)
        except Exception:
            return None

    try:
        return list(cells())
    except Exception:  # such as text that is not UTF-8: the error may quote it
        return [*map(cell, range(n))]


def column_names(frame: Any) -> list[Any]:
    """The names of the columns of a frame, in order."""
    wrapped: Any = frame if is_pandas_dataframe(frame) else nw.from_native(frame, eager_only=True)
    return list(wrapped.columns)


def rows_of(frame: Any, names: Sequence[Any] | None = None) -> FloatArray:
    """Every column of a frame, or these, in order, as floats; NaN for what is not a number.

    The memory is the same whatever the columns are: one cell that changes a column must not decide
    where the other rows lie.
    """
    names = column_names(frame) if names is None else names
    X = aligned(len(frame), len(names))
    chosen = _plain_columns(frame, names) if is_pandas_dataframe(frame) else None
    with np.errstate(all="ignore"):  # a warning would say something about the records
        if chosen is not None:
            X[:] = chosen.to_numpy()
        else:
            for j, name in enumerate(names):
                X[:, j] = column(frame, name)
    return X


def _plain_columns(frame: pd.DataFrame, names: Sequence[Any]) -> pd.DataFrame | None:
    """These columns of a frame of pandas, if all of them have types of numpy's real numbers."""
    columns = frame.columns.tolist()
    if columns != list(names):
        where = {name: j for j, name in enumerate(columns)}
        if len(where) < len(columns) or not where.keys() >= set(names):
            return None
        frame = frame.iloc[:, [where[name] for name in names]]
    # No set of them is made: the hash of a categorical type fails on some of its values.
    return frame if all(map(plain, frame.dtypes.tolist())) else None


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

"""Scaling by public numbers, which keeps the guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from river import base

from .checks import positive
from .errors import ParameterError
from .frames import column, column_names, require_frame, with_columns
from .values import number

__all__ = ["PublicScaler"]


class PublicScaler(base.MiniBatchTransformer):
    """Scales features by public, fixed numbers: (x - shift) / scale.

    river's `StandardScaler` before `DPPCA` would break the guarantee: it scales each record by
    the mean and variance of those before it, so one record changes all later ones and is used in
    every later batch. Numbers that are known without looking at the data (physical limits, the
    unit of a sensor, a specification) break nothing.

    Parameters
    ----------
    bounds
        Feature -> (low, high); mapped to [-1, 1]. Values outside are *not* cut off.
    scales
        Feature -> scale; x / scale.

    Features named in neither pass through unchanged. Each value is converted to float64 by itself
    before it is scaled (`stream_dppca.values`): the type of a column depends on all its records.

    Examples
    --------
    >>> from stream_dppca import PublicScaler
    >>> scaler = PublicScaler(bounds={"cpu": (0, 100)}, scales={"latency_ms": 250})
    >>> scaler.transform_one({"cpu": 75, "latency_ms": 50, "load": 1.5})
    {'cpu': 0.5, 'latency_ms': 0.2, 'load': 1.5}
    """

    def __init__(
        self,
        bounds: Mapping[Any, tuple[float, float]] | None = None,
        scales: Mapping[Any, float] | None = None,
    ) -> None:
        self.bounds = bounds
        self.scales = scales
        self._affine: dict[Any, tuple[float, float]] = {}  # feature -> (shift, scale)
        for name, bound in (bounds or {}).items():
            try:
                low, high = (float(edge) for edge in bound)
            except (TypeError, ValueError):
                raise ParameterError(f"bounds[{name!r}]", "must be (low, high)", bound) from None
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ParameterError(f"bounds[{name!r}]", "must be finite, low < high", bound)
            self._affine[name] = ((low + high) / 2, (high - low) / 2)
        for name, scale in (scales or {}).items():
            if name in self._affine:
                raise ParameterError("scales", "must not name a feature of `bounds`", name)
            positive(f"scales[{name!r}]", scale)
            self._affine[name] = (0.0, float(scale))

    def transform_one(self, x: dict[Any, Any]) -> dict[Any, Any]:
        """Return a new dict. Scaled values are floats, NaN for anything but a number.

        Anything but a dict gives an empty one: if it raised an error, the record would have no
        slot, and all records after it would shift.
        """
        try:
            out = dict(x)
        except Exception:
            return {}
        for name, (shift, scale) in self._affine.items():
            if name in out:
                out[name] = (number(out[name]) - shift) / scale
        return out

    def transform_many(self, X: Any) -> Any:
        """Return a new frame of the same kind, scaled value by value like `transform_one`."""
        require_frame(X)
        scaled = {}
        with np.errstate(all="ignore"):  # a warning would say something about the records
            for name, (shift, scale) in self._affine.items():
                if name in column_names(X):
                    scaled[name] = (column(X, name) - shift) / scale
        return with_columns(X, scaled)

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {"bounds": {"ordinal_date": (0, 800_000)}, "scales": {"gallup": 100}}

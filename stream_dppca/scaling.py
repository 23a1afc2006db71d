"""Scaling that keeps the guarantee: by numbers that are public."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from river import base

from .errors import ParameterError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PublicScaler"]


class PublicScaler(base.MiniBatchTransformer):
    """Scale features by public, fixed numbers: (x - shift) / scale.

    river's `StandardScaler` in front of `DPPCA` would break the guarantee: it scales each record by
    the mean and variance of those before it, so one record changes all later ones and is used in
    every later batch. Numbers that are known without looking at the data (physical limits, the
    unit of a sensor, a specification) break nothing.

    Parameters
    ----------
    bounds
        Feature -> (low, high); mapped to [-1, 1]. Values outside are *not* cut off.
    scales
        Feature -> scale; x / scale.

    Features named in neither pass through unchanged.

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
            if isinstance(scale, bool) or not (
                isinstance(scale, int | float) and math.isfinite(scale) and scale > 0
            ):
                raise ParameterError(f"scales[{name!r}]", "must be finite and positive", scale)
            self._affine[name] = (0.0, float(scale))

    def transform_one(self, x: dict[Any, Any]) -> dict[Any, Any]:
        """A new dict. What cannot be scaled is handed on as it is, for `DPPCA` to make a null."""
        out = dict(x)
        for name, (shift, scale) in self._affine.items():
            if name in out:
                with suppress(Exception):  # a bad value stays the bad value it was
                    out[name] = (out[name] - shift) / scale
        return out

    def transform_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """A new frame, scaled as by `transform_one`."""
        out = X.copy()
        for name, (shift, scale) in self._affine.items():
            if name not in out.columns:
                continue
            if getattr(out[name].dtype, "kind", "O") in "iuf":
                out[name] = (out[name] - shift) / scale
            else:
                out[name] = [self.transform_one({name: v})[name] for v in out[name]]
        return out

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {"bounds": {"ordinal_date": (0, 800_000)}, "scales": {"gallup": 100}}

"""Centre, scales and clamps: z = clamp((x - c)/s). All of it is released."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays import BoolArray, FloatArray

#: Standardised values are cut off here. On the real data of docs/accuracy.md, cutting at 5 sd turns
#: the first component by .05 or less.
CLAMP = 5.0
#: Standardised value of a feature whose spread is not known yet, if it is off its centre.
UNKNOWN_CLAMP = 3.0
#: Smallest scale: with |x| up to 1e18, (x - c)/s stays far from overflow.
FLOOR = 2.0**-64
#: Largest centre and scale in a saved state: values are searched for up to 2^66.
MOST = 2.0**80


@dataclass(frozen=True, eq=False)
class Standard:
    """The rule by which a record is standardised before any query.

    The scale of a feature whose spread is not known is the resolution of its centre. Standardised,
    such a feature is 0 at the centre and `UNKNOWN_CLAMP` elsewhere.
    """

    center: FloatArray
    scale: FloatArray
    resolution: FloatArray  #: values this close to the centre cannot be distinguished from it
    known: BoolArray  #: features whose spread has been seen
    limit: float = CLAMP  #: where z is cut off; infinite for features in one unit

    @property
    def clamp(self) -> FloatArray:
        return np.where(self.known, self.limit, UNKNOWN_CLAMP)

    def parameters(self) -> dict[str, tuple[float, ...]]:
        """The parameters of statistics."""
        return {
            "center": tuple(self.center.tolist()),
            "scale": tuple(self.scale.tolist()),
            "clamp": tuple(self.clamp.tolist()),
        }

    def with_scale(self, scale: FloatArray, known: BoolArray) -> Standard:
        return replace(self, scale=np.maximum(scale, FLOOR), known=known)

    def in_one_unit(self, scale: float) -> Standard:
        """The same with one scale for all features, which are in one unit.

        Nothing is cut off: some features may vary much more than others, and the clip radius bounds
        all of them together.
        """
        every = np.ones(len(self.scale), dtype=np.bool_)
        return replace(self, limit=np.inf).with_scale(np.full(len(every), scale), every)

    def state(self) -> dict[str, Any]:
        return {
            "center": self.center.tolist(),
            "scale": self.scale.tolist(),
            "resolution": self.resolution.tolist(),
            "known": self.known.tolist(),
        }

    @classmethod
    def load(cls, state: dict[str, Any], d: int, one_unit: bool) -> Standard:
        """Restore a result of `state`, or raise a ValueError. What is cut off is a parameter."""
        center, scale, resolution = (
            np.array(state[name], dtype=np.float64) for name in ("center", "scale", "resolution")
        )
        known = np.array(state["known"], dtype=np.bool_)
        if not all(a.shape == (d,) for a in (center, scale, resolution, known)):
            raise ValueError("not a standard for these features")
        within = (np.abs(center) <= MOST) & (scale >= FLOOR) & (scale <= MOST)
        if not (within & np.isfinite(resolution) & (resolution >= 0)).all():
            raise ValueError("not a standard")
        if one_unit and not (known.all() and (scale == scale[0]).all()):
            raise ValueError("not a standard of features in one unit")
        return cls(center, scale, resolution, known, np.inf if one_unit else CLAMP)

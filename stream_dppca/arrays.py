"""Types of arrays, the unit roundoff, and memory whose alignment is public."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Unit roundoff of float64.
ROUNDOFF = 2.0**-53

_CACHE_LINE = 64  # bytes


class Workspace:
    """Memory that is used again and again: allocating it costs more than the work done in it.

    The content stays until it is overwritten, so the memory is as secret as its content.
    """

    def __init__(self) -> None:
        self._memory: dict[str, FloatArray] = {}

    def array(self, name: str, *shape: int) -> FloatArray:
        """An array of this shape, beginning at a cache line; its content is undefined."""
        memory = self._memory.get(name)
        if memory is None or memory.shape != shape:
            memory = self._memory[name] = aligned(*shape)
        return memory


def aligned(*shape: int) -> FloatArray:
    """Memory for an array of this shape, beginning at a cache line.

    The last digits of a matrix product may depend on where in a cache line its operands begin. An
    allocator decides that from all earlier requests, sizes of records included.

    Examples
    --------
    >>> aligned(3, 5).shape, aligned(3, 5).ctypes.data % 64
    ((3, 5), 0)
    """
    size = math.prod(shape) * 8
    memory = np.empty(size + _CACHE_LINE, dtype=np.uint8)
    first = -memory.ctypes.data % _CACHE_LINE
    return memory[first : first + size].view(np.float64).reshape(shape)

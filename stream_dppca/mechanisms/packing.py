"""Symmetric matrices as vectors of the same length, in which each number stands once."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ..arrays import BoolArray, FloatArray, IntArray


def pack(S: FloatArray) -> FloatArray:
    """The lower triangle of a symmetric matrix, row by row, as a vector of the same length.

    The upper triangle is not read.

    Examples
    --------
    >>> S = np.array([[1.0, 2.0], [2.0, 5.0]])
    >>> bool(np.isclose(np.linalg.norm(pack(S)), np.linalg.norm(S)))
    True
    >>> unpack(pack(S)).round(12).tolist()
    [[1.0, 2.0], [2.0, 5.0]]
    """
    from scipy.linalg.lapack import dtrttp  # takes time: only if needed

    packed, _ = dtrttp(S.T)
    packed *= math.sqrt(2)
    packed[_triangle(len(S))[1]] = S.diagonal()
    return np.asarray(packed)


def unpack(v: FloatArray) -> FloatArray:
    """The symmetric matrix of a packed vector."""
    d = math.isqrt(2 * len(v))
    lower, diagonal = _triangle(d)
    values = v / math.sqrt(2)
    values[diagonal] = v[diagonal]
    S = np.empty((d, d))
    S[lower] = S.T[lower] = values
    return S


@lru_cache(maxsize=8)
def _triangle(d: int) -> tuple[BoolArray, IntArray]:
    """A mask of the lower triangle, and the places of the diagonal in the packed vector."""
    return np.tri(d, dtype=np.bool_), np.cumsum(np.arange(1, d + 1)) - 1

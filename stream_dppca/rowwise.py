"""Arithmetic on rows whose results do not depend on the place of a row.

The places of subjects are not public: one subject more or less moves all later ones. So the
distance of a subject must be the same, to the last bit, in whatever row, block or process it is
computed. A matrix product does not guarantee that: its kernels treat the rows at the end of a
block, or of a thread, in another way.

Everything here is made of additions and multiplications of whole arrays, element by element. Each
is rounded according to IEEE 754, and the order in which a row is added up depends on its length
alone.
"""

from __future__ import annotations

import numpy as np

from .arrays import FloatArray


def turned(rows: FloatArray, each: int = 1) -> FloatArray:
    """Rows of units with `each` rows, unit after unit, as an array each x d x units."""
    d = rows.shape[1]
    return np.ascontiguousarray(rows.reshape(-1, each, d).transpose(1, 2, 0))


def fold(values: FloatArray) -> FloatArray:
    """The sum over the first axis, by adding halves. The values are overwritten.

    A value goes through at most log2(n) + 1 additions.

    Examples
    --------
    >>> fold(np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])).tolist()
    [6.0, 60.0]
    """
    left = len(values)
    while left > 1:
        half = left // 2
        values[:half] += values[left - half : left]
        left -= half
    return np.asarray(values[0])


def dots(a: FloatArray, b: FloatArray) -> FloatArray:
    """Scalar products of columns: d x n and d x n, or d x 1, into n numbers."""
    return fold(a * b)


def sq_norms(rows: FloatArray) -> FloatArray:
    """Squared norms of rows."""
    columns = np.ascontiguousarray(rows.T)
    return dots(columns, columns)


def means(rows: FloatArray, each: int) -> FloatArray:
    """The mean over the rows of each unit: one row per unit."""
    grouped = rows.reshape(-1, each, rows.shape[1])
    total = grouped[:, 0].copy()
    for j in range(1, each):
        total += grouped[:, j]
    total /= each
    return total


def moment_norms(rows: FloatArray, each: int) -> FloatArray:
    """The Frobenius norm of the mean of x x^T over the rows of each unit.

    With G_jk = x_j . x_k it is |G|_F / each: no d x d matrix is needed.

    Rounding: G is off by at most (log2(d) + 2) u |x_j| |x_k|, so |G|_F by that times the trace,
    which is at most sqrt(each) |G|_F: a Gram matrix has no negative eigenvalue.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0], [3.0, 4.0]])
    >>> moment_norms(rows, each=2).round(12).tolist()
    [0.707106781187, 25.0]
    """
    T = turned(rows, each)
    square = np.zeros(T.shape[2])
    for j in range(each):
        for i in range(j + 1):
            product = dots(T[i], T[j])
            product *= product
            square += product if i == j else 2 * product
    return np.asarray(np.sqrt(square) / each)

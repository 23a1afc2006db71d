"""Orthonormal columns: components, as methods keep them and releases promise them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .arrays import ROUNDOFF, FloatArray


def orthonormal(W: FloatArray, like: FloatArray | None = None) -> FloatArray:
    """Orthonormal columns with the same spans as those of W, column by column (QR).

    Signs follow the columns of `like`, so a component does not flip between releases; without
    it the largest coordinate of each column is positive. A W that is not finite, or zero, is
    replaced by `like`.
    """
    if like is not None and not np.isfinite(W).all():
        W = like
    scale = np.abs(W).max(initial=0.0)
    if scale == 0.0:
        return W if like is None else like
    Q = W / scale
    Q = Q / np.linalg.norm(Q) if W.shape[1] == 1 else np.linalg.qr(Q)[0]
    return np.asarray(Q * column_signs(Q, like))


def column_signs(W: FloatArray, like: FloatArray | None = None) -> FloatArray:
    """+1 or -1 for each column: towards that of `like`, or its largest coordinate positive."""
    if like is None:
        along = W[np.abs(W).argmax(axis=0), np.arange(W.shape[1])]
    else:
        along = np.einsum("ij,ij->j", W, like)
    return np.where(along < 0, -1.0, 1.0)


def checked_basis(value: Any, *, like: FloatArray) -> FloatArray:
    """Orthonormal columns out of a saved state, or a ValueError.

    Releases promise orthonormal columns; a state that was tampered with must not bring others. An
    honest state keeps every bit, so its columns are checked and not corrected.

    |W^T W - I| may be 4 (d + k + 8) sqrt(k) u in norm, u = 2^-53. Here W^T W is computed with
    pairwise sums: each entry is off by at most min(d + 1, 40) u, so the matrix by k times that,
    which is subtracted from the allowed error. Columns out of a QR or singular value decomposition
    are well within the rest.
    """
    W = np.array(value, dtype=np.float64).reshape(like.shape)
    d, k = len(W), len(W.T)
    columns = np.ascontiguousarray(W.T)
    gram = np.array([(columns * column).sum(axis=1) for column in columns])
    allowed = (4 * (d + k + 8) * math.sqrt(k) - min(d + 1, 40) * k) * ROUNDOFF
    if not np.linalg.norm(gram - np.eye(k)) <= allowed:  # true for NaN
        raise ValueError("not orthonormal")
    return W

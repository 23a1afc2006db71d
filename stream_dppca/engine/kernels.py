"""A fingerprint of the arithmetic of a process.

A record moves one count of a histogram of scores, because the scores of all others keep every bit.
On an engine, this requires equal arithmetic wherever a task runs: which
process gets which task may depend on the time that it took to read records. Products of matrices
and vectors round according to the kernels that a library chooses for the processor, and to the
number of its threads. So each task reports how its process rounds fixed public numbers, and a batch
whose tasks differ is refused.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from ..arrays import FloatArray, aligned
from ..batch import block_size
from ..scores import filled
from ..statistics import vecdots


@lru_cache(maxsize=32)
def fingerprint(features: int, columns: int) -> str:
    """A digest of the products that statistics compute of rows with this many features.

    Parameters
    ----------
    features
        Numbers per row.
    columns
        Columns of the matrices that rows are multiplied with.

    Examples
    --------
    >>> len(fingerprint(5, 1))
    16
    """
    X, W = _public(block_size(features), features), _public(features, columns)
    digest = hashlib.sha256()
    # The products that lengths and scores are made of: `Reading.nulls`, `Block.along`,
    # `squared`, `Block.sq_lengths`. A library may have other kernels, and more threads, for
    # longer blocks; the last block of a batch may have any length, and be a single row.
    for power in range(len(X).bit_length()):
        rows = X[: 2**power]
        two = rows @ _public(features, 2)
        for found in (rows @ W, two, np.vecdot(rows, rows), vecdots(rows, W)):
            digest.update(np.ascontiguousarray(found).tobytes())
    # Missing values are filled in row by row; one row has none.
    rows = X[:64].copy()
    digest.update(filled(rows, rows > -0.5, W, np.ones(columns), 0.5).tobytes())
    # Scores beyond the clamp grow with the logarithm of numbers above 1.
    digest.update(np.log(1 / np.abs(_public(4096, 1))).tobytes())
    return digest.hexdigest()[:16]


def _public(rows: int, columns: int) -> FloatArray:
    """Numbers between -1 and 1 with digits in all places, exact on every machine."""
    found = aligned(rows, columns)
    bits = np.arange(1, rows * columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(29)
    found[:] = ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1).reshape(rows, columns)
    return found

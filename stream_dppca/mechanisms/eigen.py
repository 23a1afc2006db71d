"""Eigenvectors and the spectrum of a released symmetric matrix: post-processing."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..arrays import FloatArray

#: From this size on, and for a few vectors of many, an iteration finds them faster than a
#: decomposition: of 1000 features, a clear component takes 1 ms against 49.
_ITERATE = 256
#: From this size on, that is also faster than to find all eigenvalues.
_LARGE = 512
_MOST_OF = 12
#: From this size on, it is faster to find only the vectors that are wanted.
_SOME = 48
#: Most eigenvalues that are looked for.
MOST = 20
#: Residuals that are left, in sds of the noise: of vectors, and of other values, or of vectors that
#: are only compared. A residual r is an error of at most r in a value, and of about r over the gap
#: to other values in a vector, where noise makes one of sqrt(d/2) sds over that gap.
_OF_VECTORS, _OF_VALUES = 1e-2, 0.2
#: They are at least this share of the largest value.
_ROUNDING = 1e-12


class Spectrum(NamedTuple):
    """Leading eigenvectors, and all eigenvalues."""

    vectors: FloatArray  #: of the k largest eigenvalues, as columns
    values: FloatArray  #: descending
    weights: FloatArray  #: eigenvalues that each of the values stands for


def edge(sd: float, d: int) -> float:
    """Where eigenvalues stand out of the noise: it reaches to sqrt(2 d) s, and two sds more."""
    return sd * (math.sqrt(2 * d) + 2)


def spectrum(S: FloatArray, k: int, sd: float, whole: bool = True) -> Spectrum:
    """The k leading eigenvectors of S, and its eigenvalues.

    Of S, only the lower triangle is read. Of a large matrix, only the k largest eigenvalues and
    those that stand out of the noise, `MOST` of them at most, are found one by one. The others are
    few values with weights, so that sums over all eigenvalues come out nearly the same.

    Parameters
    ----------
    sd
        Noise sd of a variance.
    whole
        False if only the vectors are wanted, to compare the variance along them with another one.

    Examples
    --------
    >>> found = spectrum(np.diag([1.0, 3.0, 2.0]), 2, sd=0.1)
    >>> np.abs(found.vectors).tolist(), found.values.tolist()
    ([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [3.0, 2.0, 1.0])
    """
    d = len(S)
    few = d >= (_LARGE if whole else _ITERATE) and k * _MOST_OF <= d
    if few and (found := _by_iteration(S, k, sd, whole)) is not None:
        return found
    return _by_decomposition(S, k, whole)


def _by_decomposition(S: FloatArray, k: int, whole: bool) -> Spectrum:
    """All eigenvalues, or at least the k largest, and k vectors."""
    d = len(S)
    if d < _SOME:
        values, vectors = np.linalg.eigh(S)
        return Spectrum(vectors[:, : -k - 1 : -1], values[::-1], np.ones(d))
    # To import them takes time: only if needed.
    from scipy.linalg import eigh_tridiagonal, eigvalsh_tridiagonal
    from scipy.linalg.lapack import dormqr, dsytrd, dsytrd_lwork

    lwork = int(dsytrd_lwork(d, lower=1)[0])
    reflectors, *tridiagonal, tau, _ = dsytrd(S, lower=1, lwork=lwork)
    values, found = eigh_tridiagonal(*tridiagonal, select="i", select_range=(d - k, d - 1))
    vectors = np.array(found[:, ::-1], dtype=np.float64)
    vectors[1:] = dormqr("L", "N", reflectors[1:, :-1], tau, vectors[1:], lwork)[0]
    values = np.asarray(eigvalsh_tridiagonal(*tridiagonal) if whole else values, dtype=np.float64)
    return Spectrum(vectors, values[::-1], np.ones(len(values)))


def _by_iteration(S: FloatArray, k: int, sd: float, whole: bool) -> Spectrum | None:
    """The same by Lanczos iteration with full orthogonalisation; None if it does not converge.

    In the basis V of m steps, S is a tridiagonal matrix with eigenvectors s. V s is an eigenvector
    of S but for a residual, which is known. The square of the first number of s is the weight of
    its eigenvalue in the spectrum, as seen from the start of the iteration, a random direction.
    """
    from scipy.linalg import eigh_tridiagonal
    from scipy.linalg.blas import dsymv

    d = len(S)
    steps, check = d // 2, 2 * k + 10
    # Zeros: memory that was used before may hold records, and a NaN among them would be an output.
    V, diagonal, beside = np.zeros((steps + 1, d)), np.zeros(steps), np.zeros(steps + 1)
    # The same start for the same matrix: a restored model continues bit by bit.
    start = np.random.default_rng(0).standard_normal(d)
    V[0] = start / np.linalg.norm(start)
    for j in range(steps):
        v = dsymv(1.0, S.T, V[j])
        diagonal[j] = V[j] @ v
        v -= diagonal[j] * V[j] + beside[j] * V[j - 1]
        so_far = V[: j + 1]
        v -= (so_far @ v) @ so_far  # what rounding has left
        beside[j + 1] = math.sqrt(v @ v)
        if not beside[j + 1] > _ROUNDING * np.abs(diagonal[: j + 1]).max():
            return None  # the basis holds all directions that S moves the start to
        V[j + 1] = v / beside[j + 1]
        if j + 1 < check:
            continue
        check = math.ceil(1.2 * check)
        ascending, vectors = eigh_tridiagonal(diagonal[: j + 1], beside[1 : j + 1])
        values, s = np.asarray(ascending[::-1], dtype=np.float64), vectors[:, ::-1]
        out = min(int(np.count_nonzero(values > edge(sd, d))), MOST) if whole else 0
        residuals = beside[j + 1] * np.abs(s[-1, : max(k, out)])
        exact = whole & (np.arange(len(residuals)) < k)
        allowed = np.where(exact, _OF_VECTORS, _OF_VALUES) * sd
        if np.all(residuals <= np.maximum(allowed, _ROUNDING * abs(values[0]))):
            weights = s[0] ** 2
            if not weights[out:].sum() > 0:
                return None
            weights[:out] = 1.0
            weights[out:] *= (d - out) / weights[out:].sum()
            return Spectrum((s[:, :k].T @ so_far).T, values, weights)
    return None

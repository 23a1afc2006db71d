"""Parts that the baselines share: the result, clean input, clipping, step sizes, the sign.

Floating point (every baseline relies on these three facts; u = 2^-53):

- `norm_bound` never under-estimates a norm, so the rows of `clip_rows` are inside the ball as
  stored, not merely up to rounding.
- Whatever the order of summation, the computed sum of n terms of norm at most M is within
  e = n (n + 2) u M of the true one (n^2 u M and the higher orders). A query therefore has
  sensitivity at most its exact one + 2e *as computed*; `computed_sensitivity` adds it.
- Neighbours have equal shapes, so records they share give equal terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stream_dppca.arrays import ROUNDOFF, FloatArray
from stream_dppca.basis import column_signs
from stream_dppca.checks import between, whole
from stream_dppca.errors import ParameterError
from stream_dppca.frames import is_frame, rows_of
from stream_dppca.noise import Noise, make_noise
from stream_dppca.values import numbers

#: A step size for every batch number t = 1, 2, ...
Schedule = Callable[[int], float]
#: A coordinate beyond this makes its record a null; squares of squares stay finite below it.
COORDINATE_CAP = 1e18
#: More than is lost when squares underflow.
_TINY = 1e-150


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a baseline, and its guarantee.

    Attributes
    ----------
    components
        k x d, orthonormal rows, the largest coordinate of each positive.
    n_used
        Slots read. A short last batch is not read.
    epsilon, delta
        The guarantee for everything released, under `adjacency`, for one `unit`. An infinite
        epsilon stands for no guarantee.
    private
        False without noise, and with noise from a seed, which anyone could draw again.
    sigma
        Noise sd in each coordinate of a released query; each function says which query.
    """

    components: FloatArray
    n_used: int
    epsilon: float
    delta: float
    private: bool
    sigma: float
    adjacency: str = "replace one record in place"
    unit: str = "record"


def clean(X: ArrayLike) -> FloatArray:
    """A float64 copy of X, an array or a frame, in which every unusable record is a row of zeros.

    A record with a cell that is not a number, not finite or beyond 1e18 becomes a null: it keeps
    its slot and adds nothing. It is never dropped, which would shift the slots after it.

    Examples
    --------
    >>> clean([[1, 2], [float("nan"), 3], [1e19, 0]])
    array([[1., 2.],
           [0., 0.],
           [0., 0.]])
    """
    try:  # value by value: one cell must not decide how others are read
        given = rows_of(X) if is_frame(X) else numbers(X)
    except (TypeError, ValueError):  # the cause might quote records
        raise ParameterError("X", "must be a rectangular array", type(X).__name__) from None
    if given.ndim != 2 or 0 in given.shape:
        raise ParameterError("X", "must have two dimensions, neither of them 0", given.shape)
    rows = np.array(given, order="C")
    with np.errstate(invalid="ignore"):
        usable = (np.abs(rows) <= COORDINATE_CAP).all(axis=1)  # false for NaN
    rows[~usable] = 0.0
    return rows


def norm_bound(rows: FloatArray) -> FloatArray:
    """The norm of each row, rounded up: (d + 16) u covers its d roundings and those after it."""
    slack = 1.0 + (rows.shape[-1] + 16) * ROUNDOFF
    return np.asarray(np.sqrt(np.vecdot(rows, rows)) * slack + _TINY)


def clip_rows(rows: FloatArray, bound: float) -> FloatArray:
    """Each row scaled down to norm `bound` if it is longer.

    Examples
    --------
    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(6)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    return rows * np.minimum(1.0, bound / norm_bound(rows))[..., np.newaxis]


def computed_sensitivity(exact: float, *, terms: int, largest: float) -> float:
    """Sensitivity of a float64 sum of `terms` vectors of norm at most `largest`."""
    # 1e-10 covers, for d up to 1e5, iterates and projections that are right up to rounding.
    return exact * (1.0 + 1e-10) + 2.0 * terms * (terms + 2) * ROUNDOFF * largest


def orient(components: FloatArray) -> FloatArray:
    """Rows with the sign that makes their largest coordinate positive.

    Examples
    --------
    >>> orient(np.array([[0.6, -0.8]]))
    array([[-0.6,  0.8]])
    """
    return components * column_signs(components.T)[:, np.newaxis]


def start(noise: Noise, dimension: int, columns: int = 1) -> FloatArray:
    """Orthonormal columns, uniformly at random."""
    q, _ = np.linalg.qr(noise.direction(dimension, columns))
    return np.asarray(q, dtype=np.float64)


def normalised(moved: FloatArray, fallback: FloatArray) -> FloatArray:
    """`moved` at length 1, or `fallback` if it has no length."""
    length = float(np.linalg.norm(moved))
    return moved / length if length > 0 else fallback


def step_sizes(steps: Schedule | Sequence[float], count: int) -> list[float]:
    """eta_1 ... eta_count of a schedule or a sequence."""
    if not callable(steps) and len(steps) < count:
        raise ParameterError("steps", f"must have at least {count} entries", len(steps))
    etas = [float(steps(t) if callable(steps) else steps[t - 1]) for t in range(1, count + 1)]
    for eta in etas:
        if not 0.0 <= eta <= COORDINATE_CAP:
            raise ParameterError("steps", f"must lie between 0 and {COORDINATE_CAP:g}", eta)
    return etas


def in_range(name: str, value: float, low: float = 1e-30, high: float = 1e36) -> None:
    """Raise unless low <= value <= high; by default, unless its square is far from any edge."""
    between(name, value, low, high)


def noise_source(seed: int | None) -> Noise:
    """The noise for a run: the operating system's, or repeatable and not private with a seed."""
    if seed is not None:
        whole("seed", seed, low=0)
    return make_noise(seed)

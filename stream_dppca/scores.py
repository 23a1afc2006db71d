"""Scores of standardised rows: two squared distances, and what each feature adds to them.

A record is standardised to u = (grown((x - c)/s) - m)/r, with the numbers of a release. It is then
split into the part along the components W, whose scores are t = W^T u, and the rest:

    SPE = |u - W t|^2          squared prediction error, or Q: strange combinations
    T2  = sum_a t_a^2/v_a      Hotelling's T2, v_a the variance along component a: strange amounts

Learning clamps values, because a mechanism must bound what one record can do. Scoring is not a
mechanism, so beyond the clamp it goes on, with the logarithm: a sensor that is a thousand times too
high scores higher than one that is ten times too high, and both score less than they would with raw
values, which the sparse features of ordinary records exceed by thousands of scales.

A value that is missing is taken to be what the components make of the values that are there
(`filled`). As its mean it would look strange wherever features vary together.

Every function takes whole arrays.
"""

from __future__ import annotations

import numpy as np

from .arrays import BoolArray, FloatArray
from .statistics import vecdots

#: Least share of the features with spread that a record must have to be scored. A value that is
#: missing is as expected, so the fewer there are, the more ordinary a record looks.
READABLE = 0.5
#: Variances along components are taken to be at most this many times those around them, and at
#: least this small a part.
_CLEAREST = 1e6
#: Leading components that missing values are filled in with, at most: the work is their square.
_FILLING = 20
#: Values of z beyond this are taken to be this large, so that no square overflows.
LARGEST = 1e150


def grown(z: FloatArray, clamp: FloatArray | float) -> FloatArray:
    """z within the clamp, sign(z) clamp (1 + ln(|z|/clamp)) beyond it; the clamp may be infinite.

    Examples
    --------
    >>> grown(np.array([-1.0, 5.0, 50.0, 5000.0]), 5.0).round(2).tolist()
    [-1.0, 5.0, 16.51, 39.54]
    """
    found = np.clip(z, -LARGEST, LARGEST)
    far = np.nonzero(np.abs(found) > clamp)  # few, and the logarithm is slow
    edge = np.broadcast_to(clamp, found.shape)[far]
    found[far] = np.copysign(edge * (1 + np.log(np.abs(found[far]) / edge)), found[far])
    return found


def standardised(
    z: FloatArray, clamp: FloatArray | float, mean: FloatArray, deviation: FloatArray
) -> FloatArray:
    """(grown(z) - m)/r; 0, its mean, for a value that is NaN, and for a feature without spread.

    Parameters
    ----------
    z
        (x - c)/s.
    deviation
        r; 0 or infinite for features without spread.
    """
    usable = ~np.isnan(z) & (deviation > 0) & np.isfinite(deviation)
    with np.errstate(all="ignore"):
        return np.where(usable, (grown(z, clamp) - mean) / deviation, 0.0)


def filled(
    U: FloatArray, there: BoolArray, W: FloatArray, variance: FloatArray, rest: float
) -> FloatArray:
    """Rows in which each missing value is the expected one, given those that are there.

    For u = W t + e, t_a of variance v_a and e of variance `rest`, the expected t solves
    (W_o^T W_o + diag(rest/v)) t = W_o^T u_o, with the rows W_o of the features that are there. Each
    row is computed by itself: its place and other rows change no digit.

    Parameters
    ----------
    there
        False where a value is missing.
    variance
        v, of each component.
    rest
        Variance of a feature that no component explains.

    Examples
    --------
    >>> U, W = np.array([[2.0, 9.0], [2.0, -2.0]]), np.array([[0.6], [0.8]])
    >>> there = np.array([[True, False], [True, True]])
    >>> filled(U, there, W, np.array([4.0]), 0.0).round(3).tolist()
    [[2.0, 2.667], [2.0, -2.0]]
    """
    W, variance = W[:, :_FILLING], np.atleast_1d(variance)[:_FILLING]
    complete: BoolArray = np.all(there, axis=1)
    complete[:1] = False  # one row in any case: whether there is another takes no time
    (gaps,), (d, k) = np.nonzero(~complete), W.shape
    if not gaps.size or not k:
        return U
    known = there[gaps].astype(np.float64)
    squares = (W[:, :, np.newaxis] * W[:, np.newaxis]).reshape(d, k * k)
    with np.errstate(all="ignore"):
        ridge = np.nan_to_num(rest / np.broadcast_to(variance, k), nan=0.0, posinf=_CLEAREST)
    system = vecdots(known, squares).reshape(-1, k, k)
    system += np.diag(np.clip(ridge, 1 / _CLEAREST, _CLEAREST))
    products = vecdots(np.where(known, U[gaps], 0.0), W)
    t = np.asarray(np.linalg.solve(system, products[..., np.newaxis])[..., 0], np.float64)
    U[gaps] = np.where(known, U[gaps], vecdots(t, W.T))
    return U


def residual(U: FloatArray, W: FloatArray) -> FloatArray:
    """The part of each row that no component explains; its squared length is `spe`."""
    return np.asarray(U - (U @ W) @ W.T)


def along(U: FloatArray, W: FloatArray, variance: FloatArray) -> FloatArray:
    """The part of each row along the components, each divided by its standard deviation.

    Its squared length is `t2`. A component without variance is left out; one whose variance is not
    known (NaN) makes everything NaN.
    """
    with np.errstate(all="ignore"):
        weight = np.where(variance <= 0, 0.0, 1 / np.sqrt(variance))
    return np.asarray(((U @ W) * weight) @ W.T)


def spe(U: FloatArray, W: FloatArray) -> FloatArray:
    """Squared distance of each row to the subspace.

    Examples
    --------
    >>> spe(np.array([[3.0, 4.0]]), np.array([[1.0], [0.0]])).tolist()
    [16.0]
    """
    return np.asarray(np.sum(residual(U, W) ** 2, axis=1))


def t2(U: FloatArray, W: FloatArray, variance: FloatArray) -> FloatArray:
    """Squared distance of each row from the centre within the subspace, in standard deviations.

    Examples
    --------
    >>> t2(np.array([[3.0, 4.0]]), np.array([[1.0], [0.0]]), np.array([2.0])).tolist()
    [4.5]
    """
    with np.errstate(all="ignore"):
        weight = np.where(variance <= 0, 0.0, 1 / variance)
    return np.asarray(np.sum((U @ W) ** 2 * weight, axis=1))

"""Scores of standardised rows: two squared distances, and what each feature adds to them.

A record is standardised to u = (grown((x - c)/s) - m)/r, with the numbers of a release. It is then
split into the part along the components W, whose scores are t = W^T u, and the rest:

    SPE = |u - W t|^2          squared prediction error, or Q: strange combinations
    T2  = sum_a t_a^2/v_a      Hotelling's T2, v_a the variance along component a: strange amounts

Learning clamps values, because a mechanism must bound what one record can do. Scoring is not a
mechanism, so beyond the clamp it goes on, with the logarithm: a sensor that is a thousand times too
high scores higher than one that is ten times too high, and both score less than they would with raw
values, which the sparse features of ordinary records exceed by thousands of scales.

Every function takes whole arrays.
"""

from __future__ import annotations

import numpy as np

from .arrays import FloatArray

#: Least share of the features with spread that a record must have to be scored. A feature that is
#: missing counts as its mean, so the fewer there are, the more ordinary a record looks.
READABLE = 0.5
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

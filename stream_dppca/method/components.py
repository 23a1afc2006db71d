"""Components from released moments of (z, b): all of it post-processing.

The moment of y = (z, b) holds the share of valid records w, the mean m and the second moment of z
at once: with M its blocks, w = M_bb/b^2, m = M_zb/(b w), C = M_zz/w - m m^T. All three are linear
in the release or follow from it afterwards, so batches whose means differ add up to the total
covariance, and nulls and clip weights divide out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..arrays import BoolArray, FloatArray
from ..mechanisms.eigen import MOST, edge, spectrum
from .memory import RunningMoments

#: A variance is taken to be at least this many sds of its noise.
_FLOOR_SDS = 3.0
#: A feature whose spread nobody has seen is left out unless its variance is this many sds above
#: zero. If it was told to be 1, it is left out only if it is also as many sds below that.
_SEEN_SDS = 4.0
#: Relative sd of an eigenvalue because of heavy tails, fitted to real streams.
HEAVY = 0.03


@dataclass(frozen=True, eq=False)
class Components:
    """Mean, deviations and components that follow from the running moments."""

    mean: FloatArray  #: m
    deviation: FloatArray  #: r, positive; infinite for features without spread: their loading is 0
    W: FloatArray  #: d x k, orthonormal columns, largest variance first
    values: FloatArray  #: variance along each, of (z - m)/r
    total: float  #: the sum of all variances
    sd: float  #: noise sd of a variance
    valid: float  #: w
    seen: int  #: number of features with spread
    spectrum: FloatArray  #: their eigenvalues, descending; noisy
    weights: FloatArray  #: eigenvalues that each of these stands for
    in_one_unit: bool  #: features are not standardised

    @property
    def varies(self) -> BoolArray:
        """True for features with spread."""
        return np.isfinite(self.deviation)

    @property
    def whole(self) -> float:
        """The variance of all features, seen or not: d of standardised ones."""
        return self.total if self.in_one_unit else float(len(self.mean))

    @property
    def rest(self) -> float:
        """The variance of a feature with spread that no component explains."""
        left = self.total - float(self.values.sum())
        return max(left, 0.0) / max(self.seen - len(self.values), 1)

    def eigenvalues(self, records: float, cut: float) -> tuple[FloatArray, FloatArray]:
        """The eigenvalues that stand out of the noise, `MOST` at most, and the sd of each."""
        out = int(np.count_nonzero(self.spectrum > edge(self.sd, self.seen)))
        return self.told(self.spectrum[: min(MOST, out)], records, cut)

    def told(self, values: FloatArray, records: float, cut: float) -> tuple[FloatArray, FloatArray]:
        """The largest eigenvalues of the spectrum, less what noise adds to them, and their sds.

        The noise E of the matrix has the sd s on the diagonal and s/sqrt 2 beside it, so w^T E w
        has the sd s for every w of length 1. To second order it moves the jth eigenvalue up by
        s^2/2 times the sum over all others of 1/(l_j - l_i), which is taken back. The stated sd has
        these parts:

        - noise: s, and half of what is taken back;
        - sampling: sqrt(2/n) of the value;
        - clipping: the share of the records beyond the radius times the radius in units of the mean
          squared length; half of what the variances of features with little spread lack, because
          their deviations are not taken to be smaller than noise allows; and `HEAVY` of the value
          for tails that are cut off. On real streams, eigenvalues of clamped records differ from
          those of raw ones by 1 to 5 %.

        Parameters
        ----------
        records
            n, from which the moments are.
        cut
            Share of the records that are clipped, times the length at which they are.
        """
        apart = values[:, np.newaxis] - self.spectrum
        # Neighbours within the noise exchange places: they push each other apart by no more.
        apart = np.where(np.abs(apart) < self.sd, np.inf, apart)
        up = self.sd**2 / 2 * np.sum(self.weights / apart, axis=1)
        found = np.minimum.accumulate(np.maximum(values - up, 0.0))
        lacks = 0.0 if self.in_one_unit else max(1 - self.total / max(self.seen, 1), 0.0) / 2
        relative = math.hypot(math.sqrt(2 / max(records, 1.0)), cut, lacks, HEAVY)
        return found, np.hypot(np.hypot(self.sd, up / 2), relative * found)


def components(
    moments: RunningMoments,
    *,
    k: int,
    known: BoolArray,
    known_center: bool,
    deviation: FloatArray | None,
    told: bool = False,
    whole: bool = False,
) -> Components:
    """Read off mean, deviations and components.

    Parameters
    ----------
    known
        Features whose spread has been seen.
    known_center
        If true, the mean is 0, and second moments take the place of the covariance.
    deviation
        r if features are in one unit; None to take the released standard deviations.
    told
        If true, scales were given and not seen; variances should be 1.
    whole
        True if the spectrum is wanted, too.
    """
    from scipy.linalg.blas import dsyr  # takes time: only if needed

    w, (m, variance, sd) = moments.valid, moments.mean_and_variance()
    d = len(m)
    if known_center:
        variance, m = variance + m**2, np.zeros(d)
    learned = np.sqrt(np.maximum(variance, max(_FLOOR_SDS * sd, 1e-12)))
    unsure = _SEEN_SDS * sd
    seen = variance > min(unsure, 1 - unsure) if told else known | (variance > unsure)
    r = np.where(seen, learned if deviation is None else deviation, np.inf)
    which = np.flatnonzero(seen)
    found = min(k, len(which))
    C = moments.total[:d, :d] * (1 / (max(moments.weight, 1e-300) * w * r))
    C *= (1 / r)[:, np.newaxis]
    C = dsyr(-1.0, m / r, a=C.T, overwrite_a=True).T  # the lower triangle, which is enough
    if len(which) < d:
        C = C[np.ix_(which, which)]
    # Features without spread fill up if there are fewer with spread than components.
    W, along = np.zeros((d, k)), np.zeros(k)
    W[np.flatnonzero(~seen)[: k - found], np.arange(found, k)] = 1.0
    inverse, middle = np.sort(1 / r[seen] ** 2), len(which) // 2
    typical = float(inverse[middle] + inverse[~middle]) / 2 if found else 1.0  # the median
    of_C = spectrum(C, found, sd * typical, whole)
    along[:found], W[which, :found] = of_C.values[:found], of_C.vectors
    # A total that drowns in its noise is taken to be that noise.
    total = max(float(np.sum(variance[seen] / r[seen] ** 2)), sd * typical, 1e-300)
    return Components(
        mean=m,
        deviation=r,
        W=W,
        values=along,
        total=total,
        sd=sd * typical,
        valid=w,
        seen=len(which),
        spectrum=of_C.values,
        weights=of_C.weights,
        in_one_unit=deviation is not None,
    )

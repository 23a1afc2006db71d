"""Sources of noise.

`Noise` draws exact noise with the operating system's entropy (`sampler`). `SeededNoise` draws from
a numpy generator, for tests and simulations; every result made with it is not private and says so.
Both have the same two methods:

- `gaussian(query, sensitivity, mu)`: the query plus noise of sd sensitivity/mu per coordinate;
- `laplace(counts, scale)`: integer counts plus discrete Laplace noise.

A real number is released as a whole number of grid units. The unit is a power of two for which the
sd is between 2^24 and 2^25 units, so dividing by it is exact. The release is round(a + S X), where
a is the query and S the sd in units: the Gaussian mechanism, then rounding to a public grid, which
is post-processing (docs/privacy.md, "The grid").
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays import FloatArray, IntArray
from ..errors import DPPCAError
from .sampler import LARGEST, SMALLEST_SD, discrete_laplace, rounded_gaussian


class Noise:
    """Noise for production: exact, from the operating system's entropy.

    It holds no state, so no copy of it can repeat what another one drew.
    """

    #: False if anyone could draw the same noise again.
    private = True

    def gaussian(self, query: FloatArray, *, sensitivity: float, mu: float) -> FloatArray:
        """Release `query` plus N(0, (sensitivity/mu)^2) in each coordinate.

        Parameters
        ----------
        query
            Any shape; everything in it counts as one vector. No NaN.
        sensitivity
            Bound on the L2 distance between the queries *as computed* on two neighbours.
        mu
            Budget that this release spends, see `stream_dppca.calibration`.
        """
        sd = self.gaussian_sd(sensitivity=sensitivity, mu=mu)
        unit = self._unit(sd)
        # The clamp acts on each coordinate alone and is 1-Lipschitz: it cannot raise the
        # sensitivity. It only has an effect when a query is 2^27 noise sds large.
        with np.errstate(over="ignore", under="ignore"):
            values = np.ravel(query) / unit
        found = self._rounded_gaussian(values.clip(-LARGEST, LARGEST, out=values), sd / unit)
        return np.multiply(found, unit, out=found).reshape(query.shape)

    @staticmethod
    def gaussian_sd(*, sensitivity: float, mu: float) -> float:
        """The sd that `gaussian` uses: sensitivity/mu.

        Two ulps are added. One is for the division here. The other, a relative 2^-53, covers
        numbers so far below the unit that dividing by it leaves the range of float64.
        """
        if not (mu > 1e-9 and sensitivity > 0 and math.isfinite(sensitivity)):
            raise DPPCAError("the sensitivity or the budget of the noise is out of range")
        sd = math.nextafter(math.nextafter(sensitivity / mu, math.inf), math.inf)
        if not 2.0**-900 < sd < 2.0**900:
            raise DPPCAError("the standard deviation of the noise is out of range")
        return sd

    @staticmethod
    def _unit(sd: float) -> float:
        """The power of two with `SMALLEST_SD` <= sd/unit < 2 `SMALLEST_SD`."""
        return math.ldexp(1 / SMALLEST_SD, math.frexp(sd)[1] - 1)

    def laplace(self, counts: IntArray, *, scale: float) -> IntArray:
        """Release integer counts plus discrete Laplace noise of the given scale."""
        return self._discrete_laplace(counts.astype(np.int64), scale)

    def at_batch(self, batch: int) -> Noise:
        """The source to use for batch number `batch`."""
        return self

    def direction(self, dimension: int, columns: int) -> FloatArray:
        """A random dimension x columns Gaussian matrix, the public start of an iteration."""
        return np.random.default_rng().standard_normal((dimension, columns))

    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        """round(values + sd X) for fresh standard normal X: whole numbers."""
        return rounded_gaussian(values, sd)

    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray:
        return values + discrete_laplace(values.size, scale)


class SeededNoise(Noise):
    """Repeatable noise for tests and simulations. **Not private.**

    The noise of a batch depends on the seed and the batch number only, so a model restored from
    its state continues exactly as one that was never interrupted.
    """

    private = False

    def __init__(self, seed: int, batch: int = 0) -> None:
        self.seed = seed
        # A tag of its own: data simulated with the same seed must not repeat the noise.
        self._rng = np.random.default_rng([seed, batch, 0x44505043])

    def at_batch(self, batch: int) -> SeededNoise:
        return SeededNoise(self.seed, batch)

    def direction(self, dimension: int, columns: int) -> FloatArray:
        return self._rng.standard_normal((dimension, columns))

    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        return np.rint(values + self._rng.standard_normal(values.size) * sd)

    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray:
        # The difference of two geometric variables is discrete Laplace.
        p = -math.expm1(-1 / scale)
        noise = self._rng.geometric(p, values.size) - self._rng.geometric(p, values.size)
        return values + noise.astype(np.int64)


def make_noise(seed: int | None) -> Noise:
    """The source for production, or with a seed the repeatable one."""
    return Noise() if seed is None else SeededNoise(seed)

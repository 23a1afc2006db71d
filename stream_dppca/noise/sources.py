"""Sources of noise.

`SecureNoise` draws exact noise with the operating system's entropy (`sampler`). `OpenDPNoise` draws
from OpenDP's samplers instead: slower, with a longer proof, and an independent implementation.
`SeededNoise` draws from a numpy generator, for tests and simulations; every result made with it is
not private and says so. All have the same two methods:

- `gaussian(query, sensitivity, mu)`: the query plus noise of sd sensitivity/mu per coordinate;
- `laplace(counts, scale)`: integer counts plus discrete Laplace noise.

A real number is released as a whole number of grid units. The unit is a power of two for which the
sd is between 2^28 and 2^29 units, so dividing by it is exact. The release is round(a + S X), where
a is the query and S the sd in units: the Gaussian mechanism, then rounding to a public grid, which
is post-processing (docs/privacy.md, "The grid").
"""

from __future__ import annotations

import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..arrays import FloatArray, IntArray
from ..errors import DPPCAError, ParameterError
from .sampler import LARGEST, SMALLEST_SD, discrete_laplace, rounded_gaussian

__all__ = ["Noise", "OpenDPNoise", "Sampler", "SecureNoise", "SeededNoise", "make_noise"]

#: Names of the samplers for production, the default first.
Sampler = Literal["exact", "opendp"]


class Noise(ABC):
    """A source of noise. Subclasses supply noise in units of the grid; the grid is handled here."""

    #: False if anyone could draw the same noise again.
    private: bool
    #: Coordinates that one record may reach, over all releases that it enters: no limit.
    MOST_COORDINATES = 2**62

    def gaussian(
        self, query: FloatArray, *, sensitivity: float, mu: float, size: int | None = None
    ) -> FloatArray:
        """Release `query` plus N(0, (sensitivity/mu)^2) in each coordinate.

        Parameters
        ----------
        query
            Any shape; everything in it counts as one vector. No NaN.
        sensitivity
            Bound on the L2 distance between the queries *as computed* on two neighbours.
        mu
            Budget that this release spends, see `stream_dppca.calibration`.
        size
            A public bound on the number of coordinates, if the number itself is not public.
        """
        sd = self.gaussian_sd(size or query.size, sensitivity=sensitivity, mu=mu)
        unit = self._unit(sd)
        # The clamp acts on each coordinate alone and is 1-Lipschitz: it cannot raise the
        # sensitivity. It only has an effect when a query is 2^23 noise sds large.
        with np.errstate(over="ignore", under="ignore"):
            values = np.clip(np.ravel(query) / unit, -LARGEST, LARGEST)
        return self._rounded_gaussian(values, sd / unit).reshape(query.shape) * unit

    def gaussian_each(self, count: int, *, sensitivity: float, mu: float) -> Callable[[int], float]:
        """A function that releases `count` integers one after the other, each as `gaussian` would.

        All their noise is drawn here, in one call, before any of the numbers is known: as
        round(a + S X) = a + round(S X) for an integer a, they must be whole numbers of grid units.
        """
        sd = self.gaussian_sd(1, sensitivity=sensitivity, mu=mu)
        unit = self._unit(sd)
        if unit > 1:
            raise DPPCAError("the budget of the noise is too small for counts")
        draws = iter(self._rounded_gaussian(np.zeros(count), sd / unit).tolist())

        def release(number: int) -> float:
            whole = round(min(max(operator.index(number) / unit, -LARGEST), LARGEST))
            return float(whole + next(draws)) * unit

        return release

    @staticmethod
    def gaussian_sd(size: int, *, sensitivity: float, mu: float) -> float:
        """The sd that `gaussian` uses for `size` coordinates: sensitivity/mu.

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

    @abstractmethod
    def at_batch(self, batch: int) -> Noise:
        """The source to use for batch number `batch`."""

    @abstractmethod
    def direction(self, dimension: int, columns: int) -> FloatArray:
        """A random dimension x columns Gaussian matrix, the public start of an iteration."""

    @abstractmethod
    def order(self, n: int) -> NDArray[np.intp]:
        """A uniformly random order of n records, as secret as the noise."""

    @abstractmethod
    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        """round(values + sd X) for fresh standard normal X: whole numbers."""

    @abstractmethod
    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray: ...


class SecureNoise(Noise):
    """Noise for production: exact, from the operating system's entropy.

    It holds no state, so no copy of it can repeat what another one drew.
    """

    private = True

    def at_batch(self, batch: int) -> Noise:
        return self

    def direction(self, dimension: int, columns: int) -> FloatArray:
        return np.random.default_rng().standard_normal((dimension, columns))

    def order(self, n: int) -> NDArray[np.intp]:
        # 128 random bits per record: two are equal with probability below n^2 / 2^129.
        keys = np.frombuffer(os.urandom(16 * n), dtype=np.uint64).reshape(2, n)
        return np.lexsort((keys[0], keys[1]))

    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        return rounded_gaussian(values, sd)

    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray:
        return values + discrete_laplace(values.size, scale)


class OpenDPNoise(SecureNoise):
    """The same from OpenDP's samplers, about 200 times slower.

    Its discrete Gaussian has a parameter of `SMALLEST_SD` units exactly, so the unit is not a power
    of two. Dividing by it and rounding move each coordinate by at most one unit, so a query of m
    coordinates by 2 sqrt(m) between neighbours, which the sd pays for. In place of the rounded
    Gaussian the discrete one costs `calibration.GRID_SLACK`, for at most `MOST_COORDINATES`
    coordinates over all releases that one record enters.
    """

    #: The proof of the slack is for this many.
    MOST_COORDINATES = 2**24

    @staticmethod
    def gaussian_sd(size: int, *, sensitivity: float, mu: float) -> float:
        """A little over sensitivity/mu, to pay for the rounding."""
        spent_on_rounding = 2 * math.sqrt(size) / SMALLEST_SD
        if not mu > 2 * spent_on_rounding:
            raise DPPCAError("the budget of the noise is too small for this many coordinates")
        return Noise.gaussian_sd(size, sensitivity=sensitivity, mu=mu - spent_on_rounding)

    @staticmethod
    def _unit(sd: float) -> float:
        return sd / SMALLEST_SD

    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        whole = np.rint(values).astype(np.int64).tolist()
        return np.array(_gaussian_measurement(len(whole))(whole), dtype=np.float64)

    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray:
        return np.array(_laplace_measurement(values.size, scale)(values.tolist()), dtype=np.int64)


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

    def order(self, n: int) -> NDArray[np.intp]:
        return self._rng.permutation(n)

    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        return np.rint(values + self._rng.standard_normal(values.size) * sd)

    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray:
        # The difference of two geometric variables is discrete Laplace.
        p = -math.expm1(-1 / scale)
        noise = self._rng.geometric(p, values.size) - self._rng.geometric(p, values.size)
        return values + noise.astype(np.int64)


def make_noise(seed: int | None, sampler: Sampler = "exact") -> Noise:
    """The production source with this sampler, or with a seed the repeatable one."""
    if sampler not in get_args(Sampler):
        raise ParameterError("sampler", f"must be one of {', '.join(get_args(Sampler))}", sampler)
    if seed is not None:
        return SeededNoise(seed)
    if sampler == "opendp" and find_spec("opendp") is None:
        raise DPPCAError("sampler='opendp' needs OpenDP: pip install 'opendp>=0.16,<0.17'")
    return SecureNoise() if sampler == "exact" else OpenDPNoise()


@lru_cache(maxsize=64)
def _gaussian_measurement(size: int) -> Any:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=size), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=SMALLEST_SD)


@lru_cache(maxsize=64)
def _laplace_measurement(size: int, scale: float) -> Any:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=size), dp.l1_distance(T="i64")
    return dp.m.make_laplace(*space, scale=scale)


def _opendp() -> Any:
    """OpenDP, imported when the first noise is drawn: it takes a second to load."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp

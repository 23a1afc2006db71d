"""The only place where randomness enters.

`SecureNoise` draws from OpenDP's exact samplers with the operating system's entropy. `SeededNoise`
draws from a numpy generator, for tests and simulations; whatever is made with it is not private
and says so. Both are asked the same two questions:

- `gaussian(query, sensitivity, mu)`: the query plus noise of sd sensitivity/mu a coordinate;
- `laplace(counts, scale)`: integer counts plus discrete Laplace noise.

Real numbers are rounded to an integer grid on which the noise always has sd `GRID_SD`. Scaling and
rounding move each coordinate by at most one grid unit, so a query of m coordinates by 2 sqrt(m)
between neighbours, which is added to the sensitivity. On such a fine grid discrete and continuous
Gaussian noise are the same to within `calibration.GRID_SLACK` (docs/privacy.md, "The grid").
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DPPCAError

__all__ = ["Noise", "SecureNoise", "SeededNoise", "make_noise"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Standard deviation of Gaussian noise in grid units.
GRID_SD = 2.0**28
#: Largest |query| in grid units: int64 and float64 both count that far, and a division by the unit
#: is off by at most half a unit.
GRID_MAX = 2.0**52


class Noise(ABC):
    """A source of noise. Subclasses supply integer noise; the grid is handled here."""

    #: False if anyone could draw the same noise again.
    private: bool

    def gaussian(
        self, query: FloatArray, *, sensitivity: float, mu: float, size: int | None = None
    ) -> FloatArray:
        """Release `query` plus N(0, (sensitivity/mu)^2) in each coordinate.

        Parameters
        ----------
        query
            Any shape; everything in it counts as one vector.
        sensitivity
            Bound on the L2 distance between the queries *as computed* on two neighbours.
        mu
            What this release spends, see `stream_dppca.calibration`.
        size
            A public bound on the number of coordinates, where the number itself is not public.
        """
        unit = self.gaussian_sd(size or query.size, sensitivity=sensitivity, mu=mu) / GRID_SD
        # The clamp acts on each coordinate alone and is 1-Lipschitz: it cannot raise the
        # sensitivity. It only bites when a query is 2^24 noise sds large.
        with np.errstate(over="ignore"):
            grid = np.clip(query / unit, -GRID_MAX, GRID_MAX)
        noisy = self._discrete_gaussian(np.rint(grid).astype(np.int64).ravel())
        return np.asarray(noisy.reshape(query.shape) * unit, dtype=np.float64)

    def gaussian_each(
        self, count: int, *, sensitivity: float, mu: float
    ) -> Callable[[float], float]:
        """A function that releases `count` numbers one after the other, each as `gaussian` would.

        All their noise is drawn here, in one call, before any of the numbers is known.
        """
        unit = self.gaussian_sd(1, sensitivity=sensitivity, mu=mu) / GRID_SD
        draws = iter(self._discrete_gaussian(np.zeros(count, dtype=np.int64)).tolist())

        def release(number: float) -> float:
            return float(round(min(max(number / unit, -GRID_MAX), GRID_MAX)) + next(draws)) * unit

        return release

    @staticmethod
    def gaussian_sd(size: int, *, sensitivity: float, mu: float) -> float:
        """The sd that `gaussian` uses, a little over sensitivity/mu to pay for the rounding."""
        spent_on_rounding = 2 * math.sqrt(size) / GRID_SD
        if not (mu > 2 * spent_on_rounding and sensitivity > 0 and math.isfinite(sensitivity)):
            raise DPPCAError("noise asked for with a sensitivity or a budget out of range")
        return sensitivity / (mu - spent_on_rounding)

    def laplace(self, counts: IntArray, *, scale: float) -> IntArray:
        """Release integer counts plus discrete Laplace noise of the given scale."""
        return self._discrete_laplace(counts.astype(np.int64), scale)

    @abstractmethod
    def at_batch(self, batch: int) -> Noise:
        """The source to use for batch number `batch`."""

    @abstractmethod
    def direction(self, dimension: int, columns: int) -> FloatArray:
        """A random dimension x columns Gaussian matrix: where an iteration starts. Public."""

    @abstractmethod
    def order(self, n: int) -> NDArray[np.intp]:
        """A uniformly random order of n records, as secret as the noise."""

    @abstractmethod
    def _discrete_gaussian(self, values: IntArray) -> IntArray: ...

    @abstractmethod
    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray: ...


class SecureNoise(Noise):
    """Noise for production: OpenDP's exact samplers, the operating system's entropy.

    It holds no state, so no copy of it can repeat what another one drew.
    """

    private = True

    def at_batch(self, batch: int) -> SecureNoise:
        return self

    def direction(self, dimension: int, columns: int) -> FloatArray:
        return np.random.default_rng().standard_normal((dimension, columns))

    def order(self, n: int) -> NDArray[np.intp]:
        # 128 random bits a record: two are equal with probability below n^2 / 2^129.
        keys = np.frombuffer(os.urandom(16 * n), dtype=np.uint64).reshape(2, n)
        return np.lexsort((keys[0], keys[1]))

    def _discrete_gaussian(self, values: IntArray) -> IntArray:
        return np.array(_gaussian_measurement(values.size)(values.tolist()), dtype=np.int64)

    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray:
        return np.array(_laplace_measurement(values.size, scale)(values.tolist()), dtype=np.int64)


class SeededNoise(Noise):
    """Repeatable noise for tests and simulations. **Not private.**

    The noise of a batch depends on the seed and the batch number only, so a model restored from
    its state goes on exactly as one that was never interrupted.
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

    def _discrete_gaussian(self, values: IntArray) -> IntArray:
        noise = self._rng.standard_normal(values.size) * GRID_SD
        return values + np.rint(noise).astype(np.int64)

    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray:
        # The difference of two geometric variables is discrete Laplace.
        p = -math.expm1(-1 / scale)
        noise = self._rng.geometric(p, values.size) - self._rng.geometric(p, values.size)
        return values + noise.astype(np.int64)


def make_noise(seed: int | None) -> Noise:
    """The production source, or with a seed the repeatable one."""
    return SecureNoise() if seed is None else SeededNoise(seed)


@lru_cache(maxsize=64)
def _gaussian_measurement(size: int) -> Any:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=size), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=GRID_SD)


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

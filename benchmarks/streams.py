"""Problems with a known truth.

A `Problem` is public and fixed; `problem.stream(seed)` is one instance of it with a random basis.

- `Spiked(l2)`, **G(l2)** in the tables: N(0, S) with eigenvalues 1, l2, l2, ...
- `SignPlusNoise(s)`, **T(s)**: the paper's Example, x = +-v + N(0, s^2 I).
- `Spectrum(...)`: any eigenvalues, with factors of any law.
- `FashionMNIST()`: pictures, whose own second moment is the truth.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

__all__ = [
    "FACTORS",
    "Correlation",
    "FashionMNIST",
    "Problem",
    "SignPlusNoise",
    "Spectrum",
    "Spiked",
    "Stream",
    "sine",
]

Array = NDArray[Any]

#: From this many features on, data is made in float32.
LARGE = 2000


@dataclass
class Stream:
    """Records with a known covariance."""

    components: Array  #: d x k, the true ones, best first (as many as are known)
    draw: Callable[[int], Array]  #: the next n records


class Problem(Protocol):
    """A problem: its records, and the facts about them that the tables need."""

    d: int

    @property
    def label(self) -> str: ...

    def eigenvalues(self) -> Array:
        """All d eigenvalues, largest first."""
        ...

    def stream(self, seed: int) -> Stream: ...


def sine(W: Array, truth: Array) -> float:
    """Sine of the largest angle between the spans of two matrices with orthonormal columns."""
    W, truth = W.astype(np.float64), truth[:, : W.shape[1]].astype(np.float64)
    return float(min(np.linalg.norm(W - truth @ (truth.T @ W), 2), 1.0))


class Correlation:
    """The correlation matrix of a problem: what `DPPCA` finds by default.

    Parameters
    ----------
    components
        The true components of the covariance matrix. Directions that are not listed have its last
        eigenvalue.
    k
        Number of components of the correlation matrix that are computed.
    """

    def __init__(self, problem: Problem, components: Array, k: int) -> None:
        values, V = problem.eigenvalues(), components.astype(np.float64)
        self._rest = float(values[-1])
        self._more = values[: V.shape[1]] - self._rest
        self.sd = np.sqrt(self._rest + V**2 @ self._more)  #: of each feature
        self._V = V / self.sd[:, None]
        d = len(V)
        if d < LARGE:
            found, vectors = np.linalg.eigh(self @ np.eye(d))
        else:
            start = np.random.default_rng(0).standard_normal(d)
            operator = LinearOperator((d, d), matvec=self.__matmul__, dtype=np.float64)
            found, vectors = eigsh(operator, k=k + 1, which="LA", v0=start, tol=1e-8)
        order = np.argsort(found)[::-1]
        self.values: Array = found[order]  #: at least k + 1, largest first
        self.vectors: Array = vectors[:, order[:k]]  #: d x k

    def __matmul__(self, X: Array) -> Array:
        level = (self._rest / self.sd**2)[:, None] if X.ndim == 2 else self._rest / self.sd**2
        more = self._more[:, None] if X.ndim == 2 else self._more
        return np.asarray(self._V @ (more * (self._V.T @ X)) + level * X)

    def missed(self, W: Array) -> float:
        """Share of the variance that the best W would capture and this one does not."""
        W = W.astype(np.float64)
        return max(0.0, 1 - float(np.sum(W * (self @ W)) / self.values[: W.shape[1]].sum()))


def _direction(rng: np.random.Generator, d: int) -> Array:
    v = rng.standard_normal(d)
    return v / np.linalg.norm(v)


def _chunks(X: Array) -> Iterator[Array]:
    """Views of some rows at a time, small enough for the cache."""
    size = max(1, 2**17 // X.shape[1])
    return (X[i : i + size] for i in range(0, len(X), size))


def _dtype(d: int) -> type:
    return np.float32 if d >= LARGE else np.float64


@dataclass(frozen=True)
class Spiked:
    """G(l2): Gaussian, eigenvalues 1, l2, l2, ... around a random direction.

    With `path`, the direction at record i is `path(i)` radians along a great circle.
    """

    d: int
    l2: float = 0.1
    scale: Callable[[int], float] | None = None
    path: Callable[[int], float] | None = None

    @property
    def label(self) -> str:
        return f"G({self.l2:g})"

    def eigenvalues(self) -> Array:
        return np.r_[1.0, np.full(self.d - 1, self.l2)]

    def stream(self, seed: int) -> Stream:
        rng = np.random.default_rng([seed, 1])
        v0, other = _direction(rng, self.d), rng.standard_normal(self.d)
        other -= (other @ v0) * v0
        other /= np.linalg.norm(other)
        stream = Stream(v0[:, None], lambda n: draw(n))
        at = 0

        def draw(n: int) -> Array:
            """Draw n records from one distribution: call this once per batch to drift."""
            nonlocal at
            angle = 0.0 if self.path is None else self.path(at)
            v = math.cos(angle) * v0 + math.sin(angle) * other
            stream.components = v[:, None]
            Z = rng.standard_normal((n, self.d), dtype=_dtype(self.d))
            root = math.sqrt(self.l2) * (1.0 if self.scale is None else self.scale(at))
            stretch = ((1 / math.sqrt(self.l2) - 1) * v).astype(Z.dtype)
            for rows in _chunks(Z):
                rows += np.outer(rows @ v.astype(Z.dtype), stretch)
                rows *= Z.dtype.type(root)
            at += n
            return Z

        return stream


@dataclass(frozen=True)
class SignPlusNoise:
    """T(s): +-v plus Gaussian noise of sd s in every coordinate."""

    d: int
    s: float

    @property
    def label(self) -> str:
        return f"T({self.s:g})"

    def eigenvalues(self) -> Array:
        return np.r_[1.0, np.zeros(self.d - 1)] + self.s**2

    def stream(self, seed: int) -> Stream:
        rng = np.random.default_rng([seed, 2])
        v = _direction(rng, self.d)

        def draw(n: int) -> Array:
            X = rng.standard_normal((n, self.d), dtype=_dtype(self.d))
            for rows in _chunks(X):
                rows *= X.dtype.type(self.s)
                rows += np.outer(rng.choice([-1.0, 1.0], len(rows)), v).astype(X.dtype)
            return X

        return Stream(v[:, None], draw)


def _student(rng: np.random.Generator, Z: Array) -> Array:
    """Student t with 4 degrees of freedom, one radius per record: elliptical."""
    return Z * np.sqrt(2 / rng.chisquare(4, len(Z)))[:, None]


def _log_normal(rng: np.random.Generator, Z: Array) -> Array:
    """Independent log-normal factors of random sign, variance 1, kurtosis 55."""
    return np.sign(Z) * np.exp(rng.standard_normal(Z.shape) - 1)


def _skewed(rng: np.random.Generator, Z: Array) -> Array:
    """Centred exponential factors."""
    return rng.standard_exponential(Z.shape) - 1


def _discrete(rng: np.random.Generator, Z: Array) -> Array:
    """Centred counts: Poisson with mean 1."""
    return rng.poisson(1.0, Z.shape) - 1.0


#: Laws of the factors: variance 1, made from a matrix of normals.
FACTORS: dict[str, Callable[[np.random.Generator, Array], Array]] = {
    "Gaussian": lambda rng, Z: Z,
    "Student t4": _student,
    "log-normal": _log_normal,
    "skewed": _skewed,
    "discrete": _discrete,
}


@dataclass(frozen=True)
class Spectrum:
    """x = scale Q sqrt(L) f + mean: any eigenvalues L, factors f of any law, a random basis Q."""

    values: tuple[float, ...]
    name: str
    factors: str = "Gaussian"
    scale: float = 1.0
    mean: float = 0.0
    d: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "d", len(self.values))

    @property
    def label(self) -> str:
        return self.name

    def eigenvalues(self) -> Array:
        return np.array(self.values) * self.scale**2

    def stream(self, seed: int) -> Stream:
        rng = np.random.default_rng([seed, 3])
        d = self.d
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        root = self.scale * np.sqrt(np.array(self.values))
        centre = self.mean * _direction(rng, d) * math.sqrt(d)

        def draw(n: int) -> Array:
            F = FACTORS[self.factors](rng, rng.standard_normal((n, d))) * root
            return F @ Q.T + centre

        return Stream(Q, draw)


@dataclass(frozen=True)
class FashionMNIST:
    """60,000 pictures of 28 x 28 pixels in [0, 1], in random order, centred by their mean.

    From Debian's package `dataset-fashion-mnist`.
    """

    FILE: ClassVar[Path] = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
    d: int = 784
    label: str = "Fashion-MNIST"

    def eigenvalues(self) -> Array:
        return _pictures()[1]

    def stream(self, seed: int) -> Stream:
        X, _, components = _pictures()
        order = np.random.default_rng([seed, 5]).permutation(len(X))
        return Stream(components, lambda n: X[order[:n]])


@lru_cache(maxsize=1)
def _pictures() -> tuple[Array, Array, Array]:
    """The pictures, the eigenvalues of their second moment and its eigenvectors."""
    with gzip.open(FashionMNIST.FILE) as file:
        raw = np.frombuffer(file.read(), dtype=np.uint8, offset=16)
    X = raw.reshape(-1, 784) / 255.0
    X -= X.mean(axis=0)
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    return X, values[::-1], vectors[:, ::-1]

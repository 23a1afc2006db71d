"""Scores of raw records from a release alone: numpy and one formula.

    score = W^T ((clamp((x - c)/s) - m)/r)

c and s are the centre and scale of each feature, found in the first step (s may grow later). The
clamp is part of the model: sparse features have values that are thousands of scales away. m and r
are mean and standard deviation of the clamped values, learned from every batch. With features in
one unit nothing is clamped, and r turns z back into raw units.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import FloatArray
from .release import Release
from .values import number, numbers

__all__ = ["Projector"]


@dataclass(frozen=True, eq=False)
class Projector:
    """Projects raw records with the numbers of a release.

    Examples
    --------
    >>> release = b'''{"version": 1, "status": "learned", "batch": 9,
    ...     "features": ["cpu", "memory"], "components": [[0.6, 0.8]],
    ...     "center": [50.0, 1e9], "scale": [10.0, 1e8], "clamp": [5.0, 5.0],
    ...     "mean": [0.0, 0.0], "deviation": [1.0, 1.0], "privacy": {"unit": "record",
    ...     "epsilon": 1.0, "delta": 1e-6, "method": "adaptive", "private": true}}'''
    >>> projector = Projector.from_release(release)
    >>> projector.transform_array(np.array([[60.0, 1e9]])).round(12).tolist()
    [[0.6]]
    >>> projector.transform_one({"cpu": 60.0, "memory": 1.1e9})
    {0: 1.4}
    """

    features: tuple[Hashable, ...]
    W: FloatArray  #: d x k, orthonormal columns; k = 0 if nothing has been learned
    center: FloatArray  #: c
    scale: FloatArray  #: s
    clamp: FloatArray  #: infinite where nothing is clamped
    mean: FloatArray  #: m
    deviation: FloatArray  #: r; 0 for features without spread, which are left out

    @classmethod
    def plain(cls, features: Sequence[Hashable], W: FloatArray, scale: FloatArray) -> Projector:
        """Make a projector for records that are centred at 0 and divided by known scales."""
        d = len(features)
        zero, one = np.zeros(d), np.ones(d)
        return cls(tuple(features), W, zero, scale, np.full(d, np.inf), zero, one)

    @classmethod
    def from_release(cls, release: Release | bytes | str | Mapping[str, Any]) -> Projector:
        """Make a projector from a release, or from its JSON: the bytes of a message, or parsed.

        Raises
        ------
        ValueError
            If it is not a release, or one of another version.
        """
        try:
            if isinstance(release, bytes | str):
                known = Release.model_validate_json(release)
            else:
                known = Release.model_validate(
                    release if isinstance(release, Release) else dict(release)
                )
        except (TypeError, ValueError) as error:
            raise ValueError(f"`release` is not a release: {error}") from None
        d = len(known.features)

        def given(values: Sequence[float] | None, default: float) -> FloatArray:
            return np.full(d, default) if values is None else np.array(values, dtype=np.float64)

        W = np.array(known.components, dtype=np.float64).reshape(-1, d).T
        return cls(
            known.features,
            np.ascontiguousarray(W),
            given(known.center, 0.0),
            given(known.scale, 1.0),
            given(known.clamp, np.inf),
            given(known.mean, 0.0),
            given(known.deviation, 1.0),
        )

    # Raw records

    def standardise(self, X: NDArray[Any]) -> FloatArray:
        """(clamp((x - c)/s) - m)/r; a value that is missing or has no spread is 0, its mean."""
        with np.errstate(all="ignore"):
            rows = numbers(X)
            Z = np.clip((rows - self.center) / self.scale, -self.clamp, self.clamp)
            U = (Z - self.mean) / self.deviation
        usable = np.isfinite(rows) & np.isfinite(U) & (self.deviation > 0)
        return np.where(usable, U, 0.0)

    def transform_array(self, X: NDArray[Any]) -> FloatArray:
        """Scores of the rows of an n x d array: n x k."""
        return np.asarray(self.standardise(X) @ self.W)

    def transform_one(self, x: Mapping[Any, Any]) -> dict[int, float]:
        """Scores of one record; {} if nothing has been learned."""
        return dict(enumerate(self.transform_array(self._row(x))[0].tolist()))

    def inverse_transform(self, scores: NDArray[Any]) -> FloatArray:
        """The raw records that have these scores and lie in the subspace: n x d."""
        U = np.asarray(scores, dtype=np.float64) @ self.W.T
        return np.asarray(self.center + self.scale * (self.mean + self.deviation * U))

    def reconstruction_error(self, X: NDArray[Any]) -> FloatArray:
        """Distance of each row to the subspace, in standard deviations."""
        U = self.standardise(X)
        return np.asarray(np.linalg.norm(U - (U @ self.W) @ self.W.T, axis=1))

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """`reconstruction_error` of one record: higher is stranger; 0 if nothing is known."""
        return float(self.reconstruction_error(self._row(x))[0]) if self.W.shape[1] else 0.0

    # In raw units

    def raw_directions(self) -> FloatArray:
        """k x d: changes of raw features along each component, s r W."""
        return np.asarray((self.W * (self.scale * self.deviation)[:, np.newaxis]).T)

    def raw_weights(self) -> FloatArray:
        """k x d: weights of raw features in each score, W/(s r), as long as nothing is clamped."""
        r = self.scale * self.deviation
        return np.asarray((self.W * np.where(r > 0, 1 / np.where(r > 0, r, 1.0), 0.0)[:, None]).T)

    def _row(self, x: Mapping[Any, Any]) -> FloatArray:
        return np.array([[number(x.get(name)) for name in self.features]])

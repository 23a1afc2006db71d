"""Scores of raw records from a release alone: numpy and one formula.

    score = W^T ((clamp((x - c)/s) - m)/r)

c and s are the centre and scale of each feature, found in the warm-up (s may grow later). The clamp
is part of the model: sparse features have values that are thousands of scales away. m and r are
mean and standard deviation of the clamped values, learned from every batch. With known centre and
scales, c and m are 0, r is 1 and nothing is clamped.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import FloatArray
from .values import number, numbers

__all__ = ["Projector"]


@dataclass(frozen=True, eq=False)
class Projector:
    """Projects raw records with the numbers of a release.

    Examples
    --------
    >>> release = b'''{"features": ["cpu", "memory"], "components": [[0.6, 0.8]],
    ...     "center": [50.0, 1e9], "scale": [10.0, 1e8], "clamp": [5.0, 5.0],
    ...     "mean": [0.0, 0.0], "deviation": [1.0, 1.0]}'''
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
    def from_release(cls, release: bytes | str | Mapping[str, Any]) -> Projector:
        """Make a projector from the JSON of a release, of the estimator or of the service.

        The estimator's is `release.model_dump_json()`. A release of an earlier version has neither
        centre nor clamp: its components were made for centred records.
        """
        fields: Any = json.loads(release) if isinstance(release, bytes | str) else release
        try:
            components = fields["components"]
            named = bool(components) and isinstance(components[0], Mapping)
            features = tuple(fields.get("features") or range(_width(components, named)))
            rows = [_loadings(c, features, named) for c in components]
            W = np.array(rows, dtype=np.float64).reshape(len(rows), len(features)).T

            def field(name: str, default: float) -> FloatArray:
                value = fields.get(name)
                found = np.full(len(features), default)
                if isinstance(value, Mapping):  # by name, as the service publishes it
                    value = [value.get(str(name)) for name in features]
                if value is not None:
                    numbers = [default if number is None else number for number in value]
                    found = np.array(numbers, dtype=np.float64)
                if found.shape != (len(features),):
                    raise ValueError(name)
                return found

            return cls(
                features,
                np.ascontiguousarray(W),
                field("center", 0.0),
                field("scale", 1.0),
                field("clamp", np.inf),
                field("mean", 0.0),
                field("deviation", 1.0),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"`release` is not a release: {type(error).__name__}") from None

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


def _width(components: Any, named: bool) -> int:
    return len(components[0]["loadings"] if named else components[0]) if components else 0


def _loadings(component: Any, features: tuple[Hashable, ...], named: bool) -> list[float]:
    if not named:
        return list(component)
    loadings = component["loadings"]
    return [loadings[str(name)] for name in features]

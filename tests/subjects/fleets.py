"""Small fleets and models that the tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dppca import DPPCA, PerSubject
from stream_dppca.batch import Reading
from stream_dppca.subjects import SubjectRows, SubjectTable

FloatArray = NDArray[np.float64]


def table(d: int, size: int, records: int = 3, own: bool = False, **reading: Any) -> SubjectTable:
    how = Reading(**{"max_norm": 1e18} | reading)
    return SubjectTable(tuple(range(d)), PerSubject("id", places=size, records=records), how, own)


def round_of(X: FloatArray, ids: Any, size: int, **how: Any) -> SubjectRows:
    """A round in which these rows came, in this order."""
    filled = table(X.shape[1], size, **how)
    filled.put_rows(X, ids)
    return filled.close()


def fleet(
    rng: np.random.Generator, subjects: int, d: int, mean: float = 4.0, second: float = 0.1
) -> tuple[FloatArray, NDArray[np.int64], FloatArray]:
    """Rows of a spiked covariance, their subjects in the order of arrival, and the direction."""
    v = rng.standard_normal(d)
    v /= np.linalg.norm(v)
    activity = 1 + rng.geometric(1 / mean, subjects)
    ids = rng.permutation(np.repeat(np.arange(subjects), activity))
    X = rng.standard_normal((len(ids), d)) * np.sqrt(second)
    X += np.outer(rng.standard_normal(len(ids)) * np.sqrt(1 - second), v)
    return X, ids, v


#: Fields of `PerSubject`; other settings are those of `DPPCA`.
OF_SUBJECTS = ("subject", "period", "horizon", "records")


def model(d: int, places: int, **settings: Any) -> DPPCA:
    how: dict[str, Any] = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "center": "none",
        "scales": None,
        "unit": per_subject(places, **settings),
        "seed": 1,
    }
    rest = {name: value for name, value in settings.items() if name not in OF_SUBJECTS}
    return DPPCA(features=tuple(range(d)), **how | rest)


def per_subject(places: int, **settings: Any) -> PerSubject:
    named = {name: value for name, value in settings.items() if name in OF_SUBJECTS}
    return PerSubject(**{"subject": "id", "places": places} | named)

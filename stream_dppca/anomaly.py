"""Anomaly scores of a private PCA, through river's own interface."""

from __future__ import annotations

import math
from typing import Any

from river import base

from .estimator import DPPCA


class SubspaceDistance(base.AnomalyDetector):
    """Scores a record by its squared distance from the components that a `DPPCA` has learned.

    The score is `DPPCA.spe`: large for combinations of values that do not occur otherwise. It is a
    function of the scored record and of releases, so it is as private as the releases for the
    records that were learned; the scored record is not protected from anybody who sees its score.

    Filters of river must have `protect_anomaly_detector=False`. If a filter keeps a record from the
    detector because of its score, that record decides which slots all later ones take, and the
    guarantee is broken. `ThresholdFilter` then learns nothing: pass records to `pca.learn_one`.

    Parameters
    ----------
    pca
        The estimator. `learn_one` passes records to it.

    Examples
    --------
    >>> from stream_dppca import DPPCA, SubspaceDistance
    >>> pca = DPPCA(features=("a", "b"), epsilon=1.0, delta=1e-6, batch_size=1000)
    >>> SubspaceDistance(pca).score_one({"a": 1.0, "b": 2.0})  # nothing is known yet
    0.0
    """

    def __init__(self, pca: DPPCA) -> None:
        self.pca = pca

    def learn_one(self, x: dict[Any, Any]) -> None:
        """Take one record."""
        self.pca.learn_one(x)

    def score_one(self, x: dict[Any, Any]) -> float:
        """Return the anomaly score: higher is stranger; 0 if there is none, as river expects."""
        score = float(self._score(x))
        return 0.0 if math.isnan(score) else score

    def _score(self, x: dict[Any, Any]) -> Any:
        return self.pca.spe(x)

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {"pca": DPPCA(**next(DPPCA._unit_test_params()))}


class SubspaceT2(SubspaceDistance):
    """Scores a record by its squared distance along the components that a `DPPCA` has learned.

    The score is `DPPCA.t2`: large for unusual amounts of the usual variation. Otherwise it is like
    `SubspaceDistance`.

    Parameters
    ----------
    pca
        The estimator. `learn_one` passes records to it.
    """

    def _score(self, x: dict[Any, Any]) -> Any:
        return self.pca.t2(x)

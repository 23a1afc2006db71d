"""Scores of raw records from a release alone: numpy and one formula.

    u = (grown((x - c)/s) - m)/r,  scores W^T u

c and s are the centre and scale of each feature, found in the first step (s may grow later). m and
r are mean and standard deviation of the clamped values, learned from every batch. Within the clamp
`grown` changes nothing, beyond it there is the logarithm (`scores`). With features in one unit
nothing is clamped, and r turns z back into raw units.

**Scores are not private.** They are about the record that is scored; the guarantee covers the model
behind them, for the records that the model has learned from.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from . import scores
from .arrays import FloatArray
from .checks import one_of
from .errors import ParameterError
from .frames import frame_like, is_frame, raw_column, rows_of
from .paths import RecordReader
from .release import RATES, Limit, Release, Score
from .values import numbers

By = Literal["spe", "t2", "either"]


@dataclass(frozen=True, eq=False)
class Projector:
    """Scores raw records with the numbers of a release.

    Everywhere `X` is one record, a dict, or many: a list of dicts, a frame (pandas, polars,
    pyarrow) or an n x d array. Nested dicts are read, too: the feature `disk.free` is the member
    `free` of `disk`, unless there is a key `disk.free`. One record gives one result, many give an
    array with a place for each; where there is a column per component or feature, a frame gives a
    frame.

    A feature that is missing, or not a number, is taken to be what the components make of the
    others. A record that has fewer than half of the features with spread has no scores: they are
    NaN, as they all are as long as nothing has been learned. Anything else raises a
    `ParameterError`.

    Examples
    --------
    >>> release = b'''{"version": 1, "status": "learned", "batch": 9,
    ...     "features": ["cpu", "memory"], "components": [[0.6, 0.8]], "spread": [1.5],
    ...     "center": [50.0, 1e9], "scale": [10.0, 1e8], "clamp": [5.0, 5.0],
    ...     "mean": [0.0, 0.0], "deviation": [1.0, 1.0], "limits": {"spe": [{"rate": 0.01,
    ...     "value": 2.0, "sd": 0.1}]}, "privacy": {"unit": "record",
    ...     "epsilon": 1.0, "delta": 1e-6, "method": "adaptive", "private": true}}'''
    >>> projector = Projector.from_release(release)
    >>> projector.transform(np.array([[60.0, 1e9]])).round(12).tolist()
    [[0.6]]
    >>> record = {"cpu": 90.0, "memory": 1e9}
    >>> projector.transform(record), round(projector.spe(record), 2), projector.is_anomaly(record)
    ({0: 2.4}, 10.24, True)
    >>> {name: round(by, 2) for name, by in projector.contributions(record).items()}
    {'cpu': 6.55, 'memory': -3.69}
    >>> projector.spe({"something": "else"}), projector.is_anomaly({"something": "else"})
    (nan, None)
    """

    features: tuple[Hashable, ...]
    W: FloatArray  #: d x k, orthonormal columns; k = 0 if nothing has been learned
    center: FloatArray  #: c
    scale: FloatArray  #: s
    clamp: FloatArray  #: infinite where nothing is clamped
    mean: FloatArray  #: m
    deviation: FloatArray  #: r; 0 for features without spread, which are left out
    #: Variance along each component; NaN if it is not known.
    variance: FloatArray = field(default_factory=lambda: np.array(np.nan))
    limits: Mapping[Score, Sequence[Limit]] = field(default_factory=dict)
    rest: float = 0.0  #: variance of a feature with spread that no component explains

    @classmethod
    def plain(
        cls, features: Sequence[Hashable], W: FloatArray, scale: FloatArray | None
    ) -> Projector:
        """Make a projector for records that are centred at 0 and divided by known scales."""
        return cls(tuple(features), W, **_numbers(len(features), {"scale": scale}))

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
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise ValueError(f"`release` is not a release: {where}{first['msg']}") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"`release` is not a release: {error}") from None
        W = np.array(known.components, dtype=np.float64).reshape(-1, len(known.features)).T
        known_numbers = _numbers(len(known.features), vars(known))
        variance = np.array(np.nan if known.spread is None else known.spread, dtype=np.float64)
        return cls(
            known.features,
            np.ascontiguousarray(W),
            **known_numbers,
            variance=variance,
            limits=known.limits,
            rest=_unexplained(known, int(np.count_nonzero(known_numbers["deviation"] > 0))),
        )

    # Scores

    def standardise(self, X: Any) -> FloatArray:
        """u of each record, n x d, of which all scores are functions (`stream_dppca.scores`).

        A value that is missing is what the components make of the others, one without spread is 0;
        all of a record that has too few values is NaN.
        """
        rows = self._rows(X)
        there = np.isfinite(rows)
        with np.errstate(all="ignore"):
            z = np.where(there, (rows - self.center) / self.scale, np.nan)
        U = scores.standardised(z, self.clamp, self.mean, self.deviation)
        there |= ~(self.deviation > 0)
        if not there.all():
            U = scores.filled(U, there, self.W, self.variance, self.rest)
        U[self._n_read(rows) < self.least_read] = np.nan
        return U

    @cached_property
    def least_read(self) -> float:
        """Features with spread that a record must have to be scored."""
        n = int(np.count_nonzero(self.deviation > 0))
        return max(1, scores.READABLE * n) if self.W.shape[1] else math.inf

    @cached_property
    def judged(self) -> tuple[Score, ...]:
        """The scores of this model: SPE if something is left over, T2 if variances are known."""
        left = self.W.shape[1] < np.count_nonzero(self.deviation > 0)
        has: dict[Score, bool] = {"spe": bool(left), "t2": bool((self.variance > 0).any())}
        return tuple(name for name in has if has[name])

    def transform(self, X: Any) -> Any:
        """Scores along the components: {0: ..., 1: ...} of one record, n x k of many."""
        return self._columns(X, self.standardise(X) @ self.W, range(self.W.shape[1]))

    def spe(self, X: Any) -> Any:
        """Squared prediction error: the squared distance from the components.

        It is in variances of the features, and NaN if there are as many components as features with
        spread: nothing is left over then.
        """
        return self._each(X, self._score("spe", self.standardise(X)))

    def t2(self, X: Any) -> Any:
        """Hotelling's T2: the squared distance along the components, in variances along each."""
        return self._each(X, self._score("t2", self.standardise(X)))

    def _score(self, name: Score, U: FloatArray) -> FloatArray:
        """A score of standardised records; NaN if this model does not have it."""
        if name not in self.judged:
            return np.full(len(U), np.nan)
        return scores.spe(U, self.W) if name == "spe" else scores.t2(U, self.W, self.variance)

    def n_read(self, X: Any) -> Any:
        """Number of features that a record has, of those with spread."""
        return self._each(X, self._n_read(self._rows(X)))

    def contributions(self, X: Any, to: Score = "spe") -> Any:
        """What each feature adds to a score, with the sign of its deviation: negative if too low.

        The absolute values add up to the score. (They are complete decomposition contributions:
        Alcala and Qin, 2009.) For one record they are a dict, the largest first.
        """
        one_of("to", to, get_args(Score))
        U = self.standardise(X)
        part = scores.residual(U, self.W) if to == "spe" else scores.along(U, self.W, self.variance)
        found = self._columns(X, part * np.abs(part), self.features)
        if isinstance(X, Mapping):
            found = dict(sorted(found.items(), key=lambda item: -abs(item[1])))
        return found

    def is_anomaly(self, X: Any, rate: float = 0.01, by: By = "either") -> Any:
        """Tell whether a score exceeds its limit, the score that this share of the records exceeds.

        Parameters
        ----------
        X
            One record or many.
        rate
            Share of the records that exceed the limit: .1, .05, .01 or .001.
        by
            The score. With `"either"`, one of both is enough, so up to twice that share of ordinary
            records exceeds it.

        Returns
        -------
        bool or None
            None if it cannot be told: a score or its limit is missing, and no other score is beyond
            its limit. For many records it is a masked array, whose mask says where it is None.
        """
        one_of("by", by, get_args(By))
        if rate not in RATES:
            raise ParameterError("rate", f"must be one of {', '.join(map(str, RATES))}", rate)
        U = self.standardise(X)
        beyond, unknown = np.zeros((2, len(U)), dtype=bool)
        for name in self.judged if by == "either" else (by,):
            limits = (limit.value for limit in self.limits.get(name, ()) if limit.rate == rate)
            over = self._score(name, U) / next(limits, math.nan)
            beyond |= over > 1
            unknown |= np.isnan(over)
        found = np.ma.MaskedArray(beyond, mask=unknown & ~beyond)
        return found.tolist()[0] if isinstance(X, Mapping) else found

    def inverse_transform(self, scores: NDArray[Any]) -> FloatArray:
        """The raw records that have these scores and lie in the subspace: n x d."""
        U = np.asarray(scores, dtype=np.float64) @ self.W.T
        return np.asarray(self.center + self.scale * (self.mean + self.deviation * U))

    def to_onnx(self) -> bytes:
        """Return a model for any runtime of ONNX, with `pip install "stream-dppca[onnx]"`.

        Its input `X` has rows of doubles, n x d; its outputs are `scores` (n x k), `spe` and `t2`,
        NaN for a row that lacks a feature with spread. Names of features and limits are in its
        metadata, as JSON.
        """
        from .onnx import graph_of

        return graph_of(self)

    # Records

    def _rows(self, X: Any) -> FloatArray:
        """Records as an n x d array; NaN where there is no number."""
        d = len(self.features)
        if isinstance(X, Mapping):
            return np.array([self._row(X)])
        if isinstance(X, list) and X and all(isinstance(x, Mapping) for x in X):
            return np.array([self._row(x) for x in X])
        if not isinstance(X, np.ndarray) and is_frame(X):
            rows = rows_of(X, self.features)
            self._warn_of_text(X, rows)
            return rows
        try:
            rows = numbers(X)
        except (TypeError, ValueError):
            rows = np.empty(0)
        if rows.ndim != 2 or rows.shape[1] != d:
            found = rows.shape if isinstance(X, np.ndarray) else type(X).__name__
            raise ParameterError("X", f"must be a dict, a frame or of shape (n, {d})", found)
        return rows

    def _warn_of_text(self, frame: Any, rows: FloatArray) -> None:
        """Warn of columns that hold text and no number, as a CSV does where one cell is text."""
        for name, column in zip(self.features, rows.T, strict=True):
            cells = raw_column(frame, name) if np.isnan(column).all() else None
            if cells is not None and any(isinstance(cell, str) for cell in cells):
                rule = f"column {name!r} holds text and no number, so it is missing in every row"
                warnings.warn(f"{rule}: read numbers (`pandas.to_numeric`)", stacklevel=2)

    @cached_property
    def _row(self) -> RecordReader:
        return RecordReader(self.features)

    def _n_read(self, rows: FloatArray) -> NDArray[np.intp]:
        return np.asarray((np.isfinite(rows) & (self.deviation > 0)).sum(axis=1))

    @staticmethod
    def _each(X: Any, found: NDArray[Any]) -> Any:
        """One number per record: that of the only one, or all of them."""
        return found[0].item() if isinstance(X, Mapping) else found

    @staticmethod
    def _columns(X: Any, found: FloatArray, names: Sequence[Hashable]) -> Any:
        """Several numbers per record, in the form of the records."""
        if isinstance(X, Mapping):
            return dict(zip(names, found[0].tolist(), strict=True))
        frame = not isinstance(X, np.ndarray) and is_frame(X)
        return frame_like(X, found, names) if frame else found


def _unexplained(known: Release, seen: int) -> float:
    """Variance of each of the features with spread that no component of a release explains."""
    along, share = sum(known.spread or ()), sum(known.explained_variance_ratio or ())
    # Without a clamp features are in one unit; otherwise the variance of each is 1.
    total = seen if known.clamp is not None else along / share if share > 0 else 0.0
    return max(total - along, 0.0) / max(seen - len(known.components), 1)


def _numbers(d: int, known: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of d features; those that are not known change nothing."""
    unknown = {"center": 0.0, "scale": 1.0, "clamp": np.inf, "mean": 0.0, "deviation": 1.0}
    given = {name: known.get(name) for name in unknown}
    return {
        name: np.full(d, unknown[name]) if values is None else np.array(values, dtype=np.float64)
        for name, values in given.items()
    }

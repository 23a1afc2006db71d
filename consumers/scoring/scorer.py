"""Scores of single records with the current release of a model.

**A score is not private.** It is about one record: whoever sees the score learns about that record.
The guarantee covers only the model behind the score, for the records that the model has learned
from. So a topic of scores is as secret as the topic of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from stream_dppca import Projector
from stream_dppca.scores import along, residual

from ..model.releases import PublishedRelease, parse_release

NOT_PRIVATE: Final = (
    "scores are NOT PRIVATE: each is about one record, so the topic of scores, and the page and "
    "metrics of this command, are as secret as the input topic; only the model that they are "
    "computed with is private"
)


class ScoredRow(msgspec.Struct, frozen=True, gc=False):
    """The scores of a row, as they are published."""

    model: str
    batch: int  #: of the release
    #: Of the record; with `subject` there are many.
    partition: int | UnsetType
    offset: int | UnsetType
    row: int  #: in its message, or of its subject in the round; 0 unless there are several
    n_read: int  #: features that the row has, of those with spread
    scores: Sequence[float] | None  #: along the components; None if too little could be read
    spe: float | None  #: squared distance to the components: a strange combination
    t2: float | None  #: squared distance along them, in standard deviations: strange amounts
    rate: float  #: share of the records that a limit flags
    anomaly: bool | None  #: beyond a limit; None if it is not, and a score or a limit is missing
    #: The features that add most to the score that is further beyond its limit, with signs.
    contributions: Sequence[tuple[str, float]]
    by: str | None = None  #: that score, "spe" or "t2"; None if too little could be read
    subject: str | UnsetType = UNSET
    round: str | UnsetType = UNSET  #: its beginning
    private: bool = False
    version: int = 1


class RowsToScore(NamedTuple):
    """Rows to score."""

    values: NDArray[np.float64]
    #: For each row: partition, offset (both unset for a subject), number of the row, and subject.
    origins: Sequence[tuple[int | UnsetType, int | UnsetType, int, str | UnsetType]]
    keys: Sequence[bytes | None]
    round: str | UnsetType = UNSET


class CurrentModel:
    """Follows the releases of a model."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.release: PublishedRelease | None = None  #: the newest one that has components

    def see(self, values: Iterable[bytes | None]) -> None:
        """Look at messages of the output topic, in order."""
        for value in values:
            try:
                release = parse_release(value or b"")
            except ValueError:  # not a release, or nothing
                continue
            if release.model == self._model and release.components:
                self.release = release


class Scorer:
    """Scores rows with one release, exactly as `Projector.from_release` does.

    Parameters
    ----------
    rate
        Share of the records that should be flagged, one that the release may have a limit for.
    top
        Number of contributions that are named.
    """

    def __init__(self, release: PublishedRelease, rate: float = 0.01, top: int = 3) -> None:
        self.release, self._rate, self._top = release, rate, min(top, len(release.features))
        self._projector = Projector.from_release(release)
        #: Limits at the rate, by score.
        self.limits = {
            name: limit.value
            for name, limits in release.limits.items()
            for limit in limits
            if limit.rate == rate
        }
        judged = self._projector.judged
        #: Scores without a limit at the rate.
        self.unlimited = tuple(name for name in judged if name not in self.limits)
        self._names = np.array(release.features, dtype=object)
        # NaN for a score that this model does not have, and for a limit that is not known.
        self._no = [0.0 if name in judged else np.nan for name in ("spe", "t2")]
        self._limits = [self.limits.get(name, np.nan) for name in ("spe", "t2")]
        self._encode = msgspec.json.Encoder().encode

    def messages(
        self, rows: RowsToScore, scores: Sequence[ScoredRow]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The key and the message of each score."""
        encode = self._encode
        for key, score in zip(rows.keys, scores, strict=True):
            yield key or f"{score.partition}/{score.offset}".encode(), encode(score)

    def scores(self, rows: RowsToScore) -> list[ScoredRow]:
        """Scores of rows, in their order."""
        p, X, release, rate = self._projector, rows.values, self.release, self._rate
        U = p.standardise(X)  # once: this takes most of the time
        parts = residual(U, p.W), along(U, p.W, p.variance)
        spe, t2 = (np.sum(part**2, axis=1) + no for part, no in zip(parts, self._no, strict=True))
        over = [score / limit for score, limit in zip((spe, t2), self._limits, strict=True)]
        most = np.fmax(*over)
        no = None if self.unlimited else False
        # The score that is further beyond its limit says which features.
        by = np.where(over[1] == most, "t2", "spe")
        part = np.where((by == "t2")[:, None], parts[1], parts[0])
        largest: NDArray[np.intp] = np.argsort(-np.abs(part), axis=1)[:, : self._top]
        sizes = np.take_along_axis(part, largest, axis=1)
        columns = (
            rows.origins,
            p.n_read(X).tolist(),
            _listed(U @ p.W),
            _listed(spe),
            _listed(t2),
            [True if one > 1 else None if one != one else no for one in most.tolist()],
            np.take(self._names, largest).tolist(),
            _listed(sizes * np.abs(sizes)),
            by.tolist(),
        )
        model, batch = release.model, release.batch
        found = []
        for place, n, t, q, h, flag, names, adds, of in zip(*columns, strict=True):
            partition, offset, row, subject = place
            place, numbers = (model, batch, partition, offset, row), (n, t, q, h)
            top, of = ((), None) if t is None else (list(zip(names, adds, strict=True)), of)
            found.append(ScoredRow(*place, *numbers, rate, flag, top, of, subject, rows.round))
        return found


def _listed(values: NDArray[np.float64]) -> list[Any]:
    """Numbers as they are written; None for a row that has none."""
    values = values.round(6)
    missing = np.isnan(values) if values.ndim == 1 else np.isnan(values).any(axis=1)
    found: list[Any] = values.tolist()
    for i in np.flatnonzero(missing).tolist():
        found[i] = None
    return found

"""Scores of single records with the current release of a model.

**A score is not private.** It is about one record: whoever sees the score learns about that record.
The guarantee covers only the model behind the score, for the records that the model has learned
from. So a topic of scores is as secret as the topic of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_dppca import Projector
from stream_dppca.scores import spe

from .releases import PublishedRelease, parse_release

NOT_PRIVATE: Final = (
    "scores are NOT PRIVATE: each is about one record, so the topic of scores is as secret as the "
    "input topic; only the model that they are computed with is private"
)


class Score(msgspec.Struct, frozen=True):
    """The output for each record."""

    model: str
    batch: int  #: of the release
    partition: int  #: of the record
    offset: int  #: of its message
    row: int  #: in its message; 0 unless messages hold several
    scores: tuple[float, ...] | None  #: along the components; None if the record is not readable
    anomaly: float | None  #: squared distance from the components: larger is stranger
    private: bool = False
    version: int = 1


class CurrentModel:
    """Follows the releases of a model."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.release: PublishedRelease | None = None  #: the newest one that has components

    def see(self, values: Iterable[bytes | None]) -> bool:
        """Look at messages of the output topic, in order. True if another release is current."""
        before = self.release
        for value in values:
            try:
                release = parse_release(value or b"")
            except ValueError:  # not a release, or nothing
                continue
            if release.model == self._model and release.components:
                self.release = release
        return self.release != before


class Scorer:
    """Scores rows with one release, exactly as `Projector.from_release` does."""

    def __init__(self, release: PublishedRelease) -> None:
        self.release = release
        self._projector = Projector.from_release(release)

    def scores(
        self, rows: NDArray[np.float64], places: Sequence[tuple[int, int]], per_message: int
    ) -> Iterator[Score]:
        """Scores of rows, `per_message` for each of the places (partition, offset)."""
        U, W = self._projector.standardise(rows), self._projector.W
        readable = np.asarray(~np.isnan(U).any(axis=1)).tolist()
        along, away = (U @ W).tolist(), spe(U, W).tolist()
        release = self.release
        for i, (known, scores, anomaly) in enumerate(zip(readable, along, away, strict=True)):
            message, row = divmod(i, per_message)
            partition, offset = places[message]
            yield Score(
                release.model, release.batch, partition, offset, row,
                tuple(scores) if known else None, anomaly if known else None,
            )  # fmt: skip

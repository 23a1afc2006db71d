"""Keeps the releases of a model for a page: the current one whole, earlier ones in brief.

All of it comes from the output topic, and is as public as that topic. Loadings of earlier releases
are kept to one part in 127 of the largest one, which is all that a colour can show: a heat map of
1000 features over 240 releases takes 240 kB.
"""

from __future__ import annotations

import base64
import datetime
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from stream_dppca.arrays import FloatArray

from ..model.describe import extent, meaning, promise_in_words, raw_units, status_in_words
from ..model.releases import PublishedRelease, parse_release
from ..model.uncertainty import loading_noise, movement, noise_movement
from ..protocols import Message

#: Releases that are remembered.
MOST_POINTS: Final = 240
#: Share of the records beyond the limit whose history is remembered.
SHOWN_RATE: Final = 0.01
#: Loadings that are remembered: fewer releases of very large models.
MOST_CELLS: Final = 2_000_000


class ReleasePoint(msgspec.Struct, frozen=True):
    """An earlier release in brief."""

    batch: int
    time: int | None  #: seconds since 1970
    status: str
    drift: bool
    moved: float | None = None  #: main component since the release before, in degrees
    floor: float | None = None  #: movement that noise alone would cause, approximately
    ratios: tuple[float, ...] = ()  #: share of the variance along each component, if known
    ratio_sds: tuple[float, ...] = ()
    peaks: tuple[float, ...] = ()  #: largest loading of each component
    limits: dict[str, float] = {}  #: score that 1 % of the records exceed, if known
    cells: tuple[str, ...] = ()  #: loadings over the peak, times 127, as base64 of int8


class History(msgspec.Struct, frozen=True):
    """All that is known of a model, or the news since a count."""

    life: int  #: if it changes, everything before is to be forgotten
    current: dict[str, Any] | None  #: of `_current`
    points: list[ReleasePoint]


class Tracker:
    """Collects the releases of one model; safe to use from any thread.

    Parameters
    ----------
    on_release
        Is called with each new release, before anybody else sees it.
    """

    def __init__(
        self, model: str, on_release: Callable[[PublishedRelease], None] | None = None
    ) -> None:
        self.model = model
        self._on_release = on_release
        self._changed = threading.Condition()
        self._count = 0  # points so far
        self._life = 0
        self.release: PublishedRelease | None = None  #: the current one
        self._time: int | None = None
        self._current: dict[str, Any] | None = None  # the view of the release; made on demand
        self._points: deque[tuple[int, ReleasePoint]] = deque(maxlen=MOST_POINTS)

    def add(self, message: Message) -> bool:
        """Add a message of the output topic; return True if it is a new release."""
        try:
            release = parse_release(message.value)
        except ValueError:
            return False
        if release.model != self.model:
            return False
        with self._changed:
            time, known = _time(message), self.release
            if known is not None and release.batch <= known.batch:
                if release.batch == known.batch or (time or 0) <= (self._time or 0):
                    return False  # published again
                known = None  # a lower number that was made later: the model was reset
            self._take(release, known, time)
            if self._on_release is not None:
                self._on_release(release)
            self._changed.notify_all()
            return True

    def _take(
        self, release: PublishedRelease, known: PublishedRelease | None, time: int | None
    ) -> None:
        """Add a release that follows a known one; None if a model or a life begins."""
        rows = [np.array(row) for row in release.components]
        same = known is not None and known.features == release.features
        cells = [_cells(row) for row in rows]
        point = ReleasePoint(
            batch=release.batch,
            time=time,
            status=release.status,
            drift=release.drift,
            moved=None if known is None else movement(known, release),
            floor=noise_movement(release),
            ratios=release.explained_variance_ratio or (),
            ratio_sds=release.explained_variance_ratio_sd or (),
            peaks=tuple(peak for peak, _ in cells),
            limits={
                score: limit.value
                for score, limits in release.limits.items()
                for limit in limits
                if limit.rate == SHOWN_RATE
            },
            cells=tuple(text for _, text in cells),
        )
        if self._points and not same:
            self._points.clear()
            self._life += 1
        self._count += 1
        self._points.append((self._count, point))
        size = max(len(rows) * len(release.features), 1)
        while len(self._points) > max(MOST_CELLS // size, 20):
            self._points.popleft()
        self.release, self._time, self._current = release, time, None

    def history(self, after: int = 0) -> tuple[int, History]:
        """The history since a count, and the current count."""
        with self._changed:
            points = [p for count, p in self._points if count > after]
            if self._current is None and self.release is not None:
                self._current = _current(self.release, self._time)
            return self._count, History(self._life, self._current, points)

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the count is above `after`, or until time is up; return the current count."""
        with self._changed:
            self._changed.wait_for(lambda: self._count > after, timeout_s)
            return self._count


def _current(release: PublishedRelease, time: int | None) -> dict[str, Any]:
    """The current release as the page shows it; numbers are in the order of the features."""
    return {
        **release.model_dump(
            include={"model", "batch", "status", "drift", "first_batches", "features"}
        ),
        "time": time,
        "extent": extent(release),
        "words": status_in_words(release),  # empty if all is well
        "meaning": meaning(release),
        "promise": promise_in_words(release.privacy),
        "private": release.privacy.private,
        "components": list(_components(release)),
        "eigenvalues": list(zip(release.eigenvalues, release.eigenvalues_sd, strict=True)),
        "limits": {
            score: [(limit.rate, limit.value, limit.sd) for limit in limits]
            for score, limits in release.limits.items()
        },
    }


def _components(release: PublishedRelease) -> Iterator[dict[str, Any]]:
    noise = loading_noise(release)
    ratios, sds = release.explained_variance_ratio, release.explained_variance_ratio_sd
    for j, row in enumerate(release.components):
        change, around = zip(*raw, strict=True) if (raw := raw_units(release, j)) else (None, None)
        yield {
            "loadings": _short(row),
            "noise": None if noise is None else _short(noise[j]),  # standard deviations
            "change": change and _short(change),  # typical change of each raw feature
            "around": around and _short(around),  # mean of each raw feature
            "ratio": ratios[j] if ratios else None,
            "ratio_sd": sds[j] if sds else None,
        }


def _short(values: Iterable[float]) -> list[float]:
    """Numbers with five significant digits: enough for a display, a third of the size."""
    return [float(f"{value:.5g}") for value in values]


def _cells(row: FloatArray) -> tuple[float, str]:
    peak = float(np.abs(row).max(initial=0.0))
    scaled = np.rint(row * (127 / peak)) if peak else row
    return float(f"{peak:.5g}"), base64.b64encode(scaled.astype(np.int8).tobytes()).decode()


def _time(message: Message) -> int | None:
    """Time of a release, in seconds since 1970, from its CloudEvents header."""
    text = dict(message.headers).get("ce_time", b"")
    try:
        return int(datetime.datetime.fromisoformat(text.decode()).timestamp())
    except ValueError:
        return None

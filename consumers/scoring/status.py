"""What a process that scores shows to whoever may see records. **Not private.**"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..model.releases import PublishedRelease
from ..monitoring.metrics import Registered
from .scorer import ScoredRow

#: Records that are looked back on, about.
WINDOW: Final = 10_000
#: Least number of them of one key for an alarm, and of all keys for the share beyond a limit.
LEAST_OF_KEY: Final = 5
LEAST_COMPARED: Final = 1000
#: Share of the records of a key beyond a limit that raises an alarm.
SHARE: Final = 0.5
#: Alarms that are shown.
MOST: Final = 5


class Alarms:
    """Notes which keys send records beyond a limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._old, self._new = _Window(), _Window()

    def see(self, keys: Sequence[bytes | None], scores: Sequence[ScoredRow]) -> None:
        """Take the scores of records with these keys."""
        with self._lock:
            self._new.see(keys, scores)
            if self._new.seen.total() >= WINDOW:
                self._old, self._new = self._new, _Window()

    def shown(self, most: int | None = MOST) -> list[dict[str, Any]]:
        """The keys most of whose records are beyond a limit, and why: means over these records."""
        with self._lock:
            seen, beyond = self._old.seen + self._new.seen, self._old.beyond + self._new.beyond
            by = {key: self._old.by[key] + self._new.by[key] for key in beyond}
        return [
            {
                "key": key.decode(errors="replace"),
                "beyond": count,
                "seen": seen[key],
                "contributions": sorted(
                    ((name, size / count) for name, size in by[key].items()),
                    key=lambda named: -abs(named[1]),
                )[:3],
            }
            for key, count in beyond.most_common()
            if seen[key] >= LEAST_OF_KEY and count >= SHARE * seen[key]
        ][:most]


class _Sums(dict[str, float]):
    def __add__(self, other: Mapping[str, float]) -> _Sums:
        return _Sums(
            {name: self.get(name, 0.0) + other.get(name, 0.0) for name in {**self, **other}}
        )


class _Window:
    """What some records said."""

    def __init__(self) -> None:
        self.seen: Counter[bytes] = Counter()
        self.beyond: Counter[bytes] = Counter()
        self.by: dict[bytes, _Sums] = defaultdict(_Sums)  # contributions of those beyond

    def see(self, keys: Sequence[bytes | None], scores: Sequence[ScoredRow]) -> None:
        self.seen.update(filter(None, keys))
        for key, score in zip(keys, scores, strict=True):
            if score.anomaly and key:
                self.beyond[key] += 1
                self.by[key] += dict(score.contributions)


class ScoreStatus(Registered):
    """What a process that scores shows: metrics, probes, and the facts of its page.

    They are about single records, and NOT PRIVATE.

    Parameters
    ----------
    stall_s
        The setting `stall_timeout_s`.
    """

    def __init__(self, stall_s: float = 120.0) -> None:
        super().__init__()
        self._stall_s, self._turned_at = stall_s, time.monotonic()
        self._alarms = Alarms()
        self._release: PublishedRelease | None = None
        self._beyond_share: float | None = None  # of the last records
        self._beyond_rate = 0.0  # share that should be
        self.unlimited = 0  #: records scored without any limit
        self._all = self._counter(
            "dppca_scored_total", "Records scored by this process. Not private."
        )
        self._beyond = self._counter("dppca_beyond_total", "Records beyond a limit. Not private.")
        self._share = self._gauge(
            "dppca_beyond_share",
            "Share of the records of about the last 10,000 that were beyond a limit; NaN before "
            "1,000 could be compared with one. Not private.",
        )
        self._share.set(math.nan)
        self._rate = self._gauge(
            "dppca_beyond_rate",
            "The share that may be beyond a limit: --rate for each score with a limit.",
        )
        self._gauge(
            "dppca_keys_beyond",
            "Keys (machines, devices) with at least half of their records beyond a limit, of about "
            "the last 10,000 records, if a key has 5 or more of them. Not private.",
        ).set_function(lambda: len(self._alarms.shown(None)))
        self._recent = self._recent_beyond = 0.0

    def follow(self, release: PublishedRelease, rate: float) -> None:
        """Note another release, whose limits this share of the records should exceed."""
        self._release, self._beyond_rate = release, rate
        self._rate.set(rate)

    def see(self, keys: Sequence[bytes | None], scores: Sequence[ScoredRow]) -> None:
        """Note the scores of records with these keys."""
        # Without a rate there is no limit; with one limit of two, a record below it is not judged.
        compared = sum(score.scores is not None for score in scores) if self._beyond_rate else 0
        self.scored(len(scores), compared, sum(bool(score.anomaly) for score in scores))
        self._alarms.see(keys, scores)

    def scored(self, count: int, compared: int, beyond: int) -> None:
        """Note scores: all of them, those that a limit is known for, those beyond it."""
        self._all.inc(count)
        self._beyond.inc(beyond)
        self._recent += compared
        self._recent_beyond += beyond
        if self._recent >= LEAST_COMPARED:
            self._beyond_share = self._recent_beyond / self._recent
            self._share.set(self._beyond_share)
        if (fade := WINDOW / max(self._recent, 1)) < 1:
            self._recent, self._recent_beyond = self._recent * fade, self._recent_beyond * fade

    def turned(self) -> None:
        """Note that the loop has turned."""
        self._turned_at = time.monotonic()

    # Pages

    def alive(self) -> bool:
        return time.monotonic() < self._turned_at + self._stall_s

    def ready(self) -> tuple[bool, str]:
        return (True, "scoring") if self._release else (False, "waiting for a model")

    def component(self) -> bytes | None:
        return None if self._release is None else self._release.model_dump_json().encode()

    def facts(self) -> dict[str, Any]:
        """The facts that the page shows."""
        share, rate = self._beyond_share, self._beyond_rate
        return {
            "state": self.ready()[1],
            "note": "NOT PRIVATE: this page shows single records",
            "beyond": {"share": share, "rate": rate, "alarms": self._alarms.shown()},
        }

"""Records beyond a limit, by their keys, for whoever may see records. **Not private.**"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ..model.scores import Score

#: Records that are looked back on, about, and the least of one key for an alarm.
WINDOW: Final = 10_000
LEAST: Final = 5
#: Share of the records of a key beyond a limit that raises an alarm.
SHARE: Final = 0.5
#: Alarms that are shown.
MOST: Final = 5


class Alarms:
    """Notes which keys send records beyond a limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._old, self._new = _Window(), _Window()

    def see(self, keys: Sequence[bytes | None], scores: Sequence[Score]) -> None:
        """Take the scores of records with these keys."""
        with self._lock:
            self._new.see(keys, scores)
            if self._new.seen.total() >= WINDOW:
                self._old, self._new = self._new, _Window()

    def shown(self) -> list[dict[str, Any]]:
        """The keys most of whose records are beyond a limit, and the worst record of each."""
        with self._lock:
            seen, beyond = self._old.seen + self._new.seen, self._old.beyond + self._new.beyond
            worst = {**self._old.worst, **self._new.worst}
        return [
            {
                "key": key.decode(errors="replace"),
                "beyond": count,
                "seen": seen[key],
                "spe": worst[key].spe,
                "t2": worst[key].t2,
                "contributions": worst[key].contributions,
            }
            for key, count in beyond.most_common(MOST)
            if seen[key] >= LEAST and count >= SHARE * seen[key]
        ]


class _Window:
    """What some records said."""

    def __init__(self) -> None:
        self.seen: Counter[bytes] = Counter()
        self.beyond: Counter[bytes] = Counter()
        self.worst: dict[bytes, Score] = {}

    def see(self, keys: Sequence[bytes | None], scores: Sequence[Score]) -> None:
        self.seen.update(filter(None, keys))
        for key, score in zip(keys, scores, strict=True):
            if score.anomaly and key:
                self.beyond[key] += 1
                worst = self.worst.get(key)
                if worst is None or (score.spe or 0.0) > (worst.spe or 0.0):
                    self.worst[key] = score

"""The page of a model: its files, and the stream of events that keeps it up to date.

| event | data |
|---|---|
| `history` | all that is known: the first event, and again if it starts over |
| `release` | the current release, and the releases since the last event |
| `facts` | the time, and facts about the service; every few seconds |

Releases that come close together share an event, so that a quick model does not flood a browser.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, Final

import msgspec

from .follow import Follower
from .tracker import Tracker

#: Files of the page by path, with their types.
FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/uplot.min.js": ("uplot.min.js", "text/javascript; charset=utf-8"),
    "/uplot.min.css": ("uplot.min.css", "text/css; charset=utf-8"),
    "/uplot.LICENSE.txt": ("uplot.LICENSE.txt", "text/plain; charset=utf-8"),
}
#: Least time between two events with releases, and most time between two events with facts.
PAUSE_SECONDS: Final = 0.3
FACTS_SECONDS: Final = 2.0
#: Browsers that may follow the page at the same time: each of them takes a thread.
MOST_READERS: Final = 32

Facts = Callable[[], dict[str, Any]]


class Page:
    """One model's page.

    Parameters
    ----------
    follower, tracker
        The source of releases. Nothing is read before somebody opens the page.
    facts
        Returns facts about the service; nothing if the page is not that of a service.
    """

    def __init__(self, follower: Follower, tracker: Tracker, facts: Facts = dict) -> None:
        self._follower, self._tracker, self._facts = follower, tracker, facts
        self._readers = threading.BoundedSemaphore(MOST_READERS)
        self._closing = threading.Event()

    def file(self, path: str) -> tuple[str, bytes] | None:
        """The type and the content of a file of the page."""
        if path not in FILES:
            return None
        name, kind = FILES[path]
        return kind, files(__package__).joinpath("static", name).read_bytes()

    def begin_reading(self) -> bool:
        """Take one of the places for browsers; False if there is none left."""
        self._follower.start()
        return self._readers.acquire(blocking=False)

    def end_reading(self) -> None:
        self._readers.release()

    def events(self) -> Iterator[bytes]:
        """The events for one browser, without end."""
        yield b"retry: 1000\n\n"
        yield self._facts_event()
        count, known = self._tracker.history()
        yield _event("history", known)
        facts_at = time.monotonic() + FACTS_SECONDS
        while not self._closing.wait(PAUSE_SECONDS):
            left = max(facts_at - time.monotonic(), 0.0)
            if self._tracker.wait(count, min(left, 0.5)) > count:
                life = known.life
                count, known = self._tracker.history(count)
                if known.life != life:
                    count, known = self._tracker.history()
                    yield _event("history", known)
                elif known.points:
                    yield _event("release", known)
            if time.monotonic() >= facts_at:
                facts_at = time.monotonic() + FACTS_SECONDS
                yield self._facts_event()

    def _facts_event(self) -> bytes:
        # To the second, like all times that are shown.
        return _event("facts", {"now": int(time.time()), **self._facts()})

    def close(self) -> None:
        self._closing.set()
        self._follower.close()


def _event(name: str, data: Any) -> bytes:
    # JSON has no line breaks outside of strings, where they are escaped.
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

"""Watches, while a job of an engine runs, that there is anything for it to run on.

A cluster that other applications use gives its cores to a driver late, or takes them away. The
driver then waits, as it waits for brokers: it has not stalled, and ending it would help nobody.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from ..events import log_event

__all__ = ["CoreWatch"]

LOOK_SECONDS: Final = 0.5
#: Executors take a few seconds to start: that is not worth a word.
QUIET_SECONDS: Final = 5.0
#: Time between two events that say the same.
REPEAT_SECONDS: Final = 30.0


class CoreWatch:
    """Tells a listener, from a thread of its own, that a job has no executor.

    The engine is asked in that thread, so an engine that does not answer keeps nobody from seeing
    that the job stands still: the listener is not told, and the watchdog ends the process.

    Parameters
    ----------
    executors
        Says how many executors there are now: a public number.
    cancel
        Ends the job that runs.
    """

    def __init__(
        self,
        executors: Callable[[], int],
        cancel: Callable[[], None],
        *,
        look_s: float = LOOK_SECONDS,
        quiet_s: float = QUIET_SECONDS,
    ) -> None:
        self._executors, self._cancel = executors, cancel
        self._look_s, self._quiet_s = look_s, quiet_s
        #: Told that a job waits, again and again; says whether it may go on waiting.
        self.listener: Callable[[], bool] = lambda: True
        self._running, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="core watch", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def job(self) -> Iterator[None]:
        """While a job runs."""
        self._running.set()
        try:
            yield
        finally:
            self._running.clear()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._running.set()  # wakes the thread

    def _watch(self) -> None:
        since: float | None = None  # there has been no executor
        said = -REPEAT_SECONDS
        while True:
            if not self._running.is_set():
                since = None
                self._running.wait()
            if self._closed.wait(self._look_s):
                return
            if not self._running.is_set() or self._asked():
                since = None
                continue
            now = time.monotonic()
            since = now if since is None else since
            if now - since >= self._quiet_s and now - said >= REPEAT_SECONDS:
                log_event("waiting_for_executors", level="warning")
                said = now
            if not self.listener():
                self._cancel()

    def _asked(self) -> bool:
        """Whether there are executors, or the engine cannot say: then its job fails, too."""
        try:
            return self._executors() > 0
        except Exception:
            return True

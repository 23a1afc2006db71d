"""Watches whether a running job of an engine has executors.

A cluster that other applications use may give its cores to a driver late, or take them away. The
driver then waits, as it waits for brokers: it has not stalled, and ending it would not help.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from ..events import log_event

LOOK_SECONDS: Final = 0.5
#: Executors take a few seconds to start, which is not worth an event.
QUIET_SECONDS: Final = 5.0
#: Time between two events that say the same.
REPEAT_SECONDS: Final = 30.0


class CoreWatch:
    """Tells a listener, from a thread of its own, that a job has no executor.

    The engine is asked in that thread. If it does not answer, the listener is not told either, so
    the watchdog still notices that the job stands still, and ends the process.

    Parameters
    ----------
    executors
        Returns the number of executors now: a public number.
    cancel
        Ends the running job.
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
        #: Called repeatedly while a job waits; returns False if it is to stop waiting.
        self.listener: Callable[[], bool] = lambda: True
        self._running, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="core watch", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def job(self) -> Iterator[None]:
        """Watch while a job runs."""
        self._running.set()
        try:
            yield
        finally:
            self._running.clear()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._running.set()  # wakes the thread

    def _watch(self) -> None:
        since: float | None = None  # time since when there has been no executor
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
        """Tell whether there are executors. True if the engine fails: then its job fails, too."""
        try:
            return self._executors() > 0
        except Exception:
            return True

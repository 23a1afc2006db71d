"""Watches whether a running job of an engine has executors.

A cluster that other applications use may give its cores to a driver late, or take them away. The
driver then waits, as it waits for brokers: it has not stalled, and ending it would not help.
"""

from __future__ import annotations

import contextlib
import math
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
        self._said = -math.inf  # time of the last event
        #: Called repeatedly while a job waits; returns False if it is to stop waiting.
        self.listener: Callable[[], bool] = lambda: True

    @contextlib.contextmanager
    def job(self) -> Iterator[None]:
        """Watch while a job runs."""
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over,), name="core watch", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event) -> None:
        since = math.inf  # time since when there has been no executor
        while not over.wait(self._look_s):
            if self._asked():
                since = math.inf
                continue
            if over.is_set():
                return
            now = time.monotonic()
            since = min(since, now)
            if now - since >= self._quiet_s and now - self._said >= REPEAT_SECONDS:
                log_event("waiting_for_executors", level="warning")
                self._said = now
            if not self.listener():
                self._cancel()

    def _asked(self) -> bool:
        """Tell whether there are executors. True if the engine fails: then its job fails, too."""
        try:
            return self._executors() > 0
        except Exception:
            return True

"""Ends the process when it makes no progress, or does not leave in time.

Killing the process is always safe: the next owner loads the last committed state. Hanging is not.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time

from ..events import log_event
from .metrics import Metrics

__all__ = ["EXIT_FORCED", "EXIT_STALLED", "Watchdog"]

EXIT_STALLED = 70
EXIT_FORCED = 75


class Watchdog:
    """Watches the loop from a thread.

    Parameters
    ----------
    stall_s
        Seconds without a `beat` after which the loop is dead: all stacks (places in the code, no
        values) are logged and the process ends.
    leave_s
        Seconds that the process may take to end after `stop` is set.
    """

    def __init__(
        self, *, stall_s: float, leave_s: float, stop: threading.Event, metrics: Metrics
    ) -> None:
        self._stall_s, self._leave_s = stall_s, leave_s
        self._stop, self._metrics = stop, metrics
        self._done = threading.Event()
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._beat = time.monotonic()
        self._thread.start()

    def beat(self) -> None:
        """Note that the loop has made progress."""
        self._beat = time.monotonic()

    def age(self) -> float:
        return time.monotonic() - self._beat

    def alive(self) -> bool:
        return self.age() < self._stall_s

    def close(self) -> None:
        self._done.set()

    def _watch(self) -> None:
        leaving: float | None = None
        looked = time.monotonic()
        while not self._done.wait(0.1):
            unseen, looked = time.monotonic() - looked, time.monotonic()
            if unseen > min(1.0, self._stall_s / 2):
                self.beat()  # this thread stood still, too: the process was stopped, not hanging
            # To the second, like all times that are shown: learning happens in the loop.
            self._metrics.loop_age.set(int(self.age()))
            if self._stop.is_set():
                leaving = leaving or time.monotonic()
                if time.monotonic() - leaving > self._leave_s:
                    log_event("exit_forced", level="warning", after_s=self._leave_s)
                    os._exit(EXIT_FORCED)
            elif not self.alive():
                log_event("stalled", level="error", after_s=self._stall_s)
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                time.sleep(0.3)  # a probe may still see the stall, and the streams are flushed
                os._exit(EXIT_STALLED)

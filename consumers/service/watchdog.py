"""Ends the process when it stands still, or does not leave in time.

To be killed is always safe here: whoever comes next loads the last committed state. To hang is not.
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
    """A thread that looks at the loop.

    Parameters
    ----------
    stall_s
        A loop that has not said `beat` for so long is dead: log all stacks (places in the code, no
        values) and end the process.
    leave_s
        How long the process may take to end after `stop` is set.
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
        """The loop has turned."""
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
                self.beat()  # we too stood still: the process was stopped, its loop does not hang
            self._metrics.loop_age.set(self.age())
            if self._stop.is_set():
                leaving = leaving or time.monotonic()
                if time.monotonic() - leaving > self._leave_s:
                    log_event("exit_forced", level="warning", after_s=self._leave_s)
                    os._exit(EXIT_FORCED)
            elif not self.alive():
                log_event("stalled", level="error", after_s=self._stall_s)
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                time.sleep(0.3)  # a probe may still see it, and the streams are flushed
                os._exit(EXIT_STALLED)

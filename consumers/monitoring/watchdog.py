"""Ends the process when it makes no progress, or does not leave in time.

Killing the process is always safe: the next owner loads the last committed state. Hanging is not.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from ..events import log_event
from .metrics import Metrics

EXIT_STALLED = 70
EXIT_FORCED = 75
#: Share of `stall_s` after which work that gets no further is no longer ready.
PATIENCE: Final = 0.25
#: Multiple of `stall_s` after which the process ends if its work gets no further. A task that
#: stands still begins anew after `stall_s`: this is the third one.
HOPELESS: Final = 3
#: Multiple of `stall_s` after which the process ends if no thread of it runs.
FROZEN: Final = 2
STDERR: Final = 2


class Watchdog:
    """Watches the loop from a thread, and the thread from a timer that needs no interpreter.

    There are three limits:

    - After `stall_s` without a `beat` the loop is dead.
    - If it turns, but its work gets no further for three times as long, although there is something
      to do and nobody else is to blame, then new tasks do not help.
    - If somebody holds the interpreter, this thread does not run either. After twice `stall_s` the
      timer of `faulthandler` ends the process, with code 1.

    In each case all stacks (places in the code, no values) are logged. A process that is stopped
    for less than twice `stall_s` goes on when it continues; after a longer pause the timer ends it.

    Parameters
    ----------
    stall_s
        Seconds without a `beat` after which the loop is dead.
    leave_s
        Seconds that the process may take to end after `stop` is set.
    excused
        True while something outside, such as a broker, keeps the work from going on: to end this
        process would not help.
    """

    def __init__(
        self,
        *,
        stall_s: float,
        leave_s: float,
        stop: threading.Event,
        metrics: Metrics,
        excused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stall_s, self._leave_s = stall_s, leave_s
        self._stop, self._metrics, self._progress = stop, metrics, metrics.progress
        self._excused = excused
        self._done = threading.Event()
        self._beat = time.monotonic()
        self._late = False
        self._stood_s = 0.0  # without progress and without an excuse
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._beat = time.monotonic()
        self._thread.start()

    def beat(self) -> None:
        """Note that the loop has turned."""
        self._beat = time.monotonic()

    def age(self) -> float:
        return time.monotonic() - self._beat

    @property
    def patience_s(self) -> float:
        """Longest time without progress that is normal."""
        return PATIENCE * self._stall_s

    def alive(self) -> bool:
        return self.age() < self._stall_s and self._stood_s < HOPELESS * self._stall_s

    def close(self) -> None:
        self._done.set()

    def _watch(self) -> None:
        leaving: float | None = None
        armed = -self._stall_s
        looked, ran = time.monotonic(), time.process_time()
        while not self._done.wait(0.1):
            unseen, looked = time.monotonic() - looked, time.monotonic()
            used, ran = time.process_time() - ran, time.process_time()
            if unseen > min(1.0, self._stall_s / 2) and used < unseen / 2:
                # Nothing ran: the process was stopped, and is not hanging.
                self._beat = min(self._beat + unseen, looked)
                self._progress.pass_over(unseen)
                unseen = 0.0
            if looked - armed > self._stall_s / 10:
                armed = looked
                faulthandler.dump_traceback_later(FROZEN * self._stall_s, file=STDERR, exit=True)
            self._look(unseen)
            if self._stop.is_set():
                leaving = leaving or time.monotonic()
                if time.monotonic() - leaving > self._leave_s:
                    log_event("exit_forced", level="warning", after_s=self._leave_s)
                    os._exit(EXIT_FORCED)
            elif not self.alive():
                stood_s = int(max(self.age(), self._progress.age()))
                log_event("stalled", level="error", after_s=stood_s, at=self._progress.at)
                faulthandler.dump_traceback(STDERR, all_threads=True)
                time.sleep(0.3)  # a probe may still see the stall, and the streams are flushed
                os._exit(EXIT_STALLED)
        faulthandler.cancel_dump_traceback_later()

    def _look(self, seconds: float) -> None:
        """Show how long the loop and the work have stood still; report if that is too long."""
        progress = self._progress
        # To the second, like all times that are shown: learning happens in the loop.
        self._metrics.loop_age.set(int(self.age()))
        self._metrics.progress_age.set(int(progress.age()))
        late = progress.age() > self.patience_s
        if not late:
            self._stood_s = 0.0
        elif not self._excused():
            self._stood_s += seconds
        if late and not self._late:
            log_event("no_progress", level="warning", after_s=self.patience_s, at=progress.at)
        elif self._late and not late:
            log_event("progress_resumed")
        self._late = late

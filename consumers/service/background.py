"""Runs one job at a time in a background thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..errors import Unavailable

__all__ = ["Background"]


class Background:
    """Runs work in a thread of its own. Errors of the work are raised when a caller waits for it.

    The thread does not keep the process alive: work that never ends cannot keep it from leaving.
    For a caller that waits, work that takes too long has failed. kafka-python waits without a limit
    for the end of a transaction, and if a node of the cluster dies at the wrong moment, for ever.
    """

    def __init__(self, name: str, limit_s: float) -> None:
        self._name, self._limit_s = name, limit_s
        self._thread: threading.Thread | None = None
        self._due = 0.0
        self._error: BaseException | None = None
        self._more = threading.Event()  # more work is to start as soon as this work is over

    @property
    def waited_for(self) -> bool:
        """True if more work is waiting to start as soon as this work is over."""
        return self._more.is_set()

    def is_waited_for(self, within_s: float) -> bool:
        """Tell whether more work waits or comes within this time; called by the work itself."""
        return self._more.wait(within_s)

    def start(self, work: Callable[[], None]) -> None:
        """Wait for the work that was started before, then start this work."""
        self._more.set()
        try:
            self.wait()
        finally:
            self._more.clear()
        self._due = time.monotonic() + self._limit_s
        self._thread = threading.Thread(
            target=self._run, args=(work,), name=self._name, daemon=True
        )
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise the error of the work, if the work is over and has failed."""
        self.wait(0.0)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the work is over or time is up; raise the error of the work."""
        if self._thread is not None:
            left = max(self._due - time.monotonic(), 0.0)
            self._thread.join(left if timeout_s is None else min(left, timeout_s))
            if self._thread.is_alive():
                if time.monotonic() >= self._due:
                    raise Unavailable(f"{self._name} took longer than {self._limit_s:g} s")
                return
            self._thread = None
        if self._error is not None:  # again and again: nothing may follow failed work
            raise self._error

"""One thing at a time, beside the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..errors import Unavailable

__all__ = ["Background"]


class Background:
    """Runs work in a thread of its own. What the work raises comes out where it is waited for.

    The thread does not keep the process alive: work that never ends cannot keep it from leaving.
    Work that takes too long has failed for whoever waits for it. kafka-python waits without a limit
    for the end of a transaction, and if a node of the cluster goes at the wrong moment, for ever.
    """

    def __init__(self, name: str, limit_s: float) -> None:
        self._name, self._limit_s = name, limit_s
        self._thread: threading.Thread | None = None
        self._due = 0.0
        self._error: BaseException | None = None
        self._more = threading.Event()  # more work is to start as soon as this is over

    @property
    def waited_for(self) -> bool:
        """Whether more work waits, which is to start as soon as this is over."""
        return self._more.is_set()

    def is_waited_for(self, within_s: float) -> bool:
        """Whether more work waits, or comes within this time. For the work itself to ask."""
        return self._more.wait(within_s)

    def start(self, work: Callable[[], None]) -> None:
        """Wait for what was started before, then start this."""
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
        """Raise what the work has raised, if it is over."""
        self.wait(0.0)

    def wait(self, timeout_s: float | None = None) -> None:
        """Until the work is over, or the time; raises what the work has raised."""
        if self._thread is not None:
            left = max(self._due - time.monotonic(), 0.0)
            self._thread.join(left if timeout_s is None else min(left, timeout_s))
            if self._thread.is_alive():
                if time.monotonic() >= self._due:
                    raise Unavailable(f"{self._name} took longer than {self._limit_s:g} s")
                return
            self._thread = None
        if self._error is not None:  # for good: nothing may follow what has failed
            raise self._error

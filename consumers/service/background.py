"""Works in the background on what the loop hands over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import Unavailable

T = TypeVar("T")


class Background(Generic[T]):
    """Works on items in a thread of its own, on all that wait at a time, in their order.

    What the work raises comes out where the loop waits for it, and nothing is worked on after that.
    The thread does not keep the process alive: work that never ends cannot keep it from leaving.
    Work that takes too long has failed for whoever waits for it. kafka-python waits without a limit
    for the end of a transaction, and if a node of the cluster goes at the wrong moment, for ever.

    Parameters
    ----------
    name
        What the work is, for errors.
    work
        Is given the items that wait, at least one.
    limit_s
        Longest time that the work may take at once.
    """

    def __init__(self, name: str, work: Callable[[list[T]], None], limit_s: float) -> None:
        self._name, self._work, self._limit_s = name, work, limit_s
        self._changed = threading.Condition()
        self._waiting: list[T] = []
        self._busy = False
        self._coming = False  # the loop works on another item
        self._due = 0.0
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """True if something is being worked on."""
        return self._busy

    def expect(self, more: bool) -> None:
        """Say whether another item is on its way, for which the work may wait."""
        with self._changed:
            self._coming = more
            self._changed.notify_all()

    def more_waiting(self, within_s: float) -> bool:
        """Wait for items that are on their way, for so long at most; True if any wait then.

        For the work itself to ask.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._coming, within_s)
            return bool(self._waiting)

    def give(self, item: T, most: int = 1) -> None:
        """Hand an item over; if `most` items wait already, wait until they are worked on."""
        with self._changed:
            while self._busy and len(self._waiting) >= most:
                self.expect(False)
                self._changed.wait(self._left())
            self._raise_failed()
            if self._busy:
                self._waiting.append(item)
                return
            self._busy, self._due = True, time.monotonic() + self._limit_s
            threading.Thread(target=self._run, args=([item],), name=self._name, daemon=True).start()

    def _run(self, items: list[T]) -> None:
        error: BaseException | None = None
        while items:
            try:
                self._work(items)
            except BaseException as raised:
                error = raised
            with self._changed:
                self._error = error
                items, self._waiting = [] if error else self._waiting, []
                self._busy, self._due = bool(items), time.monotonic() + self._limit_s
                self._changed.notify_all()

    def check(self) -> None:
        """Raise what the work has raised."""
        self.wait(0.0)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all is done, or for so long; raises what the work has raised."""
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while self._busy:
                left = min(self._left(), until - time.monotonic())
                if left <= 0:
                    return
                self.expect(False)
                self._changed.wait(left)
            self._raise_failed()

    def close(self) -> None:
        """Drop what waits. Work that is under way is not interrupted, but nothing follows it."""
        with self._changed:
            self._waiting = []

    def _left(self) -> float:
        """Time that the work has left; raises if that is over."""
        left = self._due - time.monotonic()
        if left <= 0:
            raise Unavailable(f"{self._name} took longer than {self._limit_s:g} s")
        return left

    def _raise_failed(self) -> None:
        if self._error is not None:  # for good: nothing may follow what has failed
            raise self._error

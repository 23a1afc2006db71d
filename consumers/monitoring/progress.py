"""Notes what a service works on, and since when it has got no further."""

from __future__ import annotations

import time


class Progress:
    """The place at which the work stands, and the time since when it stands there.

    The work gets further when slots are read, a batch is learned, or a commit is confirmed. After
    two tasks in a row that were dropped before they committed anything, only a commit counts: to
    read the same records once more is no progress. Without anything to do there is no place, and no
    time. A place is a name of a step with a number of a partition or a round, never anything about
    a record.

    The loop and the thread that commits write, the watchdog and the pages read. Each attribute is
    written as a whole.
    """

    def __init__(self) -> None:
        self.at = ""  #: what is being done
        self._since: float | None = None
        self._dropped = 0  # tasks since the last commit

    def moved(self, at: str | None = None) -> None:
        """Note that the work got further, and where it continues."""
        if at is not None:
            self.at = at
        if self._since is None or self._dropped < 2:
            self._since = time.monotonic()

    def committed(self) -> None:
        """Note that a commit was confirmed."""
        self._dropped, self._since = 0, time.monotonic()

    def dropped(self) -> None:
        """Note that a task was dropped. What it had begun will be done again."""
        self._dropped += 1

    def rest(self) -> None:
        """Note that there is nothing to do."""
        self.at, self._since, self._dropped = "", None, 0

    def age(self) -> float:
        """Seconds since the work last got further; 0 if there is nothing to do."""
        since = self._since
        return 0.0 if since is None else max(0.0, time.monotonic() - since)

    def pass_over(self, seconds: float) -> None:
        """Leave out a time in which the process did not run."""
        since = self._since
        if since is not None:
            self._since = min(since + seconds, time.monotonic())

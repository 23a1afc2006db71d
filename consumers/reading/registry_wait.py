"""Reports that a reader waits for the Schema Registry."""

from __future__ import annotations

import time
from typing import Final

from ..events import describe_error, log_event
from ..monitoring.metrics import Metrics

#: Time between two events that say the same.
REPEAT_SECONDS: Final = 30.0


class RegistryWait:
    """Reports a wait in the log, now and then, and to `/readyz` as long as it lasts."""

    def __init__(self, metrics: Metrics) -> None:
        self._away = metrics.registry_away
        self._say_at = 0.0

    def note(self, error: Exception) -> None:
        """The registry has been asked, in vain."""
        now = time.monotonic()
        if id(self) not in self._away:
            self._away[id(self)] = self._say_at = now
        if now >= self._say_at:
            self._say_at = now + REPEAT_SECONDS
            log_event("waiting_for_registry", level="warning", **describe_error(error))

    def end(self) -> None:
        """Nothing waits any more."""
        self._away.pop(id(self), None)

"""What the simulation knows about the model that learns from it."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from consumers.cli.history import Truth, degrees
from consumers.cli.screen import sparkline
from consumers.model.releases import PublishedRelease
from consumers.model.uncertainty import angle

from .telemetry import backup_is_stronger, true_direction

#: Releases whose angles to the truth are drawn.
DRAWN: Final = 40


class Simulated:
    """A fleet whose main direction is known, and the releases of the model of it.

    Parameters
    ----------
    change_after
        Records after which the fleet changes; None if it never does.
    """

    def __init__(self, change_after: int | None) -> None:
        self._change_after = change_after
        self._direction: list[float] = []
        self._changed = False
        self.began = time.monotonic()
        self.first_s: float | None = None  #: seconds until the first component
        self.release: PublishedRelease | None = None  #: the newest
        self.releases = 0
        self.angles: dict[int, float] = {}  #: of each batch to the truth, in degrees
        self.changes: list[int] = []  #: batches at which the fleet had changed
        self.noticed: list[int] = []  #: batches at which the model had noticed
        self.facts: list[tuple[str, str]] = []  #: about the deployment

    def see(self, release: PublishedRelease) -> None:
        self.release = release
        self.releases += 1
        changed = backup_is_stronger((release.n_seen or 1) - 1, self._change_after)
        if changed != self._changed:
            self.changes.append(release.batch)
        self._changed = changed
        if release.drift:
            self.noticed.append(release.batch)
        if release.components:
            if self.first_s is None:
                self.first_s = time.monotonic() - self.began
            main, truth = np.array(release.components[0]), true_direction(changed)
            self.angles[release.batch] = angle(main, truth)
            # A direction has no sign: that of the component is taken.
            self._direction = (truth if main @ truth >= 0 else -truth).tolist()

    def truth(self) -> Truth:
        facts = []
        if self.angles:
            shown = list(self.angles)[-DRAWN:]
            levels = zip(shown, sparkline([self.angles[b] for b in shown], DRAWN), strict=True)
            line = "".join("┃" * (batch in self.changes) + level for batch, level in levels)
            facts += [("the truth", f"{degrees(self.angles[shown[-1]])} away  {line}")]
        if self.changes:
            facts += [("the fleet", self.change_in_words())]
        remarks = dict.fromkeys(self.changes, "the fleet changed")
        return Truth(list(self._direction), dict(self.angles), remarks, [*facts, *self.facts])

    def change_in_words(self) -> str:
        """Return what happened to the fleet last, and whether the model has noticed."""
        at = self.changes[-1]
        seen = [f"the model noticed at batch {b:,}" for b in self.noticed if b >= at][:1]
        return "; ".join([f"the simulator changed it at batch {at:,}", *seen])

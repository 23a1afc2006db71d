"""What the simulation knows about the model that learns from it."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from consumers.cli.history import degrees
from consumers.cli.screen import sparkline
from consumers.model.releases import PublishedRelease
from consumers.model.uncertainty import angle

from .generator import FAULTY
from .telemetry import backup_is_stronger, cooling_fails, true_direction

#: Releases whose angles to the truth are drawn.
DRAWN: Final = 40


class Simulated:
    """A fleet whose main direction is known, and the releases of the model of it.

    It also stands for a real stream, of which nothing is known.

    Parameters
    ----------
    change_after
        Records after which the fleet changes; None if it never does.
    fault_after
        Records after which the cooling of a machine fails for a while; None if it never does.
    known
        False for a real stream.
    """

    def __init__(
        self, change_after: int | None, fault_after: int | None = None, *, known: bool = True
    ) -> None:
        self._change_after, self._fault_after, self.known = change_after, fault_after, known
        self._changed = False
        self.began = time.monotonic()
        self.first_s: float | None = None  #: seconds until the first component
        self.release: PublishedRelease | None = None  #: the newest
        self.releases = 0
        self.angles: dict[int, float] = {}  #: of each batch to the truth, in degrees
        self.changes: list[int] = []  #: batches at which the fleet had changed
        self.noticed: list[int] = []  #: batches at which the model had noticed
        self.faults: list[int] = []  #: batches in which a machine failed
        self.flagged = ""  #: what `score` said last about a machine
        self.deployed: list[tuple[str, str]] = []  #: about the deployment

    def see(self, release: PublishedRelease) -> None:
        self.release = release
        self.releases += 1
        changed = backup_is_stronger((release.n_seen or 1) - 1, self._change_after)
        if changed != self._changed:
            self.changes.append(release.batch)
        self._changed = changed
        if release.drift:
            self.noticed.append(release.batch)
        if cooling_fails((release.n_seen or 1) - 1, self._fault_after):
            self.faults.append(release.batch)
        if release.components and self.first_s is None:
            self.first_s = time.monotonic() - self.began
        if release.components and self.known:
            main = np.array(release.components[0])
            self.angles[release.batch] = angle(main, true_direction(changed))

    def remark(self, batch: int) -> str:
        away = [f"{degrees(self.angles[batch])} from the truth"] if batch in self.angles else []
        return "; ".join(["the fleet changed"] * (batch in self.changes) + away)

    def facts(self) -> list[tuple[str, str]]:
        facts = []
        if self.angles:
            shown = list(self.angles)[-DRAWN:]
            levels = zip(shown, sparkline([self.angles[b] for b in shown], DRAWN), strict=True)
            line = "".join("┃" * (batch in self.changes) + level for batch, level in levels)
            facts += [("the truth", f"{degrees(self.angles[shown[-1]])} away  {line}")]
        if self.changes:
            facts += [("the fleet", self.change_in_words())]
        if self.faults and self.release and self.release.batch == self.faults[-1]:
            facts += [("the fault", self.fault_in_words())]
        return [*facts, *self.deployed]

    def fault_in_words(self) -> str:
        """Return what happened to a machine last."""
        last = next((b for b in reversed(self.faults) if b - 1 not in self.faults), 0)
        return f"the simulator stopped the fan of {FAULTY.decode()} at batch {last:,}"

    def change_in_words(self) -> str:
        """Return what happened to the fleet last, and whether the model has noticed."""
        at = self.changes[-1]
        seen = [f"the model noticed at batch {b:,}" for b in self.noticed if b >= at][:1]
        return "; ".join([f"the simulator changed it at batch {at:,}", *seen])

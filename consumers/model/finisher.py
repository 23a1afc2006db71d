"""Decides in which order the result of a new batch is stored and published.

At a start, `service.task` and `files` commit and publish what an earlier process has left
unfinished, the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .. import crashpoints
from ..protocols import FinishedBatch, Store


class Finisher:
    """Durable, then visible: commits batches, and publishes a release only after its commit.

    If the process dies before the store has the state, nobody has seen the result, and the batch is
    computed afresh. If it dies with the state written and not committed, the successor commits the
    same bytes. If it dies after the commit, the successor finds the release in the state and
    publishes the same bytes. So no two different releases of the same records can ever be seen.

    Batches that wait become durable together, in the state of the last of them, which also holds
    the releases of the others, and those that ride with its commit. So whatever is durable and may
    not be visible yet is in the last state.

    Releases are published in a transaction of their own. If the next batch is waiting by then, they
    ride in the transaction that commits that batch. Their own state is durable by then, as it must
    be. And they cannot be lost: if that transaction fails, the last state is still the one that
    holds them; if it succeeds, they are visible. So under load a transaction makes all batches
    durable that have been learned while the one before it took place, and theirs visible.

    Parameters
    ----------
    store
        Commits batches and publishes releases.
    parent
        The writer of the last committed state; empty if there is none.
    waits
        Tells whether another batch is waiting. If it is, either that batch is finished next, or
        nothing is finished any more.
    """

    def __init__(
        self, store: Store, parent: str, waits: Callable[[], bool] = lambda: False
    ) -> None:
        self._store, self._parent, self._waits = store, parent, waits
        self._riding: list[FinishedBatch] = []  # of the last commit, if not yet visible
        self.commit_seconds = 0.0  #: of the last commit

    def finish(self, batches: Sequence[FinishedBatch]) -> list[FinishedBatch]:
        """Commit batches that follow each other, all or none.

        Returns the batches whose releases have become visible.
        """
        crashpoints.reach("before_transaction")
        *others, last = batches
        riding = [earlier.message for earlier in self._riding]
        state = last.state(self._parent, [*riding, *(other.message for other in others)])
        started = time.monotonic()
        self._store.commit(state, last.positions, riding)
        self.commit_seconds = time.monotonic() - started
        self._parent = last.writer
        crashpoints.reach("after_commit")
        visible, self._riding = self._riding, list(batches)
        if not self._waits():
            self._store.publish([batch.message for batch in batches], last.positions)
            visible, self._riding = [*visible, *batches], []
        for _ in visible:
            crashpoints.reach("after_publish")
        return visible

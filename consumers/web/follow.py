"""Follows the output topic in a thread, once somebody looks at the model."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Final

from ..errors import ClusterError
from ..protocols import Cluster, Feed
from .tracker import Tracker

#: Offsets before the end of the output topic at which to begin. A release takes one or two, so
#: these are about as many releases as a tracker keeps, or twice as many.
LOOK_BACK: Final = 500
READ_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0


class Follower:
    """Reads releases into a tracker until it is closed.

    If a broker goes away, the follower waits for it. Other models may share the topic: if its end
    holds no release of this model, it is read from its beginning.
    """

    def __init__(self, cluster: Cluster, topic: str, tracker: Tracker) -> None:
        self._cluster, self._topic, self._tracker = cluster, topic, tracker
        self._back: int | None = LOOK_BACK
        self.problem: str | None = None  #: reason why nothing is read at the moment
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow the topic, unless this has been done already."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with closing(self._cluster.follow(self._topic, self._back)) as feed:
                    self._read(feed)
            except ClusterError as error:
                self.problem = str(error)
                self._closing.wait(RETRY_SECONDS)

    def _read(self, feed: Feed) -> None:
        """Read until closed, or until it is clear that the end of the topic is not enough."""
        while not self._closing.is_set():
            messages = feed.read(READ_SECONDS)
            self.problem = None
            for message in messages:
                self._tracker.add(message)
            if not messages and self._back is not None and self._tracker.release is None:
                self._back = None
                return

    def close(self) -> None:
        """Stop following the topic, within about a second."""
        with self._lock:
            self._closing.set()
        if self._thread is not None:
            self._thread.join(2 * READ_SECONDS)

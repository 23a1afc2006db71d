"""Follows the output topic and the metrics, and shows them as they change."""

from __future__ import annotations

import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live

from consumers.errors import ClusterError
from consumers.protocols import Reader

from .deployments import Deployment
from .history import History
from .view import plain_line, screen

__all__ = ["Watcher", "watch"]

METRICS_SECONDS: Final = 0.5


class Watcher:
    """Follows the output topic, and the pages of the services."""

    def __init__(self, deployment: Deployment, topic: str, history: History) -> None:
        self._deployment, self._history = deployment, history
        self._reader: Reader = deployment.cluster().reader(topic)
        self._assigned = False
        self._pages_at = 0.0

    def look(self, on_release: Callable[[], None] = lambda: None) -> None:
        """Add new releases to the history; wait for them a tenth of a second at most."""
        try:
            if not self._assigned:
                bounds = self._reader.bounds(sorted(self._reader.partitions()))
                self._reader.assign({p: bound.first for p, bound in bounds.items()})
                self._assigned = bool(bounds)
            if self._assigned:
                for chunk in self._reader.read(0.1):
                    for value in chunk.values:
                        if self._history.add(value or b""):
                            on_release()
            else:
                time.sleep(0.2)
        except ClusterError:
            time.sleep(0.2)  # the broker is away; the service logs that
        if time.monotonic() >= self._pages_at:
            self._pages()
            self._deployment.tidy()
            self._pages_at = time.monotonic() + METRICS_SECONDS

    def _pages(self) -> None:
        lags = []
        for port in self._deployment.ports():
            for line in _get(port, "/metrics").splitlines():
                if line.startswith("dppca_lag_messages{"):
                    lags.append(float(line.rsplit(" ", 1)[1]))
            if self._history.current is None:
                self._history.status = (
                    f"the service is {_get(port, '/readyz').strip() or 'starting'}"
                )
        self._history.lag = int(sum(lags)) if lags else None

    def close(self) -> None:
        self._reader.close()


def _get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1.0) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except (OSError, ValueError):
        return ""


def watch(
    console: Console,
    deployment: Deployment,
    topic: str,
    history: History,
    seconds: float | None = None,
    releases: int | None = None,
) -> None:
    """Show releases until Ctrl-C, or until a part of the deployment fails.

    Parameters
    ----------
    seconds, releases
        Other conditions to end: a time, or a number of releases.
    """
    watcher = Watcher(deployment, topic, history)
    end = math.inf if seconds is None else time.monotonic() + seconds
    most = math.inf if releases is None else releases

    def watching() -> bool:
        return time.monotonic() < end and history.releases < most and not deployment.failed()

    def render() -> RenderableType:
        return screen(history, deployment, *console.size)

    try:
        if not console.is_terminal:
            while watching():
                watcher.look(lambda: console.print(plain_line(history), soft_wrap=True))
            return
        with Live(get_renderable=render, console=console, screen=True, refresh_per_second=8):
            while watching():
                watcher.look()
    finally:
        watcher.close()

"""`stream-dppca watch`: a model as it learns, from its output topic only."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import Final

from ..errors import ClusterError
from ..protocols import Cluster
from ..settings import ViewSettings
from ..web.follow import Follower
from ..web.page import Page
from ..web.server import WebServer
from ..web.tracker import History, Tracker
from .history import Simulation, head, point_cells
from .own import WatchOptions

#: Interval at which the screen is drawn, to keep the age of the last release current.
DRAW_SECONDS: Final = 0.5


def watch(
    cluster: Cluster,
    settings: ViewSettings,
    options: WatchOptions,
    stop: threading.Event,
    simulation: Simulation | None = None,
) -> int:
    """Show releases until `stop` is set, or after as many as the options ask for.

    The truth is drawn over the model of a simulated stream.
    """
    tracker = Tracker(settings.model, None if simulation is None else simulation.see)
    follower = Follower(cluster, settings.output_topic, tracker, keep=options.as_json)
    if options.web:
        return _serve_page(follower, tracker, settings, options, stop)
    with suppress(ClusterError):  # which the follower waits for
        if simulation is None and cluster.topic(settings.output_topic) is None:
            sys.stderr.write(
                f"there is no topic {settings.output_topic!r} yet: waiting for it. Is "
                f"{settings.model!r} the name of the model?\n"
            )
    follower.start()
    try:
        if options.as_json or not sys.stdout.isatty():
            _print_lines(follower, tracker, options, stop, simulation)
        else:
            _draw(follower, tracker, settings, options, stop, simulation)
    finally:
        follower.close()
    return 0


def _serve_page(
    follower: Follower,
    tracker: Tracker,
    settings: ViewSettings,
    options: WatchOptions,
    stop: threading.Event,
) -> int:
    server = WebServer("127.0.0.1", options.port, Page(follower, tracker))
    sys.stdout.write(f"{settings.model} at http://127.0.0.1:{server.port}/ (Ctrl-C to leave)\n")
    sys.stdout.flush()
    try:
        count = 0
        while not stop.wait(DRAW_SECONDS) and not _enough(count, options):
            count = tracker.wait(count, DRAW_SECONDS)
    finally:
        server.close()
    return 0


def _enough(count: int, options: WatchOptions) -> bool:
    return options.releases is not None and count >= options.releases


def _print_lines(
    follower: Follower,
    tracker: Tracker,
    options: WatchOptions,
    stop: threading.Event,
    simulation: Simulation | None,
) -> None:
    """One line for each release: for a pipe or a file."""
    count = shown = 0
    while not stop.is_set() and not _enough(shown, options):
        tracker.wait(count, DRAW_SECONDS)
        if options.as_json:
            count, _ = tracker.history()
            lines = [value.decode() for value in follower.take()]
        else:
            count, found = tracker.history(count)
            truth = simulation.truth() if simulation is not None else None
            cells = [zip(head(truth), point_cells(p, truth), strict=True) for p in found.points]
            lines = ["  ".join(f"{name} {text}".strip() for name, text in row) for row in cells]
        for line in lines:
            if _enough(shown, options):
                break
            sys.stdout.write(line.rstrip() + "\n")
            shown += 1
        sys.stdout.flush()


def _draw(
    follower: Follower,
    tracker: Tracker,
    settings: ViewSettings,
    options: WatchOptions,
    stop: threading.Event,
    simulation: Simulation | None,
) -> None:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from .screen import screen

    console = Console(highlight=False)

    def known() -> History:
        return tracker.history()[1]

    def render() -> RenderableType:
        waiting = follower.problem or f"nothing on {settings.output_topic!r} yet"
        truth = simulation.truth() if simulation is not None else None
        return screen(known(), settings.model, waiting, time.time(), *console.size, truth)

    count = 0
    with Live(get_renderable=render, console=console, screen=True, refresh_per_second=4):
        while not stop.is_set() and not _enough(count, options):
            count = tracker.wait(count, DRAW_SECONDS)
    if found := known().current:
        console.print(found.meaning or found.words, markup=False)
        console.print(found.promise, markup=False)

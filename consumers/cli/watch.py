"""`stream-dppca watch`: a model as it learns, from its output topic only."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from typing import Any, Final

from ..errors import ClusterError
from ..model.describe import describe
from ..protocols import Cluster
from ..settings import ViewSettings
from ..web.follow import Follower
from ..web.page import Page
from ..web.server import WebServer
from ..web.tracker import ReleasePoint, Tracker
from .history import HEAD, Simulation, point_cells
from .options import WatchOptions

#: Interval at which to look whether there is a reason to end.
LOOK_SECONDS: Final = 0.5


def watch(
    cluster: Cluster,
    settings: ViewSettings,
    options: WatchOptions,
    stop: threading.Event,
    simulation: Simulation | None = None,
) -> int:
    """Show releases until `stop` is set, or after as many as the options ask for.

    They are shown on a page, on the terminal, or a line each into a pipe or a file. Where the
    stream is simulated, its truth is shown, too.
    """
    tracker = Tracker(settings.model, None if simulation is None else simulation.see)
    follower = Follower(cluster, settings.output_topic, tracker)
    terminal = sys.stdout.isatty() and not options.web

    view: AbstractContextManager[Any] = nullcontext()
    if options.web:
        server = WebServer("127.0.0.1", options.port, Page(follower, tracker))
        sys.stdout.write(f"{settings.model} at http://127.0.0.1:{server.port}/ (Ctrl-C to leave)\n")
        view = closing(server)
    else:
        if simulation is None:
            _tell_if_missing(cluster, settings)
        follower.start()
    if terminal:
        view = _live(tracker, follower, settings, simulation)
    count = 0
    with closing(follower), view:
        while not stop.is_set() and (options.releases is None or count < options.releases):
            sys.stdout.flush()
            tracker.wait(count, LOOK_SECONDS)
            left = None if options.releases is None else options.releases - count
            count, news = tracker.history(count)
            if not (options.web or terminal):
                sys.stdout.writelines(_line(point, simulation) for point in news.points[:left])
    if terminal and tracker.release is not None:
        sys.stdout.write(describe(tracker.release) + "\n")
    return 0


def _tell_if_missing(cluster: Cluster, settings: ViewSettings) -> None:
    with suppress(ClusterError):  # which the follower waits for
        if cluster.topic(settings.output_topic) is None:
            sys.stderr.write(
                f"there is no topic {settings.output_topic!r} yet: waiting for it. Is "
                f"{settings.model!r} the name of the model?\n"
            )


def _line(point: ReleasePoint, simulation: Simulation | None) -> str:
    remark = simulation.remark(point.batch) if simulation is not None else ""
    pairs = zip(HEAD, point_cells(point, remark), strict=True)
    return "  ".join(f"{name} {text}".strip() for name, text in pairs).rstrip() + "\n"


def _live(
    tracker: Tracker, follower: Follower, settings: ViewSettings, simulation: Simulation | None
) -> AbstractContextManager[Any]:
    """The view on a terminal, which is drawn again and again."""
    from rich.console import Console, RenderableType
    from rich.live import Live

    from .screen import screen

    console = Console(highlight=False)

    def render() -> RenderableType:
        waiting = follower.problem or f"nothing on {settings.output_topic!r} yet"
        points = tracker.history()[1].points
        return screen(tracker.release, points, waiting, time.time(), console.height, simulation)

    return Live(get_renderable=render, console=console, screen=True, refresh_per_second=4)

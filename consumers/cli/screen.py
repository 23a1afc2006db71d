"""Draws a model on a terminal: its description, and a table of the last releases."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from ..model.describe import describe
from ..model.releases import PublishedRelease
from ..web.tracker import ReleasePoint
from .history import Simulation, point_cells, table

BAR, LABEL, WARN, BAD = "bright_cyan", "dim", "bold yellow", "bold bright_red"
LEVELS: Final = "▁▂▃▄▅▆▇█"
#: Name of a fact that is an alarm.
FLAG: Final = "FLAG"
#: Lines that are not loadings, about.
OTHER_LINES: Final = 14


def screen(
    release: PublishedRelease | None,
    points: Sequence[ReleasePoint],
    waiting: str,
    now: float,
    height: int,
    simulation: Simulation | None = None,
) -> RenderableType:
    """Draw the whole view, for a terminal of this height. What does not fit is left out."""
    body: list[RenderableType] = [Text(f"waiting for the first release: {waiting}")]
    title = "stream-dppca"
    if release is not None:
        top = max(3, (height - OTHER_LINES) // (2 * max(len(release.components), 1)))
        body = [_line(line) for line in describe(release, top).split("\n")]
        title = f"{release.model} · {title}"
    body += [Text(), *(_fact(*fact) for fact in (simulation.facts() if simulation else ()))]
    if points and points[-1].time is not None:
        age = datetime.timedelta(seconds=max(int(now - points[-1].time), 0))
        title += f" · {age} ago"
    moved = [point.moved for point in points if point.moved]
    if moved:
        body += [Text.assemble(("moved  ", LABEL), (sparkline(moved, 60), BAR))]
    body += _table(points, simulation) if points else ()
    return Panel(Group(*body), title=Text(title), subtitle="Ctrl-C to leave", height=height)


def _line(text: str) -> Text:
    """A line of a description. Sentences are wrapped, rows of a table are not."""
    line = Text(text, no_wrap=text.startswith("  "), overflow="ellipsis")
    line.highlight_regex("█+", BAR)
    line.highlight_regex("^Not private.*", BAD)
    return line


def _fact(name: str, text: str) -> Text:
    label = (f"{name:<13}", BAD if name == FLAG else LABEL)
    return Text.assemble(label, text, no_wrap=True, overflow="ellipsis")


def _table(points: Sequence[ReleasePoint], simulation: Simulation | None) -> Iterator[Text]:
    """The releases, the newest first."""
    newest = points[::-1]
    remarks = [simulation.remark(point.batch) if simulation else "" for point in newest]
    styles = [LABEL, *(WARN if point.drift else "" for point in newest)]
    for line, style in zip(table(map(point_cells, newest, remarks)), styles, strict=True):
        yield Text(line, style, no_wrap=True, overflow="ellipsis")


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw positive numbers on a logarithmic scale, the newest last.

    >>> sparkline([1, 10, 100], 9)
    '▁▄█'
    """
    shown = [math.log(max(value, 1e-12)) for value in values[-max(width, 1) :]]
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    return "".join(LEVELS[int((value - low) / span * 7.999)] for value in shown)

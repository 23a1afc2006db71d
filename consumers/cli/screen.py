"""Draws a model on a terminal: signed loadings with their noise, and how they moved."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..web.tracker import SHOWN_RATE, Current, History, Point
from .history import Truth, head, point_cells

POSITIVE, NEGATIVE, LABEL = "bright_cyan", "bright_magenta", "dim"
GOOD, WARN, BAD = "bright_green", "bold yellow", "bold bright_red"
LEVELS: Final = "▁▂▃▄▅▆▇█"
#: Name of a fact that is an alarm.
FLAG: Final = "FLAG"
STYLES: Final = {"learned": GOOD, "nothing_learned": BAD}
STARTING: Final = (
    "The centre and the scale of each feature are being learned, privately. Components come next."
)


def screen(
    known: History,
    model: str,
    waiting: str,
    now: float,
    width: int,
    height: int,
    truth: Truth | None = None,
) -> RenderableType:
    """Draw the whole view, for a terminal of this size."""
    inner, current = width - 4, known.current
    facts = [_fact(*fact) for fact in truth.facts] if truth is not None else []
    facts += [] if current is None else _known(current)
    if current is None:
        body: list[RenderableType] = [Text(), Text(f"waiting for the first release: {waiting}")]
        body += [Text(), *facts]
    else:
        body = [_head(current, now, truth), Text()]
        body += _lines(current.meaning or current.words, inner, "italic")
        if not current.components and current.status == "starting":
            body += [Text(), *_lines(STARTING, inner)]
        promise = _lines(current.promise, inner, LABEL if current.private else BAD)
        used = 2 + len(body) + 1 + len(promise)
        if current.components:
            most = max(min(len(current.features), (height - used) * 3 // 5), 3)
            body += [Text(), _bars(current, inner, most, truth.direction if truth else ())]
            used += 1 + most + (most < len(current.features))
            facts = facts[: max(height - used - 1, 0)]
            used += len(facts) + bool(facts)
            left = height - used - 1
            if left >= 2:
                body += [Text(), _table(known.points, left, inner, truth)]
        body += [Text(), *facts] if facts else []
        body += [Text(), *promise]
    title, leave = f"[bold]{Text(model).markup}[/bold] · stream-dppca", "[dim]Ctrl-C to leave[/dim]"
    return Panel(Group(*body), title=title, subtitle=leave, border_style="blue", height=height)


def _head(current: Current, now: float, truth: Truth | None) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"batch {current.batch:,}", style="bold")
    text.append(f" · {current.extent}")
    if current.time is not None:
        text.append(f" · {_age(now - current.time)} ago")
    words = "the stream has changed" if current.drift else current.status.replace("_", " ")
    text.append(f" · {words}", style=WARN if current.drift else STYLES.get(current.status, WARN))
    if truth is not None and truth.direction:
        text.append(" · ").append("┃", style=WARN).append(" the truth")
    return text


def _fact(name: str, text: str) -> Text:
    style = BAD if name == FLAG else LABEL
    return Text.assemble((f"{name:<13}", style), text, no_wrap=True, overflow="ellipsis")


def _known(current: Current) -> Iterator[Text]:
    """The limits and the largest eigenvalues, with twice their standard deviations."""
    percent = f"{100 * SHOWN_RATE:g} %"
    found = [
        f"{percent} beyond {score.upper()} {value:.3g} ± {2 * sd:.2g}"
        for score, limits in current.limits.items()
        for rate, value, sd in limits
        if rate == SHOWN_RATE
    ]
    if current.components:
        yield _fact("limits", ", ".join(found) or f"none is known for {percent} yet")
    if current.eigenvalues:
        listed = ", ".join(f"{x:.3g} ± {2 * sd:.2g}" for x, sd in current.eigenvalues)
        yield _fact("eigenvalues", listed)


def _age(seconds: float) -> str:
    """A duration in at most two units.

    >>> [_age(s) for s in (-3, 59, 61, 7300, 200000)]
    ['0 s', '59 s', '1 min 1 s', '2 h 1 min', '2 d 7 h']
    """
    s = max(int(seconds), 0)
    units = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
    for size, unit, smaller, name in units:
        if s >= size:
            return f"{s // size} {unit} {s % size // smaller} {name}"
    return f"{s} s"


def _lines(text: str, width: int, style: str = "") -> list[RenderableType]:
    return [Text(line, style=style) for line in textwrap.wrap(text, max(width, 20))]


def _bars(current: Current, width: int, most: int, truth: Sequence[float]) -> Text:
    """Draw a signed bar for each feature, the largest first.

    ─ spans twice the noise around a loading, and ┃ stands where the truth is, if it is known.
    """
    component = current.components[0]
    weights, noise = component.loadings, component.noise
    order = sorted(range(len(weights)), key=lambda j: -abs(weights[j]))[:most]
    name_width = min(max(len(current.features[j]) for j in order), width // 3)
    room = max(width - name_width - 11, 10)
    ends = [weights[j] + sign * 2 * (noise[j] if noise else 0.0) for j in order for sign in (-1, 1)]
    ends += [truth[j] for j in order] if truth else []
    low, high = min(*ends, 0.0), max(*ends, 0.0)
    cells = (room - 1) / ((high - low) or 1.0)
    text = Text(no_wrap=True, overflow="crop")
    for j in order:
        weight, sd = weights[j], noise[j] if noise else 0.0
        unsure = abs(weight) < 2 * sd
        style = LABEL if unsure else POSITIVE if weight >= 0 else NEGATIVE
        text.append(f"{current.features[j][:name_width]:>{name_width}}  ")
        text.append(f"{weight:+z.3f}  ", style=style if unsure else f"bold {style}")
        zero = round(-low * cells)
        end = round((weight - low) * cells)
        spread = [math.floor((weight + sign * 2 * sd - low) * cells) for sign in (-1, 1)]
        mark = math.floor((truth[j] - low) * cells) if truth else -1
        for cell in range(room):
            inside = min(zero, end) <= cell < max(zero, end)
            if cell == mark:
                text.append("┃", style=WARN)
            elif inside:
                text.append("━", style=style)
            elif sd and spread[0] <= cell <= spread[1]:
                text.append("─", style=LABEL)
            elif cell == zero:
                text.append("│", style=LABEL)
            else:
                text.append(" ")
        text.append("\n")
    if len(order) < len(weights):
        text.append(f"… and {len(weights) - len(order):,} smaller ones\n", style=LABEL)
    text.right_crop(1)
    return text


def _table(points: Sequence[Point], most: int, width: int, truth: Truth | None) -> Group:
    """Draw the last releases, the newest first, and all movements in a line."""
    moved = [point.moved for point in points if point.moved]
    table = Table(box=None, pad_edge=False, header_style=LABEL, padding=(0, 3, 0, 0))
    for name in head(truth):
        table.add_column(name, justify="right", no_wrap=True)
    for k, point in enumerate(reversed(points)):
        if k == most - 2:
            break
        cells = point_cells(point, truth)
        table.add_row(*cells, style=WARN if cells[-1] else "" if k == 0 else LABEL)
    if not moved:
        return Group(table)
    return Group(Text.assemble(("moved  ", LABEL), (sparkline(moved, width - 8), POSITIVE)), table)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw positive numbers on a logarithmic scale, the newest last.

    >>> sparkline([1, 10, 100], 9)
    '▁▄█'
    """
    shown = [math.log(max(value, 1e-12)) for value in values[-max(width, 1) :]]
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    return "".join(LEVELS[int((value - low) / span * 7.999)] for value in shown)

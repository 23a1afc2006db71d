"""Draws the releases for a terminal, or as plain lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stream_dppca.release import PrivacyStatement

from ..model.releases import PublishedRelease
from .deployments import Deployment
from .history import History, direction
from .telemetry import FEATURES, TRUE_DIRECTION

__all__ = ["BAD", "LABEL", "bars", "plain_line", "promise", "screen"]

POSITIVE, NEGATIVE, TRUTH, LABEL, GOOD, BAD = (
    "bright_cyan", "bright_magenta", "bold yellow", "dim", "bright_green", "bold bright_red",
)  # fmt: skip
LEVELS: Final = "▁▂▃▄▅▆▇█"


def bars(release: PublishedRelease, width: int, most: int) -> Text:
    """Draw a signed bar for each feature, the largest first, with a mark where the truth is."""
    w = direction(release)
    truth = TRUE_DIRECTION
    order = np.argsort(-np.abs(w))
    if len(order) > most:
        order = order[: most - 1]
    names = [release.features[j] for j in order]
    room = width - max(map(len, names)) - 11
    # The axis stands where the largest weights of both signs have room on their sides.
    reach = np.concatenate([w, truth])
    high, low = max(float(reach.max()), 0.0), max(float(-reach.min()), 0.0)
    zero = round((room - 1) * low / (high + low))
    cells = min((room - 1 - zero) / high if high else math.inf, zero / low if low else math.inf)
    text = Text(no_wrap=True, overflow="crop")
    for name, j in zip(names, order, strict=True):
        weight = float(w[j])
        style = POSITIVE if weight >= 0 else NEGATIVE
        text.append(f"{name:>{max(map(len, names))}}  ")
        text.append(f"{weight:+.3f}  ", style=f"bold {style}")
        mark = min(max(zero + math.floor(float(truth[j]) * cells), 0), room - 1)
        for cell, char in enumerate(_bar(weight * cells, zero, room)):
            if cell == mark:
                text.append("┃", style=TRUTH)
            elif cell == zero and low and char == " ":
                text.append("│", style=LABEL)
            else:
                text.append(char, style=style)
        text.append("\n")
    if len(order) < len(w):
        text.append(f"… and {len(w) - len(order)} smaller ones\n", style=LABEL)
    text.right_crop(1)
    return text


def _bar(length: float, zero: int, room: int) -> str:
    """Draw a bar from cell `zero` to the right, or to the left if `length` is negative."""
    whole, half = divmod(round(abs(length) * 2), 2)
    if length >= 0:
        line = " " * zero + "━" * whole + "╸" * half
    else:
        line = ("╺" * half + "━" * whole).rjust(zero)[-zero:] if zero else ""
    return f"{line:<{room}}"[:room]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw positive numbers on a logarithmic scale, the newest last."""
    shown = np.log(np.maximum(values[-width:], 1e-12))
    low, span = float(shown.min()), float(np.ptp(shown))
    return "".join(LEVELS[int((v - low) / span * 7.999)] if span else LEVELS[0] for v in shown)


def promise(p: PrivacyStatement) -> Text:
    """Return the privacy statement in one line."""
    if not p.private:
        return Text("NOT PRIVATE: the noise came from a seed", style=BAD)
    text = Text(f"ε = {p.epsilon:g}, δ = {p.delta:g}", style="bold")
    text.append(f" for every {p.unit} · {p.scope} · {p.adjacency}", style="not bold")
    return text


def screen(history: History, deployment: Deployment, width: int, height: int) -> RenderableType:
    """Draw the whole view, for a terminal of this size."""
    inner = width - 4
    if history.current is None:
        spinner = Spinner("dots", text=f" waiting for the first release · {history.status}")
        body: list[RenderableType] = [Text(), spinner, Text(), _facts(history, deployment, inner)]
    else:
        spare = height - 2 - 2 - len(FEATURES) - 1 - 6  # border, head, bars, blank, facts
        bars_at_most = len(FEATURES) + min(spare, 0)
        body = [_head(history), Text(), bars(history.current, inner, max(bars_at_most, 2)), Text()]
        if spare >= 5:
            body += [_table(history, spare - 2), Text()]
        body.append(_facts(history, deployment, inner))
    return Panel(
        Group(*body),
        title="[bold]stream-dppca[/bold] · the private main direction of a Kafka topic",
        subtitle="[dim]Ctrl-C to leave[/dim]",
        border_style="blue",
        height=height,
    )


def _head(history: History) -> Table:
    release = history.current
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    left = Text()
    if release is not None:
        left.append(f"batch {release.batch:,}", style="bold")
        left.append(f" · {release.n_seen:,} records")
        if release.sources:
            parts = ", ".join(f"{s.task}: {s.batch:,}" for s in release.sources)
            left.append(f" · shards {parts}", style=LABEL)
        if release.skipped:
            left.append(" · skipped", style=BAD)
    head.add_row(left, Text.assemble(("┃", TRUTH), (" the truth", LABEL)))
    return head


def _table(history: History, most: int) -> Table:
    """Draw the last releases, the newest first."""
    table = Table(box=None, pad_edge=False, header_style=LABEL, padding=(0, 3, 0, 0))
    for name in ("batch", "sine to the truth", "moved", "noise alone"):
        table.add_column(name, justify="right")
    for k, (batch, error, moved, noise) in enumerate(reversed(history.rows)):
        if k == most:
            break
        cells = (f"{batch:,}", f"{error:.4f}", _number(moved), _number(noise))
        table.add_row(*cells, style="" if k == 0 else LABEL)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _facts(history: History, deployment: Deployment, width: int) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(style=LABEL, width=14)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    if history.current is not None:
        error = history.sines[-1]
        style = GOOD if error < 0.1 else ""
        spark = sparkline(history.sines, max(width - 34, 8))
        grid.add_row(
            "to the truth", Text.assemble("sine ", (f"{error:.4f}", f"bold {style}"), "  ",
                                          (spark, GOOD)),
        )  # fmt: skip
        moved = Text.assemble((_number(history.moved), "bold"), " since the last release")
        if history.noise is not None:
            moved.append(f" · noise alone about {history.noise:.4f}")
        grid.add_row("moved", moved)
        grid.add_row("stream", Text(" · ".join(_stream(history))))
        grid.add_row("promise", promise(history.current.privacy))
    grid.add_row("broker", Text(deployment.broker))
    ports = deployment.ports()
    if ports:
        pages = f"http://127.0.0.1:{ports[0]}/component  /metrics  /livez  /readyz"
        grid.add_row("pages", Text(pages))
    return grid


def _stream(history: History) -> Iterator[str]:
    rates = history.rates() if history.seen else None
    if rates is not None:
        yield f"{rates[0]:,.0f} records/s · {rates[1]:.1f} releases/s"
    yield "lag -" if history.lag is None else f"lag {history.lag:,} messages"


def plain_line(history: History) -> str:
    """Return the newest release in one line, for output that is not a terminal."""
    release = history.current
    if release is None:
        return history.status
    loadings = dict(zip(release.features, direction(release).tolist(), strict=True))
    largest = sorted(loadings, key=lambda name: -abs(loadings[name]))[:3]
    parts = [
        f"release {release.batch}",
        f"{release.n_seen} records",
        f"sine {history.sines[-1]:.4f}",
    ]
    if history.moved is not None and history.noise is not None:
        parts.append(f"moved {history.moved:.4f} (noise {history.noise:.4f})")
    if history.lag is not None:
        parts.append(f"lag {history.lag}")
    return "  ".join([*parts, " ".join(f"{name} {loadings[name]:+.3f}" for name in largest)])

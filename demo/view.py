"""Draws the releases for a terminal, or as plain lines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from consumers.model.describe import meaning, status_in_words
from consumers.model.releases import Promise, ReleaseDocument
from stream_dppca.arrays import FloatArray

from .deployments import Deployment
from .history import History, direction
from .telemetry import FEATURES

__all__ = ["BAD", "LABEL", "bars", "plain_line", "promise", "screen"]

POSITIVE, NEGATIVE, TRUTH, LABEL, GOOD, BAD = (
    "bright_cyan", "bright_magenta", "bold yellow", "dim", "bright_green", "bold bright_red",
)  # fmt: skip
LEVELS: Final = "▁▂▃▄▅▆▇█"
WARM_UP: Final = """\
 Nothing about the data is known: neither typical values nor units. The first records are used to
 learn the centre and the scale of each feature, privately, and for nothing else."""


def bars(release: ReleaseDocument, truth: FloatArray, width: int, most: int) -> Text:
    """Draw a signed bar for each feature, the largest first, with a mark where the truth is."""
    w = direction(release)
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


def promise(p: Promise) -> Text:
    """Return the privacy statement in one line."""
    if not p.private:
        return Text("NOT PRIVATE: the noise came from a seed", style=BAD)
    text = Text(f"ε = {p.epsilon:g}, δ = {p.delta:g}", style="bold")
    if p.unit == "subject":
        text.append(f" per device: for all that one sends in {p.scope}", style="not bold")
        return text
    text.append(f" for every {p.unit} · {p.scope} · {p.adjacency}", style="not bold")
    return text


def over_time(p: Promise) -> str:
    """Return the epsilon of a device that stays longer."""
    return ", ".join(
        f"{time} ε = {epsilon:.3g}" for time, epsilon in (p.epsilon_over or {}).items()
    )


def _devices(release: ReleaseDocument) -> str:
    return f"about {release.subjects or 0:,.0f} devices (noisy)"


def screen(history: History, deployment: Deployment, width: int, height: int) -> RenderableType:
    """Draw the whole view, for a terminal of this size."""
    inner = width - 4
    release = history.current
    if release is None:
        spinner = Spinner("dots", text=f" waiting for the first release · {history.status}")
        body: list[RenderableType] = [Text(), spinner, Text()]
    elif not release.learned:
        spinner = Spinner("dots", text=f" {status_in_words(release)}")
        body = [_head(history), Text(), spinner, Text(WARM_UP), Text()]
    else:
        facts = 6 if release.round is None else 7
        spare = height - 2 - 3 - len(FEATURES) - 1 - facts  # border, head, bars, blank
        bars_at_most = len(FEATURES) + min(spare, 0)
        shown = bars(release, history.truth(), inner, max(bars_at_most, 2))
        body = [_head(history), *_sentence(release, inner, 2), shown, Text()]
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
        by_device = release.round is not None
        left.append(f"{'round' if by_device else 'batch'} {release.batch:,}", style="bold")
        left.append(f" · {_devices(release) if by_device else f'{release.n_seen:,} records'}")
        if release.sources:
            parts = ", ".join(f"{s.task}: {s.batch:,}" for s in release.sources)
            left.append(f" · shards {parts}", style=LABEL)
        if release.learned and (words := status_in_words(release)):
            left.append(f" · {words}", style=BAD if release.skipped else TRUTH)
    head.add_row(left, Text.assemble(("┃", TRUTH), (" the truth", LABEL)))
    return head


def _table(history: History, most: int) -> Table:
    """Draw the last releases, the newest first."""
    table = Table(box=None, pad_edge=False, header_style=LABEL, padding=(0, 3, 0, 0))
    for name in ("batch", "from the truth", "moved", "noise alone", ""):
        table.add_column(name, justify="right")
    for k, row in enumerate(reversed(history.rows)):
        if k == most:
            break
        numbers = (_degrees(row.angle), _degrees(row.moved), _degrees(row.noise))
        note = "changed" if row.drift else ""
        table.add_row(f"{row.batch:,}", *numbers, note, style="" if k == 0 else LABEL)
    return table


def _sentence(release: ReleaseDocument, width: int, lines: int) -> list[Text]:
    """Explain the component in exactly this many lines."""
    for most in (4, 3, 2, 1):
        wrapped = textwrap.wrap(meaning(release, most), max(width, 20))
        if len(wrapped) <= lines:
            break
    return [Text(line, style="italic") for line in [*wrapped, *[""] * lines][:lines]]


def _degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}°"


def _facts(history: History, deployment: Deployment, width: int) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(style=LABEL, width=14)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    if history.rows:
        last = history.rows[-1]
        style = GOOD if last.angle < 5 else ""
        spark = sparkline(history.angles, max(width - 34, 8))
        off = Text.assemble((_degrees(last.angle), f"bold {style}"), " off  ", (spark, GOOD))
        grid.add_row("the truth", off)
        moved = Text.assemble((_degrees(last.moved), "bold"), " since the last release")
        if last.noise is not None:
            moved.append(f" · noise alone about {_degrees(last.noise)}")
        grid.add_row("moved", moved)
    if history.current is not None:
        grid.add_row("stream", Text(" · ".join(_stream(history))))
        grid.add_row("promise", promise(history.current.privacy))
        if history.current.privacy.epsilon_over:
            grid.add_row("over time", Text(over_time(history.current.privacy)))
    grid.add_row("broker", Text(deployment.broker))
    if deployment.engine is not None:
        grid.add_row("engine", Text(deployment.engine))
    ports = deployment.ports()
    if ports:
        pages = f"http://127.0.0.1:{ports[0]}/  /component  /metrics  /livez  /readyz"
        grid.add_row("pages", Text(pages))
    return grid


def _stream(history: History) -> Iterator[str]:
    if history.current is not None and history.current.round is not None:
        # Records per second and the lag count records, so they are secret with privacy per device.
        yield f"{_devices(history.current)} in the round that ended at {history.current.round.end}"
        return
    rates = history.rates() if history.seen else None
    if rates is not None:
        yield f"{rates[0]:,.0f} records/s · {rates[1]:.1f} releases/s"
    yield "lag -" if history.lag is None else f"lag {history.lag:,} messages"


def plain_line(history: History) -> str:
    """Return the newest release in one line, for output that is not a terminal."""
    release = history.current
    if release is None:
        return history.status
    by_device = release.round is not None
    seen = _devices(release) if by_device else f"{release.n_seen} records"
    parts = [f"release {release.batch}", seen]
    words = status_in_words(release)
    if not release.learned:
        return "  ".join([*parts, words])
    last = history.rows[-1]
    parts.append(f"{_degrees(last.angle)} from the truth")
    if last.moved is not None and last.noise is not None:
        parts.append(f"moved {_degrees(last.moved)} (noise {_degrees(last.noise)})")
    if history.lag is not None and not by_device:
        parts.append(f"lag {history.lag}")
    loadings = dict(zip(release.features, direction(release).tolist(), strict=True))
    largest = sorted(loadings, key=lambda name: -abs(loadings[name]))[:3]
    parts.append(" ".join(f"{name} {loadings[name]:+.3f}" for name in largest))
    return "  ".join([*parts, words] if words else parts)

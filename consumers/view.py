"""What the demonstration shows: releases as they come, drawn for a terminal or as plain lines."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stream_dppca.release import PrivacyStatement
from stream_dppca.telemetry import FEATURES, TRUE_DIRECTION

from .log import Log
from .releases import PublishedRelease, parse_release

__all__ = ["BAD", "LABEL", "Stage", "Story", "bars", "plain_line", "promise", "screen", "sine"]

FloatArray = NDArray[np.float64]


class Stage(Protocol):
    """A broker, a generator and services that run, and how they are watched."""

    broker: str  #: in words

    def log(self) -> Log: ...

    def ports(self) -> list[int]: ...

    def failed(self) -> str | None:
        """Why it cannot go on, if so."""
        ...

    def tidy(self) -> None:
        """Called now and then."""
        ...

    def close(self) -> None: ...


# What is known so far -----------------------------------------------------------------------------


@dataclass
class Story:
    """What the output topic and the metrics have said."""

    shown: str  #: the task whose component is shown: "0", or "merged" of several shards
    current: PublishedRelease | None = None
    releases: int = 0
    batches: dict[str, int] = field(default_factory=dict)  #: of each task
    moved: float | None = None
    noise: float | None = None
    sines: list[float] = field(default_factory=list)
    seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=256))
    rows: deque[tuple[int, float, float | None, float | None]] = field(
        default_factory=lambda: deque(maxlen=64)
    )
    status: str = "starting"
    lag: int | None = None
    began: float = field(default_factory=time.monotonic)
    first_s: float | None = None  #: how long the first release took

    def take(self, value: bytes) -> bool:
        """Take in a message of the output topic. True if it is a newer release of what is shown."""
        try:
            release = parse_release(value)
        except ValueError:
            return False
        task = str(release.task)
        if release.batch <= self.batches.get(task, 0):
            return False  # published again
        self.batches[task] = release.batch
        if task != self.shown:
            return False
        now = time.monotonic()
        if self.first_s is None:
            self.first_s = now - self.began
        w = _direction(release)
        if self.current is not None:
            self.moved = sine(w, _direction(self.current))
        self.noise = noise_movement(release)
        self.current = release
        self.releases += 1
        self.sines.append(sine(w, TRUE_DIRECTION))
        self.seen.append((now, release.n_seen))
        self.rows.append((release.batch, self.sines[-1], self.moved, self.noise))
        return True

    def rates(self) -> tuple[float, float] | None:
        """Records and releases a second, over the last five seconds or so."""
        recent = [at for at in self.seen if at[0] > self.seen[-1][0] - 5.0]
        if len(recent) < 2:
            return None
        took = recent[-1][0] - recent[0][0]
        return (recent[-1][1] - recent[0][1]) / took, (len(recent) - 1) / took


def _direction(release: PublishedRelease) -> FloatArray:
    """The main component. A direction has no sign: most of its weight is taken as positive."""
    if not release.components:  # nothing has been learned yet
        return np.zeros(len(release.features))
    w = np.array([release.components[0].loadings[name] for name in release.features])
    return w if w.sum() >= 0 else -w


def sine(w: FloatArray, v: FloatArray) -> float:
    """Sine of the angle between two directions, accurate when it is small."""
    return float(np.linalg.norm(w - v * (v @ w)))


def noise_movement(release: PublishedRelease) -> float | None:
    """How far the noise of this batch alone moves the component, about.

    To first order in the noise: sigma in each coordinate of the second moment, across the
    component, over the spread along it, times the weight that the batch has.
    """
    spread = release.components[0].spread if release.components else None
    if not spread or release.sigma is None or release.step is None:
        return None
    across = math.sqrt((len(release.features) - 1) / 2)
    return release.step * release.sigma * across / spread


# How it looks -------------------------------------------------------------------------------------

POSITIVE, NEGATIVE, TRUTH, LABEL, GOOD, BAD = (
    "bright_cyan", "bright_magenta", "bold yellow", "dim", "bright_green", "bold bright_red",
)  # fmt: skip
LEVELS: Final = "▁▂▃▄▅▆▇█"


def bars(release: PublishedRelease, width: int, most: int) -> Text:
    """A labelled, signed bar for each feature, the largest first; a mark where the truth is."""
    w = _direction(release)
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
    """A bar from cell `zero` on to the right, or to the left of it if `length` is negative."""
    whole, half = divmod(round(abs(length) * 2), 2)
    if length >= 0:
        line = " " * zero + "━" * whole + "╸" * half
    else:
        line = ("╺" * half + "━" * whole).rjust(zero)[-zero:] if zero else ""
    return f"{line:<{room}}"[:room]


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of positive numbers, newest last, in a logarithmic scale."""
    shown = np.log(np.maximum(values[-width:], 1e-12))
    low, span = float(shown.min()), float(np.ptp(shown))
    return "".join(LEVELS[int((v - low) / span * 7.999)] if span else LEVELS[0] for v in shown)


def promise(p: PrivacyStatement) -> Text:
    """The privacy statement in one line."""
    if not p.private:
        return Text("NOT PRIVATE: the noise came from a seed", style=BAD)
    text = Text(f"ε = {p.epsilon:g}, δ = {p.delta:g}", style="bold")
    text.append(f" for every {p.unit} · {p.scope} · {p.adjacency}", style="not bold")
    return text


def screen(story: Story, stage: Stage, width: int, height: int) -> RenderableType:
    """The whole view, for a terminal of this size."""
    inner = width - 4
    if story.current is None:
        spinner = Spinner("dots", text=f" waiting for the first release · {story.status}")
        body: list[RenderableType] = [Text(), spinner, Text(), _facts(story, stage, inner)]
    else:
        spare = height - 2 - 2 - len(FEATURES) - 1 - 6  # border, head, bars, blank, facts
        bars_at_most = len(FEATURES) + min(spare, 0)
        body = [_head(story), Text(), bars(story.current, inner, max(bars_at_most, 2)), Text()]
        if spare >= 5:
            body += [_table(story, spare - 2), Text()]
        body.append(_facts(story, stage, inner))
    return Panel(
        Group(*body),
        title="[bold]stream-dppca[/bold] · the private main direction of a Kafka topic",
        subtitle="[dim]Ctrl-C to leave[/dim]",
        border_style="blue",
        height=height,
    )


def _head(story: Story) -> Table:
    release = story.current
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


def _table(story: Story, most: int) -> Table:
    """The last releases, newest first."""
    table = Table(box=None, pad_edge=False, header_style=LABEL, padding=(0, 3, 0, 0))
    for name in ("batch", "sine to the truth", "moved", "noise alone"):
        table.add_column(name, justify="right")
    for k, (batch, error, moved, noise) in enumerate(reversed(story.rows)):
        if k == most:
            break
        cells = (f"{batch:,}", f"{error:.4f}", _number(moved), _number(noise))
        table.add_row(*cells, style="" if k == 0 else LABEL)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _facts(story: Story, stage: Stage, width: int) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(style=LABEL, width=14)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    if story.current is not None:
        error = story.sines[-1]
        style = GOOD if error < 0.1 else ""
        spark = sparkline(story.sines, max(width - 34, 8))
        grid.add_row(
            "to the truth", Text.assemble("sine ", (f"{error:.4f}", f"bold {style}"), "  ",
                                          (spark, GOOD)),
        )  # fmt: skip
        moved = Text.assemble((_number(story.moved), "bold"), " since the last release")
        if story.noise is not None:
            moved.append(f" · noise alone about {story.noise:.4f}")
        grid.add_row("moved", moved)
        grid.add_row("stream", Text(" · ".join(_stream(story))))
        grid.add_row("promise", promise(story.current.privacy))
    grid.add_row("broker", Text(stage.broker))
    ports = stage.ports()
    if ports:
        pages = f"http://127.0.0.1:{ports[0]}/component  /metrics  /livez  /readyz"
        grid.add_row("pages", Text(pages))
    return grid


def _stream(story: Story) -> Iterator[str]:
    rates = story.rates() if story.seen else None
    if rates is not None:
        yield f"{rates[0]:,.0f} records/s · {rates[1]:.1f} releases/s"
    yield "lag -" if story.lag is None else f"lag {story.lag:,} messages"


def plain_line(story: Story) -> str:
    """A release in one line, for those who do not look at a terminal."""
    release = story.current
    if release is None:
        return story.status
    loadings = dict(zip(release.features, _direction(release).tolist(), strict=True))
    largest = sorted(loadings, key=lambda name: -abs(loadings[name]))[:3]
    parts = [f"release {release.batch}", f"{release.n_seen} records", f"sine {story.sines[-1]:.4f}"]
    if story.moved is not None and story.noise is not None:
        parts.append(f"moved {story.moved:.4f} (noise {story.noise:.4f})")
    if story.lag is not None:
        parts.append(f"lag {story.lag}")
    return "  ".join([*parts, " ".join(f"{name} {loadings[name]:+.3f}" for name in largest)])

"""Releases of a topic or a state file, as a table of what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import ConfigurationError
from ..files.store import unsealed
from ..model.releases import PublishedRelease, parse_release
from ..model.states import decode_state
from ..protocols import Message
from ..web.tracker import Point, Tracker

HEAD = ("batch", "published", "status", "explained", "moved", "noise alone", "")


@dataclass(frozen=True)
class Truth:
    """What is known about a simulated stream, to be drawn over its model."""

    direction: Sequence[float]  #: true loadings in the order of the features, or nothing
    angles: Mapping[int, float]  #: of the main component of each batch to the truth, in degrees
    remarks: Mapping[int, str]  #: about batches
    facts: Sequence[tuple[str, str]]  #: more to show: a name and a line of text each


class Simulation(Protocol):
    """A simulated stream whose truth is known; it is shown every new release of its model."""

    def see(self, release: PublishedRelease) -> None: ...

    def truth(self) -> Truth: ...


def head(truth: Truth | None = None) -> tuple[str, ...]:
    """The names of the columns. The truth takes the place of the time."""
    return HEAD if truth is None else (HEAD[0], *HEAD[2:-1], "from the truth", HEAD[-1])


def stored_release(file: Path) -> Message:
    """The last release of a state file, exactly as it was published."""
    try:
        found = unsealed(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--state: {file} cannot be read ({error.strerror})") from None
    value = b"" if found is None else found.state
    return decode_state(value, f"--state: {file} is not a state file").release.message()


def published(
    messages: Iterable[Message], model: str | None = None
) -> list[tuple[Message, PublishedRelease]]:
    """The releases of a model in order, each once: what is published again is the same release."""
    found: dict[int, tuple[Message, PublishedRelease]] = {}
    for message in messages:
        try:
            release = parse_release(message.value)
        except ValueError:
            continue
        if model is None or release.model == model:
            found.setdefault(release.batch, (message, release))
    return list(found.values())


def history_table(releases: Sequence[tuple[Message, PublishedRelease]]) -> str:
    """One line for each release of a model."""
    tracker = Tracker(releases[0][1].model)
    rows: list[Sequence[str]] = [HEAD]
    count = 0
    for message, _ in releases:
        tracker.add(message)
        count, new = tracker.history(after=count)
        rows += [point_cells(point) for point in new.points]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def point_cells(point: Point, truth: Truth | None = None) -> tuple[str, ...]:
    """A release as cells of a table, in the order of `head`."""
    import datetime

    when = "-"
    if point.time is not None:
        when = datetime.datetime.fromtimestamp(point.time).astimezone().strftime("%F %T")
    ratio = point.ratios[0] if point.ratios else None
    sd = point.ratio_sds[0] if point.ratio_sds else None
    share = "-" if ratio is None else f"{100 * ratio:.1f} %"
    if sd is not None and ratio is not None:
        share += f" ± {100 * sd:.1f}"
    batch, remark = f"{point.batch:,}", "the stream changed" if point.drift else ""
    cells = (point.status.replace("_", " "), share, degrees(point.moved), degrees(point.floor))
    if truth is None:
        return (batch, when, *cells, remark)
    remarks = filter(None, (truth.remarks.get(point.batch), remark))
    return (batch, *cells, degrees(truth.angles.get(point.batch)), "; ".join(remarks))


def degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}°"

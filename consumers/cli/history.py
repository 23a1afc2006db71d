"""Releases of a topic or a state file, as a table of what has changed."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from stream_dppca import Release

from ..errors import ConfigurationError
from ..model.releases import PublishedRelease, parse_release
from ..model.states import decode_state
from ..protocols import Message
from ..settings import ViewSettings
from ..web.tracker import ReleasePoint, Tracker
from . import brokers
from .parsing import Given

HEAD = ("batch", "published", "status", "explained", "moved", "noise alone", "")


class Simulation(Protocol):
    """A simulated stream whose truth is known."""

    def see(self, release: PublishedRelease) -> None:
        """Look at a new release of the model."""

    def remark(self, batch: int) -> str:
        """What is known about a batch."""

    def facts(self) -> Sequence[tuple[str, str]]:
        """More to show: a name and a line of text each."""


def stored_release(file: Path) -> Message:
    """The last release of a state file, exactly as it was published."""
    try:
        state = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--state: {file} cannot be read ({error.strerror})") from None
    return decode_state(state, f"--state: {file} is not a state file").release.message()


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


def on_topic(settings: ViewSettings) -> list[tuple[Message, PublishedRelease]]:
    """The releases of a model on its output topic."""
    with brokers.ask_once(settings) as cluster:
        return published(cluster.scan(settings.output_topic), settings.model)


def in_file(lines: Iterable[bytes]) -> list[Release]:
    """The releases among JSON lines, also those of the library, which name no model."""
    found: dict[int, Release] = {}
    for line in lines:
        with suppress(ValueError):
            release = Release.model_validate_json(line)
            found.setdefault(release.batch, release)
    return list(found.values())


def named_release(name: str, given: Given[ViewSettings]) -> Release:
    """The release that FILE, FILE@BATCH or @BATCH stands for."""
    found: Sequence[Release]
    where, _, batch = name.rpartition("@") if "@" in name else (name, "", "")
    if where:
        try:
            lines = Path(where).read_bytes().splitlines()
        except OSError as error:
            raise ConfigurationError(f"{where} cannot be read ({error.strerror})") from None
        found = in_file(lines)
    else:
        found = [release for _, release in on_topic(given.load())]
    for release in reversed(found):
        if not batch or str(release.batch) == batch:
            return release
    raise ConfigurationError(
        f"{name!r}: there is no such release. It must be a file of releases, JSON lines, with @ "
        "and the number of a batch unless the last one is meant, or @ and the number for the topic"
    )


def history_table(releases: Sequence[tuple[Message, PublishedRelease]]) -> str:
    """One line for each release of a model."""
    tracker = Tracker(releases[0][1].model)
    points: list[ReleasePoint] = []
    for message, _ in releases:
        tracker.add(message)
        points += tracker.history(len(points))[1].points
    return "\n".join(table(map(point_cells, points)))


def table(cells: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table with the columns of `HEAD`."""
    rows = [HEAD, *cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *aligned, remark in rows:
        yield "  ".join([*map(str.rjust, aligned, widths), remark]).rstrip()


def point_cells(point: ReleasePoint, remark: str = "") -> tuple[str, ...]:
    """A release as cells of a table, in the order of `HEAD`."""
    when = "-"
    if point.time is not None:
        when = datetime.datetime.fromtimestamp(point.time).astimezone().strftime("%F %T")
    share = f"{100 * point.ratios[0]:.1f} %" if point.ratios else "-"
    if point.ratio_sds:
        share += f" ± {200 * point.ratio_sds[0]:.1f}"
    remarks = "; ".join(filter(None, ("the stream changed" if point.drift else "", remark)))
    status, moved = point.status.replace("_", " "), (degrees(point.moved), degrees(point.floor))
    return (f"{point.batch:,}", when, status, share, *moved, remarks)


def degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}°"

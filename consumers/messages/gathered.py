"""Codecs of formats whose points become rows: `otlp`, `otlp-json` and `long`.

With privacy per subject a row is everything that a subject sent in a round, or in each of its equal
parts (`Gatherer`). With privacy per record a row is made within one message only: a row that
reached over messages would put a record into two slots (`GroupedMessages`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_dppca.subjects.ids import canonical

from ..errors import ConfigurationError
from ..formats import Format
from ..settings import MESSAGE_KEY
from . import long, otlp
from .codecs import Codec
from .cutting import json_cutter, protobuf_pieces
from .fold import Fold, Part, Point, add_points, row_of
from .series import Selectors, parse_features

Rows = NDArray[np.float64]
Values = Sequence[bytes | None]
Parse = Callable[[bytes], Any]
#: Whose points, and the points.
Group = tuple[Any, Sequence[Point]]
#: From a message, its key and the broker's time in nanoseconds to the groups in it.
Groups = Callable[[bytes | None, bytes | None, int], Iterator[Group]]


@dataclass(frozen=True)
class Grouping:
    """What the points of a message are, and whose; can be sent to other processes."""

    format: Format
    features: tuple[str, ...]
    max_bytes: int
    subject: str | None = None  #: attribute that names the subject, or `@key`; None for records
    group_by: tuple[str, ...] = ()  #: attributes of a row within a message; none: all of them
    fields: long.Fields = field(default_factory=long.Fields)

    def groups(self) -> Groups:
        """Make the function that reads messages."""
        features = parse_features(self.features)
        if self.subject is None:
            for text, parsed in zip(self.features, features, strict=True):
                if parsed.function == "rate":
                    raise ConfigurationError(
                        f"feature {text!r} needs unit=subject: with unit=record a row is made of "
                        "one message, and a rate needs two points in time. Or let the "
                        "cumulativetodelta processor of the collector make deltas of counters."
                    )
        selectors, only_last = Selectors(features), self.subject is None
        keyed = self.subject == MESSAGE_KEY
        alone = self.format == "long" and only_last and not self.group_by  # one row per message
        who = self._who_of_object if self.format == "long" else self._who_of_resource
        cut: Callable[[bytes], list[bytes]]
        parse: Parse
        if self.format == "long":
            cut, parse = json_cutter("metrics"), msgspec.json.Decoder().decode
            head: Parse = parse
        elif self.format == "otlp":
            try:
                cut, (parse, head) = protobuf_pieces, otlp.protobuf_parsers()
            except ModuleNotFoundError:
                raise ConfigurationError(
                    "format otlp needs opentelemetry-proto: pip install 'stream-dppca[otlp]'"
                ) from None
        else:
            cut, (parse, head) = json_cutter("resourceMetrics"), otlp.json_parsers()

        def read(piece: bytes, key: bytes | None, now: int) -> Group:
            whose: Any = None
            points: Sequence[Point] = ()
            try:
                parsed = parse(piece)
                whose = key if keyed else who(parsed)
                if self.format == "long":
                    points = long.points_of(parsed, self.fields, selectors, now, only_last)
                else:
                    points = otlp.points_of(parsed, selectors, only_last)
            except Exception:  # whatever is wrong with a piece, its own points are missing
                with suppress(Exception):
                    whose = who(None) if alone else who(head(piece))
            return whose, points

        def groups(value: bytes | None, key: bytes | None, now: int) -> Iterator[Group]:
            if value is not None and len(value) <= self.max_bytes:
                for piece in cut(value):
                    yield read(piece, key, now)

        return groups

    def _who_of_resource(self, piece: Any) -> Any:
        attributes = otlp.attributes_of(piece.resource.attributes)
        if self.subject is not None:
            return dict(attributes).get(self.subject)
        if not self.group_by:
            return tuple(sorted(attributes))
        found = dict(attributes)
        return tuple(found.get(name) for name in self.group_by)

    def _who_of_object(self, piece: Any) -> Any:
        if self.subject is not None:
            return long.find(piece, self.subject)
        return tuple(repr(long.find(piece, name)) for name in self.group_by)


class GroupedMessages(Codec):
    """Rows within each message: groups in the order in which they appear.

    A group has its row by appearing, whatever its points are; so has a piece of a message that does
    not even say whose it is.
    """

    def __init__(self, grouping: Grouping, rows_per_message: int) -> None:
        self.rows_per_message = rows_per_message
        self._groups = grouping.groups()
        self._functions = [feature.function for feature in parse_features(grouping.features)]

    def decode(self, values: Values) -> Rows:
        rows = np.full((len(values), self.rows_per_message, len(self._functions)), np.nan)
        for i, value in enumerate(values):
            parts: dict[Hashable, Part] = {}
            for number, (who, points) in enumerate(self._groups(value, None, 0)):
                whose = number if who is None else who
                if whose in parts or len(parts) < self.rows_per_message:
                    add_points(parts.setdefault(whose, {}), points, (0, 0, number))
            for row, part in zip(rows[i], parts.values(), strict=False):
                row[:] = row_of(part, self._functions)
        return rows.reshape(-1, len(self._functions))


@dataclass(frozen=True)
class Gathering:
    """The rule by which everything of a subject in a round becomes rows."""

    grouping: Grouping
    parts: int = 1  #: rows per subject and round
    places: int | None = None  #: most subjects

    def begin(self, window: tuple[int, int], whole: bool = True) -> Gatherer:
        """Begin a round, from and up to milliseconds of the broker's time.

        A piece of a round (not `whole`) keeps all subjects: which ones have a place is known only
        when all pieces have been merged.
        """
        return Gatherer(self, window, self.places if whole else None)


class Gatherer:
    """Folds the messages of one round."""

    def __init__(self, gathering: Gathering, window: tuple[int, int], places: int | None) -> None:
        grouping = gathering.grouping
        functions = [feature.function for feature in parse_features(grouping.features)]
        self.fold = Fold(functions, gathering.parts, places)
        self._groups, self._parts, self._window = grouping.groups(), gathering.parts, window

    def add(
        self,
        partition: int,
        offsets: Iterable[int],
        times_ms: Iterable[int | None],
        values: Values,
        keys: Values,
    ) -> None:
        """Add messages of one partition; each must be of the round."""
        start, end = self._window
        for offset, time, value, key in zip(offsets, times_ms, values, keys, strict=True):
            if time is None:
                continue  # no broker has stamped it
            part = (time - start) * self._parts // (end - start)
            for number, (who, points) in enumerate(self._groups(value, key, time * 10**6)):
                if points and (subject := canonical(who)) is not None:
                    self.fold.add(subject, part, points, (partition, offset, number))

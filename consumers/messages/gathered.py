"""Codecs of formats whose points become rows: `otlp`, `otlp-json` and `long`.

With privacy per subject a row is everything that a subject sent in a round, or in each of its equal
parts (`Gatherer`). With privacy per record a row is made within one message only: a row that
reached over messages would put a record into two slots (`GroupedMessages`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from stream_dppca.arrays import FloatArray
from stream_dppca.subjects.ids import canonical

from ..errors import ConfigurationError
from ..formats import Format
from ..settings import MESSAGE_KEY
from . import long, otlp
from .codecs import Codec, Values
from .cutting import json_cutter, protobuf_pieces
from .fold import Fold, Point
from .series import Attributes, Selectors, parse_features

Parse = Callable[[bytes], Any]
#: Whose points, and the points.
Group = tuple[Any, Sequence[Point]]
#: From a message, its key and the broker's time in nanoseconds to the groups in it.
Groups = Callable[[bytes | None, bytes | None, int], Iterator[Group]]


def pieces_of(format: Format) -> tuple[Callable[[bytes], list[bytes]], Parse, Parse]:
    """Return what cuts a message into pieces, what parses one, and what finds out whose it is."""
    if format == "long":
        parse = msgspec.json.Decoder().decode
        return json_cutter("metrics"), parse, parse
    if format == "otlp-json":
        return json_cutter("resourceMetrics"), *otlp.json_parsers()
    try:
        return protobuf_pieces, *otlp.protobuf_parsers()
    except ModuleNotFoundError:
        raise ConfigurationError(
            "format otlp needs opentelemetry-proto: pip install 'stream-dppca[otlp]'"
        ) from None


@dataclass(frozen=True)
class Grouping:
    """What the points of a message are, and whose; can be sent to other processes."""

    format: Format
    features: tuple[str, ...]
    max_bytes: int
    subject: str | None = None  #: attribute that names the subject, or `@key`; None for records
    group_by: tuple[str, ...] = ()  #: attributes of a row within a message; none: all of them
    fields: long.Fields = field(default_factory=long.Fields)

    @property
    def functions(self) -> list[str]:
        """The function of each feature, if it has one."""
        return [feature.function for feature in parse_features(self.features)]

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
        cut, parse, head = pieces_of(self.format)

        def read(piece: bytes, key: bytes | None, now: int) -> Group:
            whose: Any = None
            points: Sequence[Point] = ()
            try:
                parsed = parse(piece)
                whose = key if keyed else self._who(parsed)
                if self.format == "long":
                    points = long.points_of(parsed, self.fields, selectors, now, only_last)
                else:
                    points = otlp.points_of(parsed, selectors, only_last)
            except Exception:  # whatever is wrong with a piece, its own points are missing
                with suppress(Exception):
                    whose = self._who(None if alone else head(piece))
            return whose, points

        def groups(value: bytes | None, key: bytes | None, now: int) -> Iterator[Group]:
            if value is not None and len(value) <= self.max_bytes:
                for piece in cut(value):
                    yield read(piece, key, now)

        return groups

    def _who(self, piece: Any) -> Any:
        """Tell whose points are in a piece."""
        attributes: Attributes = ()
        find: Callable[[str], Any]
        if self.format == "long":
            find = functools.partial(long.find, piece)
        else:
            attributes = otlp.attributes_of(piece.resource.attributes)
            find = dict(attributes).get
        if self.subject is not None:
            return find(self.subject)
        if self.group_by:
            return tuple(repr(find(name)) for name in self.group_by)
        return tuple(sorted(attributes))


class GroupedMessages(Codec):
    """Rows within each message, a fold by itself: groups in the order in which they appear.

    A group has its row by appearing, whatever its points are; so has a piece of a message that does
    not even say whose it is.
    """

    def __init__(self, grouping: Grouping, rows_per_message: int) -> None:
        self.rows_per_message = rows_per_message
        self._groups, self._functions = grouping.groups(), grouping.functions

    def decode(self, values: Values) -> FloatArray:
        rows = np.full((len(values), self.rows_per_message, len(self._functions)), np.nan)
        for i, value in enumerate(values):
            fold = Fold(self._functions, places=self.rows_per_message)
            for number, (who, points) in enumerate(self._groups(value, None, 0)):
                fold.add(number if who is None else who, 0, points, (0, 0, number))
            found, _ = fold.rows(empty=True)
            rows[i, : len(found)] = found
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
        fold = Fold(self.grouping.functions, self.parts, self.places if whole else None)
        return Gatherer(fold, self.grouping.groups(), self.parts, window)


@dataclass(frozen=True)
class Gatherer:
    """Folds the messages of one round."""

    fold: Fold
    groups: Groups
    parts: int
    window: tuple[int, int]

    def add(
        self,
        partition: int,
        offsets: Iterable[int],
        times_ms: Iterable[int | None],
        values: Values,
        keys: Values,
    ) -> None:
        """Add messages of one partition; each must be of the round."""
        start, end = self.window
        for offset, time, value, key in zip(offsets, times_ms, values, keys, strict=True):
            if time is None:
                continue  # no broker has stamped it
            part = (time - start) * self.parts // (end - start)
            for number, (who, points) in enumerate(self.groups(value, key, time * 10**6)):
                if points and (subject := canonical(who)) is not None:
                    self.fold.add(subject, part, points, (partition, offset, number))

"""Reads messages with one metric each, such as `{"host": "a", "metric": "cpu", "value": 1.2}`.

A message is an object, an array of such objects, or an object whose member `metrics` is one. Each
object is read by itself. Where it holds the name, the value, the time and the attributes is a
setting (`Fields`); a dot leads into a nested object.

- If the value is an object, each number in it is a metric `name.member`: Telegraf's `fields`.
- Attributes are the texts and numbers in the object `labels`, or, without it, the texts beside the
  name.
- A time is a number since 1970 in seconds, milliseconds, microseconds or nanoseconds, whichever
  is nearest to this century, or a date. Without one it is the broker's.
- A value is a number or a boolean, and a text only if `text` is set: the adapter of Prometheus
  sends "98.5".
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from .fold import Point, make_point
from .series import Attributes, Selectors, Series

#: Numbers below these are seconds, milliseconds, microseconds; others are nanoseconds.
_UNITS: Final = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3))
#: Most characters of the name of a metric.
_LONGEST_NAME: Final = 1024
#: Longest text that is read as a number or a date.
_LONGEST: Final = 64


@dataclass(frozen=True)
class Fields:
    """Paths to what an object says."""

    name: str = "metric"
    value: str = "value"
    time: str = "timestamp"
    labels: str = ""
    text: bool = False  #: texts are read as numbers


def find(value: Any, path: str) -> Any:
    """The member at a path; None if there is none.

    >>> find({"a": {"b": 1}}, "a.b"), find({"a.b": 2}, "a.b"), find({"a": 3}, "a.b")
    (1, 2, None)
    """
    if not isinstance(value, dict):
        return None
    if path in value:
        return value[path]
    head, dot, rest = path.partition(".")
    return find(value.get(head), rest) if dot else None


def points_of(
    object: Any, fields: Fields, selectors: Selectors, now: int, only_last: bool
) -> Sequence[Point]:
    """The points of an object that features select.

    Parameters
    ----------
    now
        The broker's time, in nanoseconds.
    """
    name = find(object, fields.name)
    if not isinstance(name, str):
        return ()
    of_object: Series | None = None
    found = []
    for metric, value in values_of(name, find(object, fields.value), fields.text):
        if (of_metric := selectors.get(metric)) is not None:
            if of_object is None:
                of_object = Series(attributes_of(object, fields))
                time = _time(find(object, fields.time), now)
            features, series = of_metric.select(of_object)
            found += [
                make_point(feature, function, "level", series, 0, time, value, 1, only_last)
                for feature, function in features
            ]
    return found


def values_of(name: str, value: Any, text: bool) -> Iterator[tuple[str, int | float]]:
    """The metrics in a value, and their numbers.

    A name that is longer than any that can be configured names no metric: put before each member,
    it would cost its length as many times.
    """
    if len(name) > _LONGEST_NAME:
        return
    if isinstance(value, dict):
        for member, below in value.items():
            if not isinstance(below, dict):
                yield from values_of(f"{name}.{member}", below, text)
    elif isinstance(value, int | float):  # booleans are 0 or 1
        yield name, value
    elif text and isinstance(value, str) and len(value) <= _LONGEST:
        with suppress(ValueError):
            yield name, float(value)


def attributes_of(object: Any, fields: Fields) -> Attributes:
    """The attributes of a metric, in their order."""
    labels = find(object, fields.labels) if fields.labels else object
    if not isinstance(labels, dict):
        return ()
    used = () if fields.labels else (fields.name, fields.value, fields.time)
    kinds = (str, int, float) if fields.labels else str
    return tuple((k, str(v)) for k, v in labels.items() if isinstance(v, kinds) and k not in used)


def _time(value: Any, now: int) -> int:
    """A time in nanoseconds.

    >>> [_time(value, 5) for value in (1.5, 1700000000000, "1970-01-01T00:00:01Z", None, "soon")]
    [1500000000, 1700000000000000000, 1000000000, 5, 5]
    """
    with suppress(ValueError, OverflowError, TypeError):
        if isinstance(value, str) and len(value) <= _LONGEST:
            with suppress(ValueError):
                value = float(value)
            if isinstance(value, str):
                date = datetime.datetime.fromisoformat(value)
                value = date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp()
        if isinstance(value, int | float):
            unit = next((unit for most, unit in _UNITS if abs(value) < most), 1)
            return int(value * unit)
    return now

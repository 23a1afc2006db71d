"""Folds the points of subjects into rows, in bounded memory.

A row of a subject is made of all its own points in a round, or in one of `parts` equal parts of it.
Everything that a subject sends in a round is replaced together, so such a row changes no
sensitivity: it is some row, or a few, of one subject. What makes this true is here:

- **The same bits however a round is cut, merged or read again.** Other subjects' messages move the
  cuts. So sums are exact (integers on a fixed grid), first and last are by the points' own times,
  then by partition, offset and position, and everything else is a minimum or a maximum.
- **At most `MOST_SERIES` series per subject, part and feature.** They are the first ones in the
  order of their attributes. The first ones in the order of arrival would not do: two pieces of a
  round that are folded apart would keep different ones.
- **Nothing crosses the end of a round**: `Fold` is made for one round and dropped with it.

A counter that starts again has another start time (OTLP), so it is another series of the same
attributes; at the end the increases of these are added up. Without start times (`long`) a counter
that ends below its beginning has started again from zero.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .series import Attributes

#: Most series of a subject that count in one feature of one row.
MOST_SERIES: Final = 32
#: Bytes that the state of one series takes, about.
STATE_BYTES: Final = 600
#: Binary places of exact sums. Smaller parts of a number are dropped, of each number by itself.
_PLACES: Final = 200

#: Where a piece of a message is: partition, offset, and its number in the message.
Place = tuple[int, int, int]


class Point(NamedTuple):
    """A number of a series, for one feature."""

    feature: int  #: number of the feature
    rule: str  #: a function, or one of the rules of `_ADDED`, `_ENDS`
    series: Attributes
    start: int  #: time at which a counter began, in nanoseconds; 0 if unknown or not needed
    time: int  #: in nanoseconds
    value: int | float
    weight: int = 1  #: what the value is divided by, if something


#: A level or counter; an increase since the point before; a histogram, with a sum and a count.
Kind = Literal["level", "increase", "histogram", "histogram increase"]


def make_point(
    feature: int,
    function: str,
    kind: Kind,
    series: Attributes,
    start: int,
    time: int,
    value: int | float,
    count: int = 1,
    only_last: bool = False,
) -> Point:
    """Make a point of what a message says, by the function of the feature.

    Parameters
    ----------
    value, count
        The value, or of a histogram its sum and count, which is positive.
    only_last
        True if the last point of each series counts, not all of them.
    """
    increase = kind in ("increase", "histogram increase")
    if kind.startswith("histogram"):
        if function == "rate":
            value = count
        elif function in ("", "mean") and not only_last:
            rule, begin = ("ratio", 0) if increase else ("rise", start)
            return Point(feature, rule, series, begin, time, value, count)
        else:
            value /= count
    if only_last:
        rule = "final" if kind == "increase" and not function else "last"
        return Point(feature, rule, series, 0, time, 1 if function == "count" else value)
    if function == "rate":
        if increase:
            # A duration that is unknown or negative makes no rate.
            known = value if 0 < start < time else math.nan
            return Point(feature, "flow", series, 0, time, known, time - start)
        return Point(feature, "rate", series, start, time, value)
    return Point(feature, function or ("sum" if increase else "mean"), series, 0, time, value)


# The state of a series is a pair. Rules say how a point changes it, and how two are merged.
#: Values and weights are added up. `flow` is a rate of deltas, `ratio` a mean of histograms.
_ADDED: Final = frozenset({"mean", "sum", "count", "flow", "ratio"})
#: The first and the last point are kept. `rise` is a mean of cumulative histograms, `final`
#: the last increase of each series, which are added up.
_ENDS: Final = frozenset({"last", "final", "rate", "rise"})

Key = tuple[str, Attributes, int]


class End(NamedTuple):
    """The first or the last point of a series; what comes first decides."""

    time: int
    partition: int
    offset: int
    number: int  #: of the piece in its message
    position: int  #: in the piece
    value: int | float
    weight: int


class States(dict[Key, tuple[Any, Any]]):
    """The states of the series of a feature."""

    last: Key | None = None  #: the last key, if it is known


#: By feature.
Part = dict[int, States]


def _add_points(part: Part, points: Iterable[Point], place: Place) -> None:
    for position, (feature, rule, series, start, time, value, weight) in enumerate(points):
        try:
            if not -math.inf < value < math.inf:
                continue
            if rule in _ADDED:
                state: tuple[Any, Any] = int(math.ldexp(value, _PLACES)), weight
            elif rule in _ENDS:
                # As in `End`, which would take longer to make.
                end = time, *place, position, value, weight
                state = end, end
            else:
                state = value, value
        except OverflowError:  # a number beyond all numbers is missing
            continue
        states = part.get(feature)
        if states is None:
            states = part[feature] = States()
        _put(states, (rule, series, start), state)


def _put(states: States, key: Key, state: tuple[Any, Any]) -> None:
    old = states.get(key)
    if old is not None:
        if key[0] in _ADDED:
            states[key] = old[0] + state[0], old[1] + state[1]
        else:
            states[key] = min(old[0], state[0]), max(old[1], state[1])
        return
    if len(states) == MOST_SERIES:
        if states.last is None:
            states.last = max(states)
        if key > states.last:
            return
        del states[states.last]
        states.last = None
    states[key] = state


class Fold:
    """The points of one round, or of one message.

    Parameters
    ----------
    functions
        The function of each feature, if it has one.
    parts
        Rows per subject: equal parts of the round.
    places
        Most subjects: the first ones that arrive. None, for a piece of a round, keeps all.
    """

    def __init__(self, functions: Sequence[str], parts: int = 1, places: int | None = None) -> None:
        self._functions, self._parts, self._places = functions, parts, places
        self._of: dict[Any, list[Part]] = {}

    def add(self, subject: Hashable, part: int, points: Sequence[Point], place: Place) -> None:
        """Add the points of a subject in one message; without any it still has its place."""
        if (mine := self._mine(subject)) is not None:
            _add_points(mine[part], points, place)

    def _mine(self, subject: Hashable) -> list[Part] | None:
        mine = self._of.get(subject)
        if mine is None and len(self._of) != self._places:
            mine = self._of[subject] = [{} for _ in range(self._parts)]
        return mine

    def merge(self, later: Fold) -> None:
        """Add a fold of messages that come later in the order of reading."""
        for subject, parts in later._of.items():
            mine = self._mine(subject)
            if mine is not None:
                for part, other in zip(mine, parts, strict=True):
                    for feature, states in other.items():
                        into = part.setdefault(feature, States())
                        for key, state in states.items():
                            _put(into, key, state)

    def rows(self, *, empty: bool = False) -> tuple[NDArray[np.float64], list[Any]]:
        """The rows, subject after subject in the order of arrival, and the subject of each.

        Parameters
        ----------
        empty
            Also return rows that no point has reached.
        """
        found = [
            (subject, self._row(part))
            for subject, parts in self._of.items()
            for part in parts
            if part or empty
        ]
        rows = np.array([row for _, row in found]).reshape(-1, len(self._functions))
        return rows, [subject for subject, _ in found]

    def _row(self, part: Part) -> list[float]:
        row = [math.nan] * len(self._functions)
        for feature, states in part.items():
            with suppress(ArithmeticError, ValueError):  # no number, or too large
                row[feature] = _number(states, self._functions[feature])
        return row


def _number(states: States, function: str) -> float:
    """The number of all series of a feature."""
    each: list[float] = []
    added = function in ("sum", "count", "rate")
    for (rule, _), group in groupby(sorted(states.items()), key=lambda item: item[0][:2]):
        runs = [state for _, state in group]
        value = _of_series(rule, runs)
        if value is not None:
            each.append(float(value))
            added = added or rule in ("sum", "final")
    if not each:
        return math.nan
    if function in ("max", "min"):
        return max(each) if function == "max" else min(each)
    return math.fsum(each) if added else math.fsum(each) / len(each)


def _of_series(rule: str, runs: Sequence[tuple[Any, Any]]) -> float | None:
    """The number of a series; `runs` are several if a counter started again."""
    first, last = runs[0]
    if rule in _ADDED:
        if rule == "count":
            return float(last)
        if rule == "sum":
            return float(first / (1 << _PLACES))
        return float(first * (10**9 if rule == "flow" else 1) / (last << _PLACES))
    if rule in ("max", "min"):
        return float(last if rule == "max" else first)
    if rule in ("last", "final"):
        return float(End(*last).value)
    ends = [(End(*first), End(*last)) for first, last in runs]
    increase = _increase([(first.value, last.value) for first, last in ends])
    if rule == "rise":
        count = _increase([(first.weight, last.weight) for first, last in ends])
        # A histogram that did not change, or that was seen once: all that it has counted.
        return increase / count if count else ends[-1][1].value / ends[-1][1].weight
    seconds = (max(last.time for _, last in ends) - min(first.time for first, _ in ends)) / 1e9
    return increase / seconds if seconds else None


def _increase(runs: Sequence[tuple[float, float]]) -> float:
    """The increase of a counter: from the first point on, and from zero after each new start."""
    first, last = runs[0]
    begun = last - first if last >= first else last
    return float(sum((later for _, later in runs[1:]), begun))

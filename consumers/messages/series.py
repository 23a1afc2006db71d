"""The language of features over series: `rate(system.network.io{direction="receive"})`.

A series is the name of a metric with attributes. A feature selects series by name and by their
attributes, and says how their points become one number. Matchers are `=` and `!=` only: producers
choose the texts, and a regular expression over such a text can be made slow. An attribute that a
series lacks is the empty text.

| feature | its number |
|---|---|
| `name` | of a gauge the mean, of a delta the sum, of a histogram sum/count |
| `mean(...)`, `max(...)`, `min(...)`, `last(...)` | of the values of a series |
| `sum(...)`, `count(...)` | of the values of a series |
| `rate(...)` | increase per second of a counter, of a histogram its count |

If a feature selects several series, their sums, counts and rates are added, the largest `max` and
the smallest `min` are taken, and of anything else the mean.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from ..errors import ConfigurationError

FUNCTIONS: Final = ("mean", "max", "min", "last", "sum", "count", "rate")
#: Attributes of a series; sorted, unless something else is said.
Attributes = tuple[tuple[str, str], ...]

_NAME: Final = r'[^\s{}(),"=!~]+'
_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
_MATCHER: Final = "a matcher must be = or != and a text in double quotes"
#: Most series of a metric whose features are remembered, for speed.
_REMEMBERED: Final = 1024
#: Characters of attributes above which a digest stands for them: producers choose their length.
_LONGEST: Final = 256


class Feature(NamedTuple):
    """A feature, as it was parsed."""

    name: str  #: of the metric
    function: str = ""  #: one of `FUNCTIONS`, or nothing
    equal: Attributes = ()
    unequal: Attributes = ()

    def selects(self, attributes: Mapping[str, str]) -> bool:
        """Tell whether a series of this metric is selected, if what must be equal is equal."""
        return all(attributes.get(key, "") != text for key, text in self.unequal)


def parse_feature(text: str) -> Feature:
    """Parse a feature; an error says where and why it cannot be read.

    Examples
    --------
    >>> parse_feature('rate(system.network.io{direction="receive", device!="lo"})')
    Feature(name='system.network.io', function='rate', equal=(('direction', 'receive'),),
            unequal=(('device', 'lo'),))
    >>> parse_feature('cpu{state=~"us.*"}')
    Traceback (most recent call last):
    consumers.errors.ConfigurationError: feature 'cpu{state=~"us.*"}' cannot be read at
    character 11: a matcher must be = or != and a text in double quotes
    """
    at = first = len(text) - len(text.lstrip())

    def fail(at: int, rule: str) -> ConfigurationError:
        return ConfigurationError(f"feature {text!r} cannot be read at character {at + 1}: {rule}")

    def take(pattern: str, rule: str = "") -> str:
        """Take what is next, and the blanks after it; without a rule it may be missing."""
        nonlocal at
        found = re.compile(rf"({pattern})\s*").match(text, at)
        if found is None and rule:
            raise fail(at, rule)
        at = at if found is None else found.end()
        return "" if found is None else found[1]

    function, name = "", take(_NAME, "expected the name of a metric")
    if take(r"\("):
        if name not in FUNCTIONS:
            raise fail(first, f"a function must be one of {', '.join(FUNCTIONS)}")
        function, name = name, take(_NAME, "expected the name of a metric")
    matchers: dict[str, list[tuple[str, str]]] = {"=": [], "!=": []}
    more = bool(take(r"\{")) and not take(r"\}")
    while more:
        key = take(_NAME, "expected the name of an attribute")
        matcher = take("!?=", _MATCHER)
        matchers[matcher].append((key, re.sub(r"\\(.)", r"\1", take(_TEXT, _MATCHER)[1:-1])))
        more = take(r"[},]", "expected a comma or a closing brace") == ","
    if function:
        take(r"\)", "expected a closing parenthesis")
    if at < len(text):
        raise fail(at, "expected the end")
    return Feature(name, function, tuple(matchers["="]), tuple(matchers["!="]))


def parse_features(texts: Sequence[str]) -> tuple[Feature, ...]:
    """Parse features; no two of them may mean the same."""
    found: dict[Feature, str] = {}
    for text in texts:
        feature = parse_feature(text)
        same = feature._replace(
            equal=tuple(sorted(feature.equal)), unequal=tuple(sorted(feature.unequal))
        )
        if same in found:
            raise ConfigurationError(f"features {found[same]!r} and {text!r} are the same")
        found[same] = text
    return tuple(found)


class Selected(NamedTuple):
    """The features that select a series."""

    features: tuple[tuple[int, str], ...]  #: their numbers and functions
    key: Attributes  #: stands for the attributes, if there are features; bounded


class Series:
    """The attributes of a series. What stands for them is made once, and only if it is needed."""

    def __init__(self, attributes: Attributes) -> None:
        self.named = dict(attributes)
        self._attributes = attributes

    @cached_property
    def key(self) -> Attributes:
        key = tuple(sorted(self._attributes))
        if sum(len(name) + len(text) for name, text in key) > _LONGEST:
            digest = hashlib.sha256(repr(key).encode("utf-8", "backslashreplace"))
            key = (("", digest.hexdigest()),)
        return key


class Selectors(dict[str, "OfMetric"]):
    """The features of each metric that has some."""

    def __init__(self, features: Sequence[Feature]) -> None:
        super().__init__()
        for number, feature in enumerate(features):
            self.setdefault(feature.name, OfMetric()).add(number, feature)


class OfMetric(dict[bytes | None, Selected]):
    """The features of a metric.

    It is also a memory for readers: what was selected for bytes that stand for some attributes.
    """

    def __init__(self) -> None:
        super().__init__()
        # By the attributes that must be equal to something, and by what: a message may have many
        # points, and each of them must not cost as much as all features.
        self._features: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[int, Feature]]]] = {}

    def add(self, number: int, feature: Feature) -> None:
        names, texts = zip(*feature.equal, strict=True) if feature.equal else ((), ())
        self._features.setdefault(names, {}).setdefault(texts, []).append((number, feature))

    def select(self, series: Series, spelled: bytes | None = None) -> Selected:
        """Find the features of a series, and remember them for what spells its attributes."""
        named = series.named
        features = tuple(
            sorted(
                (number, feature.function)
                for names, by_text in self._features.items()
                for number, feature in by_text.get(tuple(named.get(n, "") for n in names), ())
                if feature.selects(named)
            )
        )
        found = Selected(features, series.key if features else ())
        if spelled is not None and len(spelled) <= 2 * _LONGEST:
            if len(self) == _REMEMBERED:
                self.clear()
            self[spelled] = found
        return found

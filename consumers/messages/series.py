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

_NAME: Final = re.compile(r'[^\s{}(),"=!~]+')
_TEXT: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
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


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, rule: str) -> ConfigurationError:
        self.skip("")
        return ConfigurationError(
            f"feature {self.text!r} cannot be read at character {self.at + 1}: {rule}"
        )

    def skip(self, token: str) -> bool:
        """Skip a token, and the blanks around it, if it is next."""
        rest = self.text[self.at :].lstrip()
        if rest.startswith(token):
            self.at = len(self.text) - len(rest.removeprefix(token).lstrip())
            return True
        return False

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.text, self.at)
        if not found:
            raise self.fail(f"expected {what}")
        self.at = found.end()
        return found[found.lastindex or 0]

    def feature(self) -> Feature:
        self.skip("")
        name, function = self.take(_NAME, "the name of a metric"), ""
        if self.skip("("):
            function = name
            if function not in FUNCTIONS:
                self.at = self.text.index(name)
                raise self.fail(f"a function must be one of {', '.join(FUNCTIONS)}")
            name = self.take(_NAME, "the name of a metric")
        equal: list[tuple[str, str]] = []
        unequal: list[tuple[str, str]] = []
        if self.skip("{") and not self.skip("}"):
            while True:
                key = self.take(_NAME, "the name of an attribute")
                into = unequal if self.skip("!=") else equal if self.skip("=") else None
                if into is None or self.text[self.at : self.at + 1] == "~":
                    raise self.fail("a matcher must be = or !=")
                text = self.take(_TEXT, "a text in double quotes")
                into.append((key, re.sub(r"\\(.)", r"\1", text)))
                if self.skip("}"):
                    break
                if not self.skip(","):
                    raise self.fail("expected a comma or a closing brace")
        if function and not self.skip(")"):
            raise self.fail("expected a closing parenthesis")
        self.skip("")
        if self.at < len(self.text):
            raise self.fail("expected the end")
        return Feature(name, function, tuple(equal), tuple(unequal))


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
    character 11: a matcher must be = or !=
    """
    return _Parser(text).feature()


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

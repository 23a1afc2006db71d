"""Names of features as paths into a nested record: `a.b` is a member, `a.b[3]` an item of it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from .values import number

_ITEM: Final = re.compile(r"(.+)(\[[0-9]{1,9}\])")


def path_of(feature: str, nested: bool = True) -> list[str]:
    """The members on the way to a feature, and the item if it is one of an array.

    Examples
    --------
    >>> path_of("a.b[3]"), path_of("a.b[3]", nested=False)
    (['a', 'b', '[3]'], ['a.b', '[3]'])
    """
    found = _ITEM.fullmatch(feature)
    name, items = (found[1], [f"[{int(found[2][1:-1])}]"]) if found else (feature, [])
    return [*(name.split(".") if nested else [name]), *items]


def member(value: Any, path: Sequence[str]) -> Any:
    """The value at the end of a path; None if there is none.

    Examples
    --------
    >>> member({"a": {"b": [5, 6]}}, path_of("a.b[1]"))
    6
    """
    for name in path:
        if isinstance(value, list) and name[:1] == "[":
            index = name[1:-1]
            value = value[int(index)] if index.isdecimal() and int(index) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


class RecordReader:
    """Reads the features of a record, each by itself: by its name, or else at its path.

    Parameters
    ----------
    features
        Names; those that are not text are no paths.

    Examples
    --------
    >>> RecordReader(("a.b", "c"))({"a": {"b": 5}, "c": "text"})
    [5.0, nan]
    """

    def __init__(self, features: Sequence[Hashable]) -> None:
        self._paths = [(name, path_of(name) if isinstance(name, str) else []) for name in features]
        self.nested = any(len(path) > 1 for _, path in self._paths)  #: a feature may be a member

    def __call__(self, x: Mapping[Any, Any]) -> list[float]:
        return [number(x[name] if name in x else member(x, path)) for name, path in self._paths]

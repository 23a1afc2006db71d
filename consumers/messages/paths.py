"""Names of features as paths into a message."""

from __future__ import annotations

import re
from typing import Final

from ..errors import ConfigurationError

#: An item of an array, such as `embedding[3]`.
_ITEM: Final = re.compile(r"(.+)(\[[0-9]{1,9}\])")


def path_of(feature: str, nested: bool) -> list[str]:
    """The members on the way to a feature, and the item if it is one of an array.

    Examples
    --------
    >>> path_of("a.b[3]", nested=True), path_of("a.b[3]", nested=False)
    (['a', 'b', '[3]'], ['a.b', '[3]'])
    """
    found = _ITEM.fullmatch(feature)
    name, items = (found[1], [f"[{int(found[2][1:-1])}]"]) if found else (feature, [])
    path = [*(name.split(".") if nested else [name]), *items]
    if not all(path):
        raise ConfigurationError(f"feature {feature!r} has an empty part between its dots")
    return path

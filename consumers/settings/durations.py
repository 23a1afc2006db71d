"""Durations as people write them: `90s`, `1h`, `365d`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer

#: Milliseconds of each unit, the largest first, and its name.
_UNITS: Final[dict[str, tuple[int, str]]] = {
    "d": (86_400_000, "day"),
    "h": (3_600_000, "hour"),
    "m": (60_000, "minute"),
    "s": (1000, "second"),
    "ms": (1, "millisecond"),
}


def parse_duration(value: Any) -> int:
    """Return a duration in milliseconds.

    Examples
    --------
    >>> [parse_duration(text) for text in ("500ms", "90s", "1h", "365d")]
    [500, 90000, 3600000, 31536000000]
    """
    if isinstance(value, str):
        found = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h|d)", value.strip())
        if found is not None and int(found[1]) > 0:
            return int(found[1]) * _UNITS[found[2]][0]
    raise ValueError("must be a whole number with a unit: ms, s, m, h or d, such as 90s, 1h or 30d")


def duration_text(ms: int) -> str:
    """Return a duration as one would write it in the settings.

    >>> duration_text(90_000), duration_text(3_600_000)
    ('90s', '1h')
    """
    unit, (size, _) = _largest_unit(ms)
    return f"{ms // size}{unit}"


def duration_in_words(ms: int) -> str:
    """Return a duration in words.

    >>> duration_in_words(90_000), duration_in_words(3_600_000)
    ('90 seconds', 'one hour')
    """
    _, (size, name) = _largest_unit(ms)
    return f"one {name}" if ms == size else f"{ms // size} {name}s"


def _largest_unit(ms: int) -> tuple[str, tuple[int, str]]:
    return next(item for item in _UNITS.items() if ms % item[1][0] == 0)


#: Type of a setting that is written with a unit and held in milliseconds.
Duration = Annotated[
    int, BeforeValidator(parse_duration), PlainSerializer(duration_text, return_type=str)
]

"""The rows that may count in a stretch of a round that is read separately.

Of each subject the first `records` rows of a round are kept (`table`). A row with that many rows of
its own subject before it in its stretch has them before it in the round, too, and is ignored there:
so it may be left out at once. Whether a row is left out depends only on rows of the same subject,
and a table that gets the stretches in order is filled as if it had got everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .ids import canonical_all

__all__ = ["first_rows"]


def first_rows(ids: Iterable[Any], records: int) -> list[int]:
    """The places of the first `records` rows of each subject, in order; only rows with usable ids.

    Examples
    --------
    >>> first_rows(["a", 1, None, "a", "1", "a", 1.0], records=2)
    [0, 1, 3, 4]
    """
    seen: dict[bytes, int] = {}
    kept = []
    for place, key in enumerate(canonical_all(ids)):
        if key is not None and (before := seen.get(key, 0)) < records:
            seen[key] = before + 1
            kept.append(place)
    return kept

"""The rows that may count, of a stretch of a round that is read apart from the others.

Of each subject the first `records` rows of a round are kept (`table`). A row that has as many of
its own subject before it in its stretch has them before it in the round, too, and is ignored there:
so it may be left out at once. Which rows are left out depends on nothing but rows of the same
subject, and a table that is given the stretches in order fills as if it had been given everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .ids import canonical_all

__all__ = ["first_rows"]


def first_rows(ids: Iterable[Any], records: int) -> list[int]:
    """The places of the first `records` rows of each subject, in order; none without a usable id.

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

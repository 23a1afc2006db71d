"""Sentences that plans and releases share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

#: An epsilon per day above this is warned about.
MOST_PER_DAY = 10.0


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things.

    >>> counted(1, "batch", "batches"), counted(0, "batch", "batches"), counted(2, "round")
    ('1 batch', '0 batches', '2 rounds')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def over_in_words(over: Mapping[str, float]) -> str:
    """Epsilon over longer times, as `calibration.epsilon_over` has it, with a warning if need be.

    >>> over_in_words({"1 day": 1.0, "7 days": 2.891})
    '1 day 1, 7 days 2.89'
    >>> over_in_words({"1 day": 81.7})
    '1 day 81.7 (WARNING: more than 10 per day promises hardly anything)'
    """
    text = ", ".join(f"{time} {e:{'.3g' if e < 1000 else '.0f'}}" for time, e in over.items())
    if over.get("1 day", 0.0) > MOST_PER_DAY:
        text += f" (WARNING: more than {MOST_PER_DAY:g} per day promises hardly anything)"
    return text


def first_step_line(batches: int, memory: int) -> str:
    """Sentence about the first step.

    >>> first_step_line(1, 8000), first_step_line(3, 2_400_000)
    ('the first step takes 1 batch (1 MB)', 'the first step takes 3 batches at once (3 MB)')
    """
    at_once = "" if batches == 1 else " at once"
    taken = f"{counted(batches, 'batch', 'batches')}{at_once}"
    return f"the first step takes {taken} ({math.ceil(memory / 1e6)} MB)"


def error_lines(errors: Sequence[tuple[int, float]], unit: str, first_share: float) -> list[str]:
    """Sentences about the error due to noise, its meaning and its assumptions."""
    if not errors:
        return ["nothing is learned: the horizon ends before the first release"]
    (first, sine), *later = errors
    return [
        f"error due to noise: {sine:.2g} after {first} {unit}"
        + "".join(f", {sine:.2g} after {after}" for after, sine in later),
        "  (sine of the angle to the true component: 0 is exact, 1 is no better than chance;",
        f"  for data whose first component holds {100 * first_share:.3g} % of the variance, and "
        "stands out;",
        "  clipping, heavy tails and streams that change add to it, up to ten times as much and",
        "  more, which more records do not remove; larger batches are clipped less)",
    ]

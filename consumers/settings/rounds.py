"""The rule of the rounds: the subjects, and the division of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .durations import duration_in_words

#: The name of a subject that is not a field of the record, but the key of its message.
MESSAGE_KEY: Final = "@key"


@dataclass(frozen=True)
class RoundRule:
    """Rounds on a fixed grid: round r lasts from r T to (r + 1) T, in UTC."""

    subject: str  #: the field that names the subject of a record, or `@key`
    length_ms: int  #: T
    period: int  #: rounds that epsilon covers
    horizon: int | None = None  #: rounds after which nothing is learned any more
    clock: str = "broker time"  #: source of the times, in words

    def start_ms(self, round: int) -> int:
        return round * self.length_ms

    def end_ms(self, round: int) -> int:
        return (round + 1) * self.length_ms

    def round_at(self, time_ms: int) -> int:
        """The round that holds this moment.

        >>> RoundRule("id", 1000, 1).round_at(999), RoundRule("id", 1000, 1).round_at(1000)
        (0, 1)
        """
        return time_ms // self.length_ms

    def first_from(self, time_ms: int) -> int:
        """The first round that begins at this moment or later.

        >>> RoundRule("id", 1000, 1).first_from(1000), RoundRule("id", 1000, 1).first_from(1001)
        (1, 2)
        """
        return -(-time_ms // self.length_ms)

    def scope(self) -> str:
        """The rounds that epsilon covers, in words.

        >>> RoundRule("id", 3_600_000, 24).scope()
        'any 24 rounds of one hour, broker time'
        >>> RoundRule("id", 86_400_000, 1).scope()
        'any round of one day, broker time'
        """
        many = "any round" if self.period == 1 else f"any {self.period} rounds"
        return f"{many} of {duration_in_words(self.length_ms)}, {self.clock}"

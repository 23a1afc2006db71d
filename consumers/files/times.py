"""Times of rows, and the rounds of a run as the operator declares them: `--from`, `--until`.

A time is ISO 8601 (UTC unless it says otherwise) or the number of seconds since 1970.

The rounds are never derived from the data. If the rounds of a file went from its first row to its
last, one row with a late time would add releases and use up rounds that later files need. The
number of releases alone would then reveal that its subject sent this row.
"""

from __future__ import annotations

import datetime
import math
from contextlib import suppress
from typing import Any, Final

from ..errors import ConfigurationError
from ..settings import RoundRule
from ..settings.durations import duration_text

#: A run of more rounds than this is taken for a mistake in `--from` or `--until`.
MOST_ROUNDS: Final = 100_000
#: The years 1 to 3938, in seconds before and after 1970: other times are none.
MOST_SECONDS: Final = 62_135_596_800


def parse_time(value: Any) -> int | None:
    """Return a time in milliseconds since 1970; None if it is not one.

    Examples
    --------
    >>> [parse_time(text) for text in ("1970-01-01T00:01Z", "1970-01-01 01:00:00+01:00", "2.5", 7)]
    [60000, 0, 2500, 7000]
    >>> parse_time("19700102") == parse_time("1970-01-02")  # eight digits: a date
    True
    >>> parse_time(datetime.date(1970, 1, 2))
    86400000
    >>> parse_time("yesterday"), parse_time(float("nan")), parse_time(True), parse_time(1e15)
    (None, None, None, None)
    """
    with suppress(ValueError, OverflowError, TypeError):
        if isinstance(value, str):
            value = _read(value.strip())
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, datetime.time())
        if isinstance(value, datetime.datetime):
            zone = value.tzinfo or datetime.UTC
            value = value.replace(tzinfo=zone).timestamp()
        if not isinstance(value, bool) and abs(value) <= MOST_SECONDS:  # false for NaN
            return math.floor(float(value) * 1000)
    return None


def _read(text: str) -> datetime.datetime | float:
    if len(text) == 8 and text.isdecimal():
        with suppress(ValueError):
            return datetime.datetime.fromisoformat(text)
    with suppress(ValueError):
        return float(text)
    return datetime.datetime.fromisoformat(text)


def time_text(ms: int) -> str:
    """Return a time as one would write it for `--from`.

    >>> time_text(0), time_text(90_061_000)
    ('1970-01-01T00:00Z', '1970-01-02T01:01:01Z')
    """
    when = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=ms)  # noqa: DTZ001
    precision = "minutes" if not ms % 60_000 else "milliseconds" if ms % 1000 else "seconds"
    return when.isoformat(timespec=precision) + "Z"


def declared_rounds(
    rule: RoundRule, begin: str | None, until: str, last_round: int | None = None
) -> range:
    """Return the rounds to release: all those from `begin` to `until`, without the released ones.

    Parameters
    ----------
    begin, until
        The values of `--from` and `--until`. A model that has a state begins where its state
        ended; `begin` may then be left out, and must not be later, because no round is skipped.
    last_round
        The last round that was released.

    Examples
    --------
    >>> rule = RoundRule("id", 86_400_000, 1)
    >>> declared_rounds(rule, "1970-01-03", "1970-01-05T00:00Z")
    range(2, 4)
    >>> declared_rounds(rule, None, "1970-01-06", last_round=3)
    range(4, 5)
    """
    first = None if begin is None else _round_at("--from", begin, rule)
    end = _round_at("--until", until, rule)
    if first is not None and end <= first:
        raise ConfigurationError(
            f"--until must be later than --from. Found --from {begin} and --until {until}."
        )
    if last_round is not None:
        resumed = last_round + 1
        if first is not None and first > resumed:
            raise ConfigurationError(
                f"--from must not be later than {time_text(rule.start_ms(resumed))}, where the "
                "state ended: every round is released, also one without rows. "
                f"Found {begin}. Leave --from out to begin there."
            )
        first, end = resumed, max(end, resumed)
    if first is None:
        raise ConfigurationError(
            "--from must be given for a new model: the beginning of its first round in UTC, such "
            "as --from 2026-01-31. It is not read from the file, because the time of the first row "
            "would tell when its subject sent it."
        )
    if end - first > MOST_ROUNDS:
        raise ConfigurationError(
            f"--until must be at most {MOST_ROUNDS} rounds of {duration_text(rule.length_ms)} "
            f"after {time_text(rule.start_ms(first))}, where the run begins. Found {until}, which "
            f"is {end - first} rounds after it."
        )
    return range(first, end)


def _round_at(option: str, text: str, rule: RoundRule) -> int:
    """Return the round that begins at this time."""
    ms = parse_time(text)
    if ms is None:
        raise ConfigurationError(
            f"{option} must be a date or a time in ISO 8601, in UTC unless it says otherwise, such "
            f"as 2026-01-31 or 2026-01-31T06:00Z. Found {text!r}."
        )
    round, rest = divmod(ms, rule.length_ms)
    if rest:
        raise ConfigurationError(
            f"{option} must be the beginning of a round, a multiple of "
            f"{duration_text(rule.length_ms)}. Found {text}; the rounds around it begin at "
            f"{time_text(rule.start_ms(round))} and {time_text(rule.start_ms(round + 1))}."
        )
    return round

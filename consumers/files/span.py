"""The rounds of a run on a file, as the operator declares them: `--from TIME --until TIME`.

The rounds are never derived from the data. If the rounds of a file went from its first row to its
last, one row with a late time would add releases and use up rounds that later files need. The
number of releases alone would then reveal that its subject sent this row.
"""

from __future__ import annotations

import datetime
from typing import Final, NamedTuple

from ..errors import ConfigurationError
from ..settings import RoundRule
from ..settings.durations import duration_text

#: A run of more rounds than this is taken for a mistake in `--from` or `--until`.
MOST_ROUNDS: Final = 100_000

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


class Span(NamedTuple):
    """Rounds that follow each other; none if `first == end`."""

    first: int
    end: int  #: the round after the last


def declared_span(
    rule: RoundRule, begin: str | None, until: str, last_round: int | None = None
) -> Span:
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
    >>> declared_span(rule, "1970-01-03", "1970-01-05T00:00Z")
    Span(first=2, end=4)
    >>> declared_span(rule, None, "1970-01-06", last_round=3)
    Span(first=4, end=5)
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
    return Span(first, end)


def time_text(ms: int) -> str:
    """Return a time as one would write it for `--from`.

    >>> time_text(0), time_text(90_061_000)
    ('1970-01-01T00:00Z', '1970-01-02T01:01:01Z')
    """
    when = _EPOCH + ms * _MILLISECOND
    seconds = ms % 60_000
    precision = "minutes" if not seconds else "milliseconds" if ms % 1000 else "seconds"
    return when.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _round_at(option: str, text: str, rule: RoundRule) -> int:
    """Return the round that begins at this time."""
    try:
        when = datetime.datetime.fromisoformat(text.strip())
        if when.tzinfo is None:
            when = when.replace(tzinfo=datetime.UTC)
        since = when - _EPOCH
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{option} must be a date or a time in ISO 8601, in UTC unless it says otherwise, such "
            f"as 2026-01-31 or 2026-01-31T06:00Z. Found {text!r}."
        ) from None
    round, rest = divmod(since, rule.length_ms * _MILLISECOND)
    if rest:
        raise ConfigurationError(
            f"{option} must be the beginning of a round: a multiple of "
            f"{duration_text(rule.length_ms)} since 1970-01-01T00:00Z. Found {text}; the rounds "
            f"around it begin at {time_text(rule.start_ms(round))} and "
            f"{time_text(rule.start_ms(round + 1))}."
        )
    return round

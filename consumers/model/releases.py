"""Releases as they go to the output topic: JSON, its schema, CloudEvents headers.

What is published is the estimator's `Release` with the name of the model and, with privacy per
subject, the round: one flat object, so that the same few lines score a record with a release of the
library and with one of the service. Everything else about the event is in its headers.

The bytes are made once, stored with the state, and published as stored, so that a release published
again is the same release.

The schema is `consumers/model/schemas/release-v1.json`, written by
`python -m consumers.model.releases`.

- New fields may be added to version 1: **readers ignore fields that they do not know**, and the
  schema allows them.
- An existing field keeps its name and its meaning. A change that a reader could misunderstand
  gets a new version.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, model_validator

from stream_dppca import Release, SubjectStatement

from ..protocols import Message
from ..settings import RoundRule

SCHEMA_FILE: Final = Path(__file__).parent / "schemas" / "release-v1.json"
EVENT_TYPE: Final = "stream-dppca.release.v1"


class Round(BaseModel):
    """The stretch of time that a release covers."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)

    start: str
    """Beginning of the round, in UTC."""
    end: str
    """End of the round, in UTC, which is not part of it."""


class PublishedRelease(Release):
    """A private component, as published. Everything in it is noisy or public.

    Numbers of features are in the order of `features`. The score of a raw record x along a
    component w is the sum over all features of w (z - mean)/deviation, z = (x - center)/scale, but
    sign(z) clamp (1 + ln(|z|/clamp)) beyond the clamp; features whose deviation is 0 are left out.
    `Projector.from_release` computes it.
    """

    model: str
    """The name of the model."""
    round: Round | None = None
    """The round that the release covers. Absent where the unit is a record."""
    features: tuple[str, ...]
    """Names, in order."""

    @model_validator(mode="after")
    def _records_or_round(self) -> Self:
        if (self.n_seen is None) == (self.round is None):
            raise ValueError("must have either `n_seen` or `round`")
        return self

    @classmethod
    def of(
        cls, release: Release, model: str, rounds: RoundRule | None = None, round: int | None = None
    ) -> PublishedRelease:
        """A release of the estimator as it is published.

        Parameters
        ----------
        rounds, round
            With privacy per subject: the rule of the rounds, and the round's number.
        """
        fields = dict(release) | {"model": model}
        if rounds is not None and round is not None:
            fields["round"] = Round(
                start=_text(rounds.start_ms(round)), end=_text(rounds.end_ms(round))
            )
        if rounds is not None and isinstance(release.privacy, SubjectStatement):
            fields["privacy"] = release.privacy.in_time(rounds.length_ms / 1000, rounds.scope())
        return cls(**fields)


def _text(ms: int) -> str:
    when = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    return when.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")


def release_message(release: PublishedRelease, now: datetime.datetime | None = None) -> Message:
    """The release as a message: canonical JSON with CloudEvents headers (binary mode).

    Its time is rounded down to the second, because the exact duration of a batch may depend on its
    records. The time of a release of a round is the end of the round. The key is the model's name,
    under which a compacted topic keeps the current release.

    Parameters
    ----------
    now
        The time of a release without a round; only tests give another one than that of the clock.
    """
    if release.round is not None:
        now = datetime.datetime.fromisoformat(release.round.end)
    time = (now or datetime.datetime.now(datetime.UTC)).isoformat(timespec="seconds")
    headers = {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_type": EVENT_TYPE,
        "ce_source": f"/stream-dppca/{release.model}",
        "ce_id": f"{release.model}/{release.batch}",
        "ce_time": time,
    }
    return Message(
        key=release.model.encode(),
        value=release.model_dump_json().encode(),
        headers=tuple((name, text.encode()) for name, text in headers.items()),
    )


def parse_release(value: bytes) -> PublishedRelease:
    """Read a release; raises ValueError if it is none, or one of another version."""
    return PublishedRelease.model_validate_json(value)


def schema() -> dict[str, Any]:
    """The JSON Schema of a published release."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:stream-dppca:release-v1",
        **PublishedRelease.model_json_schema(),
    }


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")

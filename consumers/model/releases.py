"""Releases as they go to the output topic: versioned JSON, its schema, CloudEvents headers.

The bytes of a release are made once, stored with the state, and published as stored, so that a
release published again is the same release. The schema is
`consumers/model/schemas/release-v1.json`, written by `python -m consumers.model.releases`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from stream_dppca import Release
from stream_dppca.release import PrivacyStatement

from ..protocols import Message

__all__ = [
    "SCHEMA_FILE",
    "Component",
    "PublishedRelease",
    "Source",
    "key_of",
    "make_release",
    "parse_release",
    "release_message",
    "schema",
]

SCHEMA_FILE: Final = Path(__file__).parent / "schemas" / "release-v1.json"
EVENT_TYPE: Final = "stream-dppca.release.v1"


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )


class Component(_Model):
    """A direction of unit length."""

    loadings: dict[str, float] = Field(description="The weight of each feature.")
    spread: float | None = Field(
        description="Noisy variance along it, of clipped records, so mostly too small."
    )


class Source(_Model):
    """A release that a merged one was made from."""

    task: int
    batch: int
    n_seen: int


class PublishedRelease(_Model):
    """A private component, as published. Everything in it is noisy or public."""

    version: Literal[1] = 1
    model: str = Field(description="The name of the model.")
    task: int | Literal["merged"] = Field(
        description='Which shard, counted from 0; "merged" for all of them together.'
    )
    shards: int
    batch: int = Field(description="1, 2, ...; of a merged release the sum of its sources'.")
    n_seen: int = Field(description="Slots consumed up to this release, nulls included.")
    features: tuple[str, ...]
    components: tuple[Component, ...] = Field(description="Orthonormal, the first is the main one.")
    range: float | None = Field(
        description="Noisy range within which records were taken as they are."
    )
    step: float | None = Field(description="Weight of this batch in the components.")
    sigma: float | None = Field(description="Noise sd in one coordinate.")
    skipped: bool = Field(description="True if nothing was learned from this batch.")
    reason: str | None = Field(description="Why not; decided from noisy results only.")
    sources: tuple[Source, ...] = Field(default=(), description="Of a merged release.")
    privacy: PrivacyStatement


def make_release(
    release: Release, *, model: str, task: int, shards: int, features: Sequence[str]
) -> PublishedRelease:
    """A task's release with its labels."""
    spread: Sequence[float | None] = release.spread or [None] * len(release.components)
    return PublishedRelease(
        model=model,
        task=task,
        shards=shards,
        batch=release.batch,
        n_seen=release.n_seen,
        features=tuple(features),
        components=tuple(
            Component(loadings=dict(zip(features, weights, strict=True)), spread=along)
            for weights, along in zip(release.components, spread, strict=True)
        ),
        range=release.range,
        step=release.step,
        sigma=release.sigma,
        skipped=release.skipped,
        reason=release.reason,
        privacy=release.privacy,
    )


def key_of(model: str, task: int | str) -> bytes:
    """The key under which a compacted topic keeps the current release."""
    return f"{model}/{task}".encode()


def release_message(release: PublishedRelease, now: datetime.datetime | None = None) -> Message:
    """The release as a message: canonical JSON with CloudEvents headers (binary mode).

    Its time is rounded down to the second: how long a batch took, to the millisecond, may depend
    on its records.
    """
    value = json.dumps(
        release.model_dump(mode="json"), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()
    time = (now or datetime.datetime.now(datetime.UTC)).isoformat(timespec="seconds")
    numbers = "-".join(str(s.batch) for s in release.sources) or str(release.batch)
    headers = {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_type": EVENT_TYPE,
        "ce_source": f"/stream-dppca/{release.model}",
        "ce_subject": str(release.task),
        "ce_id": f"{release.model}/{release.task}/{numbers}",
        "ce_time": time,
    }
    return Message(
        key=key_of(release.model, release.task),
        value=value,
        headers=tuple((name, text.encode()) for name, text in headers.items()),
    )


def parse_release(value: bytes) -> PublishedRelease:
    """Raises ValueError if this is no release of ours."""
    return PublishedRelease.model_validate_json(value)


def schema() -> dict[str, Any]:
    """The JSON Schema of a published release."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:stream-dppca:release-v1",
        **PublishedRelease.model_json_schema(mode="serialization"),
    }


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")

"""Releases as they go to the output topic: versioned JSON, its schema, CloudEvents headers.

The bytes of a release are made once, stored with the state, and published as stored, so that a
release published again is the same release.

Version 2 holds everything that other programs need to score a raw record. The schema is
`consumers/model/schemas/release-v2.json`, written by `python -m consumers.model.releases`.

- New fields may be added to version 2: **readers ignore fields that they do not know**, and the
  schema allows them.
- An existing field keeps its name and its meaning. A change that a reader could misunderstand
  gets a new version.
- Releases of version 1 can still be read (`parse_release`). They have neither centre nor scales.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from stream_dppca import Release
from stream_dppca.calibration import epsilon_over
from stream_dppca.release import PrivacyStatement, Status, SubjectStatement

from ..protocols import Message
from ..settings import RoundRule

__all__ = [
    "SCHEMA_FILE",
    "Component",
    "Promise",
    "ReleaseDocument",
    "Round",
    "make_release",
    "parse_release",
    "release_message",
    "schema",
]

SCHEMA_FILE: Final = Path(__file__).parent / "schemas" / "release-v2.json"
EVENT_TYPE: Final = "stream-dppca.release.v2"

#: Fields that only releases with privacy per subject have.
_OF_SUBJECTS: Final[Any] = {
    "round": True, "subjects": True, "privacy": {"subject": True, "epsilon_over": True},
}  # fmt: skip

#: Numbers by the name of their feature.
ByFeature = dict[str, float]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", hide_input_in_errors=True, allow_inf_nan=False
    )


class Component(_Model):
    """A direction of unit length."""

    loadings: ByFeature = Field(
        description="The weight of each feature, in units of its standard deviation."
    )
    spread: float | None = Field(
        description="Noisy variance along the component, of clipped records, so mostly too small."
    )
    explained_variance_ratio: float | None = Field(
        default=None, description="Noisy share of the variance of all features along the component."
    )
    explained_variance_ratio_sd: float | None = Field(
        default=None, description="Standard deviation of the noise in that share."
    )


class Round(_Model):
    """The stretch of time that a release covers."""

    start: str = Field(description="Beginning of the round, in UTC.")
    end: str = Field(description="End of the round, in UTC, which is not part of it.")


class Promise(_Model):
    """The privacy guarantee, stated in full, so that it can be read without the code."""

    epsilon: float
    delta: float
    adjacency: str = Field(description="Difference between neighbouring streams.")
    unit: str = Field(description="Unit of privacy: the content of one slot.")
    scope: str = Field(description="Scope of the guarantee.")
    method: str
    private: bool = Field(description="False if the noise came from a seed: nobody is protected.")
    subject: str | None = Field(
        default=None,
        description="With unit=subject: the field that names the subject of a record, or @key.",
    )
    epsilon_over: dict[str, float] | None = Field(
        default=None,
        description="With unit=subject: epsilon, at the same delta, for all that a subject sends "
        "in this many days, or in all rounds if there is a horizon.",
    )


class ReleaseDocument(_Model):
    """A private component, as published. Everything in it is noisy or public.

    The score of a raw record x along a component with loadings w is the sum over all features of
    w (clamp((x - center)/scale, -clamp, +clamp) - mean)/deviation; features whose deviation is 0
    are left out. `stream_dppca.Projector.from_release` computes it.
    """

    version: Literal[2] = 2
    status: Status = Field(
        description="warming_up: centre and scales are being learned. nothing_learned: no "
        "component is known yet. skipped: nothing was learned from this batch, what was known "
        "stays. learned: the components are up to date."
    )
    model: str = Field(description="The name of the model.")
    batch: int = Field(description="1, 2, ...")
    n_seen: int = Field(
        description="Slots consumed up to this release, nulls included; with unit=subject the "
        "places of all rounds, taken or not."
    )
    round: Round | None = Field(
        default=None, description="With unit=subject: the round that this release covers."
    )
    subjects: float | None = Field(
        default=None, description="With unit=subject: a noisy number of subjects in the round."
    )
    warm_up_left: int = Field(
        default=0, description="Batches that the warm-up still needs, as far as is known."
    )
    features: tuple[str, ...]
    components: tuple[Component, ...] = Field(
        description="Orthonormal, the first is the main one. Empty before anything is learned."
    )
    center: ByFeature | None = Field(
        default=None, description="Centre of each feature, in its own unit; null if not known yet."
    )
    scale: ByFeature | None = Field(
        default=None, description="Scale of each feature, in its own unit."
    )
    clamp: ByFeature | None = Field(
        default=None,
        description="Bound of (x - center)/scale, on both sides; null if there is none.",
    )
    mean: ByFeature | None = Field(
        default=None, description="Mean of each feature after centre, scale and clamp."
    )
    deviation: ByFeature | None = Field(
        default=None,
        description="Standard deviation of each feature after centre, scale and clamp; 0 if no "
        "spread was seen.",
    )
    drift: bool = Field(
        default=False,
        description="True if the stream has changed and what was learned before was dropped.",
    )
    range: float | None = Field(
        description="Noisy range within which records were taken as they are."
    )
    step: float | None = Field(description="Weight of this batch in the components.")
    sigma: float | None = Field(description="Noise sd in one coordinate.")
    skipped: bool = Field(description="True if nothing was learned from this batch.")
    reason: str | None = Field(
        description="Reason why nothing was learned; decided from noisy results only."
    )
    privacy: Promise

    @property
    def learned(self) -> bool:
        """True if there are components."""
        return bool(self.components)

    def array(self, values: Mapping[str, float]) -> list[float]:
        """Return numbers in the order of the features."""
        return [values[name] for name in self.features]


def make_release(
    release: Release,
    *,
    model: str,
    features: Sequence[str],
    warm_up_left: int = 0,
    places: int = 0,
    rounds: RoundRule | None = None,
    round: int | None = None,
) -> ReleaseDocument:
    """A release with its labels.

    Parameters
    ----------
    places, rounds, round
        With privacy per subject: places per round, the rule of the rounds, and the round's number.
    """

    def by_feature(values: Sequence[float] | None) -> ByFeature | None:
        return None if values is None else dict(zip(features, values, strict=True))

    none = [None] * len(release.components)
    columns = zip(
        release.components,
        release.spread or none,
        release.explained_variance_ratio or none,
        release.explained_variance_ratio_sd or none,
        strict=True,
    )
    return ReleaseDocument(
        status=release.status,
        model=model,
        batch=release.batch,
        n_seen=release.batch * places if release.n_seen is None else release.n_seen,
        round=None if rounds is None or round is None else _round(rounds, round),
        subjects=release.subjects,
        warm_up_left=warm_up_left,
        features=tuple(features),
        components=tuple(
            Component(
                loadings=dict(zip(features, weights, strict=True)),
                spread=along,
                explained_variance_ratio=ratio,
                explained_variance_ratio_sd=sd,
            )
            for weights, along, ratio, sd in columns
        ),
        center=by_feature(release.center),
        scale=by_feature(release.scale),
        clamp=by_feature(release.clamp),
        mean=by_feature(release.mean),
        deviation=by_feature(release.deviation),
        drift=release.drift,
        range=release.range,
        step=release.step,
        sigma=release.sigma,
        skipped=release.skipped,
        reason=release.reason,
        privacy=_promise(release.privacy, rounds),
    )


def _promise(said: PrivacyStatement | SubjectStatement, rounds: RoundRule | None) -> Promise:
    """The statement of a release; with rounds, in durations instead of rounds."""
    fields = said.model_dump()
    if rounds is not None and isinstance(said, SubjectStatement):
        fields["scope"] = rounds.scope()
        fields["epsilon_over"] = epsilon_over(
            said.epsilon,
            said.delta,
            period=said.period,
            horizon=said.horizon,
            round_seconds=rounds.length_ms / 1000,
        )
    return Promise(**fields)


def _round(rounds: RoundRule, number: int) -> Round:
    def text(ms: int) -> str:
        when = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
        return when.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")

    return Round(start=text(rounds.start_ms(number)), end=text(rounds.end_ms(number)))


def release_message(release: ReleaseDocument, now: datetime.datetime | None = None) -> Message:
    """The release as a message: canonical JSON with CloudEvents headers (binary mode).

    Its time is rounded down to the second, because the exact duration of a batch may depend on its
    records. The time of a release of a round is the end of the round. The key is the model's name,
    under which a compacted topic keeps the current release.
    """
    left_out = _OF_SUBJECTS if release.round is None else {}
    value = release.model_dump_json(exclude=left_out).encode()
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
        value=value,
        headers=tuple((name, text.encode()) for name, text in headers.items()),
    )


def parse_release(value: bytes) -> ReleaseDocument:
    """Read a release of any version; raises ValueError if this is not one."""
    try:
        fields = json.loads(value)
    except RecursionError:
        raise ValueError("nested too deeply to be a release") from None
    if isinstance(fields, dict) and fields.get("version") == 1:
        fields = _upgraded(fields)
    return ReleaseDocument.model_validate(fields)


def _upgraded(fields: dict[str, Any]) -> dict[str, Any]:
    """A release of version 1 as one of version 2, without the fields that version 1 lacked.

    Version 1 had components from the start: the random ones of a model that has learned nothing yet
    are left out.
    """
    nothing = bool(fields.get("skipped")) and fields.get("batch") == 1
    status = "skipped" if fields.get("skipped") else "learned"
    changes = {"status": "nothing_learned", "components": []} if nothing else {"status": status}
    return {**fields, "version": 2, **changes}


def schema() -> dict[str, Any]:
    """The JSON Schema of a published release."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:stream-dppca:release-v2",
        **ReleaseDocument.model_json_schema(mode="serialization"),
    }


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")

"""Public result types: releases, and the privacy statement that each of them carries."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from .calibration import epsilon_over
from .participation import PerSubject

#: Shares of the records that exceed the limits of a release.
RATES = (0.1, 0.05, 0.01, 0.001)


class _Model(BaseModel):
    # Errors of pydantic quote their input unless told not to. Fields that are not known are left
    # out, so that a reader can read what a later program adds. Docstrings go into the JSON Schema.
    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class PrivacyStatement(_Model):
    """The privacy guarantee, stated in full, so that it can be read without the code."""

    epsilon: float
    delta: float
    adjacency: Literal["replace-one"] = "replace-one"
    """Neighbouring streams differ in the content of one slot."""
    unit: Literal["record"] = "record"
    """The content of one slot. Who sends many records is protected for each, not for all."""
    scope: Literal["whole stream"] = "whole stream"
    """Each record is in one batch, so the budget does not run down as the stream continues."""
    method: str
    private: bool
    """False if the noise came from a seed. Such a release protects nobody."""


class SubjectStatement(_Model):
    """The privacy guarantee of a subject, stated in full, to be read without the code."""

    epsilon: float
    delta: float
    adjacency: Literal["replace-subject"] = "replace-subject"
    """Neighbouring streams differ in everything that one subject sends within the scope: what,
    when, how many records, whether any at all."""
    unit: Literal["subject"] = "subject"
    subject: str
    """The field that names the subject of a record; @key is the key of its message."""
    scope: str
    """The guarantee is for `period` consecutive rounds, wherever they begin."""
    period: int
    horizon: int | None
    """Number of rounds after which nothing more is learned; null if learning never ends."""
    records: int
    """Most records of a subject that are used in a round."""
    epsilon_over: dict[str, float]
    """Epsilon, at the same delta, for all that a subject sends in a longer time."""
    method: str
    private: bool
    """False if the noise came from a seed. Such a release protects nobody."""

    @classmethod
    def of(cls, unit: PerSubject, **said: Any) -> SubjectStatement:
        """The statement about a unit, from what is also said about records.

        Examples
        --------
        >>> said = SubjectStatement.of(
        ...     PerSubject("device_id", places=1000, period=24),
        ...     epsilon=1.0, delta=1e-6, method="adaptive", private=True,
        ... )
        >>> said.scope
        'any 24 consecutive rounds'
        >>> {time: round(epsilon, 2) for time, epsilon in said.epsilon_over.items()}
        {'1 period': 1.0, '7 periods': 2.89, '30 periods': 6.58, '365 periods': 31.04}
        """
        period = unit.period
        scope = "any round" if period == 1 else f"any {period} consecutive rounds"
        same = {name: getattr(unit, name) for name in ("period", "horizon", "records")}
        begun = cls(subject=str(unit.subject), scope=scope, epsilon_over={}, **same, **said)
        return begun.in_time(None, scope)

    def in_time(self, round_seconds: float | None, scope: str) -> SubjectStatement:
        """The same statement for rounds of a known length, with days instead of periods.

        Examples
        --------
        >>> said = SubjectStatement.of(
        ...     PerSubject("device_id", places=1000, period=24),
        ...     epsilon=1.0, delta=1e-6, method="adaptive", private=True,
        ... ).in_time(3600.0, "any 24 rounds of one hour")
        >>> {time: round(epsilon, 2) for time, epsilon in said.epsilon_over.items()}
        {'1 day': 1.0, '7 days': 2.89, '30 days': 6.58, '365 days': 31.04}
        """
        over = epsilon_over(
            self.epsilon,
            self.delta,
            period=self.period,
            horizon=self.horizon,
            round_seconds=round_seconds,
        )
        return self.model_copy(update={"scope": scope, "epsilon_over": over})


class Limit(_Model):
    """The score that a share of the records exceeds."""

    rate: float
    """Share of the records with a higher score: .1, .05, .01, .001."""
    value: float
    """The score, noisy."""
    sd: float
    """Standard deviation of its error; scores that pile up and changing streams are not covered."""


Score = Literal["spe", "t2"]
Status = Literal["starting", "nothing_learned", "skipped", "learned"]


class Release(_Model):
    """One batch's result. Everything in it is noisy or public.

    Numbers of features are in the order of `features`. The score of a raw record x along a
    component w is the sum over all features of w (z - mean)/deviation, z = (x - center)/scale, but
    sign(z) clamp (1 + ln(|z|/clamp)) beyond the clamp; features whose deviation is 0 are left out.
    `Projector.from_release` computes it.
    """

    version: Literal[1] = 1
    status: Status
    """starting: only centre and scales were asked for. nothing_learned: no component is known yet.
    skipped: nothing was learned from this batch, what was known stays. learned: the components are
    up to date."""
    batch: int = Field(ge=1)
    """1, 2, ..."""
    n_seen: int | None = Field(None, ge=0)
    """Slots consumed by this batch and all before it, nulls included. Absent where the unit is a
    subject: there the number of records is secret."""
    subjects: float | None = None
    """Noisy number of subjects in the round; 0 where noise says less. Absent where the unit is a
    record."""
    first_batches: int = 1
    """Batches that the first step took at once; rounds that only ask for centre and scales."""
    features: tuple[Any, ...]
    """Names, in order."""
    components: tuple[tuple[float, ...], ...]
    """Directions of unit length, orthogonal, the main one first: the weight of each feature, in
    units of its standard deviation. Empty before anything has been learned."""
    center: tuple[float, ...] | None = None
    """Centre of each feature, in its own unit; null before anything has been learned."""
    scale: tuple[float, ...] | None = None
    """Scale of each feature, in its own unit."""
    clamp: tuple[float, ...] | None = None
    """Bound of (x - center)/scale on both sides, for each feature; null if there is none."""
    mean: tuple[float, ...] | None = None
    """Mean of each feature after centre, scale and clamp."""
    deviation: tuple[float, ...] | None = None
    """Standard deviation of each feature after centre, scale and clamp; 0 for a feature without
    spread, which is left out: its weights are 0."""
    spread: tuple[float, ...] | None = None
    """Noisy variance along each component, of clipped records, so mostly too small; null where it
    is not known."""
    explained_variance_ratio: tuple[float, ...] | None = None
    """Noisy share of the variance of all features along each component: the eigenvalue over the
    number of features, each of which counts as 1, also one whose spread has not been seen. With
    features in one unit it is the share of their variance. Null where it is not known."""
    explained_variance_ratio_sd: tuple[float, ...] | None = None
    """Standard deviation of each share: noise, sampling, and what clamps and clipping change."""
    eigenvalues: tuple[float, ...] = ()
    """Noisy variances along the principal axes of all features, in units of their standard
    deviations, descending: those that stand out of the noise, at most 20, whatever the number of
    components. Empty if the method does not know them."""
    eigenvalues_sd: tuple[float, ...] = ()
    """Standard deviation of the uncertainty of each."""
    limits: dict[Score, tuple[Limit, ...]] = {}
    """For each score (spe: squared distance from the components, t2: squared distance along them)
    the values that a share of the records exceeds, ascending. A rate that the data cannot tell is
    absent, and a score without any rate, too."""
    range: float | None = None
    """Noisy range within which records were taken as they are."""
    step: float | None = None
    """Weight of this batch in the components."""
    sigma: float | None = None
    """Standard deviation of the noise in one coordinate of the release of this batch."""
    drift: bool = False
    """True if the stream has changed: what was learned before the last few batches was dropped, and
    the next step is a first step again."""
    shift: bool = False
    """True if the mean has changed, too."""
    reason: str | None = None
    """Reason why nothing was learned from this batch; decided from noisy results only."""
    privacy: PrivacyStatement | SubjectStatement = Field(discriminator="unit")

    @field_validator("version", mode="before")
    @classmethod
    def _this_version(cls, version: Any) -> Any:
        if version != 1:
            raise ValueError(f"is {version!r}, this program reads releases of version 1")
        return version

    @model_validator(mode="after")
    def _same_lengths(self) -> Self:
        d, k = len(self.features), len(self.components)
        of_features = (self.center, self.scale, self.clamp, self.mean, self.deviation)
        ratios = (self.explained_variance_ratio, self.explained_variance_ratio_sd)
        if len(self.eigenvalues) != len(self.eigenvalues_sd):
            raise ValueError("must have one sd for each of the eigenvalues")
        for rows, length, what in (
            ((*self.components, *of_features), d, "features"),
            ((self.spread, *ratios), k, "components"),
        ):
            if any(row is not None and len(row) != length for row in rows):
                raise ValueError(f"must have one number for each of the {length} {what}")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in ("n_seen", "subjects", "round"):  # a published release has a round
            if name in fields and fields[name] is None:
                del fields[name]
        return fields

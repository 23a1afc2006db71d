"""Public result types: releases, and the privacy statement that each of them carries."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from .calibration import epsilon_over

__all__ = ["PrivacyStatement", "Release", "Status", "SubjectStatement"]


class _Model(BaseModel):
    # Errors of pydantic quote their input unless told not to.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class PrivacyStatement(_Model):
    """The privacy guarantee, stated in full, so that it can be read without the code."""

    epsilon: float
    delta: float
    #: Neighbouring streams differ in the content of one slot.
    adjacency: Literal["replace-one"] = "replace-one"
    #: The content of one slot. Somebody who sends many records is protected for each, not for all.
    unit: Literal["record"] = "record"
    #: Each record is in one batch, so the budget does not run down as the stream continues.
    scope: Literal["whole stream"] = "whole stream"
    method: str
    #: False if the noise came from a seed. Such a release protects nobody.
    private: bool


class SubjectStatement(_Model):
    """The privacy guarantee of a subject, stated in full, to be read without the code."""

    epsilon: float
    delta: float
    #: Neighbouring streams differ in everything that one subject sends within the scope: what,
    #: when, how many records, whether any at all.
    adjacency: Literal["replace-subject"] = "replace-subject"
    unit: Literal["subject"] = "subject"
    #: The field that names the subject of a record.
    subject: str
    #: The guarantee is for `period` consecutive rounds, wherever they begin.
    scope: str
    period: int
    #: Number of rounds after which nothing more is learned; None if learning never ends.
    horizon: int | None
    #: Most records of a subject that are used in a round.
    records: int
    #: Epsilon, at the same delta, for all that a subject sends in a longer time.
    epsilon_over: dict[str, float]
    method: str
    #: False if the noise came from a seed. Such a release protects nobody.
    private: bool

    @classmethod
    def of(
        cls, *, epsilon: float, delta: float, period: int, horizon: int | None, **rest: Any
    ) -> SubjectStatement:
        """The statement of a budget per period.

        Examples
        --------
        >>> said = SubjectStatement.of(
        ...     epsilon=1.0, delta=1e-6, period=24, horizon=None, subject="device_id", records=4,
        ...     method="adaptive", private=True,
        ... )
        >>> said.scope
        'any 24 consecutive rounds'
        >>> {time: round(epsilon, 2) for time, epsilon in said.epsilon_over.items()}
        {'1 period': 1.0, '7 periods': 2.89, '30 periods': 6.58, '365 periods': 31.04}
        """
        over = epsilon_over(epsilon, delta, period=period, horizon=horizon)
        return cls(
            epsilon=epsilon,
            delta=delta,
            scope="any round" if period == 1 else f"any {period} consecutive rounds",
            period=period,
            horizon=horizon,
            epsilon_over=over,
            **rest,
        )


#: "warming_up": centre and scales are being learned. "nothing_learned": no component is known yet.
#: "skipped": nothing was learned from this batch, what was known stays. "learned": all is well.
Status = Literal["warming_up", "nothing_learned", "skipped", "learned"]


class Release(_Model):
    """One batch's result. Everything in it is noisy or public.

    The score of a raw record x is W^T ((clamp((x - c)/s) - m)/r), where the rows of `components`
    are the columns of W, c is `center`, s `scale`, m `mean` and r `deviation`; see `Projector`.
    """

    version: Literal[1, 2] = 2
    status: Status = "learned"
    #: 1, 2, ...
    batch: int
    #: Slots consumed by this batch and all before it. Absent where the unit is a subject.
    n_seen: int | None = None
    #: Noisy number of subjects in the round. Absent where the unit is a record.
    subjects: float | None = None
    #: Names, in order; empty in releases of version 1.
    features: tuple[Any, ...] = ()
    #: k rows of d numbers, orthonormal, in the order of the features. Empty before anything has
    #: been learned.
    components: tuple[tuple[float, ...], ...]
    #: c, s, m and r, feature by feature, None before anything has been learned. r is 0 for a
    #: feature without spread, which is left out: its loadings are 0.
    center: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    #: Standardised values are cut off here; None if nothing is cut off.
    clamp: tuple[float, ...] | None = None
    #: Noisy variance along each component, of clipped records, so mostly too small; None where the
    #: batch was skipped.
    spread: tuple[float, ...] | None
    #: Share of the variance along each component, and the sd of the noise in it; None if the method
    #: does not know the total variance.
    explained_variance_ratio: tuple[float, ...] | None = None
    explained_variance_ratio_sd: tuple[float, ...] | None = None
    #: Noisy range within which records were taken as they are.
    range: float | None
    #: Weight of this batch in the components.
    step: float | None
    #: True if the stream has changed and what was learned before was dropped.
    drift: bool = False
    skipped: bool
    reason: str | None
    #: Noise sd in one coordinate of the release of this batch.
    sigma: float | None
    privacy: PrivacyStatement | SubjectStatement

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in ("n_seen", "subjects"):
            if fields[name] is None:
                del fields[name]
        return fields

"""Public result types: releases, and the privacy statement that each of them carries."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["PrivacyStatement", "Release", "Status"]


class _Model(BaseModel):
    # Errors of pydantic quote their input unless told not to.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class PrivacyStatement(_Model):
    """What is promised, whole, so that it can be read without the code."""

    epsilon: float
    delta: float
    #: Neighbouring streams differ in the content of one slot.
    adjacency: Literal["replace-one"] = "replace-one"
    #: What one slot holds. Somebody who sends many records is protected for each, not for all.
    unit: Literal["record"] = "record"
    #: Each record is in one batch, so the budget does not run down as the stream goes on.
    scope: Literal["whole stream"] = "whole stream"
    method: str
    #: False if the noise came from a seed. Such a release protects nobody.
    private: bool


#: "warming_up": centre and scales are being learned. "nothing_learned": no component is known yet.
#: "skipped": nothing was learned from this batch, what was known stays. "learned": all is well.
Status = Literal["warming_up", "nothing_learned", "skipped", "learned"]


class Release(_Model):
    """One batch's result. Everything in it is noisy or public.

    The score of a raw record x is W^T ((clamp((x - c)/s) - m)/r), where the rows of `components`
    are the columns of W, c is `center`, s `scale`, m `mean` and r `deviation`. `Projector` does it.
    """

    version: Literal[1, 2] = 2
    status: Status = "learned"
    #: 1, 2, ...
    batch: int
    #: Slots consumed by this batch and all before it.
    n_seen: int
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
    #: Standardised values are cut off here; None where nothing is.
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
    #: Noise sd in one coordinate of what was released about this batch.
    sigma: float | None
    privacy: PrivacyStatement

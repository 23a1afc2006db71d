"""Public result types: releases, and the privacy statement that each of them carries."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["PrivacyStatement", "Release"]


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


class Release(_Model):
    """One batch's result. Everything in it is noisy or public."""

    version: Literal[1] = 1
    #: 1, 2, ...
    batch: int
    #: Slots consumed by this batch and all before it.
    n_seen: int
    #: k rows of d numbers, orthonormal, in the order of the declared features.
    components: tuple[tuple[float, ...], ...]
    #: Noisy variance along each component, of clipped records, so mostly too small; None where the
    #: batch was skipped.
    spread: tuple[float, ...] | None
    #: Noisy range within which records were taken as they are.
    range: float | None
    #: Weight of this batch in the components.
    step: float | None
    skipped: bool
    reason: str | None
    #: Noise sd in one coordinate of what was released about this batch.
    sigma: float | None
    privacy: PrivacyStatement

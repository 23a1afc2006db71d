"""Settings of the model: what to learn, and how private."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from .part import Part

__all__ = ["ModelSettings"]

#: Settings that are called otherwise in `DPPCA`.
_PARAMETERS: Final = {"paper_k": "K", "paper_a": "a", "paper_zeta": "zeta", "paper_c1": "C1"}


class ModelSettings(Part):
    """What to learn, and how private."""

    features: Annotated[tuple[str, ...], NoDecode] = Field(
        description="names of the features, separated by commas or as a JSON list; "
        "a.b is the member b of a nested object a",
    )
    epsilon: float = Field(
        gt=0,
        description="privacy guarantee of each record over the whole stream; smaller is stricter",
    )
    delta: float = Field(
        gt=0, lt=1, description="small probability that epsilon does not cover, such as 1e-6"
    )
    batch_size: int = Field(ge=2, description="records per batch; each batch gives one release")
    n_components: int = Field(1, ge=1, description="number of components to learn")
    method: Literal["adaptive", "paper"] = Field(
        "adaptive", description="learning method; paper is the published algorithm"
    )
    center: Literal["none", "pairs"] = Field(
        "none",
        description="pairs learns from differences of records: needed unless the mean of every "
        "feature is known to be zero",
    )
    scales: Annotated[tuple[float, ...], NoDecode] = Field(
        (),
        description="public scale of each feature, in the order of the features; values are "
        "divided by it",
    )
    max_norm: float = Field(
        1e18, gt=0, description="public limit on the length of a record; a longer one is a null"
    )
    paper_k: float = Field(4.0, gt=0, description="parameter K of method=paper")
    paper_a: float = Field(1.0, ge=0, description="parameter a of method=paper")
    paper_zeta: float = Field(0.01, gt=0, description="parameter zeta of method=paper")
    paper_c1: float = Field(4.0, gt=0, description="parameter C1 of method=paper")
    seed: int | None = Field(
        None, ge=0, description="seed of the noise, for simulations: the result is NOT PRIVATE"
    )

    @field_validator("features", "scales", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):  # a JSON list, for names that contain commas
            return json.loads(value)
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("features")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) != len(value) or "" in value:
            raise ValueError("must name at least one feature, and none of them twice")
        return value

    def estimator(self) -> dict[str, Any]:
        """Return the parameters of `DPPCA` that were set, and no defaults.

        A new model takes the other parameters from the defaults of `DPPCA`, a stored one from its
        own state, so that it resumes unchanged when a later version has other defaults. Only the
        seed is always there: a model that was seeded must not resume as if it were private.
        """
        given = {
            name: getattr(self, name)
            for name, field in ModelSettings.model_fields.items()
            if field.is_required() or name in self.model_fields_set
        }
        if "scales" in given:
            given["scales"] = given["scales"] or None
        given["seed"] = self.seed
        return {_PARAMETERS.get(name, name): value for name, value in given.items()}

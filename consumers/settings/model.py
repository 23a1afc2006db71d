"""Settings of the model and of its privacy guarantee."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

from .durations import Duration, duration_text
from .part import Part, WordOr, split_names
from .rounds import MESSAGE_KEY, RoundRule


def _read_scales(value: Any) -> Any:
    """Public scales in the order of the features or by name; none if there are none."""
    if isinstance(value, str) and value:
        value = json.loads(value if value.lstrip()[:1] in ("[", "{") else f"[{value}]")
    if not value:
        return "none"
    return dict(value) if isinstance(value, dict) else tuple(value)


Scales = Annotated[
    Literal["learn", "none"] | tuple[float, ...] | dict[str, float],
    NoDecode,
    WordOr(_read_scales, "learn, none, or numbers in order or by name"),
]
Memory = Annotated[
    Literal["auto", "all"] | float, WordOr(float, "auto, all, or a number of batches")
]

MethodName = Literal["adaptive", "paper"]


@dataclass(frozen=True)
class EstimatorRecipe:
    """A method, and the parameters of its estimator that were set.

    With privacy per subject the parameter `unit` holds those of `PerSubject`, all of them: no part
    of the guarantee may come from a default.
    """

    method: MethodName
    parameters: Mapping[str, Any]


#: Settings that only method=paper has, with their names in `PaperDPPCA`.
_OF_PAPER: Final = {"paper_k": "K", "paper_a": "a", "paper_zeta": "zeta", "paper_c1": "C1"}
#: Settings that only a model with privacy per subject has.
_PER_SUBJECT: Final = ("subject", "places", "round", "period", "horizon", "records")
#: Settings that mean nothing otherwise.
_ONLY_WITH: Final = {
    "method=paper": tuple(_OF_PAPER),
    "method=adaptive": ("limits", "memory", "missing"),
    "unit=subject": _PER_SUBJECT,
}


class ModelSettings(Part):
    """The model, its features and its privacy guarantee.

    What the estimator refuses is not checked here: whoever learns makes one first.
    """

    SIZED: ClassVar[bool] = True  #: the size of a batch or round must be set

    unit: Literal["record", "subject"] = "record"
    """unit of privacy: one record, or everything that one subject (a device, a user) sends; subject
    if `subject` is set"""
    features: Annotated[tuple[str, ...], NoDecode, Field(min_length=1)]
    """names of the features, separated by commas or as a JSON list; a.b is the member b of a nested
    object a, and v[0..767] are 768 items of an array v; in a topic of otlp, otlp-json or long,
    series such as rate(system.network.io{direction="receive"})"""
    epsilon: float = Field(gt=0)
    """privacy guarantee of each record over the whole stream, or of each subject over any `period`;
    smaller is stricter"""
    delta: float = Field(gt=0, lt=1)
    """small probability that epsilon does not cover, such as 1e-6"""
    batch_size: int | None = Field(None, ge=2, validate_default=True)
    """records per batch: each batch gives one release; must be set with unit=record"""
    subject: str | None = None
    """field that names the subject of a record, or, in a topic, @key for the key of the message;
    records without it are ignored"""
    places: int | None = Field(None, ge=2, validate_default=True)
    """number of subjects that a round has places for, about as many as are expected; must be set
    with unit=subject"""
    round: Duration | None = None
    """duration of a round, such as 1h or 24h: each round gives one release; rounds lie on a fixed
    grid in UTC; must be set with unit=subject"""
    period: Duration | None = None
    """time that epsilon covers for each subject, a whole number of rounds; default: one round"""
    horizon: Duration | None = None
    """time after which the model learns nothing more, a whole number of rounds; default: never"""
    records: int = Field(4, ge=1, le=64)
    """records of a subject that count in a round: the first ones"""
    n_components: int = Field(1, ge=1)
    """number of components to learn"""
    method: MethodName = "adaptive"
    """learning method: adaptive is `DPPCA`; paper is the published algorithm, which needs far
    larger batches"""
    center: Literal["mean", "none", "pairs", "own"] = "mean"
    """mean learns the mean of each feature; none takes it to be zero, which is more accurate if it
    is; own, with unit=subject, learns from deviations of each subject from its own mean;
    method=paper has none, its default, and pairs: differences of neighbouring records, so local
    variation only"""
    scales: Scales = "learn"
    """learn finds the scale of each feature in the first step, for features in any units; none, the
    default of method=paper, is for features in one unit: components of raw records; or known
    standard deviations, which make the result more accurate, as numbers in the order of the
    features or by name, such as {"cpu": 10, "disk.read": 1e6}; method=paper only divides by them"""
    memory: Memory = "auto"
    """auto remembers everything until the stream changes; all never forgets; a number of batches
    forgets older ones gradually"""
    missing: Literal["null", "center"] = "null"
    """treatment of a record that lacks some features: null makes it a null, center puts the learned
    centre in their place; with otlp, otlp-json or long and unit=subject the default is center if a
    centre is learned"""
    limits: bool = True
    """releases tell the scores that 10, 5, 1 and .1 % of the records exceed, for 4 % of the budget;
    false leaves all of it to the components"""
    paper_k: float = Field(4.0, gt=0)
    """parameter K of method=paper"""
    paper_a: float = Field(1.0, ge=0)
    """parameter a of method=paper"""
    paper_zeta: float = Field(0.01, gt=0)
    """parameter zeta of method=paper"""
    paper_c1: float = Field(4.0, gt=0)
    """parameter C1 of method=paper"""
    seed: int | None = Field(None, ge=0)
    """seed of the noise, for simulations: the result is NOT PRIVATE"""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_modes(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("subject") and not data.get("unit"):
            data = {**data, "unit": "subject"}
        if data.get("method") == "paper":
            data = {"center": "none", "scales": "none", **data}
        return data

    @field_validator("features", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            as_json = value.lstrip().startswith("[")  # a list, for names that contain commas
            value = json.loads(value) if as_json else split_names(value)
        names = value if isinstance(value, list | tuple) else []
        return tuple(item for name in names for item in _items(name)) if names else value

    @field_validator("batch_size", "places")
    @classmethod
    def _size_of_the_unit(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Require the size that the unit has, and refuse that of the other unit."""
        unit = info.data.get("unit")
        own, other = ("batch_size", "places") if unit == "record" else ("places", "batch_size")
        if unit and info.field_name == own and value is None and cls.SIZED:
            raise PydanticCustomError("missing", "must be set")
        if unit and info.field_name == other and value is not None:
            what = "a batch has batch_size" if unit == "record" else "a round has places"
            raise ValueError(f"must be left out with unit={unit}: {what}")
        return value

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for rule, names in _ONLY_WITH.items():
            which, _, value = rule.partition("=")
            found = getattr(self, which)
            for name in names:
                set_here = name in self.model_fields_set and getattr(self, name) is not None
                if set_here and found != value:
                    yield f"`{name}` is for {rule}. Found {which}={found}."
        if self.method == "paper" and self.unit == "subject":
            yield (
                "`method` must be adaptive with unit=subject: the paper assumes one record per "
                "person. Found method=paper."
            )
        if self.unit == "subject":
            yield from self._wrong_rounds()

    def _wrong_rounds(self) -> Iterator[str]:
        if not self.subject:
            yield (
                "`subject` must be set with unit=subject: the field that names the subject of a "
                f"record, or {MESSAGE_KEY}"
            )
        if self.subject in self.features:
            yield "`subject` must not be one of the features"
        if self.round is None:
            yield (
                "`round` must be set with unit=subject: the duration of a round, such as 1h or 24h"
            )
            return
        length = duration_text(self.round)
        if self.round < 1000:
            yield f"`round` must be at least 1s. Found {length}."
        for name in ("period", "horizon"):
            value = getattr(self, name)
            if value is not None and value % self.round:
                found = duration_text(value)
                yield f"`{name}` must be a whole number of rounds of {length}. Found {found}."

    def rounds(self) -> RoundRule | None:
        """Return the rule of the rounds; None if the unit is a record."""
        if self.unit == "record" or self.subject is None or self.round is None:
            return None
        return RoundRule(
            subject=self.subject,
            length_ms=self.round,
            period=1 if self.period is None else self.period // self.round,
            horizon=None if self.horizon is None else self.horizon // self.round,
        )

    def estimator_recipe(self) -> EstimatorRecipe:
        """Return the method and the parameters that were set, and no defaults.

        A new model takes the other parameters from the defaults of its class, a stored one from its
        own state, so that it resumes unchanged when a later version has other defaults. Only the
        seed is always included: a model that was seeded must not resume as if it were private.
        """
        given = {
            name: getattr(self, name)
            for name, field in ModelSettings.model_fields.items()
            if (field.is_required() or name in self.model_fields_set)
            and name not in ("unit", "method", *_PER_SUBJECT)
        }
        if given.get("scales") == "none":
            given["scales"] = None
        given["seed"] = self.seed
        rounds = self.rounds()
        if rounds is not None:
            given["unit"] = {
                "subject": rounds.subject,
                "places": self.places,
                "period": rounds.period,
                "horizon": rounds.horizon,
                "records": self.records,
            }
        parameters = {_OF_PAPER.get(name, name): value for name, value in given.items()}
        return EstimatorRecipe(self.method, parameters)


def _items(name: Any) -> list[Any]:
    """The features that a name stands for: `v[0..2]` stands for three items of an array."""
    found = re.fullmatch(r"(.+)\[(\d{1,6})\.\.(\d{1,6})\]", name) if isinstance(name, str) else None
    if found is None:
        return [name]
    items = range(int(found[2]), int(found[3]) + 1)
    if not items:
        raise ValueError(f"must have ranges from a smaller to a larger number. Found {name}")
    return [f"{found[1]}[{item}]" for item in items]

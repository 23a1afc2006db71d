"""Settings of the topics of records and releases, and of the format of messages."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_validator

from ..formats import Format
from .part import Part

__all__ = ["NameSettings", "TopicSettings"]

_TOPIC_PATTERN: Final = r"^[A-Za-z0-9._-]{1,249}$"
Topic = Annotated[str, Field(pattern=_TOPIC_PATTERN)]
#: Position or time at which to begin.
Start = Literal["earliest", "latest"] | datetime.datetime


class NameSettings(Part):
    """The names of the input and of the model."""

    input_topic: Topic = Field(description="topic to learn from; it must exist")
    model: Topic = Field("", description="name of the model; default: the name of the input topic")

    @model_validator(mode="before")
    @classmethod
    def _name_model(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("model"):
            return data
        return {**data, "model": _valid_name(data.get("input_topic"))}


class TopicSettings(NameSettings):
    """The topics of records and releases, and the format of messages."""

    group: Topic = Field("", description="consumer group; default: stream-dppca.<model>")
    output_topic: Topic = Field(
        "", description="topic to publish releases to; default: <model>.components"
    )
    state_topic: Topic = Field(
        "",
        description="topic that keeps the state, for trusted readers only; "
        "default: <model>.dppca-state",
    )
    create_topics: bool = Field(
        True, description="create the output topic and the state topic if they do not exist"
    )
    replication_factor: int = Field(
        -1, description="replicas of each topic that is created; -1: the default of the brokers"
    )
    start: Start = Field(
        "earliest",
        description="where a new model begins to read, earliest or latest; with unit=subject, "
        "latest (the next round, the default) or a time such as 2026-01-31T00:00Z; a stored model "
        "resumes",
    )
    format: Format = Field(
        "json",
        description="message format; float32 and float64 are packed little-endian vectors, avro "
        "and protobuf have their schemas in a Schema Registry",
    )
    rows_per_message: int = Field(
        1,
        ge=1,
        description="vectors per message; a message with fewer leaves nulls, extra ones are "
        "ignored; must be set for packed formats and must divide batch_size",
    )
    nested: bool = Field(
        True, description="a dot in the name of a feature leads into a nested object"
    )
    max_message_bytes: int = Field(
        1 << 20, ge=1, description="largest message that is read; a larger one is a null"
    )

    # Wrapped, and the inner validators are not called: those of a union explain every branch.
    @field_validator("start", mode="wrap")
    @classmethod
    def _read_start(cls, value: Any, _: ValidatorFunctionWrapHandler) -> Start:
        if value in ("earliest", "latest"):
            return cast(Start, value)
        try:
            when = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            when = None
        if not isinstance(when, datetime.datetime) or when.tzinfo is None:
            raise ValueError(
                "must be earliest, latest, or a time with its zone such as 2026-01-31T00:00Z"
            )
        return when

    @model_validator(mode="before")
    @classmethod
    def _name_topics(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        model = _valid_name(data.get("model") or data.get("input_topic"))
        names = {
            "group": f"stream-dppca.{model}",
            "output_topic": f"{model}.components",
            "state_topic": f"{model}.dppca-state",
        }
        return {**data, **{name: data.get(name) or names[name] for name in names}}

    @model_validator(mode="after")
    def _topics_differ(self) -> TopicSettings:
        if len({self.input_topic, self.output_topic, self.state_topic}) != 3:
            raise ValueError("`input_topic`, `output_topic` and `state_topic` must differ")
        return self


def _valid_name(name: Any) -> str:
    """Return the name, or a stand-in for an invalid one, so that only the culprit is reported."""
    return name if isinstance(name, str) and re.fullmatch(_TOPIC_PATTERN, name) else "-"

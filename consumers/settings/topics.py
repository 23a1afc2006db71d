"""Settings of the topics of records and releases, and of the format of messages."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from ..formats import Format
from .connection import ConnectionSettings
from .part import PREFIX, Names, Part, WordOr

_TOPIC_PATTERN: Final = r"^[A-Za-z0-9._-]{1,249}$"
Topic = Annotated[str, Field(pattern=_TOPIC_PATTERN)]
#: Stands for a name that is missing or invalid, so that only the culprit is reported.
_NO_NAME: Final = "-"
#: Fields of messages with one metric each.
_FIELDS: Final = {"name": "metric", "value": "value", "time": "timestamp", "labels": ""}


def _read_time(value: Any) -> datetime.datetime:
    when = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(when, datetime.datetime) or when.tzinfo is None:
        raise ValueError
    return when


#: Position or time at which to begin.
Start = Annotated[
    Literal["earliest", "latest"] | datetime.datetime,
    WordOr(_read_time, "earliest, latest, or a time with its zone such as 2026-01-31T00:00Z"),
]


class NameSettings(Part):
    """The names of the input, of the model and of its topics."""

    input_topic: Topic
    """topic to read; it must exist"""
    model: Topic = ""
    """name of the model; default: the name of the input"""
    group: Topic = ""
    """consumer group; default: stream-dppca.<model>"""
    output_topic: Topic = ""
    """topic of the releases; default: <model>.components"""
    state_topic: Topic = ""
    """topic that keeps the state, for trusted readers only; default: <model>.dppca-state"""

    @model_validator(mode="before")
    @classmethod
    def _default_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        found = data.get("model") or data.get("input_topic")
        model = found if re.fullmatch(_TOPIC_PATTERN, str(found or "")) else _NO_NAME
        names = {
            "model": model,
            "group": f"stream-dppca.{model}",
            "output_topic": f"{model}.components",
            "state_topic": f"{model}.dppca-state",
        }
        return {**data, **{name: data.get(name) or names[name] for name in names}}


class ViewSettings(NameSettings, ConnectionSettings):
    """Settings for reading the releases of a model: its name, its output topic, the brokers."""

    input_topic: str = ""
    """topic that the model learns from, if that is also the model's name"""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.model == _NO_NAME:
            yield (
                f"`model`: must be set: {PREFIX}MODEL, --model, or in the file; or `input_topic`, "
                "which gives the model its default name"
            )


class TopicSettings(NameSettings):
    """The topics of records and releases, and the format of messages."""

    create_topics: bool = True
    """create the topics that are written if they do not exist"""
    replication_factor: int = -1
    """replicas of each topic that is created; -1: the default of the brokers"""
    start: Start = "earliest"
    """where a new model begins to read, earliest or latest; with unit=subject, latest (the next
    round, the default) or a time such as 2026-01-31T00:00Z; a stored model resumes. For `score`:
    where a new consumer group begins (default earliest)"""
    format: Format = "json"
    """message format; float32 and float64 are packed little-endian rows, avro and protobuf have
    their schemas in a Schema Registry, otlp and otlp-json are metrics of OpenTelemetry, long is one
    metric per message"""
    rows_per_message: int = Field(1, ge=1)
    """rows per message; a message with fewer leaves nulls, extra ones are ignored; must be set
    for packed formats and must divide batch_size; with otlp, otlp-json and long, groups of points
    in a message (`group_by`)"""
    parts: int = Field(1, ge=1, le=64)
    """with otlp, otlp-json and long and unit=subject: equal parts of a round, each of which gives a
    row of all that a subject sent in it; in place of `records`"""
    group_by: Names = ()
    """with otlp, otlp-json and long and unit=record: attributes of the resource, or fields, whose
    values make the rows of a message; default: the whole resource, or the whole message with
    long"""
    long_fields: Annotated[dict[str, str], NoDecode] = Field({}, validate_default=True)
    """with long: the fields that hold the name, the value, the time and the labels of a metric,
    such as name=name,value=fields,labels=tags; default: name=metric,value=value,time=timestamp, and
    all texts as labels"""
    text_values: bool = False
    """with long: values are texts such as "98.5", not numbers"""
    nested: bool = True
    """a dot in the name of a feature leads into a nested object"""
    max_message_bytes: int = Field(1 << 20, ge=1)
    """largest message that is read; a larger one is a null"""

    @field_validator("long_fields", mode="before")
    @classmethod
    def _split_fields(cls, value: Any) -> Any:
        if isinstance(value, str):
            pairs = (part.partition("=") for part in value.split(",") if part.strip())
            value = {name.strip(): field.strip() for name, _, field in pairs}
        if isinstance(value, dict) and not (value.keys() <= _FIELDS.keys() and all(value.values())):
            raise ValueError(f"must be fields for {', '.join(_FIELDS)}, such as name=metric")
        return {**_FIELDS, **value} if isinstance(value, dict) else value

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if len({self.input_topic, self.output_topic, self.state_topic}) != 3:
            yield "`input_topic`, `output_topic` and `state_topic` must differ"

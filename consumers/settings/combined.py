"""Combinations of parts for the commands, and the rules between parts."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pydantic import Field

from ..formats import PACKED_FORMATS, POINT_FORMATS, REGISTERED_FORMATS
from .connection import ConnectionSettings, reveal
from .model import EstimatorRecipe, ModelSettings
from .operation import EngineSettings, OperationSettings, is_loopback
from .part import Part
from .topics import NameSettings, TopicSettings

#: Each part with its title in the help and in the docs, in their order.
PARTS: Final[dict[str, type[Part]]] = {
    "Model": ModelSettings,
    "Topics and messages": TopicSettings,
    "Connection": ConnectionSettings,
    "Operation": OperationSettings,
    "Engine": EngineSettings,
}


class FileSettings(ModelSettings, NameSettings):
    """Settings for learning from a file."""


class OnceSettings(FileSettings):
    """Settings for learning from a file as one batch, whose size is the number of its rows."""

    SIZED = False

    def estimator_recipe(self) -> EstimatorRecipe:
        """Return the method for one batch, which spends nothing on later ones."""
        recipe = super().estimator_recipe()
        return replace(recipe, parameters={**recipe.parameters, "batches": 1})


class PlanSettings(ModelSettings):
    """Settings for planning a model, whose size may be left to a recommendation."""

    SIZED = False
    format: str | None = None
    """message format; with otlp, otlp-json and long the plan says how much memory points take"""


class ClusterSettings(TopicSettings, ConnectionSettings):
    """Settings for working with the topics of a model without learning."""

    def registry_options(self) -> tuple[tuple[str, str], ...]:
        """Return the options of the Schema Registry's client; none if the format needs no schemas.

        The password is among them.
        """
        password = reveal(self.schema_registry_password)
        options = {
            "url": self.schema_registry_url,
            "basic.auth.user.info": password and f"{self.schema_registry_username}:{password}",
            "ssl.ca.location": self.schema_registry_cafile and str(self.schema_registry_cafile),
        }
        needed = self.format in REGISTERED_FORMATS
        return tuple((name, value) for name, value in options.items() if needed and value)


class ScoreSettings(ClusterSettings, OperationSettings):
    """Settings for scoring the records of a topic."""

    http_port: int = Field(8323, ge=0, le=65535)
    """port of the live page, /livez, /readyz and /metrics, another one than that of `serve` on the
    same machine; 0 takes any free port"""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.http_token is None and not is_loopback(self.http_host):
            yield (
                "`http_token` must be set if `http_host` is not loopback: /metrics counts the "
                f"records that are beyond a limit. Found http_host={self.http_host}."
            )


class Settings(FileSettings, ClusterSettings, OperationSettings, EngineSettings):
    """All settings: those of the service."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from self._wrong_messages()
        yield from self._wrong_subjects()
        points, long = self.format in POINT_FORMATS, self.format == "long"
        fitting = {
            "group_by": points and self.unit == "record",
            "parts": points and self.unit == "subject",
            "rows_per_message": not points or self.unit == "record",
            "records": not points,
            "long_fields": long,
            "text_values": long,
        }
        for name, fits in fitting.items():
            if name in self.model_fields_set and not fits:
                yield f"`{name}` must not be set with format {self.format} and unit={self.unit}"
        if self.method == "paper" and self.engine != "local":
            yield "`engine` must be local with method=paper: it needs all records"
        if self.format in REGISTERED_FORMATS and self.schema_registry_url is None:
            yield f"`schema_registry_url` must be set with format {self.format}"
        if self.unit == "subject" and self.http_token is None and not is_loopback(self.http_host):
            yield (
                "`http_token` must be set with unit=subject if `http_host` is not loopback: "
                f"/metrics shows exact numbers of records. Found http_host={self.http_host}."
            )

    def _wrong_messages(self) -> Iterator[str]:
        """Refuse batches that would end inside a message; `MessageRecipe` has the other rules."""
        rows = self.rows_per_message
        size = rows * len(self.features) * PACKED_FORMATS.get(self.format, 0)
        if size > self.max_message_bytes:
            yield (
                f"`max_message_bytes` must be at least {size} for {rows} rows of "
                f"{len(self.features)} features: longer messages are nulls. "
                f"Found {self.max_message_bytes}."
            )
        if self.batch_size is not None and self.batch_size % rows:
            yield (
                f"`batch_size` must be a multiple of `rows_per_message`. Found {self.batch_size} "
                f"and {rows}."
            )

    def _wrong_subjects(self) -> Iterator[str]:
        """Refuse settings with which one subject's messages decide how others' are read."""
        rounds, start = self.rounds(), self.start
        if rounds is None:
            if self.unit == "record" and not isinstance(start, str):
                yield "`start` must be earliest or latest with unit=record"
            return
        if start == "earliest" and "start" in self.model_fields_set:
            yield (
                "`start` must be latest or a time with unit=subject: a beginning with the oldest "
                "record would tell when its subject sent it"
            )
        if not isinstance(start, str) and round(start.timestamp() * 1000) % rounds.length_ms:
            yield (
                "`start` must be the beginning of a round: a multiple of `round` since "
                "1970-01-01T00:00Z"
            )

    def estimator_recipe(self) -> EstimatorRecipe:
        """Return the method and its parameters; rows of a round's points are its parts."""
        recipe = super().estimator_recipe()
        if self.unit == "record" or self.format not in POINT_FORMATS:
            return recipe
        unit = {**recipe.parameters["unit"], "records": self.parts}
        learned = self.center == "mean" or (self.center != "own" and self.scales == "learn")
        missing = "center" if learned else "null"
        return replace(recipe, parameters={"missing": missing, **recipe.parameters, "unit": unit})

    def first_round(self, now_ms: int) -> int:
        """Return the first round of a new model that starts now."""
        rounds = self.rounds()
        if rounds is None:
            raise ValueError("there are no rounds with unit=record")
        if isinstance(self.start, datetime.datetime):
            return rounds.round_at(round(self.start.timestamp() * 1000))
        return rounds.first_from(now_ms)

    def shown(self) -> dict[str, Any]:
        """Return all settings as plain values, part by part, with secrets masked."""
        values = self.model_dump(mode="json")
        return {name: values[name] for part in PARTS.values() for name in part.model_fields}

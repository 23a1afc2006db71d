"""Settings of commands that only show the releases of a model."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from .connection import ConnectionSettings
from .part import PREFIX
from .topics import Topic


class ViewSettings(ConnectionSettings):
    """Settings for reading the releases of a model: its name, its output topic, the brokers."""

    input_topic: str = ""
    """topic that the model learns from, if that is also the model's name"""
    model: Topic = ""
    """name of the model; default: the name of the input topic"""
    output_topic: Topic = ""
    """topic that holds the releases; default: <model>.components"""

    @model_validator(mode="before")
    @classmethod
    def _name(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        model = data.get("model") or data.get("input_topic")
        if not model:
            raise ValueError(
                f"`model`: must be set: {PREFIX}MODEL, --model, or in the file; or `input_topic`, "
                "which gives the model its default name"
            )
        output = data.get("output_topic") or f"{model}.components"
        return {**data, "model": model, "output_topic": output}

    # Values that clients of a cluster are made with, although viewers never use them.

    @property
    def rows_per_message(self) -> int:
        return 1

    @property
    def group(self) -> str:
        return f"stream-dppca.{self.model}"

    @property
    def state_topic(self) -> str:
        return f"{self.model}.dppca-state"

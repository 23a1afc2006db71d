"""Settings of the engine whose tasks read the records of a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, model_validator

from .part import PREFIX, Part

#: A variable that begins like this is a setting of Spark: DPPCA_SPARK_CONF__spark.executor.memory.
SPARK_CONF_PREFIX: Final = PREFIX + "SPARK_CONF__"


class EngineSettings(Part):
    """The engine whose tasks read the records of a batch."""

    engine: Literal["local", "spark"] = "local"
    """where records are read: local is this process; spark uses the executors of a cluster, which
    need this package and its extra service (docs/scale.md)"""
    spark_master: str | None = None
    """address of the Spark master, such as spark://host:7077 or local[2]"""
    spark_tasks: int | None = Field(None, ge=1, le=100_000)
    """tasks per batch; default: the cores of the cluster"""
    spark_allow_insecure: bool = False
    """allow a remote master without authentication and encryption, so that exact sums of records
    and the password for Kafka cross the network in the clear"""
    spark_conf: dict[str, SecretStr] = Field({})
    """further settings of Spark: a table in the file, JSON, or variables such as
    DPPCA_SPARK_CONF__spark.executor.memory"""

    @model_validator(mode="before")
    @classmethod
    def _spark_variables(cls, data: Any) -> Any:
        found = {
            name.removeprefix(SPARK_CONF_PREFIX): value
            for name, value in os.environ.items()
            if name.startswith(SPARK_CONF_PREFIX)
        }
        given = data.get("spark_conf", {}) if isinstance(data, dict) else None
        if not found or not isinstance(given, dict):
            return data
        return {**data, "spark_conf": {**given, **found}}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.engine == "spark" and not self.spark_master:
            yield "`spark_master` must be set with engine=spark"

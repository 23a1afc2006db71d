"""Settings of a running process: planning, pages, log, time limits, and its engine."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, model_validator

from .durations import Duration
from .part import PREFIX, Names, Part

#: A variable that begins like this is a setting of Spark: DPPCA_SPARK_CONF__spark.executor.memory.
SPARK_CONF_PREFIX: Final = PREFIX + "SPARK_CONF__"


class OperationSettings(Part):
    """Planning, pages, log and time limits of a running process."""

    plan_interval_ms: int = Field(50, ge=10, le=10_000)
    """interval at which the ends of partitions are read to plan batches, by a fixed clock, in
    milliseconds"""
    partition_refresh_s: float = Field(10.0, gt=0)
    """interval between checks for new partitions and of the lag, in seconds"""
    clock_slack: Duration = Field("10s", validate_default=True)
    """largest difference between any two clocks of the brokers and of this process, replication
    included, where brokers stamp messages (LogAppendTime): a batch waits this long for partitions
    without new messages; with unit=subject, a round is read this long after its end"""
    http_host: str = "127.0.0.1"
    """address that serves the live page, /livez, /readyz, /metrics and /component"""
    http_port: int = Field(8321, ge=0, le=65535)
    """port of these pages; 0 takes any free port. Every process on a machine needs its own: the
    default of `score` is 8323, so do not export one port for both, but give each its --http-port"""
    http_token: SecretStr | None = Field(None, min_length=16)
    """token that readers of these pages must give, except for /livez and /readyz; without a token,
    anybody who reaches the port may read them"""
    http_hosts: Names = ()
    """names of the host in the addresses of these pages, separated by commas; IP addresses and
    localhost need not be listed, and all other names are refused"""
    log_format: Literal["auto", "json", "text"] = "auto"
    """format of the log; auto is text on a terminal and JSON elsewhere"""
    stall_timeout_s: float = Field(120.0, gt=0)
    """time in seconds: a loop that is stuck this long ends the process, and a partition without
    progress this long drops the task; /readyz fails after a quarter of it without progress"""


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


def is_loopback(host: str) -> bool:
    """Tell whether only processes on this machine can reach an address.

    Examples
    --------
    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "", "a.b")]
    [True, True, True, False, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

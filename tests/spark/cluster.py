"""A standalone Spark cluster for tests, and sessions on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from consumers.demo.standalone import StandaloneCluster

DEADLINE_SECONDS = 240.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; machines may be busy."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {DEADLINE_SECONDS:g} s for {what}")
        time.sleep(0.05)


class ClusterOfTests(StandaloneCluster):
    """A cluster whose executors find the modules of the tests."""

    def conf(self) -> dict[str, str]:
        return super().conf() | {"spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2])}

    def session(self, **conf: Any) -> SparkSession:
        """A session of this process on the cluster."""
        os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        builder = SparkSession.builder.master(self.master).appName("tests")
        for name, value in (self.conf() | conf).items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

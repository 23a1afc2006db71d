"""A standalone Spark cluster for tests, and sessions on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from demo.standalone import StandaloneCluster

DEADLINE_SECONDS = 240.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; machines may be busy."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {DEADLINE_SECONDS:g} s for {what}")
        time.sleep(0.05)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def descendants(ancestors: Iterable[int], words: str) -> set[int]:
    """The processes below some others whose command lines hold these words."""
    parents, found = {}, []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            parents[pid] = parent(pid)
            if words in command(pid):
                found.append(pid)
        except OSError:
            continue  # it has just ended
    ours = set(ancestors)

    def below(pid: int) -> bool:
        while pid > 1 and (pid := parents.get(pid, 0)) not in ours:
            pass
        return pid in ours

    return {pid for pid in found if below(pid)}


def stop_session() -> None:
    """Give the cores of the session of this process back, if there is one."""
    if (session := SparkSession.getActiveSession()) is not None:
        session.stop()


class ClusterOfTests(StandaloneCluster):
    """A cluster whose executors find the modules of the tests."""

    def conf(self) -> dict[str, str]:
        return super().conf() | {"spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2])}

    @property
    def pids(self) -> list[int]:
        return [child.pid for child, _ in self.children]

    def add_worker(self) -> None:
        """Start one more worker, and wait until the master knows it."""
        self._wait(self._start_worker(), "Successfully registered")

    def session(self, **conf: Any) -> SparkSession:
        """The session of this process on the cluster; it has all cores until it is stopped."""
        os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        builder = SparkSession.builder.master(self.master).appName("tests")
        for name, value in (self.conf() | conf).items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

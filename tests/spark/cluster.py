"""A standalone Spark cluster on this machine: a master and workers, each a process of its own."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark
from pyspark.sql import SparkSession

DEADLINE_SECONDS = 240.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; machines may be busy."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {DEADLINE_SECONDS:g} s for {what}")
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class StandaloneCluster:
    """One master, and workers of one core each.

    Parameters
    ----------
    home
        A directory for logs and scratch files.
    workers
        How many.
    """

    def __init__(self, home: Path, workers: int = 2) -> None:
        self.home, self.port = home, free_port()
        self.secret = secrets.token_hex(16)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        try:
            self._start("master.Master", "--host", "127.0.0.1", "--port", str(self.port),
                        "--webui-port", "0")  # fmt: skip
            wait_for("the master", lambda: self._says(0, "I have been elected leader"))
            for _ in range(workers):
                self._start("worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores",
                            "1", "--memory", "1g", "--work-dir", str(home / "work"),
                            self.master)  # fmt: skip
            for i in range(1, workers + 1):
                wait_for("a worker", lambda i=i: self._says(i, "Successfully registered"))  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def _start(self, kind: str, *args: str) -> None:
        spark = Path(pyspark.__file__).parent
        log = self.home / f"{len(self.processes)}.log"
        self._logs.append(log)
        conf = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.network.crypto.enabled": "true",
        }
        options = " ".join(f"-D{name}={value}" for name, value in conf.items())
        env = os.environ | {
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": options,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self.home / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *args]
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
            )

    def _says(self, i: int, words: str) -> bool:
        if self.processes[i].poll() is not None:
            raise RuntimeError(f"a process of Spark has ended: {self._logs[i].read_text()[-2000:]}")
        return words in self._logs[i].read_text(errors="replace")

    def conf(self) -> dict[str, str]:
        """Settings of a session on this cluster."""
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.network.crypto.enabled": "true",
            "spark.io.encryption.enabled": "true",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executorEnv.OMP_NUM_THREADS": "1",
            "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),  # sources of the tests
            "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(self.home / "local"),
            "spark.sql.shuffle.partitions": "2",
        }

    def session(self, **conf: Any) -> SparkSession:
        """A session of this process on the cluster."""
        os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        builder = SparkSession.builder.master(self.master).appName("tests")
        for name, value in (self.conf() | conf).items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def close(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

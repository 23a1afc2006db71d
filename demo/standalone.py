"""A standalone cluster of Apache Spark on this machine, for demonstrations and tests.

One master and a few workers, each a process of its own, on loopback, with authentication and
encryption. They end with the process that started them, however that process ends. pyspark, which
holds Spark itself, is an extra; nothing here imports it.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from consumers.errors import ConfigurationError
from consumers.settings.operation import SPARK_CONF_PREFIX

from .broker.base import LOOPBACK
from .broker.node import free_port
from .supervised import kill_supervised, start_supervised

#: A master or a worker that has not started by then will not start; machines may be busy.
START_SECONDS: Final = 240.0
_PAUSE_SECONDS: Final = 0.05
#: Python does the work, so a JVM that starts quickly is worth more than one that optimizes.
_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def spark_home() -> Path:
    """Return the folder of Spark; refuses if pyspark or Java is missing."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError("a Spark cluster needs pyspark: pip install '.[service,spark]'")
    if shutil.which("java") is None:
        raise ConfigurationError("a Spark cluster needs Java 17 on the path; there is none")
    return Path(found.submodule_search_locations[0])


class StandaloneCluster:
    """One master, and two workers of one core each."""

    def __init__(self) -> None:
        self._spark = spark_home()
        self._port = free_port()
        #: Supervisors of the master and the workers, from which all other processes descend.
        self.children: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.secret: Final = secrets.token_hex(16)
        self.home: Final = Path(tempfile.mkdtemp(prefix="stream-dppca-spark-"))
        self._write_properties()
        try:
            master = self._start("master.Master", "--port", str(self._port))
            self._wait(master, "I have been elected leader")
            for worker in [self._start_worker() for _ in range(2)]:
                self._wait(worker, "Successfully registered")
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> str:
        """The address of the master."""
        return f"spark://{LOOPBACK}:{self._port}"

    def _write_properties(self) -> None:
        """Write settings of master and workers to a file: everybody can read a command line."""
        path = self.home / "spark.properties"
        path.touch(mode=0o600)
        lines = (f"{name} {value}\n" for name, value in self._security().items())
        path.write_text("".join(lines), encoding="utf-8")

    def _security(self) -> dict[str, str]:
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.network.crypto.enabled": "true",
            "spark.io.encryption.enabled": "true",
        }

    def conf(self) -> dict[str, str]:
        """Return the settings of a session on this cluster."""
        return self._security() | {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": _JVM,
            "spark.executor.extraJavaOptions": _JVM,
            "spark.executor.memory": "512m",
            "spark.executorEnv.OMP_NUM_THREADS": "1",
            "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(self.home / "local"),
            "spark.sql.shuffle.partitions": "2",
        }

    def environment(self) -> dict[str, str]:
        """Return the environment of a service on this cluster, secrets included."""
        conf = {SPARK_CONF_PREFIX + name: value for name, value in self.conf().items()}
        return conf | {"SPARK_LOCAL_IP": LOOPBACK}

    def _start_worker(self) -> int:
        work = str(self.home / "work")
        return self._start(
            "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", work, self.master
        )

    def _start(self, kind: str, *arguments: str) -> int:
        """Start a process under a supervisor; returns its number."""
        number = len(self.children)
        properties = str(self.home / "spark.properties")
        common = ["--host", LOOPBACK, "--webui-port", "0", "--properties-file", properties]
        program = str(self._spark / "bin" / "spark-class")
        command = [program, f"org.apache.spark.deploy.{kind}", *common, *arguments]
        environment = os.environ | {
            "SPARK_HOME": str(self._spark),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JVM,
            "SPARK_LOCAL_DIRS": str(self.home / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }
        log = self.home / f"{number}.log"
        child = start_supervised(command, log, self.home, environment=environment)
        self.children.append((child, log))
        return number

    def _wait(self, number: int, words: str) -> None:
        """Wait until the log of a process holds these words."""
        child, log = self.children[number]
        deadline = time.monotonic() + START_SECONDS
        while words not in (text := log.read_text(errors="replace")):
            ended = child.poll() is not None
            if ended or time.monotonic() > deadline:
                how = f"has ended with {child.returncode}" if ended else "does not start"
                raise ConfigurationError(f"a process of Spark {how}; its log:\n{text[-2000:]}")
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """End all processes, and remove their files."""
        for child, _ in reversed(self.children):
            kill_supervised(child)  # executors with their worker
        self.children.clear()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

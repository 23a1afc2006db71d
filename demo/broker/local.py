"""A broker on the local JVM."""

from __future__ import annotations

import base64
import uuid
from typing import Any

from .base import HEAP, START_SECONDS, BrokerFailed, run
from .jars import ensure_jars, find_java
from .managed import ManagedBroker
from .node import broker_settings


class LocalBroker(ManagedBroker):
    """Apache Kafka on the local JVM."""

    kind = "local"

    def __init__(self, *, cluster_id: str | None = None, **options: Any) -> None:
        """
        Parameters
        ----------
        cluster_id
            Shared by the nodes of one cluster; by default, a new one.
        """
        super().__init__(**options)
        self._cluster_id = cluster_id or self.new_cluster_id()

    @staticmethod
    def new_cluster_id() -> str:
        """An id in Kafka's form: 22 characters of base64 that do not begin with a dash."""
        return "0" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii")[1:22]

    def _check(self) -> None:
        self._java = find_java()
        self._jars = ensure_jars(self._tell)

    def _prepare(self) -> None:
        settings = broker_settings(self.port, self.controller_port) | self._extra
        settings["log.dirs"] = str(self.data_dir / "log")
        config = self.data_dir / "server.properties"
        config.write_text("".join(f"{k}={settings[k]}\n" for k in settings), encoding="latin-1")
        (self.data_dir / "log4j2.properties").write_text(_LOG4J, encoding="latin-1")
        tool = ["kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(config)]
        done = run([*self._jvm(), *tool], START_SECONDS)
        if done.returncode:
            raise BrokerFailed(f"formatting the storage failed:\n{done.stdout[-3000:]}")

    def _command(self) -> list[str]:
        return [*self._jvm(HEAP), "kafka.Kafka", str(self.data_dir / "server.properties")]

    def _jvm(self, *options: str) -> list[str]:
        return [
            self._java,
            *options,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}",
            "-cp",
            f"{self._jars}/*",
        ]


_LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""

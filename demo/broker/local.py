"""A broker on a JVM of this machine, which ends with the process that started it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Self

from ..supervised import kill_supervised, start_supervised
from .base import HEAP, LOOPBACK, START_SECONDS, BrokerFailed, Progress
from .jars import ensure_jars, find_java
from .node import broker_settings, free_port, is_ready

ADDRESS_VARIABLE: Final = "KAFKA_BOOTSTRAP_SERVERS"
STOP_SECONDS: Final = 30.0
LOG_LINES: Final = 30  #: of the end of a log, in an error
#: The same of all brokers, so that several can be nodes of one cluster.
CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
#: For experiments: without it, a producer waits for a minute for a topic that nobody has created.
ON_DEMAND: Final = {"auto.create.topics.enable": "true"}
_JVM: Final = (
    *(HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError"),
    "-Djava.awt.headless=true",
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
)


class LocalBroker:
    """Apache Kafka on a JVM: a child process with a data folder, a log and fixed ports.

    As a context manager, it is started on entry and closed on exit. `stop` and `start` again keep
    data and ports; `kill` is a crash; `close` removes the data.

    Parameters
    ----------
    port
        Port to serve at; by default, a free one.
    settings
        Settings of the broker besides `broker_settings`.
    tell
        Called with a line about what takes long.
    folder
        Folder in which the data folder is made; by default, that for temporary files.
    """

    kind = "local"

    def __init__(
        self,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        tell: Progress = lambda _: None,
        folder: Path | None = None,
    ) -> None:
        self.port = port or free_port()
        self.bootstrap_servers = f"{LOOPBACK}:{self.port}"
        self._settings = broker_settings(self.port, free_port()) | dict(settings or {})
        self._tell, self._folder = tell, folder
        self._data: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the broker; return once it serves."""
        if self.running:
            return
        self.kill()  # nothing but its pipe, if it has died
        if self._data is None:
            java, jars = find_java(), ensure_jars(self._tell)
            self._data = Path(tempfile.mkdtemp(prefix="stream-dppca-kafka-", dir=self._folder))
            self._jvm = [java, *_JVM, "-cp", f"{jars}/*"]
            self._format(self._data)
        self._launch(self._data)

    def stop(self) -> None:
        """End the broker in order; its data stays."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            self.kill()  # if it has not ended

    def kill(self) -> None:
        """End the broker as a crash does; its data stays."""
        if self._process is not None:
            kill_supervised(self._process)
            self._process = None

    def close(self) -> None:
        """End the broker, and remove its data."""
        self.kill()
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None

    def _format(self, data: Path) -> None:
        """Write the broker's files, and format its storage."""
        settings = self._settings | {"log.dirs": str(data / "log")}
        config = data / "server.properties"
        config.write_text("".join(f"{k}={v}\n" for k, v in settings.items()), encoding="latin-1")
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)]
        done = subprocess.run(  # noqa: S603
            [*self._jvm, *tool], capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-3000:]
            self.close()
            raise BrokerFailed(f"formatting the storage failed:\n{said}")

    def _launch(self, data: Path) -> None:
        log = data / "broker.log"
        offset = log.stat().st_size if log.exists() else 0
        command = [*self._jvm, "kafka.Kafka", str(data / "server.properties")]
        self._process = start_supervised(command, log, data)
        deadline = time.monotonic() + START_SECONDS
        try:
            while not is_ready(self.port):
                code = self._process.poll()
                if code is not None or time.monotonic() > deadline:
                    how = f"ended with {code}" if code is not None else "does not serve"
                    raise BrokerFailed(f"the broker {how}{self.log_tail(offset)}")
                time.sleep(0.05)
        except BaseException:
            self.kill()
            raise

    def log_tail(self, offset: int = 0) -> str:
        """Return the end of what was written to the log after `offset`."""
        if self._data is None:
            return ""
        text = (self._data / "broker.log").read_bytes()[offset:].decode(errors="replace")
        return "; the end of its log:\n" + "\n".join(text.splitlines()[-LOG_LINES:])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def provide_broker(tell: Progress = lambda _: None) -> Iterator[str]:
    """Yield the address in `KAFKA_BOOTSTRAP_SERVERS`, or that of a broker that runs meanwhile."""
    if servers := os.environ.get(ADDRESS_VARIABLE):
        yield servers
    else:
        with LocalBroker(tell=tell) as broker:
            yield broker.bootstrap_servers

"""The ways to a broker, and the first that works."""

from __future__ import annotations

import abc
import atexit
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from .common import (
    ADDRESS_VARIABLE,
    HEAP,
    LOOPBACK,
    PORT_TRIES,
    START_SECONDS,
    STOP_SECONDS,
    BrokerError,
    BrokerFailed,
    BrokerUnavailable,
    Progress,
    run,
)
from .docker import container_network, find_docker, find_image, has_bridge
from .jars import ensure_jars, find_java
from .node import broker_settings, container_environment, free_port, is_ready

#: Runs what it is told, and ends it with us: `python -I -S SUPERVISOR PLAN`.
SUPERVISOR = Path(__file__).with_name("supervisor.py")


class Broker(abc.ABC):
    """A broker with an address. As a context manager: started on entry, closed on exit."""

    way: ClassVar[str]

    @property
    @abc.abstractmethod
    def bootstrap_servers(self) -> str:
        """The `host:port`, or a list of them with commas."""

    @abc.abstractmethod
    def start(self) -> None:
        """Return once the broker serves."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the broker, if it is ours, and remove what it leaves."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ExternalBroker(Broker):
    """A broker that somebody else runs, at `KAFKA_BOOTSTRAP_SERVERS`."""

    way = "env"

    def __init__(self, bootstrap_servers: str | None = None) -> None:
        self._servers = bootstrap_servers or os.environ.get(ADDRESS_VARIABLE, "")

    @property
    def bootstrap_servers(self) -> str:
        return self._servers

    def start(self) -> None:
        """Connect once: more than that may need TLS and a password."""
        servers = [server.strip() for server in self._servers.split(",") if server.strip()]
        if not servers:
            raise BrokerUnavailable(f"{ADDRESS_VARIABLE} is not set")
        reasons = []
        for server in servers:
            host, _, port = server.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), 10.0).close()
            except (OSError, ValueError) as error:
                reasons.append(f"{server}: {error}")
            else:
                return
        raise BrokerUnavailable(f"{ADDRESS_VARIABLE} does not answer ({'; '.join(reasons)})")

    def close(self) -> None:
        pass


class OwnBroker(Broker):
    """A broker that we start: a child process with a data folder, a log and fixed ports.

    `stop` and `start` again, or `restart`, keep data and ports; `kill` is a crash; `close` removes
    the data.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._wanted_port = port
        self._extra = dict(settings or {})
        self._tell: Progress = progress or (lambda _: None)
        self._dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self.port = 0
        self.controller_port = 0

    @property
    def bootstrap_servers(self) -> str:
        if not self.port:
            raise BrokerError("the broker has not been started")
        return f"{LOOPBACK}:{self.port}"

    @property
    def data_dir(self) -> Path:
        if self._dir is None:
            raise BrokerError("the broker has not been started")
        return self._dir

    @property
    def log_file(self) -> Path:
        return self.data_dir / "broker.log"

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._forget()
        if self._dir is not None:
            self._launch()
            return
        self._check()
        for attempt in range(1, PORT_TRIES + 1):
            self._make_folder()
            self.port = self._wanted_port or free_port()
            self.controller_port = free_port()
            try:
                self._prepare()
                self._launch()
                return
            except BrokerFailed as error:
                # Between our look and the broker's, somebody else may take the port.
                taken = re.search("(?i)address already in use|already allocated", str(error))
                self.close()
                if not taken or self._wanted_port or attempt == PORT_TRIES:
                    raise
            except BaseException:
                self.close()
                raise

    def stop(self) -> None:
        """End the broker in order; its data stays."""
        if (process := self._process) is None:
            return
        self._stop(process)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """End the broker as a crash does; its data stays."""
        if (process := self._process) is None:
            return
        self._kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._forget()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        if os.getpid() != self._owner:  # a fork of the process that started it
            return
        self.kill()
        if self._dir is not None:
            self._clean()
            shutil.rmtree(self._dir, ignore_errors=True)
        self._dir = None
        self.port = self.controller_port = 0
        atexit.unregister(self.close)

    # What the two ways do each in their own manner:

    @abc.abstractmethod
    def _check(self) -> None:
        """See what this way needs, and get it."""

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Make what a first start needs, once the ports are known."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """What to run; it ends when the broker does."""

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the broker to end."""
        process.terminate()

    def _kill(self) -> None:
        """End at once whatever is not in our process group."""

    def _clean(self) -> None:
        """Remove what is not in the data folder."""

    def _last_command(self) -> list[str]:
        """What does the same if we die first."""
        return []

    # What they share:

    def _make_folder(self) -> None:
        self._dir = Path(tempfile.mkdtemp(prefix="stream-dppca-kafka-"))
        atexit.register(self.close)

    def _launch(self) -> None:
        plan = {
            "run": self._command(),
            "last": self._last_command(),
            "remove": str(self.data_dir),
        }
        with self.log_file.open("ab") as log:
            offset = log.tell()
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", str(SUPERVISOR), json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        try:
            while not is_ready(self.port):
                code = self._process.poll()
                if code is not None:
                    raise BrokerFailed(f"the broker ended with {code}{self._tail(offset)}")
                if time.monotonic() > deadline:
                    raise BrokerFailed(
                        f"the broker does not serve after {START_SECONDS:.0f} s{self._tail(offset)}"
                    )
                time.sleep(0.05)
        except BaseException:
            self.kill()
            raise

    def _tail(self, offset: int = 0, lines: int = 30) -> str:
        """The end of the log, of what was written after `offset`."""
        with self.log_file.open("rb") as log:
            log.seek(offset)
            text = log.read().decode("utf-8", errors="replace").splitlines()
        return "; the end of its log:\n" + "\n".join(text[-lines:])

    def _forget(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


class LocalBroker(OwnBroker):
    """Apache Kafka on the local JVM."""

    way = "local"

    def _check(self) -> None:
        self._java = find_java()
        self._jars = ensure_jars(self._tell)

    def _prepare(self) -> None:
        settings = broker_settings(self.port, self.controller_port) | self._extra
        settings["log.dirs"] = str(self.data_dir / "log")
        config = self.data_dir / "server.properties"
        config.write_text("".join(f"{k}={settings[k]}\n" for k in settings), encoding="latin-1")
        (self.data_dir / "log4j2.properties").write_text(_LOG4J, encoding="latin-1")
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        tool = ["kafka.tools.StorageTool", "format", "-t", f"0{cluster[1:]}", "-c", str(config)]
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


class DockerBroker(OwnBroker):
    """Apache Kafka in a container, by the `docker` command."""

    way = "docker"

    def __init__(
        self,
        *,
        image: str | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(port=port, settings=settings, progress=progress)
        self._wanted_image = image

    def _check(self) -> None:
        self._docker = find_docker()
        self._image = find_image(self._docker, self._wanted_image, self._tell)

    def _prepare(self) -> None:
        self._name = f"stream-dppca-kafka-{uuid.uuid4().hex[:12]}"
        network, bind = container_network(self.port, has_bridge(self._docker))
        settings = broker_settings(self.port, self.controller_port, bind) | self._extra
        variables = container_environment(settings)
        flags = [f"--env={name}={variables[name]}" for name in variables]
        create = [self._docker, "create", "--name", self._name, *network, *flags, self._image]
        done = run(create, START_SECONDS)
        if done.returncode:
            raise BrokerFailed(f"docker create failed: {done.stdout.strip()}")

    def _command(self) -> list[str]:
        return [self._docker, "start", "--attach", self._name]

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        run([self._docker, "stop", "--time", f"{STOP_SECONDS:.0f}", self._name], 2 * STOP_SECONDS)

    def _kill(self) -> None:
        run([self._docker, "kill", self._name], STOP_SECONDS)

    def _clean(self) -> None:
        if last := self._last_command():
            run(last, STOP_SECONDS)

    def _last_command(self) -> list[str]:
        name = getattr(self, "_name", None)
        return [self._docker, "rm", "--force", "--volumes", name] if name else []


WAYS: dict[str, type[Broker]] = {
    cls.way: cls for cls in (ExternalBroker, DockerBroker, LocalBroker)
}


def provide_broker(progress: Progress | None = None) -> Broker:
    """A started broker by the first way that works; the caller closes it.

    Raises `BrokerUnavailable` with the reason of each way if none does. An address in
    `KAFKA_BOOTSTRAP_SERVERS` is an order: if nothing answers there, nothing else is tried.
    """
    if os.environ.get(ADDRESS_VARIABLE):
        external = ExternalBroker()
        external.start()
        return external
    reasons = [f"env: {ADDRESS_VARIABLE} is not set"]
    for broker in (DockerBroker(progress=progress), LocalBroker(progress=progress)):
        try:
            broker.start()
        except BrokerError as error:
            reasons.append(f"{broker.way}: {error}")
        else:
            return broker
    raise BrokerUnavailable("no Kafka broker can be had here:\n  " + "\n  ".join(reasons))

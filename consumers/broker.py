"""A real Kafka broker for development and tests, by whichever way this machine has.

`provide_broker` tries, in this order:

1. the address in `KAFKA_BOOTSTRAP_SERVERS`, if set (then nothing else is tried);
2. Docker, if an engine answers and an image is there or can be pulled;
3. Apache Kafka on the local JVM, its jars from Maven (once, then cached).

What is started here is one KRaft node that listens on loopback only, without authentication, and
that ends with the process that started it, however that ends. It is no place for data that must
last or stay secret.

    python -m consumers.broker         # start one, say its address, stop it on Ctrl-C
    python -m consumers.broker jars    # fill the cache of jars, say where it is

No Kafka client is imported: whether a broker is ready is asked in Kafka's own protocol, on a plain
socket. Nothing here is used by the service itself.
"""

from __future__ import annotations

import abc
import argparse
import atexit
import base64
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import ClassVar, Self

KAFKA_VERSION = "4.3.1"  # of the local JVM and of both images
LOG4J_VERSION = "2.25.4"  # the one that this Kafka brings: its bridge from slf4j is added to it
JAVA_VERSION = 17  # the least that this Kafka runs on
OFFICIAL_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
LOCAL_IMAGE = f"stream-dppca/kafka-local:{KAFKA_VERSION}"  # made by docker/kafka-local/build.sh

ADDRESS_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
IMAGE_VARIABLE = "STREAM_DPPCA_KAFKA_IMAGE"

LOOPBACK = "127.0.0.1"
HEAP = "-Xmx512m"
START_SECONDS = 90.0
STOP_SECONDS = 30.0
DOWNLOAD_SECONDS = 900.0
PULL_SECONDS = 240.0
PORT_TRIES = 3

Progress = Callable[[str], None]


class BrokerError(RuntimeError):
    """No broker."""


class BrokerUnavailable(BrokerError):
    """This machine cannot have a broker this way; the message says what is missing."""


class BrokerFailed(BrokerError):
    """A broker did not come up, or died; the message ends with its last words."""


# Settings -----------------------------------------------------------------------------------------


def broker_settings(port: int, controller_port: int, bind: str = LOOPBACK) -> dict[str, str]:
    """The settings of a one-node broker that clients on this machine reach at `port`.

    Inside a container the port is the same as outside: a broker also calls itself at the address
    that it advertises (the markers of transactions go that way).
    """
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://{bind}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        # One node has no replicas, and fewer internal partitions start sooner.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "3000",  # how long the place of a killed broker stays taken
        "broker.heartbeat.interval.ms": "500",
        "auto.create.topics.enable": "false",  # a mistyped topic is an error, not a new topic
        "log.cleaner.dedupe.buffer.size": str(16 << 20),  # 128 MiB would be a quarter of the heap
    }


def container_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as the variables that `apache/kafka` images turn into their server.properties.

    >>> container_environment({"node.id": "1"})["KAFKA_NODE_ID"]
    '1'
    """
    variables = {"KAFKA_" + key.replace(".", "_").upper(): settings[key] for key in settings}
    return variables | {"KAFKA_HEAP_OPTS": HEAP}


def free_port() -> int:
    """A free TCP port on loopback, below the range from which outgoing connections take theirs.

    A client that keeps calling a stopped broker on a port of that range may end up connected to
    itself, and then the broker cannot have its port back.
    """
    ceiling = 32768
    with contextlib.suppress(OSError, ValueError):
        ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        ceiling = int(ephemeral.split()[0])
    candidates = range(10240, ceiling) if ceiling > 12288 else range(20000, 32768)
    for port in random.SystemRandom().sample(candidates, k=200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return port
    raise BrokerUnavailable(f"no free TCP port on {LOOPBACK}")


# Is it ready? -------------------------------------------------------------------------------------


def metadata_brokers(host: str, port: int, timeout: float = 5.0) -> list[tuple[str, int]]:
    """The brokers in service, as the broker at that address lists them (Metadata, version 1).

    A broker accepts connections before the controller lets it serve; it lists itself once it may.
    """
    client = b"stream-dppca"
    request = struct.pack(">hhih", 3, 1, 1, len(client)) + client + struct.pack(">i", 0)
    with socket.create_connection((host, port), timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:

            def take(form: str) -> int:
                data = stream.read(struct.calcsize(form))
                if len(data) < struct.calcsize(form):
                    raise ConnectionError("the answer was cut short")
                return int(struct.unpack(form, data)[0])

            take(">i")  # its length
            if take(">i") != 1:
                raise ConnectionError("not an answer of Kafka")
            brokers = []
            for _ in range(take(">i")):
                take(">i")  # node
                name = stream.read(take(">h")).decode("ascii")
                brokers.append((name, take(">i")))
                stream.read(max(0, take(">h")))  # rack
            return brokers


def is_ready(port: int) -> bool:
    """Whether the broker that serves at this port of loopback is there, and lets clients work."""
    try:
        return (LOOPBACK, port) in metadata_brokers(LOOPBACK, port)
    except (OSError, ValueError):
        return False


# The ways -----------------------------------------------------------------------------------------


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
                [sys.executable, "-I", "-S", __file__, "supervise", json.dumps(plan)],
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
        done = _run([*self._jvm(), *tool], START_SECONDS)
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
        done = _run(create, START_SECONDS)
        if done.returncode:
            raise BrokerFailed(f"docker create failed: {done.stdout.strip()}")

    def _command(self) -> list[str]:
        return [self._docker, "start", "--attach", self._name]

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        _run([self._docker, "stop", "--time", f"{STOP_SECONDS:.0f}", self._name], 2 * STOP_SECONDS)

    def _kill(self) -> None:
        _run([self._docker, "kill", self._name], STOP_SECONDS)

    def _clean(self) -> None:
        if last := self._last_command():
            _run(last, STOP_SECONDS)

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


# What the local JVM needs -------------------------------------------------------------------------


def find_java() -> str:
    """The `java` command, of `JAVA_HOME` first; new enough."""
    if os.name != "posix":
        raise BrokerUnavailable("a local broker needs a POSIX system")
    home = os.environ.get("JAVA_HOME")
    java = (home and shutil.which("java", path=f"{home}/bin")) or shutil.which("java")
    if not java:
        raise BrokerUnavailable(f"no java command (a JRE of version {JAVA_VERSION} or newer)")
    said = _run([java, "-version"], 30.0).stdout
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_VERSION:
        first = said.strip().splitlines()[:1]
        raise BrokerUnavailable(f"{java} is not Java {JAVA_VERSION} or newer: {first}")
    return java


def jar_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "stream-dppca" / f"kafka-{KAFKA_VERSION}"


def ensure_jars(progress: Progress | None = None) -> Path:
    """The folder with Kafka's jars, filled by Maven if it is not there.

    The folder appears whole or not at all, and of two processes one downloads.
    """
    tell: Progress = progress or (lambda _: None)
    folder = jar_folder()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock"), tell):
        if folder.is_dir():
            return folder
        for stale in folder.parent.glob(f"{folder.name}.part-*"):  # of one that was killed
            shutil.rmtree(stale, ignore_errors=True)
        mvn = shutil.which("mvn")
        if not mvn:
            raise BrokerUnavailable(f"no mvn command to fetch Kafka's jars with, and no {folder}")
        with tempfile.TemporaryDirectory(prefix=folder.name + ".part-", dir=folder.parent) as part:
            jars = Path(part) / "jars"
            _download(mvn, Path(part), jars, tell)
            if not (jars / f"kafka_2.13-{KAFKA_VERSION}.jar").is_file():
                raise BrokerUnavailable("Maven ended well but fetched no Kafka")
            jars.rename(folder)
    return folder


_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>stream-dppca</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def _download(mvn: str, work: Path, jars: Path, tell: Progress) -> None:
    """Have Maven copy Kafka and what it needs at run time into `jars`."""
    (work / "pom.xml").write_text(_POM, encoding="utf-8")
    command = [
        *(mvn, "--batch-mode", "--strict-checksums", "--file", str(work / "pom.xml")),
        "dependency:copy-dependencies",
        *("-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
    ]
    tell(f"fetching Apache Kafka {KAFKA_VERSION} with Maven (45 MB, once)")
    lines: list[str] = []
    fetched = 0
    with subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=work,
    ) as process:
        limit = threading.Timer(DOWNLOAD_SECONDS, process.kill)
        limit.daemon = True
        limit.start()
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                if "Downloaded" in line and ".jar " in line:
                    fetched += 1
                    if fetched % 20 == 0:
                        tell(f"fetching Apache Kafka {KAFKA_VERSION}: {fetched} jars so far")
        except BaseException:
            process.kill()
            raise
        finally:
            limit.cancel()
    if process.returncode:
        errors = [line for line in lines if line.startswith("[ERROR]")] or lines
        raise BrokerUnavailable("Maven could not fetch Kafka's jars:\n" + "\n".join(errors[:5]))
    tell(f"Apache Kafka {KAFKA_VERSION} is in the cache")


@contextlib.contextmanager
def _locked(path: Path, tell: Progress) -> Iterator[None]:
    """Hold the lock file; the system lets it go if we die."""
    import fcntl  # not on every system; `find_java` has said so by now

    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process is fetching Kafka's jars: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# What Docker needs --------------------------------------------------------------------------------


def find_docker() -> str:
    """The `docker` command, with an engine on this machine that answers."""
    docker = shutil.which("docker")
    if not docker:
        raise BrokerUnavailable("no docker command")
    host = os.environ.get("DOCKER_HOST", "")
    if host and not host.startswith("unix:"):
        raise BrokerUnavailable(f"the Docker engine at {host} is not on this machine")
    done = _run([docker, "version", "--format", "{{.Server.Version}}"], 20.0)
    if done.returncode:
        raise BrokerUnavailable(f"no Docker engine answers ({done.stdout.strip()})")
    return docker


def find_image(docker: str, wanted: str | None = None, progress: Progress | None = None) -> str:
    """An image that is there, or has been pulled now.

    The one asked for, here or in `STREAM_DPPCA_KAFKA_IMAGE`, or else Apache's, or else ours.
    """
    wanted = wanted or os.environ.get(IMAGE_VARIABLE)
    for image in [wanted] if wanted else [OFFICIAL_IMAGE, LOCAL_IMAGE]:
        if not _run([docker, "image", "inspect", image], 20.0).returncode:
            return image
    image = wanted or OFFICIAL_IMAGE
    if progress:
        progress(f"pulling {image}")
    done = _run([docker, "pull", "--quiet", image], PULL_SECONDS)
    if done.returncode:
        said = done.stdout.strip().splitlines()[-1:]
        raise BrokerUnavailable(f"the image {image} is not here and cannot be pulled: {said}")
    return image


def has_bridge(docker: str) -> bool:
    """Whether the engine has its bridge network, without which no port can be published."""
    return not _run([docker, "network", "inspect", "bridge"], 20.0).returncode


def container_network(port: int, bridge: bool) -> tuple[list[str], str]:
    """The flags that make a container's port reachable on loopback, and the address to bind."""
    if bridge:
        return [f"--publish={LOOPBACK}:{port}:{port}"], "0.0.0.0"  # noqa: S104
    return ["--network=host"], LOOPBACK


# Processes ----------------------------------------------------------------------------------------


def _run(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run to the end; what it says on both streams is in `stdout`. Too late is a failure."""
    try:
        return subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = f"{Path(command[0]).name} did not end within {timeout:.0f} s"
        return subprocess.CompletedProcess(command, 1, said, None)


def _supervise(plan: str) -> int:
    """Run a command; if our parent dies, or closes our input, end it and clean up.

    A pipe, not the death signal of Linux: that one follows the thread that made the child, and
    tests restart brokers in threads that end.
    """
    orders = json.loads(plan)
    stopped = threading.Event()
    child: subprocess.Popen[bytes] | None = None

    def on_term(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()
        if child is not None:
            child.terminate()

    signal.signal(signal.SIGTERM, on_term)
    child = subprocess.Popen(orders["run"], stdin=subprocess.DEVNULL)  # noqa: S603
    if stopped.is_set():
        child.terminate()
    orphaned = threading.Event()

    def watch() -> None:
        while os.read(0, 64):  # not `sys.stdin`: its lock would be held when we end
            pass
        orphaned.set()
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    if orphaned.is_set():
        if orders["last"]:
            _run(orders["last"], STOP_SECONDS)
        shutil.rmtree(orders["remove"], ignore_errors=True)
    return code if code >= 0 else 128 - code


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m consumers.broker", description="A Kafka broker.")
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="start a broker, say its address, stop it on Ctrl-C")
    run.add_argument("--way", choices=sorted(WAYS), help="this way and no other")
    run.add_argument("--port", type=int, help="where to serve (docker, or else local)")
    commands.add_parser("jars", help="fetch Kafka's jars if they are not here; say where they are")
    commands.add_parser("image", help="the name of the image of docker/kafka-local")
    commands.add_parser("supervise").add_argument("plan")
    options = parser.parse_args(arguments)

    def tell(line: str) -> None:
        sys.stderr.write(line + "\n")

    def answer(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    if options.command == "supervise":
        return _supervise(options.plan)
    try:
        if options.command == "image":
            answer(LOCAL_IMAGE)
        elif options.command == "jars":
            answer(str(ensure_jars(tell)))
        else:
            way, port = getattr(options, "way", None), getattr(options, "port", None)
            _serve(way, port, tell, answer)
    except BrokerError as error:
        tell(str(error))
        return 1
    return 0


def _serve(way: str | None, port: int | None, tell: Progress, answer: Progress) -> None:
    """Have a broker until a signal says stop."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(ending, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        broker: Broker
        if way == "docker":
            broker = DockerBroker(port=port, progress=tell)
        elif way == "local" or port:
            broker = LocalBroker(port=port, progress=tell)
        elif way == "env":
            broker = ExternalBroker()
        else:
            broker = provide_broker(tell)
        with broker:
            answer(broker.bootstrap_servers)
            threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())

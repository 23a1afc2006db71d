"""Parts that all kinds of brokers share: versions, limits, errors, running commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

KAFKA_VERSION = "4.3.1"  # of the local JVM and of both images
LOG4J_VERSION = "2.25.4"  # as this Kafka has it; the slf4j bridge to add must be of this version
JAVA_VERSION = 17  # the least that this Kafka runs on
OFFICIAL_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
LOCAL_IMAGE = f"stream-dppca/kafka-local:{KAFKA_VERSION}"  # made by docker/kafka-local/build.sh

ADDRESS_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
IMAGE_VARIABLE = "STREAM_DPPCA_KAFKA_IMAGE"

LOOPBACK = "127.0.0.1"
HEAP = "-Xmx512m"
START_SECONDS = 300.0  #: a start takes seconds on an idle machine, minutes on a busy one
STOP_SECONDS = 30.0
DOWNLOAD_SECONDS = 900.0
PULL_SECONDS = 240.0
PORT_TRIES = 3

Progress = Callable[[str], None]


class BrokerError(RuntimeError):
    """Base class of all errors about brokers."""


class BrokerUnavailable(BrokerError):
    """This machine cannot have a broker of this kind; the message says what is missing."""


class BrokerFailed(BrokerError):
    """A broker did not start, or died; the message ends with the end of its log."""


def run(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `stdout` holds both of its streams; a timeout is a failure."""
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


def start_supervised(
    command: Sequence[str],
    log: Path,
    remove: Path,
    cleanup: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command that ends with this process, however this process ends.

    If this process does not end it, `cleanup` is run and the folder `remove` is removed then.
    """
    supervisor = Path(__file__).with_name("supervisor.py")
    orders = {"run": list(command), "cleanup": list(cleanup), "remove": str(remove)}
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", str(supervisor), json.dumps(orders)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )


def kill_supervised(child: subprocess.Popen[bytes]) -> None:
    """End a supervised command and all of its children at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        child.stdin.close()

"""Instances of the service as processes, and functions that wait for their progress."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .launch import CRASH_AT, GROUP, LEAVE_SECONDS, NOISE, STOP_AT
from .zygote import Forked
from .zygote import start as fork

ROOT: Final = Path(__file__).parents[2]
#: Longest wait of a test. It is spent only if something is wrong: work that takes seconds on an
#: idle machine takes minutes on a busy one.
PATIENCE_SECONDS: Final = 240.0
#: Nothing else runs on this machine, so that durations may be asserted, too (`make crash`).
TIMED: Final = os.environ.get("STREAM_DPPCA_TIMED") == "1"
#: The environment of an instance without noise.
SILENT: Final = {NOISE: "off"}
#: For producers of tests with transactions: on a busy machine brokers do not abort them, and the
#: client does not give up.
PATIENT_TRANSACTION: Final = {
    "transaction_timeout_ms": int(PATIENCE_SECONDS * 1000),
    "max_block_ms": int(PATIENCE_SECONDS * 1000),
}
#: The environment of an instance whose watchdog lets it leave in order, however busy the machine.
PATIENT_LEAVING: Final = {LEAVE_SECONDS: "120"}


def wait_for(what: str, condition: Callable[[], Any], timeout_s: float = PATIENCE_SECONDS) -> Any:
    """Return the first true answer, or fail and say what did not happen."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.05)
    return found


def crash_at(point: str, times: int = 1, group: int = 1) -> dict[str, str]:
    """The environment of an instance that kills itself at a crash point."""
    return {CRASH_AT: f"{point}:{times}", GROUP: str(group)}


def stop_at(point: str, times: int = 1, group: int = 1) -> dict[str, str]:
    """The environment of an instance that stops itself at a crash point, until SIGCONT."""
    return {STOP_AT: f"{point}:{times}", GROUP: str(group)}


class Instance:
    """`stream-dppca serve` in a process; its log is read as it comes."""

    def __init__(self, environment: dict[str, str], *, fresh: bool = True) -> None:
        """
        Parameters
        ----------
        fresh
            True for a new interpreter that imports everything, as in production; False for a fork
            of one that has (`tests.support.zygote`), which starts a second faster.
        """
        self.events: list[dict[str, Any]] = []
        self.text = ""
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment}
        self.process: subprocess.Popen[str] | Forked
        if fresh:
            command = [sys.executable, "-m", "tests.support.launch", "serve"]
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        else:
            self.process = fork(environment)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.text += line
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.events.append({"event": "text", "text": line})

    def saw(self, event: str, **fields: Any) -> bool:
        return any(
            e.get("event") == event and all(e.get(k) == v for k, v in fields.items())
            for e in list(self.events)
        )

    def wait_for(self, event: str, **fields: Any) -> None:
        self.wait_until(f"event {event} {fields}", lambda: self.saw(event, **fields))

    def wait_until(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait for a condition; a failure shows the log, and an end of the process is one."""

        def holds() -> Any:
            ended = self.process.poll() is not None
            if not (found := condition()) and ended:
                self._reading.join(5)
                if not (found := condition()):
                    raise AssertionError(f"{what}: it ended with {self.process.returncode}")
            return found

        try:
            return wait_for(what, holds)
        except AssertionError as error:
            raise AssertionError(f"{error}; the log:\n{self.text[-6000:]}") from None

    def wait_until_ready(self, state: str | None = None) -> None:
        """Wait for `/readyz`, in a given state or in any."""

        def ready() -> bool:
            status, body = self.get("/readyz")
            return status == 200 and (state is None or body == f"{state}\n".encode())

        self.wait_until(f"ready ({state or 'any state'})", ready)

    def get(self, path: str) -> tuple[int, bytes]:
        self.wait_for("listening")
        port = next(e["port"] for e in list(self.events) if e.get("event") == "listening")
        url = f"http://127.0.0.1:{port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except urllib.error.URLError as error:
            raise error.reason if isinstance(error.reason, OSError) else error from None

    def first_history(self) -> Any:
        """The first event of the live page that is not empty."""
        port = next(e["port"] for e in list(self.events) if e.get("event") == "listening")
        url = f"http://127.0.0.1:{port}/events"
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            for line in answer:
                name, _, data = line.partition(b": ")
                if name == b"data" and data.startswith(b'{"life"'):
                    found = json.loads(data)
                    if found["current"] is not None:
                        return found
        raise AssertionError("the stream of events has ended")

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        _, found, rest = self.get("/metrics")[1].decode().partition(f"\n{name} ")
        assert found, f"there is no metric {name}"
        return float(rest.split("\n")[0])

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def _status(self, name: str) -> str:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(line.split()[1] for line in status.splitlines() if line.startswith(f"{name}:"))

    @property
    def stopped(self) -> bool:
        """True if the process has been stopped by SIGSTOP."""
        return self._status("State") == "T"

    def wait_until_stopped(self) -> None:
        self.wait_until("SIGSTOP", lambda: self.stopped)

    def wait_until_handles(self, number: int) -> None:
        """Wait until the process has a handler for a signal. Before that, Python starts."""
        bit = 1 << (number - 1)
        self.wait_until("a handler", lambda: int(self._status("SigCgt"), 16) & bit)

    def wait(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended; the log:\n{self.text[-6000:]}") from None
        self._reading.join()
        return code

    def leave(self) -> int:
        """Send SIGTERM; returns the exit code.

        A process that takes more than `LEAVE_SECONDS` ends itself with `EXIT_FORCED`, by its own
        clock: the code tells whether it left in time, on a busy machine too.
        """
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._reading.join()
        if isinstance(self.process, Forked):
            self.process.close()
        elif self.process.stdout:
            self.process.stdout.close()

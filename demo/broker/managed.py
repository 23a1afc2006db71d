"""A broker that is started here, and that ends with the process that started it."""

from __future__ import annotations

import abc
import atexit
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ..supervised import kill_supervised, start_supervised
from . import base
from .base import Broker, BrokerError, BrokerFailed, Progress
from .node import free_port, is_ready


class ManagedBroker(Broker):
    """A broker that is started here: a child process with a data folder, a log and fixed ports.

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
        return f"{base.LOOPBACK}:{self.port}"

    @property
    def data_dir(self) -> Path:
        if self._dir is None:
            raise BrokerError("the broker has not been started")
        return self._dir

    @property
    def log_file(self) -> Path:
        return self.data_dir / "broker.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.running:
            return
        self._forget()
        if self._dir is not None:
            self._launch()
            return
        self._check()
        for attempt in range(1, base.PORT_TRIES + 1):
            self._make_folder()
            self.port = self._wanted_port or free_port()
            self.controller_port = free_port()
            try:
                self._prepare()
                self._launch()
                return
            except BrokerFailed as error:
                # Another process may take the port before the broker does.
                taken = re.search("(?i)address already in use|already allocated", str(error))
                self.close()
                if not taken or self._wanted_port or attempt == base.PORT_TRIES:
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
            process.wait(base.STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """End the broker as a crash does; its data stays."""
        if (process := self._process) is None:
            return
        self._kill()
        kill_supervised(process)
        self._process = None

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

    # Steps that each kind of broker defines:

    @abc.abstractmethod
    def _check(self) -> None:
        """Find or fetch the programs and images that this kind of broker needs."""

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Prepare the first start, once the ports are known."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the broker; it ends when the broker does."""

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the broker to end."""
        process.terminate()

    def _kill(self) -> None:
        """End at once what runs outside the process group of the child."""

    def _clean(self) -> None:
        """Remove what is not in the data folder."""

    def _cleanup_command(self) -> list[str]:
        """Return a command that does what `_clean` does, for the case that this process dies."""
        return []

    # Steps that all kinds share:

    def _make_folder(self) -> None:
        self._dir = Path(tempfile.mkdtemp(prefix="stream-dppca-kafka-"))
        atexit.register(self.close)

    def _launch(self) -> None:
        offset = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._process = start_supervised(
            self._command(), self.log_file, self.data_dir, self._cleanup_command()
        )
        deadline = time.monotonic() + base.START_SECONDS
        try:
            while not is_ready(self.port):
                code = self._process.poll()
                if code is not None:
                    raise BrokerFailed(f"the broker ended with {code}{self.log_tail(offset)}")
                if time.monotonic() > deadline:
                    late = f"the broker does not serve after {base.START_SECONDS:.0f} s"
                    raise BrokerFailed(late + self.log_tail(offset))
                time.sleep(0.05)
        except BaseException:
            self.kill()
            raise

    def log_tail(self, offset: int = 0, lines: int = 30) -> str:
        """Return the end of what was written to the log after `offset`."""
        with self.log_file.open("rb") as log:
            log.seek(offset)
            text = log.read().decode("utf-8", errors="replace").splitlines()
        return "; the end of its log:\n" + "\n".join(text[-lines:])

    def _forget(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

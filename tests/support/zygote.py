"""Starts `stream-dppca` by forking a process that has imported it already.

Importing the service takes a second of processor time, which the tests would otherwise spend a
hundred times. `python -m tests.support.zygote FD` imports everything once and then forks a child
for each request that comes over the socket FD: each child is a process of its own, with its own
environment, signals and exit code, and runs `tests.support.launch`. Noise comes from `os.urandom`
at each draw, so children share none of it; nothing else in a fresh process is random.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

ROOT: Final = Path(__file__).parents[2]
#: Process ids and exit codes go over a socket as one number.
NUMBER: Final = struct.Struct("!i")
LENGTH: Final = struct.Struct("!I")


class Forked:
    """A child of the zygote, with those methods of `subprocess.Popen` that the tests use.

    `stdout` is a stream of its output, or None if that goes elsewhere.
    """

    def __init__(self, told: socket.socket, stdout: TextIO | None = None) -> None:
        self.stdout, self._told = stdout, told
        self.returncode: int | None = None
        self.pid = self._number()

    def _number(self) -> int:
        received = self._told.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(received) < NUMBER.size:
            raise RuntimeError("the zygote has ended")
        return int(NUMBER.unpack(received)[0])

    def poll(self) -> int | None:
        """Return the exit code, if the process has ended."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = self._number()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("an instance", timeout or 0.0)
            self.returncode = self._number()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        self._told.close()
        if self.stdout is not None:
            self.stdout.close()


class Zygote:
    """The process that forks, and the socket for requests."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.zygote", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                # Threads do not survive a fork, so the libraries must not start any.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )

    def start(
        self, arguments: Sequence[str], environment: dict[str, str], output: int, errors: int
    ) -> socket.socket:
        """Fork a child that has this environment and no other, and writes to these descriptors."""
        told, tells = socket.socketpair()
        with tells:
            text = json.dumps([list(arguments), environment]).encode()
            descriptors = array.array("i", [output, errors, tells.fileno()])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
            self._socket.sendmsg([LENGTH.pack(len(text))], ancillary)
            self._socket.sendall(text)
        return told

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_lock = threading.Lock()
_zygotes: dict[int, Zygote] = {}


def _start(
    arguments: Sequence[str], environment: dict[str, str], output: int, errors: int
) -> socket.socket:
    """Ask the zygote of this process, which the first call starts."""
    with _lock:
        if os.getpid() not in _zygotes:
            _zygotes[os.getpid()] = made = Zygote()
            atexit.register(made.close)
        return _zygotes[os.getpid()].start(arguments, environment, output, errors)


def start(environment: dict[str, str]) -> Forked:
    """Start an instance of the service in this environment; its errors are in its output."""
    reading, writing = os.pipe()
    told = _start(["serve"], environment, writing, writing)
    os.close(writing)
    return Forked(told, os.fdopen(reading, encoding="utf-8"))


def start_on(output: int, arguments: Sequence[str], environment: dict[str, str]) -> Forked:
    """Start `stream-dppca` with these arguments; all its output goes to a descriptor."""
    return Forked(_start(arguments, {**os.environ, **environment}, output, output))


def run(
    arguments: Sequence[str], environment: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run `stream-dppca` to its end, like `subprocess.run`, with these additional variables."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        everything = {**os.environ, **environment}
        child = Forked(_start(arguments, everything, output.fileno(), errors.fileno()))
        try:
            code = child.wait(timeout_s)
        finally:
            child.kill()
            child.close()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, output.read(), errors.read())


# In the zygote


def preload() -> None:
    """Import everything that an instance and its first batch need."""
    import consumers.files.run
    import consumers.kafka.cluster
    import consumers.kafka.confluent
    import consumers.service.loop  # noqa: F401
    from consumers.model.states import warm_up

    warm_up()


def serve(requests: socket.socket) -> tuple[list[str], dict[str, str]]:
    """Fork for each request. Returns in the children only, with the arguments and environment."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            for pid in list(children):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    with children.pop(pid) as teller, contextlib.suppress(BrokenPipeError):
                        teller.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        if requests not in ready:
            continue
        head, descriptors, _, _ = socket.recv_fds(requests, LENGTH.size, 3)
        if not head:
            sys.exit(0)  # the requester is gone
        text = requests.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL)
        output, errors, told = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(errors, 2)
            for descriptor in (reading, writing, output, errors, told):
                os.close(descriptor)
            requests.close()
            for other in children.values():
                other.close()
            arguments, environment = json.loads(text)
            return arguments, environment
        os.close(output)
        os.close(errors)
        children[pid] = socket.socket(fileno=told)
        children[pid].sendall(NUMBER.pack(pid))


def main() -> int:
    requests = socket.socket(fileno=int(sys.argv[1]))
    preload()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"a process with {threads} threads cannot be forked safely")
    arguments, environment = serve(requests)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["stream-dppca", *arguments]
    from .launch import main as launch

    return launch()


if __name__ == "__main__":
    raise SystemExit(main())

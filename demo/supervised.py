"""Processes that end with the one that started them, however that one ends.

Between the two stands this module as a script, `python -I -S supervised.py FOLDER COMMAND`. It
needs nothing but the standard library: it must start at once and depend on nothing that could be
missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType


def start_supervised(
    command: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command that ends with this process, however this process ends.

    If this process does not end the command, `folder` is removed afterwards.
    """
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", __file__, str(folder), *command],
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


def supervise(folder: str, *command: str) -> int:
    """Run a command; kill it and remove the folder if the standard input is closed.

    This watches a pipe and not the death signal of Linux, because that signal follows the thread
    that made the child, and tests restart brokers in threads that end.
    """
    stopped = threading.Event()
    children: list[subprocess.Popen[bytes]] = []

    def on_term(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()
        for child in children:
            child.terminate()

    signal.signal(signal.SIGTERM, on_term)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603
    children.append(child)
    if stopped.is_set():
        child.terminate()
    orphaned = threading.Event()

    def watch() -> None:
        while os.read(0, 64):  # not `sys.stdin`: its lock would be held at the end
            pass
        orphaned.set()
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    if orphaned.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(supervise(*sys.argv[1:]))

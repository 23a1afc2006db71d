"""Runs a command, and ends it when the process that asked for it is gone.

A script of its own, `python -I -S supervisor.py ORDERS`, that needs nothing but the standard
library: it must start at once and depend on nothing that could be missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from types import FrameType

CLEANUP_SECONDS = 30.0


def supervise(text: str) -> int:
    """Run a command; end it and clean up if the parent dies or closes the standard input.

    This watches a pipe and not the death signal of Linux, because that signal follows the thread
    that made the child, and tests restart brokers in threads that end.
    """
    orders = json.loads(text)
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
        while os.read(0, 64):  # not `sys.stdin`: its lock would be held at the end
            pass
        orphaned.set()
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    if orphaned.is_set():
        if orders["cleanup"]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(  # noqa: S603
                    orders["cleanup"],
                    stdin=subprocess.DEVNULL,
                    timeout=CLEANUP_SECONDS,
                    check=False,
                )
        shutil.rmtree(orders["remove"], ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1]))

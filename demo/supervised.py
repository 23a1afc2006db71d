"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


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

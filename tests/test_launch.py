"""The launcher of the crash tests stops a process at the named point, and not a little later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from .support.processes import ROOT, wait_for

TIMES = 10
PROGRAM = f"""
import os, signal, threading, time
from tests.support.launch import signal_at

def work():
    for _ in range({TIMES}):
        time.sleep(0.02)  # the main thread sleeps, as that of the service mostly does
        signal_at("point", signal.SIGSTOP)("point")
        os.write(1, b"past the point")

thread = threading.Thread(target=work)
thread.start()
while thread.is_alive():
    time.sleep(0.005)
"""


def test_a_thread_does_not_go_on_past_the_point_at_which_it_stops() -> None:
    """If the signal went to the process, and so to its main thread, most threads would."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        status = Path(f"/proc/{process.pid}/stat")
        os.set_blocking(process.stdout.fileno(), False)
        try:
            for _ in range(TIMES):
                wait_for("SIGSTOP", lambda: status.read_text().split()[2] == "T")
                assert process.stdout.read() is None
                process.send_signal(signal.SIGCONT)
                wait_for("output", process.stdout.read)
            assert process.wait() == 0
        finally:
            process.kill()

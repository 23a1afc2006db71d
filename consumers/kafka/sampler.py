"""Samples the ends of partitions in a process of its own, which handles no record.

The interpreter of the service may be held for a while, by a message that takes long to parse, say.
A thread in it would then sample late, and records would share other batches. The process of the
sampler shares nothing with the service but the machine. What it has sampled waits in its own
memory until the service takes it. It ends when the service does: its input is then at its end.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from ..errors import Unavailable
from ..events import log_event
from .config import KafkaConfig
from .reader import KafkaOffsets

#: Longest time between two lines of the sampler.
BEAT_SECONDS: Final = 1.0
#: Silence after which samples are missing, which includes the start of the process.
SILENT_SECONDS: Final = 10.0
#: Time before a sampler that has ended is started again.
RESTART_SECONDS: Final = 1.0


class KafkaSampler:
    """Starts the process, again if it ends, and reads what it says."""

    def __init__(
        self, config: KafkaConfig, topic: str, interval_s: float, refresh_s: float
    ) -> None:
        make = config.again or partial(replace, config)
        self._job = pickle.dumps((make, topic, interval_s, refresh_s))
        self._start()

    def _start(self) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # an interrupt from the terminal is for the service
        )
        self._said_at, self._rest, self._error = time.monotonic(), b"", ""
        self._restart_at = 0.0  # for one that has ended
        job: Any = self._process.stdin
        with suppress(OSError):  # it has ended already, as its output will say
            job.write(self._job)
            job.flush()

    def samples(self, timeout_s: float) -> list[dict[int, int]]:
        """The ends of all partitions since the last call, in order; waits for some.

        Raises `Unavailable` if the sampler gets no answers, or gives none.
        """
        if self._restart_at:
            if time.monotonic() < self._restart_at:
                time.sleep(timeout_s)
                return []
            self._start()
        output: Any = self._process.stdout
        found: list[dict[int, int]] = []
        if select.select([output], [], [], timeout_s)[0]:
            said = os.read(output.fileno(), 1 << 20)
            if not said:
                self._end()
                return []
            self._said_at = time.monotonic()
            *lines, self._rest = (self._rest + said).split(b"\n")
            for line in lines:
                ends, self._error = json.loads(line)
                if ends:
                    found.append({int(p): end for p, end in ends.items()})
        if not found and self._error:
            raise Unavailable(f"the sampler of ends failed: {self._error}")
        if time.monotonic() - self._said_at > SILENT_SECONDS:
            raise Unavailable("the sampler of ends is silent")
        return found

    def _end(self) -> None:
        code = self._process.wait()
        self._close_pipes()
        log_event("sampler_ended", level="warning", code=code)
        self._restart_at = time.monotonic() + RESTART_SECONDS

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was to be written cannot be
                    pipe.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close_pipes()


# The process


def main() -> None:
    make, topic, interval_s, refresh_s = pickle.load(sys.stdin.buffer)  # noqa: S301 - ours
    lines: SimpleQueue[str] = SimpleQueue()
    for work in (_leave_with_the_service, partial(_write, lines)):
        threading.Thread(target=work, daemon=True).start()
    sample(KafkaOffsets(make(), topic), lines, interval_s, refresh_s)


def _leave_with_the_service() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _write(lines: SimpleQueue[str]) -> None:
    """Write in a thread: a service that does not read must not delay samples."""
    try:
        while True:
            sys.stdout.write(lines.get() + "\n")
            sys.stdout.flush()
    except OSError:
        os._exit(0)


def sample(
    offsets: KafkaOffsets, lines: SimpleQueue[str], interval_s: float, refresh_s: float
) -> None:
    """Sample at every tick, for ever; say what is new, and otherwise that all is well."""
    began = time.monotonic()
    refresh_at = said_at = 0.0
    partitions: list[int] = []
    last: dict[int, int] = {}
    while True:
        try:
            if time.monotonic() >= refresh_at:
                partitions = sorted(offsets.partitions())
                refresh_at = time.monotonic() + refresh_s
            ends, error = offsets.ends(partitions), ""
        except Exception as failed:  # brokers that are away come back
            ends, error = {}, type(failed).__name__
        if error or ends != last or time.monotonic() >= said_at + BEAT_SECONDS:
            lines.put(json.dumps([ends if ends != last else {}, error]))
            last, said_at = ends or last, time.monotonic()
        time.sleep(interval_s - (time.monotonic() - began) % interval_s)


if __name__ == "__main__":
    main()

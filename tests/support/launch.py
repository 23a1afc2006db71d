"""`stream-dppca` for the crash tests: it can die or stop at a named point, and do without noise.

    python -m tests.support.launch serve

- `STREAM_DPPCA_CRASH_AT=<point>[:n]`: SIGKILL when the point of `consumers.crashpoints` is reached
  for the n-th time (without n: for the first time).
- `STREAM_DPPCA_STOP_AT=<point>[:n]`: SIGSTOP; the test wakes the process with SIGCONT.
- `STREAM_DPPCA_HOLD_AT=<point>[:n]`: a call of C keeps all threads from running for five seconds.
- `STREAM_DPPCA_GROUP=<n>`: most batches that wait to be committed together. With 1, each batch has
  a transaction of its own, so that the n-th time that a point is reached is that of the n-th batch.
- `STREAM_DPPCA_LEAVE_SECONDS=<seconds>`: the time to leave in order after SIGTERM.
- `STREAM_DPPCA_NOISE=off`: the model gets a seed, so that every release says that it is not
  private, and seeded noise is zero. The noise of a model without a seed cannot be silenced.

None of this is in the package: `stream-dppca` always has the noise.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

from consumers import crashpoints
from consumers.cli import commands
from consumers.cli import main as stream_dppca

CRASH_AT, STOP_AT = "STREAM_DPPCA_CRASH_AT", "STREAM_DPPCA_STOP_AT"
HOLD_AT: Final = "STREAM_DPPCA_HOLD_AT"
HOLD_SECONDS: Final = 5
NOISE, LEAVE_SECONDS = "STREAM_DPPCA_NOISE", "STREAM_DPPCA_LEAVE_SECONDS"
GROUP = "STREAM_DPPCA_GROUP"
_SIGNALS: Final = {CRASH_AT: signal.SIGKILL, STOP_AT: signal.SIGSTOP}
#: The methods of `SeededNoise` that draw, and their versions without noise.
SILENT: Final[dict[str, Callable[..., Any]]] = {
    "_rounded_gaussian": lambda self, values, sd: values.round(),
    "_discrete_laplace": lambda self, values, scale: values,
}


def signal_at(wanted: str, number: int) -> Callable[[str], None]:
    """A listener that sends this process a signal at `<point>[:n]`."""
    # To this thread: a signal to the process goes to its main thread, and until that runs, which
    # on a busy machine takes a while, this one would run past the point.
    return do_at(wanted, lambda: signal.pthread_kill(threading.get_ident(), number))


def hold() -> None:
    """Hold the interpreter: PyDLL does not let other threads run during the call."""
    ctypes.PyDLL(None).sleep(HOLD_SECONDS)


def do_at(wanted: str, action: Callable[[], object]) -> Callable[[str], None]:
    """A listener that does something at `<point>[:n]`."""
    name, _, times = wanted.partition(":")
    left = int(times or 1)

    def listen(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if left == 0:
                action()

    return listen


def silence(set_attribute: Callable[[type, str, Any], None] = setattr) -> None:
    """Make all seeded noise zero; in a test, `monkeypatch.setattr` puts it back."""
    from stream_dppca.noise import SeededNoise

    for name, silent in SILENT.items():
        if name not in vars(SeededNoise):
            raise AttributeError(f"SeededNoise does not draw by {name}: its noise is not silenced")
        set_attribute(SeededNoise, name, silent)


def changed(serve: Callable[..., int]) -> Callable[..., int]:
    """A service with another time to leave, or another size of groups.

    The modules are changed only when the command runs: their imports take seconds, and the handler
    of signals must be there before them, as it is in production.
    """

    def run(*given: Any) -> int:
        from consumers.service import loop, task

        if seconds := os.environ.get(LEAVE_SECONDS):
            loop.LEAVE_SECONDS = float(seconds)  # type: ignore[misc]
        if group := os.environ.get(GROUP):
            task.TOGETHER_BATCHES = int(group)  # type: ignore[misc]
        return serve(*given)

    return run


def main() -> int:
    for variable, number in _SIGNALS.items():
        if wanted := os.environ.get(variable):
            crashpoints.on_reach.append(signal_at(wanted, number))
    if wanted := os.environ.get(HOLD_AT):
        crashpoints.on_reach.append(do_at(wanted, hold))
    if os.environ.get(NOISE) == "off":
        os.environ["DPPCA_SEED"] = "0"
        silence()
    if LEAVE_SECONDS in os.environ or GROUP in os.environ:
        commands.COMMANDS["serve"] = changed(commands.COMMANDS["serve"])
    return stream_dppca()


if __name__ == "__main__":
    raise SystemExit(main())

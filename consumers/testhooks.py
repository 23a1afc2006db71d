"""Hooks for crash tests. Nothing here does anything unless `DPPCA_TEST_HOOKS=1`.

- `DPPCA_TEST_CRASH_AT=<point>[:n]`: at the n-th time (the first without n) that the named point
  is reached, the process kills itself with SIGKILL.
- `DPPCA_TEST_STOP_AT=<point>[:n]`: the same with SIGSTOP; the test wakes it with SIGCONT.
- `DPPCA_TEST_NOISE=off`: no noise. Every release then says `private: false`.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stream_dppca import DPPCA

__all__ = ["MORE_POINTS", "POINTS", "enabled", "noise_off", "on_reach", "reach", "silence"]

POINTS: Final = (
    "polling",
    "batch_full",
    "before_transaction",
    "inside_transaction",
    "after_commit",
    "after_publish",
    "closing",
)
#: When a task starts, and inside Kafka's transactions.
MORE_POINTS: Final = ("claimed", "fenced", "loaded", "offsets_sent", "inside_publish")
_SIGNALS: Final = {"DPPCA_TEST_CRASH_AT": signal.SIGKILL, "DPPCA_TEST_STOP_AT": signal.SIGSTOP}

#: Called with every point that is reached; tests in one process put something here.
on_reach: list[Callable[[str], None]] = []
_reached: Counter[str] = Counter()


def enabled() -> bool:
    return os.environ.get("DPPCA_TEST_HOOKS") == "1"


def noise_off() -> bool:
    return enabled() and os.environ.get("DPPCA_TEST_NOISE") == "off"


def reach(point: str) -> None:
    """Say that a point has been reached."""
    for listener in on_reach:
        listener(point)
    if not enabled():
        return
    _reached[point] += 1
    for variable, number in _SIGNALS.items():
        name, _, times = os.environ.get(variable, "").partition(":")
        if name == point and _reached[point] == int(times or 1):
            os.kill(os.getpid(), number)


def silence(estimator: DPPCA) -> None:
    """Take the noise out of an estimator that was made with a seed. It says that it is not private,
    as every seeded one does."""
    from stream_dppca.noise import SeededNoise

    class NoNoise(SeededNoise):
        def at_batch(self, batch: int) -> NoNoise:
            return NoNoise(self.seed, batch)

        def _rounded_gaussian(self, values: NDArray[np.float64], sd: float) -> NDArray[np.float64]:
            return values.round()

        def _discrete_laplace(self, values: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
            return values

    if estimator.seed is None:
        raise RuntimeError("an estimator without a seed keeps its noise")
    estimator._noise = NoNoise(estimator.seed)

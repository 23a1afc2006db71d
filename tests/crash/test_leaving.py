"""SIGTERM at any moment: the service leaves in order.

The instances get more time to leave than `LEAVE_SECONDS`, after which the watchdog would end them
(`tests/consumers/test_service.py`): a busy machine must not decide how they end.
"""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from ..support.harness import BATCH, Fresh, Model, model
from ..support.processes import PATIENT_LEAVING

MOMENTS = 14
AT_ONCE = 4
#: Moments between the first handler of signals and normal work.
LATEST_SECONDS = 6.0


def leave_after(m: Model, seconds: float) -> tuple[float, int, str]:
    """Return the moment, the exit code, and the log."""
    instance = m.start(fresh=True, **PATIENT_LEAVING)
    instance.wait_until_handles(signal.SIGTERM)
    time.sleep(seconds)
    return seconds, instance.leave(), instance.text


def test_at_random_moments(servers: str, fresh_name: Fresh) -> None:
    """Four at a time in one group: they start, join, stand by, take over and work."""
    with model(servers, fresh_name("leaving"), partitions=2) as m:
        # One in each of as many spans of equal length, so that few of them reach everywhere.
        moments = [(i + random.random()) * LATEST_SECONDS / MOMENTS for i in range(MOMENTS)]
        random.shuffle(moments)
        with m.loaded(lambda: m.produce(BATCH // 2)), ThreadPoolExecutor(AT_ONCE) as pool:
            results = list(pool.map(lambda s: leave_after(m, s), moments))
        for moment, code, text in results:
            assert code == 0, f"at {moment:.2f} s: {code}\n{text}"
        last = m.start()
        m.finish(last)
        m.check()


def test_idle(servers: str, fresh_name: Fresh) -> None:
    """With nothing to read, and with a batch begun."""
    with model(servers, fresh_name("idle")) as m:
        instance = m.start(**PATIENT_LEAVING)
        instance.wait_for("task_started")
        assert instance.leave() == 0
        m.produce(BATCH // 2)
        instance = m.start(**PATIENT_LEAVING)
        waiting = f"dppca_lag_messages {BATCH // 2}.0".encode()
        instance.wait_until("half a batch", lambda: waiting in instance.get("/metrics")[1])
        assert instance.leave() == 0
        assert instance.saw("left") and not instance.saw("released")

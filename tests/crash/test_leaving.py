"""SIGTERM at any moment: exit code 0 within 5 s."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from .harness import BATCH, Fresh, Model, model

MOMENTS = 20
AT_ONCE = 4
#: From the start of the process to well into its work.
LATEST_SECONDS = 6.0


def leave_after(m: Model, seconds: float) -> tuple[float, float, int, str]:
    """The moment, how long it took, the exit code, what it said."""
    instance = m.start()
    time.sleep(seconds)
    asked = time.monotonic()
    instance.signal(signal.SIGTERM)
    code = instance.wait(20)
    return seconds, time.monotonic() - asked, code, instance.text


def test_at_random_moments(servers: str, fresh_name: Fresh) -> None:
    """Four at a time in one group: they start, join, stand by, take over and work."""
    with model(servers, fresh_name("leaving"), shards=2, partitions=2) as m:
        enough = threading.Event()

        def load() -> None:
            while not enough.wait(0.1):
                m.produce(BATCH // 2)

        loading = threading.Thread(target=load)
        loading.start()
        moments = [random.uniform(0.7, LATEST_SECONDS) for _ in range(MOMENTS)]
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                results = list(pool.map(lambda s: leave_after(m, s), moments))
        finally:
            enough.set()
            loading.join()
        for moment, took, code, text in results:
            assert (code, took < 5) == (0, True), f"at {moment:.2f} s: {code}, {took:.1f} s\n{text}"
        last = m.start()
        m.finish(last)
        m.check()


def test_idle(servers: str, fresh_name: Fresh) -> None:
    """With nothing to read, and with a batch begun."""
    with model(servers, fresh_name("idle")) as m:
        instance = m.start()
        instance.wait_for("task_started")
        instance.signal(signal.SIGTERM)
        assert instance.wait(5) == 0
        m.produce(BATCH // 2)
        instance = m.start()
        instance.wait_for("task_started")
        time.sleep(0.5)
        instance.signal(signal.SIGTERM)
        assert instance.wait(5) == 0
        assert instance.saw("left") and not instance.saw("released")

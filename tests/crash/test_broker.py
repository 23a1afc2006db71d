"""The broker crashes and comes back: the service resumes by itself."""

from __future__ import annotations

import random
import signal
import time

from demo.broker import LocalBroker

from ..harness import BATCH, Fresh, model
from ..processes import Instance, wait_for


def test_the_broker_is_killed_under_load(
    killable: LocalBroker, servers: str, fresh_name: Fresh
) -> None:
    """An owner and a standby survive a crash and a restart of the broker without restarting."""
    rng = random.Random()
    with model(
        servers, fresh_name("broker"), format="float32", partitions=2, rows_per_message=10
    ) as m:
        owner, standby = m.start(), m.start()
        try:
            with m.loaded(lambda: m.produce_packed(BATCH // 2), 0.02):
                for end in (killable.kill, killable.stop):
                    wait_for_releases(3, owner, standby)
                    time.sleep(rng.uniform(0.0, 0.5))  # any moment will do
                    end()
                    time.sleep(rng.uniform(0.0, 2.5))
                    killable.start()
        finally:
            killable.start()
        m.finish(owner, standby)
        assert owner.process.poll() is None and standby.process.poll() is None
        assert m.check() == m.full_batches()
        for instance in (owner, standby):
            instance.wait_until_ready()


def wait_for_releases(more: int, *instances: Instance) -> None:
    """Wait until the instances have released this many more batches."""

    def released() -> int:
        return sum(e["event"] == "released" for i in instances for e in list(i.events))

    before = released()
    wait_for(f"{more} more releases", lambda: released() >= before + more)


def test_sigterm_while_the_broker_is_away(
    killable: LocalBroker, servers: str, fresh_name: Fresh
) -> None:
    """At work, standing by and while starting, it ends. Code 75 says that a broker did not answer
    in time to close in order; the watchdog sees to that within `LEAVE_SECONDS`."""
    with model(servers, fresh_name("away")) as m:
        m.produce(3 * BATCH)
        owner = m.start()
        m.finish(owner)
        standby = m.start()
        standby.wait_for("group_changed", tasks=[])
        killable.kill()
        try:
            starting = m.start()
            starting.wait_for("waiting_for_brokers")
            check_leaving(owner, standby, starting)
        finally:
            killable.start()
        last = m.start()
        m.produce(BATCH)
        m.finish(last)
        assert m.check() == m.full_batches()


def check_leaving(*instances: Instance) -> None:
    for instance in instances:
        instance.signal(signal.SIGTERM)
    codes = [instance.wait() for instance in instances]
    assert set(codes) <= {0, 75}, [i.text[-1500:] for i in instances]

"""Instances come and go under load: one works, the others stand by."""

from __future__ import annotations

import signal

from ..support.harness import BATCH, Fresh, Instance, Model, model
from ..support.processes import PATIENT_LEAVING, wait_for


def owner(m: Model) -> Instance:
    """Wait for the instance that works."""

    def working() -> list[Instance]:
        running = [i for i in m.instances if i.process.poll() is None]
        return [i for i in running if i.saw("task_started") and i.get("/readyz")[1] == b"working\n"]

    return wait_for("an owner", working)[0]


def test_owners_leave_and_die(servers: str, fresh_name: Fresh) -> None:
    """Whoever takes over, every record is in one batch, and a standby becomes the owner."""
    with model(servers, fresh_name("standbys"), partitions=5) as m:
        with m.loaded(lambda: m.produce(BATCH)):
            instances = [m.start(**PATIENT_LEAVING) for _ in range(3)]
            for how in (signal.SIGTERM, signal.SIGKILL):
                last, at = owner(m), m.durable()
                wait_for("two batches", lambda at=at: m.durable() >= at + 2)
                last.signal(how)
                assert last.wait() == (0 if how == signal.SIGTERM else -signal.SIGKILL)
                instances.remove(last)
            at = m.durable()
            wait_for("two batches", lambda: m.durable() >= at + 2)
        assert owner(m) is instances[0]
        m.finish(*m.instances)
        assert m.check() == m.full_batches()

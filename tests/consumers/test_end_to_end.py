"""Processes, a real broker, and the content of its topics afterwards."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ..integration.conftest import by
from ..support.harness import model
from ..support.processes import PATIENT_LEAVING, crash_at, wait_for
from .helpers import as_json

BATCH = 500
#: The shortest session that brokers allow by default.
SETTINGS = {"batch": BATCH, "session_timeout_s": 6}


@pytest.mark.parametrize(
    "broker", [by("container", "test_end_to_end"), by("local", "test_end_to_end")], indirect=True
)
def test_two_processes_and_a_kill(broker: Any, fresh_name: Callable[[str], str]) -> None:
    """One works, one stands by; the first is killed in a transaction; nothing shows. On a broker in
    a container and on one of the local JVM, whichever the other tests have."""
    with model(broker.bootstrap_servers, fresh_name("e2e"), **SETTINGS) as m:
        m.produce(3 * BATCH + 100)
        first = m.start(**crash_at("inside_transaction", 5))
        first.wait_for("released", batch=3)
        second = m.start(**PATIENT_LEAVING)
        second.wait_for("group_changed", role="standby")
        second.wait_until_ready("standing by")
        first.wait_until_ready("working")
        m.produce(4 * BATCH)
        assert first.wait() == -signal.SIGKILL
        second.wait_for("task_started")
        m.finish(second)
        assert m.check() == 7
        assert second.get("/livez") == (200, b"alive\n")
        code, component = second.get("/component")
        assert code == 200 and json.loads(component)["batch"] == 7
        assert b"dppca_batches_total " in second.get("/metrics")[1]
        assert second.leave() == 0
        assert second.saw("left")


def test_a_stopped_owner_wakes_as_a_zombie(broker: Any, fresh_name: Callable[[str], str]) -> None:
    with model(broker.bootstrap_servers, fresh_name("zombie"), **SETTINGS) as m:
        m.produce(BATCH + 100)
        owner = m.start()
        owner.wait_for("released", batch=1)
        standby = m.start()
        standby.wait_for("group_changed", role="standby")
        owner.wait_until_ready("working")
        owner.signal(signal.SIGSTOP)
        standby.wait_for("task_started")
        m.produce(2 * BATCH)
        m.finish(standby)
        before, said = m.outputs(), len(owner.events)
        owner.signal(signal.SIGCONT)
        wait_for(
            "the zombie to stand by",
            lambda: any(
                e["event"] == "group_changed" and e["role"] == "standby"
                for e in owner.events[said:]
            ),
        )
        # What was out before the stop may be said only now. The group has changed, so the owner
        # may have published the last release again; nothing else may be there.
        since = [(message.key, message.value) for message in m.outputs()[len(before) :]]
        assert set(since) <= {(before[-1].key, before[-1].value)}
        m.produce(BATCH)
        m.finish(standby)
        assert m.check() == 4


def test_broken_messages_leave_no_trace(broker: Any, fresh_name: Callable[[str], str]) -> None:
    """Slots are counted exactly, and nothing of a payload is in logs, metrics or on topics."""
    planted = "PLANTED-7351"
    rng = np.random.default_rng(0)
    good = as_json([1.0, 2.0, 3.0])
    broken: list[bytes | None] = [
        None,
        b"",
        b"{",
        good[:20],
        b"[1,2,3]",
        b"null",
        b"\xff" * 30,
        b"{" * 5000,
        good.replace(b"1.0", b"NaN"),
        good.replace(b"1.0", b'"1.0"'),
        good.replace(b"1.0", b"1e999"),
        f'{{"cpu":"{planted}","memory":1,"disk":{{"read":2}}}}'.encode(),
        f'{{"cpu":1,"memory":{planted}}}'.encode(),
        planted.encode(),
        b"x" * 500_000,
    ]
    settings = {"batch": BATCH, "max_message_bytes": 100_000, "session_timeout_s": 600}
    with model(broker.bootstrap_servers, fresh_name("broken"), **settings) as m:
        for i in range(3 * BATCH):
            m.send(broken[rng.integers(len(broken))] if i % 3 else good)
        m.producer.flush()
        instance = m.start(**PATIENT_LEAVING)
        m.finish(instance)
        assert m.check() == 3
        metrics = instance.get("/metrics")[1]
        assert f"dppca_slots_total {3 * BATCH}.0".encode() in metrics
        assert instance.leave() == 0
        kept = m.stored() + m.outputs()
        seen = instance.text.encode() + metrics + b"".join(message.value for message in kept)
        assert planted.encode() not in seen

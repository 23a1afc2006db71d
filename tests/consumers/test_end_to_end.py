"""Processes, a real broker, and what is on its topics afterwards."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..launch import CRASH_AT
from .helpers import as_json
from .processes import BATCH, bench, wait_for


def test_two_processes_and_a_kill(broker: Any, fresh_name: Callable[[str], str]) -> None:
    """One works, one stands by; the first is killed in a transaction; nothing shows."""
    with bench(broker.bootstrap_servers, fresh_name("e2e")) as b:
        b.produce(3 * BATCH + 100)
        first = b.start(**{CRASH_AT: "inside_transaction:5"})
        first.wait_for("released", batch=3)
        second = b.start()
        second.wait_for("group_changed", tasks=[])
        assert second.get("/readyz") == (200, b"standing by\n")
        wait_for("work", lambda: first.get("/readyz") == (200, b"working\n"))
        b.produce(4 * BATCH)
        assert first.wait() == -signal.SIGKILL
        killed = time.monotonic()
        second.wait_for("task_started")
        assert time.monotonic() - killed < 6 + 5
        second.wait_for("released", batch=7)
        assert b.last_batches() == {0: 7}
        b.check_states()
        assert second.get("/livez") == (200, b"alive\n")
        code, component = second.get("/component")
        assert code == 200 and json.loads(component)["batch"] == 7
        assert b'dppca_batches_total{task="0"}' in second.get("/metrics")[1]
        asked = time.monotonic()
        second.signal(signal.SIGTERM)
        assert second.wait() == 0
        assert time.monotonic() - asked < 5
        assert second.saw("left")


def test_a_stopped_owner_wakes_as_a_zombie(broker: Any, fresh_name: Callable[[str], str]) -> None:
    with bench(broker.bootstrap_servers, fresh_name("zombie")) as b:
        b.produce(BATCH + 100)
        owner = b.start()
        owner.wait_for("released", batch=1)
        standby = b.start()
        standby.wait_for("group_changed", tasks=[])
        wait_for("the owner to go on", lambda: owner.get("/readyz")[0] == 200)
        owner.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        standby.wait_for("task_started")
        assert time.monotonic() - stopped < 6 + 5
        b.produce(2 * BATCH)
        standby.wait_for("released", batch=3)
        before = len(owner.events)
        owner.signal(signal.SIGCONT)
        wait_for("the zombie to notice", lambda: owner.events[-1]["event"] == "group_changed"
                 and owner.events[-1]["tasks"] is not None)  # fmt: skip
        assert not {e["event"] for e in owner.events[before:]} & {"released", "published_again"}
        b.produce(BATCH)
        wait_for("batch 4", lambda: b.last_batches() == {0: 4})
        b.check_states()


def test_broken_messages_leave_no_trace(broker: Any, fresh_name: Callable[[str], str]) -> None:
    """Slots are counted exactly, and nothing of a payload is in logs, metrics or on topics."""
    planted = "PLANTED-7351"
    rng = np.random.default_rng(0)
    good = as_json([1.0, 2.0, 3.0])
    broken: list[bytes | None] = [
        None, b"", b"{", good[:20], b"[1,2,3]", b"null", b"\xff" * 30, b"{" * 5000,
        good.replace(b"1.0", b"NaN"), good.replace(b"1.0", b'"1.0"'),
        good.replace(b"1.0", b"1e999"),
        f'{{"cpu":"{planted}","memory":1,"disk":{{"read":2}}}}'.encode(),
        f'{{"cpu":1,"memory":{planted}}}'.encode(), planted.encode(), b"x" * 500_000,
    ]  # fmt: skip
    settings = {"max_message_bytes": 100_000}
    with bench(broker.bootstrap_servers, fresh_name("broken"), **settings) as b:
        for i in range(3 * BATCH):
            b.send(broken[rng.integers(len(broken))] if i % 3 else good)
        b.producer.flush()
        instance = b.start()
        instance.wait_for("released", batch=3)
        assert b.last_batches() == {0: 3}
        b.check_states()
        metrics = instance.get("/metrics")[1]
        assert f"dppca_slots_total {3 * BATCH}.0".encode() in metrics
        instance.signal(signal.SIGTERM)
        assert instance.wait() == 0
        kept = b.log.scan(b.state_topic) + b.log.scan(b.output_topic)
        seen = instance.text.encode() + metrics + b"".join(r.value for r in kept)
        assert planted.encode() not in seen


def test_shards_are_shared_and_merged(broker: Any, fresh_name: Callable[[str], str]) -> None:
    name = fresh_name("shards")
    with bench(broker.bootstrap_servers, name, partitions=4, shards=2) as b:
        one, two = b.start(), b.start()
        wait_for("both to work", lambda: all(
            i.saw("task_started") and i.get("/readyz")[1] == b"working\n" for i in (one, two)
        ))  # fmt: skip
        b.produce(4 * BATCH)
        last = wait_for("batches", lambda: (f := b.last_batches()).get(1) == f.get(0) == 2 and f)
        wait_for("merging", lambda: b.last_batches().get("merged") == 4)
        assert set(last) >= {0, 1}
        leaving = one if one.saw("task_started", task=1) else two
        leaving.signal(signal.SIGTERM)
        assert leaving.wait() == 0
        b.produce(4 * BATCH)
        wait_for("one to do it all", lambda: b.last_batches().get("merged") == 8)
        b.check_states()

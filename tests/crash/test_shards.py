"""Three shards: instances come and go under load."""

from __future__ import annotations

import json
import signal

from ..harness import BATCH, Fresh, Model, model
from ..processes import PATIENT_LEAVING, wait_for


def progress(m: Model, least: int = 2) -> None:
    """Wait until every shard has released so many batches more."""
    started = {task: m.durable(task) for task in range(m.shards)}
    wait_for(
        f"{least} batches of every shard",
        lambda: all(m.durable(t) >= n + least for t, n in started.items()),
    )


def test_scale_up_and_down(servers: str, fresh_name: Fresh) -> None:
    with model(servers, fresh_name("shards"), partitions=5, shards=3) as m:
        with m.loaded(lambda: m.produce(BATCH)):
            one = m.start(**PATIENT_LEAVING)
            one.wait_for("task_started", task=2)
            two, three = m.start(), m.start()
            wait_for("each to work", lambda: all(
                i.saw("task_started") and i.get("/readyz")[1] == b"working\n"
                for i in (one, two, three)
            ))  # fmt: skip
            progress(m)
            one.signal(signal.SIGTERM)
            two.signal(signal.SIGKILL)
            assert one.wait() == 0
            progress(m)
        everything = sum(m.full_batches().values())

        def merged() -> bool:
            found = [json.loads(message.value) for message in m.outputs()]
            return any(r["task"] == "merged" and r["batch"] == everything for r in found)

        wait_for("the last merged release", merged)
        assert m.check() == {**m.full_batches(), "merged": everything}
        status, component = three.get("/component")
        assert status == 200 and json.loads(component)["task"] == "merged"


def test_more_shards_than_partitions(servers: str, fresh_name: Fresh) -> None:
    """A shard without input stands still; the others work, and new partitions are read."""
    with model(servers, fresh_name("few"), partitions=1, shards=2) as m:
        m.produce(2 * BATCH)
        instance = m.start()
        instance.wait_for("released", task=0, batch=2)
        instance.wait_for("task_started", task=1)
        m.widen(2)
        instance.wait_for("partitions_added", task=1)
        m.produce(4 * BATCH)
        m.finish(instance)
        assert m.check(complete=False)[1] == m.full_batches()[1]

"""Which records share a batch does not depend on when a process looks.

Four partitions fill at different rates, a call of C keeps all threads of the owner from running for
five seconds, and owners are killed. The batches are those that the log, or the committed samples,
have decided.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from ..consumers.test_kept_plan import replay
from ..support.harness import EVICTED, Fresh, Model, model, read_topic
from ..support.launch import GROUP, HOLD_AT
from ..support.processes import PATIENT_LEAVING, wait_for

RATES = (1, 2, 5, 12)  # messages of each partition, at a time
BATCH = 50


def produce(m: Model, rng: random.Random) -> None:
    """Send some messages, in any order of the partitions, and in several requests."""
    sent = [p for p, rate in enumerate(RATES) for _ in range(rng.randrange(2 * rate + 1))]
    rng.shuffle(sent)
    for i, (p, row) in enumerate(zip(sent, m.rows(len(sent)).tolist(), strict=True)):
        fields = {"cpu": row[0], "memory": row[1], "disk": {"read": row[2]}}
        m.send(json.dumps(fields).encode(), p)
        if i % 4 == 0:
            m.producer.flush()
    m.producer.flush()


def disturbed(m: Model) -> None:
    """Run a model whose owners stand still and are killed, until nothing is left to release."""
    rng = random.Random(5)
    for _ in range(10):
        produce(m, rng)
    with m.loaded(lambda: produce(m, rng), 0.02):
        for times in (40, 15, 60):
            owner = m.start(**{HOLD_AT: f"polling:{times}", GROUP: "1"})
            before = m.full_batches()
            wait_for("work after the hold", lambda i=owner, b=before: released(i) > b)
            time.sleep(rng.uniform(0.0, 0.5))  # any moment will do
            owner.signal(signal.SIGKILL)
            owner.wait()
            m.evict()
    last = m.start(**{GROUP: "1"}, **PATIENT_LEAVING)
    m.finish(last)
    assert last.leave() == 0
    m.check()


def released(instance: Any) -> int:
    events = list(instance.events)
    return max((e["batch"] for e in events if e.get("event") == "released"), default=0)


def positions(m: Model) -> dict[int, dict[int, int]]:
    """The positions after each batch that ended a group."""
    return {s["batch"]: {int(p): at for p, at in s["positions"].items()} for s in m.states()}


def by_time(m: Model) -> dict[int, dict[int, int]]:
    """The positions after each batch, from the times on the input topic alone."""
    rows, latest = [], [0] * len(RATES)
    for message in read_topic(m.servers, m.name):
        assert message.timestamp_type == 1  # LogAppendTime
        p = message.partition
        latest[p] = max(latest[p], message.timestamp)
        rows.append((latest[p], p, message.offset))
    found: dict[int, dict[int, int]] = {}
    at = dict.fromkeys(range(len(RATES)), 0)
    for i, (_, p, offset) in enumerate(sorted(rows), 1):
        at[p] = offset + 1
        if i % BATCH == 0:
            found[i // BATCH] = dict(at)
    return found


def test_the_log_alone_decides(servers: str, fresh_name: Fresh) -> None:
    with model(
        servers,
        fresh_name("plan"),
        partitions=len(RATES),
        batch=BATCH,
        clock_slack="3s",
        topic_configs={"message.timestamp.type": "LogAppendTime"},
        **EVICTED,
    ) as m:
        disturbed(m)
        found, wanted = positions(m), by_time(m)
        assert len(found) > 20
        assert found == {batch: wanted[batch] for batch in found}


def by_samples(m: Model) -> dict[int, dict[int, int]]:
    """The positions after each batch, from the samples on the state topic alone."""
    found = replay([json.dumps(plan).encode() for plan in m.plans()], BATCH)
    return dict(enumerate(found, 1))


def test_the_kept_samples_decide(servers: str, fresh_name: Fresh) -> None:
    with model(servers, fresh_name("by"), partitions=len(RATES), batch=BATCH, **EVICTED) as m:
        disturbed(m)
        found, wanted = positions(m), by_samples(m)
        assert len(found) > 20
        assert found == {batch: wanted[batch] for batch in found}


def test_samples_go_on_while_the_interpreter_is_held(servers: str, fresh_name: Fresh) -> None:
    """The process of the sampler is another one, is started again, and ends with its owner."""
    with model(servers, fresh_name("sampler"), partitions=2, batch=BATCH, **EVICTED) as m:
        owner = m.start(**{HOLD_AT: "polling:40", GROUP: "1"})
        rng = random.Random(3)
        began = time.monotonic()
        with m.loaded(lambda: m.produce(rng.randrange(20, 60)), 0.05):
            wait_for("work after the hold", lambda: released(owner) > 30)
        took = time.monotonic() - began
        sums = sorted({sum(s.values()) for plan in m.plans() for s in plan["samples"]})
        largest = max(b - a for a, b in itertools.pairwise(sums))
        # With a thread as the clock, all that came in five seconds would be in one sample.
        assert largest < 2.5 * sum(m.sent) / took, (sums, took)
        [sampler] = children(owner.process.pid)
        os.kill(sampler, signal.SIGKILL)
        owner.wait_for("sampler_ended")
        m.produce(3 * BATCH)
        m.finish(owner)
        [another] = children(owner.process.pid)
        assert another != sampler
        owner.signal(signal.SIGKILL)
        owner.wait()
        wait_for("its end", lambda: not Path(f"/proc/{another}").exists())


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for one in found for child in one.read_text().split()]

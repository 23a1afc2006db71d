"""An owner that is stopped, loses its session, is replaced, and woken: it publishes nothing.

It is stopped where it hurts: with offsets sent and nothing written, with the state written and not
committed, between commit and publish, inside the publish, and while it starts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from ..support.harness import BATCH, SESSION_SECONDS, Fresh, Model, model
from ..support.processes import PATIENT_LEAVING, ROOT, TIMED, Instance, stop_at, wait_for

POINTS = (
    "polling",
    "before_transaction",
    "offsets_sent",
    "inside_transaction",
    "after_commit",
    "inside_publish",
    "claimed",
    "loaded",
)
BACK_TO_STANDBY = (200, b"standing by\n")
#: A session that a busy machine does not end: the successor must stay the owner. The
#: sessions of zombies are ended by `Model.evict`. A member notices a change of the group when it
#: sends a heartbeat, four times in a session, so it is not much longer.
STEADY = {"session_timeout_s": 12}


def copies(m: Model) -> Counter[int]:
    """Number of copies of each batch on the output topic."""
    return Counter(json.loads(message.value)["batch"] for message in m.outputs())


def wake(zombie: Instance, m: Model) -> None:
    """Wake a zombie, which must stand by again; the topics must be as they were."""
    before = copies(m), m.states()
    said = len(zombie.events)
    zombie.signal(signal.SIGCONT)
    wait_for("the zombie to stand by", lambda: zombie.get("/readyz") == BACK_TO_STANDBY)
    since = zombie.events[said:]
    assert not {event["event"] for event in since} & {"published_again", "task_started"}
    # Releases from before the stop may be logged only now; nothing else may.
    assert {event["batch"] for event in since if event["event"] == "released"} <= before[0].keys()
    assert m.states() == before[1]
    # The group has changed: its owner may have loaded again, and published its last one again.
    newest = max(before[0])
    now = copies(m)
    assert {b: n for b, n in now.items() if b < newest} == {
        b: n for b, n in before[0].items() if b < newest
    }
    assert max(now) == newest


def stop_replace_wake(servers: str, name: str, point: str) -> None:
    packed = {"format": "float32", "partitions": 2, "rows_per_message": 10}
    with model(servers, name, **packed, **STEADY) as m:
        m.produce_packed(5 * BATCH)
        # Releases may ride with the next commit, but the last one is published by itself.
        owner = m.start(**stop_at(point, 1 if point == "inside_publish" else 2))
        if point in ("claimed", "loaded"):
            m.finish(owner)  # otherwise its second start finds no state, and has nothing to publish
            m.evict()  # it joins again, and stops in its second start
        owner.wait_until_stopped()
        m.evict()
        standby = m.start(**PATIENT_LEAVING)
        standby.wait_for("task_started")
        m.produce_packed(3 * BATCH)
        m.finish(standby)
        wake(owner, m)
        m.produce_packed(2 * BATCH)
        m.finish(standby)
        assert m.check() == m.full_batches()
        assert standby.leave() == 0  # and the one that was a zombie can take over again
        m.produce_packed(2 * BATCH)
        m.finish(owner)
        assert m.check() == m.full_batches()


def test_stopped_where_it_hurts(servers: str, fresh_name: Fresh) -> None:
    with ThreadPoolExecutor(4) as pool:
        runs = {p: pool.submit(stop_replace_wake, servers, fresh_name(p), p) for p in POINTS}
    for run in runs.values():
        run.result()


def test_the_standby_takes_over(servers: str, fresh_name: Fresh) -> None:
    """From an owner that is stopped or killed under load; on a machine that is not busy (`TIMED`)
    within the session timeout and 5 s."""
    session_s = SESSION_SECONDS if TIMED else 4.0  # that a busy machine ends seldom
    with model(servers, fresh_name("standby"), session_timeout_s=session_s) as m:
        m.produce(20 * BATCH)
        running, stopped = [m.start()], []
        for how in (signal.SIGSTOP, signal.SIGKILL):
            running.append(m.start())
            owner, standby = wait_for("one at work and one standing by", lambda: roles(running))
            before = len(standby.events)
            owner.signal(how)
            since = time.monotonic()
            standby.wait_until(
                "task_started",
                lambda s=standby, n=before: any(
                    event["event"] == "task_started" for event in s.events[n:]
                ),
            )
            if TIMED:
                assert time.monotonic() - since < session_s + 5
            running.remove(owner)
            stopped.append(owner)
        m.finish(standby)
        stopped[0].signal(signal.SIGCONT)
        wait_for("both", lambda: roles([stopped[0], standby]))
        assert m.check() == m.full_batches()


def roles(instances: list[Instance]) -> list[Instance] | None:
    """The owner and the standby, once there are both: a busy machine may swap them."""
    saying = {instance.get("/readyz")[1]: instance for instance in instances}
    found = [saying.get(b"working\n"), saying.get(b"standing by\n")]
    return found if None not in found else None  # type: ignore[return-value]


#: Longer than a busy machine keeps one thread of a process from running, but not the other.
STALL_SECONDS = 8
WATCHED = f"""
import itertools, threading, time
from consumers.monitoring.metrics import Metrics
from consumers.monitoring.watchdog import Watchdog
dog = Watchdog(stall_s={STALL_SECONDS}, leave_s=1, stop=threading.Event(), metrics=Metrics())
dog.start()
for turn in itertools.count():
    dog.beat()
    print(turn, flush=True)
    time.sleep(0.5)  # it cannot beat as soon as it wakes
"""


@pytest.mark.slow
def test_a_pause_is_no_stall() -> None:
    """The clock runs while a process is stopped; its watchdog must not take that for a hang."""
    command = [sys.executable, "-c", WATCHED]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            for _ in range(3):
                process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            time.sleep(STALL_SECONDS + 1)
            process.send_signal(signal.SIGCONT)
            for _ in range(4):
                assert process.stdout.readline(), "the watchdog ended it"
        finally:
            process.kill()

"""Probes tell the truth: /readyz means progress, and a process that cannot recover ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from consumers.errors import ClusterError
from consumers.model.learner import Learner
from consumers.monitoring.progress import Progress
from consumers.protocols import Chunk
from consumers.service.loop import Service
from tests.support.memory import MemoryBroker, MemoryLedger, MemoryReader

from ..support.processes import wait_for
from .helpers import as_json, rows
from .test_round_task import BY_BROKER
from .test_round_task import running as rounds_running
from .test_round_task import settings as round_settings
from .test_service import BATCH, log_of, running, settings

#: So that /readyz fails after a second without progress.
STALL_SECONDS = 4.0


def feed(broker: MemoryBroker, n: int) -> None:
    for i, row in enumerate(rows(n)):
        broker.produce("in", as_json(row), i % 2)


@contextmanager
def worker() -> Iterator[tuple[Service, MemoryBroker]]:
    """A service that has learned from one batch, and has nothing to do."""
    broker, s = MemoryBroker(), settings(stall_timeout_s=STALL_SECONDS)
    broker.create("in", 2)
    feed(broker, BATCH)
    with running(broker, s) as service:
        wait_for(
            "a batch",
            lambda: (
                log_of(broker, s).topic(s.output_topic) and log_of(broker, s).scan(s.output_topic)
            ),
        )
        wait_for("rest", lambda: service.ready() == (True, "working"))
        yield service, broker


def check_stands_still(service: Service, broker: MemoryBroker, at: str, go_on: Any) -> None:
    """Give it something to do: it says where it stands, and recovers by itself."""
    feed(broker, 2 * BATCH)

    def says() -> bool:
        ready, text = service.ready()
        assert ready == (text == "working")
        return text.startswith("no progress for ") and text.endswith(f"({at})")

    wait_for(f"no progress: {at}", says)
    assert service.alive()
    go_on.set()
    wait_for("progress", lambda: service.ready() == (True, "working"))
    wait_for("rest", lambda: service.metrics.progress.age() == 0.0)


def test_a_service_without_anything_to_do_is_ready() -> None:
    with worker() as (service, _):
        time.sleep(STALL_SECONDS / 2)  # twice as long as it may stand still
        assert service.ready() == (True, "working") and service.metrics.progress.age() == 0.0


def test_a_reader_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """One partition brings nothing while the other is read: that is no progress."""
    go_on, take = threading.Event(), MemoryReader._take

    def take_some(self: MemoryReader) -> list[Chunk]:
        before, self._paused = self._paused, self._paused | ({1} if not go_on.is_set() else set())
        try:
            return take(self)
        finally:
            self._paused = before

    with worker() as (service, broker):
        monkeypatch.setattr(MemoryReader, "_take", take_some)
        check_stands_still(service, broker, "reading partition 1", go_on)


def test_learning_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, learn = threading.Event(), Learner.learn

    def learn_later(*given: Any) -> Any:
        go_on.wait()
        return learn(*given)

    with worker() as (service, broker):
        monkeypatch.setattr(Learner, "learn", learn_later)
        check_stands_still(service, broker, "learning", go_on)


def test_a_commit_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, commit = threading.Event(), MemoryLedger.commit

    def commit_later(*given: Any) -> None:
        go_on.wait()
        commit(*given)

    with worker() as (service, broker):
        monkeypatch.setattr(MemoryLedger, "commit", commit_later)
        check_stands_still(service, broker, "committing", go_on)


def test_tasks_that_are_dropped_again_and_again_make_no_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They read the same records once more each time."""
    go_on, learn = threading.Event(), Learner.learn

    def fail(*given: Any) -> Any:
        if not go_on.wait(0.5):
            raise ClusterError("no answer")
        return learn(*given)

    with worker() as (service, broker):
        monkeypatch.setattr(Learner, "learn", fail)
        feed(broker, 2 * BATCH)
        wait_for("no progress", lambda: "no progress" in service.ready()[1])
        until = time.monotonic() + STALL_SECONDS
        while time.monotonic() < until:
            assert not service.ready()[0]
            time.sleep(0.01)
        go_on.set()
        wait_for("progress", lambda: service.ready() == (True, "working"))


def test_with_privacy_per_subject_the_place_is_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a partition has records in a round is secret."""
    go_on, take = threading.Event(), MemoryReader._take

    def take_later(self: MemoryReader) -> list[Chunk]:
        return take(self) if go_on.is_set() else []

    monkeypatch.setattr(MemoryReader, "_take", take_later)
    live = {"round": "1s", "clock_slack": "100ms", "start": "latest"}
    packed = {"subject": "@key", "format": "float32", "rows_per_message": 1}
    on, s = MemoryBroker(), round_settings(**live, **packed, stall_timeout_s=STALL_SECONDS)
    on.create("in", 2, BY_BROKER)
    texts: set[str] = set()

    def says(wanted: str) -> bool:
        on.produce("in", bytes(12), 1, b"a device")
        texts.add(service.ready()[1])
        return bool(re.fullmatch(wanted, service.ready()[1]))

    with rounds_running(on, s) as service:
        wait_for("no progress", lambda: says(r"no progress for \d+ s \(reading round \d+\)"))
        go_on.set()
        wait_for("progress", lambda: says("working.*"))
    assert not [text for text in texts if "partition" in text]


def test_brokers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether there is anything to read. It says so, and no restart would help."""
    with worker() as (service, _):

        def fail(self: MemoryReader, partitions: Any) -> Any:
            raise ClusterError("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryReader, "bounds", fail)
            wait_for("silence", lambda: service.ready()[1].startswith("no progress for "))
            assert not service.ready()[0] and service.alive()
        wait_for("answers", lambda: service.ready() == (True, "working"))


def test_the_first_commit_after_two_dropped_tasks_counts() -> None:
    progress = Progress()
    assert progress.age() == 0.0
    progress.moved("reading partition 3")
    progress._since = time.monotonic() - 60
    progress.dropped()
    progress.moved()
    assert progress.age() < 50
    progress._since = time.monotonic() - 60
    progress.dropped()
    progress.moved("learning")
    assert progress.age() >= 60 and progress.at == "learning"
    progress.pass_over(50)  # the process was stopped
    assert 10 <= progress.age() < 60
    progress.committed()
    assert progress.age() < 50
    progress.rest()
    assert progress.age() == 0.0 and progress.at == ""


# The end of a process

PREPARED = """
import ctypes, re, sys, threading, time
from consumers.events import set_up_logs
from consumers.monitoring import watchdog
from consumers.monitoring.metrics import Metrics
set_up_logs()
metrics = Metrics()
def watch(**more):
    dog = watchdog.Watchdog(
        stall_s=2.0, leave_s=0.5, stop=threading.Event(), metrics=metrics, **more)
    dog.start()
    return dog
"""
HELD = """
watch()
time.sleep(1.0)  # it has looked
def a_function_that_holds_the_interpreter(secret):
    if sys.argv[1] == "sleep":
        ctypes.PyDLL(None).sleep(3600)
    re.match("(a*)*b", "a" * 60)
a_function_that_holds_the_interpreter("987654")
"""
HOPELESS = """
excused = sys.argv[1] == "excused"
dog = watch(excused=lambda: excused)
metrics.progress.moved("reading partition 3")
ends = time.monotonic() + 60
while time.monotonic() < ends:  # it turns, and gets nowhere
    dog.beat()
    time.sleep(0.05)
    if metrics.progress.age() > 8:  # long after the other has ended
        sys.exit(0 if dog.alive() else 3)
"""


Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def ended() -> Iterator[Run]:
    """Exit code, output and errors of processes that wait for clocks, all of them at once."""
    programs = {"sleep": HELD, "match": HELD, "alone": HOPELESS, "excused": HOPELESS}
    started = {
        how: subprocess.Popen(
            [sys.executable, "-c", PREPARED + code, how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for how, code in programs.items()
    }

    def run(how: str) -> tuple[int, str, str]:
        said, errors = started[how].communicate()
        return started[how].returncode, said, errors

    yield run
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.xdist_group("watchdogs")
@pytest.mark.parametrize("how", ["sleep", "match"])
def test_a_process_that_stands_still_as_a_whole_is_ended(ended: Run, how: str) -> None:
    """No thread runs while somebody holds the interpreter, not even the watchdog's."""
    code, _, errors = ended(how)
    assert code == 1, errors
    assert "a_function_that_holds_the_interpreter" in errors
    assert "987654" not in errors


@pytest.mark.xdist_group("watchdogs")
@pytest.mark.parametrize("how, code", [("alone", 70), ("excused", 0)])
def test_a_loop_that_turns_and_gets_nowhere_is_ended(ended: Run, how: str, code: int) -> None:
    found, said, errors = ended(how)
    assert found == code, errors
    events = [json.loads(line) for line in said.splitlines()]
    assert events[0]["event"] == "no_progress" and events[0]["at"] == "reading partition 3"
    if code:
        assert events[-1]["event"] == "stalled" and events[-1]["at"] == "reading partition 3"

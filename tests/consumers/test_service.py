"""The service's loop on the in-process log; its pages; its watchdog."""

from __future__ import annotations

import json
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from consumers.errors import ClusterError, ConfigurationError
from consumers.events import describe_error, log_event, set_up_logs
from consumers.monitoring.http import HttpServer
from consumers.monitoring.metrics import Metrics
from consumers.protocols import TopicInfo
from consumers.service import task as task_module
from consumers.service.loop import Service
from consumers.service.topics import ensure_topics
from consumers.settings import Settings, load_settings
from stream_dppca import DPPCAError
from tests.support.memory import MemoryBroker, MemoryCluster

from ..support.launch import CRASH_AT
from ..support.processes import ROOT, wait_for
from ..support.registry import registry
from .helpers import FEATURES, as_json, check_output, in_thread, rows

BATCH = 300


def settings(**changes: Any) -> Settings:
    return load_settings(
        {
            "features": FEATURES,
            "epsilon": 8.0,
            "delta": 1e-3,
            "batch_size": BATCH,
            "center": "none",
            "scales": "none",
            "input_topic": "in",
            "model": "m",
            "http_port": 0,
            "partition_refresh_s": 0.1,
            **changes,
        }
    )


def log_of(cluster: MemoryBroker, s: Settings) -> MemoryCluster:
    names = ("group", "state_topic", "input_topic", "output_topic")
    return MemoryCluster(cluster, **{name: getattr(s, name) for name in names})


@contextmanager
def running(cluster: MemoryBroker, s: Settings) -> Iterator[Service]:
    service = Service(s, log_of(cluster, s), watched=False)
    with in_thread(service):
        yield service


def feed(cluster: MemoryBroker, n: int, partitions: int = 1) -> None:
    for i, row in enumerate(rows(n)):
        cluster.produce("in", as_json(row), i % partitions)


def test_a_service_on_the_memory_log() -> None:
    cluster, s = MemoryBroker(), settings()
    cluster.create("in", 1)
    feed(cluster, 3 * BATCH + 5)
    with running(cluster, s) as service:
        wait_for(
            "releases",
            lambda: (
                log_of(cluster, s).topic(s.output_topic)
                and check_output(log_of(cluster, s), s.output_topic) == 3
            ),
        )
        assert service.ready() == (True, "working")
        component = service.component()
        assert component is not None and json.loads(component)["batch"] == 3
    assert service.ready() == (False, "leaving")
    with running(cluster, s):
        feed(cluster, BATCH)
        wait_for("more", lambda: check_output(log_of(cluster, s), s.output_topic) == 4)


def test_instances_come_and_go() -> None:
    cluster, s = MemoryBroker(), settings()
    cluster.create("in", 4)
    with running(cluster, s) as first:
        wait_for("work", lambda: first.ready() == (True, "working"))
        with running(cluster, s) as second:
            wait_for("a standby", lambda: second.ready() == (True, "standing by"))
            assert second.component() is None and second._task is None
            feed(cluster, 4 * BATCH, 4)
            wait_for("batches", lambda: check_output(log_of(cluster, s), s.output_topic) == 4)
            first.stop.set()
            wait_for("a takeover", lambda: second.ready() == (True, "working"))
            with running(cluster, s) as third:
                wait_for("standby", lambda: third.ready() == (True, "standing by"))
            feed(cluster, 4 * BATCH, 4)
            wait_for("all", lambda: check_output(log_of(cluster, s), s.output_topic) == 8)


def test_errors_of_the_log_are_got_over() -> None:
    cluster, s = MemoryBroker(), settings()
    cluster.create("in", 1)
    feed(cluster, 5 * BATCH)
    failures = 3

    def fail(moment: str) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ClusterError("no answer")

    cluster.on_commit = fail
    with running(cluster, s) as service:
        wait_for(
            "releases",
            lambda: (
                log_of(cluster, s).topic(s.output_topic)
                and check_output(log_of(cluster, s), s.output_topic) == 5
            ),
        )
        assert service.metrics.registry.get_sample_value("dppca_tasks_dropped_total") == 3


def test_a_registry_that_is_away_more_waiting_inside_the_task() -> None:
    """A record names the schema. If it could make the task load again, a new plan would begin for
    the records that follow."""
    cluster = MemoryBroker()
    cluster.create("in", 2)
    schema = {
        "type": "record",
        "name": "T",
        "fields": [{"name": name, "type": "double"} for name in ("a", "b")],
    }
    with registry() as served:
        s = settings(features=("a", "b"), format="avro", schema_registry_url=served.url)
        number = served.register("t", schema)
        frame = b"\0" + number.to_bytes(4)
        for i, (a, b, _) in enumerate(rows(2 * BATCH + 5).tolist()):
            cluster.produce("in", frame + struct.pack("<2d", a, b), i % 2)
        served.status = 503
        said = "working; the schema registry has not answered for"
        with running(cluster, s) as service:
            wait_for("a note", lambda: service.ready()[1].startswith(said))
            asked = len(served.asked)
            wait_for("more questions", lambda: len(served.asked) > asked + 3)
        assert service.ready() == (False, "leaving")  # it does not wait on, and nothing is out
        with running(cluster, s) as service:
            wait_for("a note", lambda: service.ready()[1].startswith(said))
            task = service._task
            served.status = None
            wait_for("releases", lambda: check_output(log_of(cluster, s), s.output_topic) == 2)
            assert task is not None and service._task is task, "it was not dropped"
            assert service.metrics.registry.get_sample_value("dppca_tasks_dropped_total") == 0
            assert service.ready() == (True, "working")


def test_what_cannot_be_mended_ends_the_service() -> None:
    cluster, s = MemoryBroker(), settings()
    with pytest.raises(ConfigurationError, match="'in' does not exist"), running(cluster, s) as it:
        wait_for("the end", lambda: it.ready()[1] == "leaving")
    log = log_of(cluster, s)
    assert log.topic(s.state_topic) is None and log.topic(s.output_topic) is None


def test_a_batch_that_is_too_small_is_refused_at_once() -> None:
    cluster, s = MemoryBroker(), settings(batch_size=2, center="mean", scales="learn")
    cluster.create("in", 1)
    log = log_of(cluster, s)
    with pytest.raises(DPPCAError, match="batch_size"):
        Service(s, log, watched=False)
    assert log.topic(s.state_topic) is None


def test_a_skipped_batch_is_a_warning_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    cluster, s = MemoryBroker(), settings(seed=2)  # with real noise, nulls may look like something
    cluster.create("in", 1)
    for _ in range(BATCH):
        cluster.produce("in", b"{}")
    feed(cluster, BATCH)
    set_up_logs(sys.stdout)
    with running(cluster, s) as service:
        wait_for("both", lambda: service.metrics.batches._value.get() == 2)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, second = (event for event in events if event["event"] == "released")
    assert (first["status"], first["level"]) == ("nothing_learned", "warning") and first["reason"]
    assert (second["status"], second["level"]) == ("learned", "info") and second["reason"] is None


def test_topics_are_made_or_asked_for() -> None:
    cluster, s = MemoryBroker(), settings(create_topics=False)
    cluster.create("in", 1)
    log = log_of(cluster, s)
    told = r"--bootstrap-server \S+ --create --topic m\.dppca-state"
    with pytest.raises(ConfigurationError, match=told):
        ensure_topics(log, s)
    names = [s.state_topic, s.output_topic]
    assert ensure_topics(log, settings(), create=False) == names
    assert all(log.topic(name) is None for name in names)
    assert ensure_topics(log, settings()) == names
    ensure_topics(log, s)
    info = log.topic(s.state_topic)
    assert info == TopicInfo(1, info.configs if info else None)
    cluster.add_partitions(s.state_topic, 2)
    with pytest.raises(ConfigurationError, match=r"must have one partition.* Found 3 partitions"):
        ensure_topics(log, s)
    other = MemoryBroker()
    other.create("in", 1)
    other.create(s.state_topic, 1, {"cleanup.policy": "delete"})
    with pytest.raises(ConfigurationError, match="the state would expire"):
        ensure_topics(log_of(other, s), settings())


def test_a_new_topic_may_reach_other_brokers_later(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, s = MemoryBroker(), settings()
    cluster.create("in", 1)
    log = log_of(cluster, s)
    answers: list[str] = []

    def late(name: str, found: Any = log.topic) -> Any:
        """A broker that has not heard of what was created, twice for each topic."""
        answers.append(name)
        return found(name) if answers.count(name) in (1, 4) or name == s.input_topic else None

    monkeypatch.setattr(log, "topic", late)
    assert ensure_topics(log, s) == [s.state_topic, s.output_topic]
    assert answers.count(s.state_topic) == 4


# Pages


class Page:
    def __init__(self) -> None:
        self.is_alive, self.is_ready = True, True
        self.release: bytes | None = b"{}"

    def alive(self) -> bool:
        return self.is_alive

    def ready(self) -> tuple[bool, str]:
        return self.is_ready, "so"

    def component(self) -> bytes | None:
        return self.release


def test_pages() -> None:
    import urllib.error
    import urllib.request

    page = Page()
    server = HttpServer("127.0.0.1", 0, page, Metrics())

    def get(path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}") as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    try:
        assert get("/livez") == (200, b"alive\n")
        assert get("/readyz") == (200, b"so\n")
        assert get("/component") == (200, b"{}")
        page.release = None
        assert get("/component")[0] == 503
        assert b"dppca_slots_total 0.0" in get("/metrics")[1]
        assert get("/")[0] == 404 and b"/metrics" in get("/")[1]
        page.is_alive = page.is_ready = False
        assert get("/livez")[0] == get("/readyz")[0] == 503
        with pytest.raises(ConfigurationError, match=r"http_port.* port with --http-port"):
            HttpServer("127.0.0.1", server.port, page, Metrics())
    finally:
        server.close()


# Logs


def test_logs_are_json_and_hold_no_foreign_text(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(sys.stdout, model="m")
    log_event("something", batch=3)
    try:
        raise ValueError("the record was 987654")
    except ValueError as error:
        log_event("failed", level="error", **describe_error(error))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["event"] == "something" and lines[0]["batch"] == 3 and lines[0]["model"] == "m"
    assert lines[1]["error"] == "ValueError" and "987654" not in str(lines[1])
    assert describe_error(ClusterError("ours"))["message"] == "ours"


# Neighbours

#: Contents that a device may send in one slot, all of them nulls.
NULLS = {
    "empty": b"",
    "tombstone": None,
    "truncated": b'{"cpu": 98765.4',
    "text": b'{"cpu": "98765.4"}',
    "not a number": as_json((float("nan"), 1.0, 1.0)),
    "endless": b"[" * 5000,
    "not UTF-8": b"\xff",
    "too large": as_json((1e300, 0.0, 0.0)),
    "too long": b" " * (2 << 20),
    "array": b"[1,2,3]",
}


def seen_from_outside(
    content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> tuple[list[str], list[str], list[Any], list[bytes]]:
    """Logs, metrics, states and releases of two batches of which one slot has this content."""
    on = MemoryBroker()
    s = settings(seed=3, max_message_bytes=1 << 20)
    on.create("in", 1)
    for i, row in enumerate(rows(2 * BATCH)):
        on.produce("in", content if i == BATCH + 37 else as_json(row))
    log = log_of(on, s)
    set_up_logs(sys.stdout)
    with running(on, s) as service:
        wait_for("both batches", lambda: service.metrics.batches._value.get() == 2)
        # The lag is 0 before the first measurement, too; the partitions are not.
        looked = service.metrics.partitions._value
        wait_for("a look at the topic", lambda: looked.get() == 1)
        wait_for("no lag", lambda: service.metrics.lag._value.get() == 0)
        metrics = [
            line
            for line in service.metrics.render().decode().splitlines()
            if not re.search("seconds|created", line)
        ]
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for event in events:
        del event["time"]
        event.pop("port", None)
        event.pop("page", None)
    states = [json.loads(record.value) for record in log.scan(s.state_topic)]
    for state in states:
        del state["writer"], state["parent"], state["earlier"]  # chance decides which releases ride
        state["release"]["headers"] = [
            pair for pair in state["release"]["headers"] if pair[0] != "ce_time"
        ]
    released = [record.value for record in log.scan(s.output_topic)]
    return [json.dumps(e) for e in events], metrics, states, released


def test_neighbours_with_equal_releases_look_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the noise frozen, whatever a bad record is, all that can be seen is equal."""
    monkeypatch.setattr(task_module, "TOGETHER_BATCHES", 1)  # chance decides which share a state
    seen = {name: seen_from_outside(content, capsys) for name, content in NULLS.items()}
    expected = seen["empty"]
    assert len(expected[3]) == 2 and len(expected[2]) == 2 and len(expected[0]) > 5
    for name, found in seen.items():
        assert found == expected, name
    assert seen_from_outside(as_json((3.0, 1.0, 1.0)), capsys)[3] != expected[3]


# The watchdog

STALL = """
import sys, threading, time
from consumers.events import set_up_logs
from consumers.monitoring.metrics import Metrics
from consumers.monitoring.watchdog import Watchdog
set_up_logs()
stop = threading.Event()
dog = Watchdog(stall_s=2.0, leave_s=0.5, stop=stop, metrics=Metrics())
dog.start()
if sys.argv[1] == "leave":
    stop.set()
def a_function_that_hangs(secret):
    time.sleep(3600)
a_function_that_hangs("987654")
"""


@pytest.mark.parametrize(
    "how, code, event", [("stall", 70, "stalled"), ("leave", 75, "exit_forced")]
)
def test_a_process_that_hangs_is_ended(how: str, code: int, event: str) -> None:
    command = [sys.executable, "-c", STALL, how]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code
    assert json.loads(done.stdout.splitlines()[-1])["event"] == event
    if how == "stall":
        assert "a_function_that_hangs" in done.stderr
        assert "987654" not in done.stderr


def test_the_launcher_kills_at_a_point() -> None:
    code = """
import os, signal
from consumers.crashpoints import on_reach, reach
from tests.support.launch import CRASH_AT, signal_at
on_reach.append(signal_at(os.environ[CRASH_AT], signal.SIGKILL))
for _ in range(3):
    reach("polling")
"""
    for wanted, ending in (("polling:3", -signal.SIGKILL), ("polling:4", 0), ("closing", 0)):
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={CRASH_AT: wanted})
        assert done.returncode == ending


def test_no_metric_tells_when_something_happened_to_a_fraction_of_a_second() -> None:
    metrics = Metrics()
    metrics.batches.inc()
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in metrics.render().decode().splitlines()
        if not line.startswith("#")
    ]
    assert values and not [v for v in values if v > 1e9 and v != int(v)]


def test_a_first_step_of_several_batches() -> None:
    """Where it is, is public; nothing of a part of it is stored or published."""
    cluster, s = MemoryBroker(), settings(batch_size=100, center="mean", scales="learn", epsilon=2)
    cluster.create("in", 1)
    log = log_of(cluster, s)
    with running(cluster, s) as service:
        wait_for("a task", lambda: service._task is not None)
        assert service._task is not None
        _, first = service._task.step_at()
        assert 2 < first < 9
        feed(cluster, 200)
        said = f"batch 3 of {first} of the first step"
        wait_for("two batches", lambda: service.ready() == (True, f"working; {said}"))
        facts = service.facts()
        assert facts["note"] == said and facts["step"] == (2, first) and facts["needed"] == 100
        assert service.component() is None and not list(log.scan(s.state_topic))
        feed(cluster, (first - 2) * 100)
        wait_for("the first release", lambda: service.component() is not None)
        release = json.loads(service.component() or b"")
        assert (release["batch"], release["n_seen"]) == (1, first * 100)
        assert service.ready() == (True, "working") and service.facts()["step"] == (0, 1)

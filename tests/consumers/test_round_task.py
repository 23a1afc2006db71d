"""A task with privacy per subject on the in-process cluster: the guarantees of every task."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers import crashpoints
from consumers.errors import ClusterError, ConfigurationError, Fenced, StateRefused
from consumers.events import describe_error, log_event, set_up_logs
from consumers.model.describe import describe
from consumers.model.releases import PublishedRelease, parse_release
from consumers.model.states import decode_state, make_estimator
from consumers.monitoring.metrics import Metrics
from consumers.service.loop import Service, task_config
from consumers.service.task import Task
from consumers.service.topics import ensure_topics
from consumers.settings import Settings, load_settings
from stream_dppca import DPPCA, SubjectStatement
from stream_dppca.method.drift import DriftAlarm
from tests.support.memory import MemoryBroker, MemoryCluster

from ..support.launch import silence
from ..support.processes import wait_for
from .helpers import BATCH_POINTS, FEATURES, check_output, in_thread, settled
from .test_task import Crash, crash_at

ROUND_MS, SLACK_MS = 10_000, 2_000
FIRST = 1000
START_MS = FIRST * ROUND_MS
PLACES = 60
BY_BROKER = {"message.timestamp.type": "LogAppendTime"}


def settings(**changes: Any) -> Settings:
    return load_settings(
        {
            "features": FEATURES,
            "epsilon": 8.0,
            "delta": 1e-3,
            "places": PLACES,
            "center": "none",
            "scales": "none",
            "input_topic": "in",
            "model": "m",
            "http_port": 0,
            "subject": "device",
            "round": "10s",
            "clock_slack": "2s",
            "partition_refresh_s": 0.1,
            "start": "1970-01-01T02:46:40Z",
            **changes,
        }
    )


def broker(partitions: int = 1) -> MemoryBroker:
    made = MemoryBroker()
    made.create("in", partitions, BY_BROKER)
    made.create("m.dppca-state", 1, {"cleanup.policy": "compact"})
    made.create("m.components", 1, {"cleanup.policy": "compact"})
    return made


def log_of(on: MemoryBroker, s: Settings | None = None, **options: Any) -> MemoryCluster:
    names = ("group", "state_topic", "input_topic", "output_topic")
    return MemoryCluster(on, **{n: getattr(s or settings(), n) for n in names}, **options)


def record(device: object, values: Any) -> bytes:
    cpu, memory, read = map(float, values)
    fields = {"cpu": cpu, "memory": memory, "disk": {"read": read}, "device": device}
    return json.dumps(fields).encode()


def fill(on: MemoryBroker, rounds: int, devices: int = 40, busy: int = 2, seed: int = 0) -> None:
    """Records of some devices in each of some rounds; device 0 sends `busy` of them."""
    rng = np.random.default_rng(seed)
    partitions = len(on.topics["in"].partitions)
    for number in range(rounds):
        for device in range(devices):
            at_s = (START_MS + number * ROUND_MS + 100 * device) / 1000
            on.clock = lambda at_s=at_s: at_s
            rows = rng.standard_normal((2, 3)) * [3.0, 1.0, 0.3]
            for i in range(busy if device == 0 else 2):
                value = record(f"d{device}", rows[i % 2])
                on.produce("in", value, device % partitions, f"d{device}".encode())


def start_task(on: MemoryBroker, rounds: int, s: Settings | None = None, **options: Any) -> Task:
    """A task at a time when this many rounds are over."""
    s = s or settings()
    log = log_of(on, s, **options)
    config = task_config(s)
    assert config.rounds is not None
    now_s = (START_MS + rounds * ROUND_MS + SLACK_MS) / 1000
    config = replace(config, clock=lambda: now_s, plan_interval_s=0.0)
    membership = log.join()
    return Task(log, membership, settled(membership), config, Metrics())


def drain(task: Task) -> None:
    while task.turn(0.0) or task._reading:
        task.settle()


def states(on: MemoryBroker) -> list[Any]:
    entries = on.topics["m.dppca-state"].partitions[0].entries
    return [decode_state(e.value, "") for e in entries if e.status == "committed" and e.value]


def releases(on: MemoryBroker) -> dict[int, PublishedRelease]:
    found = [parse_release(m.value) for m in log_of(on).scan("m.components")]
    return {release.batch: release for release in found}


def check(on: MemoryBroker, rounds: int) -> None:
    """One payload per round, no gaps, every round once and in order."""
    assert check_output(log_of(on), "m.components") == rounds
    found = states(on)
    assert [s.last_round for s in found] == list(range(FIRST, FIRST + rounds))
    assert [s.batch for s in found] == list(range(1, rounds + 1))


# The same guarantees as for records


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("point", BATCH_POINTS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_crash_at_any_point(point: str, times: int, partitions: int) -> None:
    on = broker(partitions)
    fill(on, 4)
    crash_at(point, times)
    with pytest.raises(Crash):
        drain(start_task(on, 4, max_records=30))
    crashpoints.on_reach.clear()
    drain(start_task(on, 4))
    check(on, 4)


@pytest.mark.parametrize("point", BATCH_POINTS)
def test_crashes_change_nothing_without_noise(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are equal bit for bit: a round that is read again is the same round."""
    silence(monkeypatch.setattr)
    s = settings(seed=0)
    whole, broken = broker(2), broker(2)
    fill(whole, 8)
    fill(broken, 8)
    drain(start_task(whole, 8, s))
    for rounds in (1, 2, 3):
        crash_at(point, 2)
        with pytest.raises(Crash):
            drain(start_task(broken, 8, s, max_records=11 * rounds))
    crashpoints.on_reach.clear()
    drain(start_task(broken, 8, s))
    check(broken, 8)
    wanted, found = releases(whole), releases(broken)
    assert found == wanted and len({r.model_dump_json() for r in wanted.values()}) == 8
    assert len({r.components[0][0] for r in wanted.values() if r.components}) > 2


def test_what_the_estimator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids from the field of the record, partition after partition, each round closed once."""
    told: list[Any] = []
    learn, close = DPPCA.learn_array, DPPCA.close_round

    def learn_array(self: DPPCA, X: Any, subjects: Any = None) -> None:
        told.extend(subjects)
        learn(self, X, subjects=subjects)

    def close_round(self: DPPCA) -> Any:
        told.append("closed")
        return close(self)

    monkeypatch.setattr(DPPCA, "learn_array", learn_array)
    monkeypatch.setattr(DPPCA, "close_round", close_round)
    on = broker(2)
    fill(on, 2, devices=4)
    on.clock = lambda: (START_MS + 2 * ROUND_MS) / 1000
    for odd in (None, "", 7, 7.0, True, [1]):
        on.produce("in", record(odd, (1, 2, 3)), 0)
    on.produce("in", b"not JSON", 0)
    drain(start_task(on, 3, max_records=3))
    first = ["d0", "d0", "d2", "d2"], ["d1", "d1", "d3", "d3"]
    assert told == [
        *first[0],
        *first[1],
        "closed",
        *first[1],
        *first[0],
        "closed",
        None,
        "",
        7,
        7.0,
        None,
        None,
        None,
        "closed",
    ]
    check(on, 3)


def test_a_stale_owner_commits_and_publishes_nothing() -> None:
    on = broker()
    fill(on, 3)
    old = start_task(on, 3)
    while not states(on):
        old.turn(0.0)
        old.settle()
    before = log_of(on).scan("m.components")
    new = start_task(on, 3)  # another member: another generation
    with pytest.raises(Fenced):
        drain(old)
    old.close()
    assert log_of(on).scan("m.components") == [*before, *before[-1:]]
    drain(new)
    check(on, 3)


def test_rounds_that_were_missed_and_rounds_without_records() -> None:
    on = broker()
    fill(on, 2)
    drain(start_task(on, 2))
    check(on, 2)
    on.clock = lambda: (START_MS + 6 * ROUND_MS + 1) / 1000
    on.produce("in", record("d1", (1, 2, 3)), 0)
    drain(start_task(on, 7))
    check(on, 7)
    drain(start_task(on, 7))  # nothing new: the last one again
    check(on, 7)


def test_nothing_is_at_rest_but_states_at_the_ends_of_rounds() -> None:
    on = broker()
    fill(on, 2)
    task = start_task(on, 2, max_records=5)
    for _ in range(4):
        task.turn(0.0)
    assert not states(on) and not log_of(on).scan("m.components")
    drain(task)
    for state in states(on):
        text = json.dumps(state.estimator)
        assert '"d1"' not in text and "device" in text  # the field, and no id


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"round": "20s"}, "round '10s'"),
        ({"period": "30s"}, "period"),
        ({"horizon": "100s"}, "horizon"),
        ({"subject": "user"}, "subject 'device'"),
        ({"records": 3}, "records"),
        ({"places": 61}, "places"),
    ],
)
def test_a_state_with_other_rounds_is_refused(changes: dict[str, Any], named: str) -> None:
    on = broker()
    fill(on, 1)
    drain(start_task(on, 1))
    with pytest.raises(StateRefused, match=named):
        start_task(on, 1, settings(**changes))


def test_a_state_with_another_unit_is_refused() -> None:
    on, s = broker(), settings()
    fill(on, 1)
    drain(start_task(on, 1))
    by_record = settings(subject=None, round=None, start="earliest", places=None, batch_size=PLACES)
    log = log_of(on, s)
    membership = log.join()
    with pytest.raises(StateRefused, match="unit 'subject'"):
        Task(log, membership, settled(membership), task_config(by_record), Metrics())


def test_a_lost_state_is_refused_and_offsets_are_not_told() -> None:
    on = broker()
    fill(on, 2)
    drain(start_task(on, 2))
    on.topics["m.dppca-state"].partitions[0].entries.clear()
    with pytest.raises(StateRefused, match="states are lost") as refused:
        start_task(on, 2)
    assert not any(str(n) in str(refused.value) for n in range(60, 200))


def test_the_horizon_ends_the_model() -> None:
    on, s = broker(), settings(horizon="30s")
    fill(on, 5)
    drain(start_task(on, 5, s))
    check(on, 3)
    drain(start_task(on, 5, s))
    check(on, 3)


# Logs and errors


def test_a_release_says_what_is_promised() -> None:
    on = broker()
    s = settings(
        round="1h", period="24h", epsilon=1, delta=1e-6, start="1970-01-01T02:00Z", places=2000
    )
    task = start_task(on, 2000, s)
    while not states(on):
        task.turn(0.0)
        task.settle()
    [release] = releases(on).values()
    p = release.privacy
    assert isinstance(p, SubjectStatement)
    assert (p.unit, p.adjacency, p.subject) == ("subject", "replace-subject", "device")
    assert p.scope == "any 24 rounds of one hour, broker time"
    assert {k: round(v, 2) for k, v in p.epsilon_over.items()} == {
        "1 day": 1.0,
        "7 days": 2.89,
        "30 days": 6.58,
        "365 days": 31.04,
    }
    assert release.round is not None
    assert release.round.start == "1970-01-01T02:00:00+00:00"
    assert release.round.end == "1970-01-01T03:00:00+00:00"
    assert release.n_seen is None and release.subjects is not None
    headers = dict(log_of(on).scan("m.components")[0].headers)
    assert headers["ce_time"] == b"1970-01-01T03:00:00+00:00"
    text = describe(release)
    assert "any 24 rounds of one hour" in text and "slots" not in text
    assert "about" in text and "subjects" in text


def test_a_release_per_record_has_none_of_it() -> None:
    from .helpers import INPUT, cluster, drain, memory_log, start_task
    from .test_task import fill

    on = cluster()
    fill(on, 300)
    drain(start_task(memory_log(on)))
    [message] = memory_log(on).scan("m.out")
    fields = json.loads(message.value)
    assert not {"round", "subjects"} & fields.keys()
    assert not {"subject", "epsilon_over"} & fields["privacy"].keys()
    assert INPUT not in fields


def test_counts_are_in_no_log_and_in_no_release(capsys: pytest.CaptureFixture[str]) -> None:
    """One device that sends a thousand records instead of one changes no line of the log."""

    def logged(busy: int) -> tuple[list[str], list[set[str]]]:
        on = broker(2)
        fill(on, 3, busy=busy)
        set_up_logs(sys.stdout, mask_numbers=True)
        drain(start_task(on, 3, settings(seed=1)))
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for line in lines:
            del line["time"]
        shapes = [set(r.model_dump(exclude_none=True)) for r in releases(on).values()]
        return [json.dumps(line) for line in lines], shapes

    few, many = logged(1), logged(1000)
    assert few == many and len(few[0]) == 4


def test_numbers_of_the_client_are_masked() -> None:
    """Some are offsets. Partitions and rounds are ours, and public."""
    out = io.StringIO()
    set_up_logs(out, mask_numbers=True)
    logging.getLogger("kafka.consumer").warning("offset 4711 of in-0 is out of range")
    error = ClusterError("OffsetOutOfRangeError: in:0: 4711")
    log_event("task_dropped", batch=3, **describe_error(error))
    log_event("released", batch=4711)
    client, dropped, released = map(json.loads, out.getvalue().splitlines())
    assert client["message"] == "offset # of in-# is out of range"
    assert dropped["message"] == "OffsetOutOfRangeError: in:#: #" and dropped["batch"] == 3
    assert released["batch"] == 4711
    set_up_logs(out)
    logging.getLogger("kafka.consumer").warning("offset 4711")
    assert json.loads(out.getvalue().splitlines()[-1])["message"] == "offset 4711"


# The service


def test_topics_that_do_not_fit_are_refused() -> None:
    on, s = MemoryBroker(), settings()
    rule = s.rounds()
    on.create("in", 1)
    with pytest.raises(ConfigurationError) as refused:
        ensure_topics(log_of(on, s), s, rounds=rule)
    assert (
        "kafka-configs.sh --bootstrap-server localhost:9092 --alter --entity-type topics "
        "--entity-name in --add-config message.timestamp.type=LogAppendTime"
    ) in str(refused.value)
    on.topics["in"].configs = {**BY_BROKER, "cleanup.policy": "compact"}
    with pytest.raises(ConfigurationError, match="is compacted"):
        ensure_topics(log_of(on, s), s, rounds=rule)
    keyed = settings(subject="@key")
    assert ensure_topics(log_of(on, keyed), keyed, rounds=keyed.rounds(), create=False)
    assert ensure_topics(log_of(on, s), s, create=False)  # nothing is asked of it per record


@contextmanager
def running(on: MemoryBroker, s: Settings) -> Iterator[Service]:
    service = Service(s, log_of(on, s), watched=False)
    with in_thread(service):
        yield service


def test_a_service_with_a_standby_in_real_time() -> None:
    """Live rounds of a second, and instances that come and go."""
    on = MemoryBroker()
    on.create("in", 4, BY_BROKER)
    s = settings(
        subject="@key",
        format="float32",
        rows_per_message=2,
        round="1s",
        clock_slack="100ms",
        start="latest",
    )
    rng = np.random.default_rng(0)

    def send() -> None:
        for device in range(20):
            value = rng.standard_normal((2, 3)).astype("<f4").tobytes()
            on.produce("in", value, device % 4, b"d%d" % device)

    def released(least: int) -> bool:
        send()
        if log_of(on, s).topic(s.output_topic) is None:
            return False
        return check_output(log_of(on, s), s.output_topic) >= least

    with running(on, s) as first:
        wait_for("work", lambda: first.ready() == (True, "working"))
        with running(on, s) as second:
            wait_for("a standby", lambda: second.ready() == (True, "standing by"))
            wait_for("releases", lambda: released(1))
            first.stop.set()
            wait_for("a takeover", lambda: second.ready() == (True, "working"))
            wait_for("more", lambda: released(3))


def test_states_of_all_kinds_of_rounds_can_be_stored() -> None:
    """With centre and scales learned, full rounds, rounds with few subjects and empty ones."""
    rng = np.random.default_rng(0)
    s = settings(center="mean", scales="learn", places=60)
    told = make_estimator(s.estimator_recipe())
    assert isinstance(told, DPPCA)
    seen = set()
    for number, devices in enumerate([60] * 12 + [0, 6, 60, 50]):
        X = rng.standard_normal((devices, 3)) * [3.0, 1.0, 0.3] + number
        told.learn_array(X, subjects=[f"d{i}" for i in range(devices)])
        seen.add(told.close_round().status)
        again = DPPCA.from_state(msgspec.json.decode(msgspec.json.encode(told.state())))
        assert again.state() == told.state()
    assert {"starting", "learned", "skipped"} <= seen


def test_an_alarm_can_be_stored_whatever_its_numbers_came_as() -> None:
    alarm = DriftAlarm()
    for _ in range(20):
        alarm(np.float64(0.5), np.float64(1.0), np.float64(0.1), 1)  # type: ignore[arg-type]
    assert alarm.state() == msgspec.json.decode(msgspec.json.encode(alarm.state()))

"""One task on the in-process cluster: crashes at every point, zombies, offsets and slots."""

from __future__ import annotations

import datetime
import itertools
import json
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from consumers import crashpoints
from consumers.errors import (
    ClusterError,
    Fenced,
    OutcomeUnknown,
    StateRefused,
)
from consumers.model.releases import parse_release
from consumers.model.states import StateRecord, decode_state
from consumers.monitoring.metrics import Metrics
from consumers.protocols import FinishedBatch
from consumers.service import task as task_module
from consumers.service.task import Task, most_together
from stream_dppca import Release
from tests.support.memory import MemoryBroker

from ..support.launch import silence
from ..support.processes import PATIENCE_SECONDS, wait_for
from .helpers import (
    BATCH,
    BATCH_POINTS,
    FEATURES,
    INPUT,
    OUTPUT,
    PLAN_KEY,
    STATE,
    as_json,
    check_output,
    cluster,
    config,
    drain,
    memory_log,
    releases,
    rows,
    settled,
    start_task,
)


class Crash(BaseException):
    """The process is gone."""


def crash_at(point: str, times: int) -> None:
    seen: Counter[str] = Counter()

    def listen(reached: str) -> None:
        seen[reached] += 1
        if reached == point and seen[point] == times:
            raise Crash(point)

    crashpoints.on_reach[:] = [listen]


def fill(on: MemoryBroker, n: int, partitions: int = 1, seed: int = 0) -> None:
    for i, row in enumerate(rows(n, seed)):
        on.produce(INPUT, as_json(row), i % partitions)


def states(on: MemoryBroker) -> list[StateRecord]:
    entries = on.topics[STATE].partitions[0].entries
    found = [e for e in entries if e.status == "committed" and e.value and e.key != PLAN_KEY]
    return [decode_state(e.value, "") for e in found]


def check_states(on: MemoryBroker, slots: int) -> None:
    """Batches 1, 2, ... each with its release, and positions of exactly so many batches."""
    found = states(on)
    last, held = 0, dict[int, bytes]()
    for s in found:
        values = {parse_release(m.value).batch: m.value for m in s.messages()}
        # Those that ride with a state were durable before it.
        assert list(values) == list(range(min(values), s.batch + 1)) and min(values) <= last + 1
        assert all(held.setdefault(n, value) == value for n, value in values.items())
        assert s.batch > last
        last = s.batch
    assert list(held) == list(range(1, slots // BATCH + 1))
    assert all(sum(s.next_positions().values()) == BATCH * s.batch for s in found)


def riding(task: Task, on: MemoryBroker, until: int) -> Task:
    """Have each release ride with the commit of the next batch, up to the release of a batch."""
    task._finisher._waits = lambda: len(states(on)) < until  # as if that one were ready
    return task


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("point", BATCH_POINTS)
@pytest.mark.parametrize("partitions, ride", [(1, False), (3, False), (1, True)])
def test_a_crash_at_any_point(point: str, times: int, partitions: int, ride: bool) -> None:
    on = cluster(partitions)
    fill(on, 4 * BATCH + 50, partitions)
    crash_at(point, times)
    with pytest.raises(Crash):
        drain(riding(start_task(memory_log(on)), on, 4 if ride else 0))
    crashpoints.on_reach.clear()
    last = max((r.batch for r in releases(memory_log(on))), default=0)
    assert last <= len(states(on)) and len(states(on)) - last <= (2 if ride else 1)
    after = start_task(memory_log(on))
    assert [r.batch for r in releases(memory_log(on))][-1:] == [len(states(on))][: len(states(on))]
    drain(riding(after, on, 4 if ride else 0))
    assert check_output(memory_log(on)) == 4
    check_states(on, 4 * BATCH + 50)


def turn_until(task: Task, reached: Callable[[], bool]) -> None:
    """Turn, with a sample whenever nothing is planned; batches on their way are not waited for."""
    while not reached():
        if not task.turn(0.0):
            task.input.planner.extend()


class Together:
    """Stands in for the background of a task: works as soon as so many batches wait."""

    busy = False

    def __init__(self, task: Task, size: int, ride: bool) -> None:
        self._task, self._size, self._ride = task, size, ride
        self._waiting: list[FinishedBatch] = []
        task._finisher._waits = lambda: self._ride

    def give(self, batch: FinishedBatch, most: int) -> None:
        self._waiting.append(batch)
        if len(self._waiting) >= self._size:
            waiting, self._waiting = self._waiting, []
            self._task._finish(waiting)

    def check(self) -> None:
        pass

    def expect(self, more: bool) -> None:
        pass

    def wait(self, timeout_s: float | None = None) -> None:
        pass

    def last(self) -> None:
        """Finish what is left; nothing more comes."""
        self._ride, self._size = False, 1
        if self._waiting:
            self.give(self._waiting.pop(), 1)


def grouped(task: Task, size: int, ride: bool) -> Together:
    together = Together(task, size, ride)
    task._ending = together  # type: ignore[assignment]
    return together


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", BATCH_POINTS)
@pytest.mark.parametrize("size, ride", [(2, False), (2, True), (3, True)])
def test_a_crash_at_any_point_of_a_group(point: str, times: int, size: int, ride: bool) -> None:
    """All batches of a group are durable or none is, and no release of it is lost."""
    on = cluster(2)
    fill(on, 7 * BATCH + 50, 2)
    crash_at(point, times)
    with pytest.raises(Crash):
        task = start_task(memory_log(on))
        together = grouped(task, size, ride)
        drain(task)
        together.last()
        start_task(memory_log(on))  # some points are reached once in a life
    crashpoints.on_reach.clear()
    assert all(s.batch % size == 0 or s.batch == 7 for s in states(on))
    durable = max((s.batch for s in states(on)), default=0)
    visible = {r.batch for r in releases(memory_log(on))}
    assert (
        visible == set(range(1, max(visible, default=0) + 1)) and max(visible, default=0) <= durable
    )
    after = start_task(memory_log(on))
    if point == "inside_transaction":  # the group was written, and is adopted
        assert states(on)[-1].batch in (durable + size, 7)
        durable = states(on)[-1].batch
    assert {r.batch for r in releases(memory_log(on))} == set(range(1, durable + 1))
    if durable:
        assert after.current is not None and parse_release(after.current.value).batch == durable
    together = grouped(after, size, ride)
    drain(after)
    together.last()
    assert check_output(memory_log(on)) == 7
    numbers = [r.batch for r in releases(memory_log(on))]
    assert all(b in (a, a + 1) for a, b in itertools.pairwise(numbers)), "an older one follows"
    check_states(on, 7 * BATCH + 50)


def test_batches_that_wait_share_a_transaction() -> None:
    on = cluster()
    fill(on, 5 * BATCH)
    gate = Gate("inside_transaction")
    task = gate.until("batch_full", start_task(memory_log(on)))
    transactions: list[str] = []
    on.on_commit = transactions.append
    turn_until(task, lambda: len(task._ending._waiting) == 4)
    assert not states(on) and not releases(memory_log(on))
    gate.open.set()
    task.settle()
    # The first state; that of the others, with the first release; the other releases.
    assert transactions == ["before", "after"] * 3
    assert [s.batch for s in states(on)] == [1, 5]
    assert check_output(memory_log(on)) == 5
    assert task._metrics.registry.get_sample_value("dppca_batches_total") == 5
    check_states(on, 5 * BATCH)


def test_no_more_batches_wait_than_their_states_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_together(len(FEATURES), 1000) == task_module.TOGETHER_BATCHES
    for numbers, group in ((3 * len(FEATURES) ** 2, 3), (1, 1)):
        monkeypatch.setattr(task_module, "TOGETHER_NUMBERS", numbers)
        assert most_together(len(FEATURES), 1000) == group


def test_no_more_releases_than_fit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in one state, and messages have a largest size."""
    monkeypatch.setattr(task_module, "TOGETHER_BYTES", 1)
    on = cluster()
    fill(on, 3 * BATCH)
    gate = Gate("inside_transaction")
    task = gate.until("batch_full", start_task(memory_log(on)))

    third = lambda: gate.reached["batch_full"] == 3  # noqa: E731
    working = threading.Thread(target=turn_until, args=(task, third), daemon=True)
    working.start()
    wait_for("the third batch", third)
    assert len(task._ending._waiting) == 1 and working.is_alive()
    gate.open.set()
    working.join(PATIENCE_SECONDS)
    task.settle()
    assert [s.batch for s in states(on)] == [1, 2, 3]


def test_a_closed_task_finishes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "CLOSE_SECONDS", 0.0)
    on = cluster()
    fill(on, 4 * BATCH)
    gate = Gate("before_transaction")
    task = gate.until("batch_full", start_task(memory_log(on)))
    turn_until(task, lambda: len(task._ending._waiting) == 3)
    task.close()
    assert not task._ending._waiting
    gate.open.set()
    with pytest.raises(Fenced):
        task.settle()
    assert not states(on) and not releases(memory_log(on)) and not task._ending._waiting


def test_a_release_that_rides_becomes_visible_with_the_next_state() -> None:
    """A batch costs one transaction, and the last release does not wait for another batch."""
    on = cluster()
    fill(on, 3 * BATCH)
    task = riding(start_task(memory_log(on)), on, 3)
    seen: list[tuple[int, list[int]]] = []

    def look(moment: str) -> None:
        if moment == "after":
            seen.append((len(states(on)), [r.batch for r in releases(memory_log(on))]))

    on.on_commit = look
    drain(task)
    assert seen == [(1, []), (2, [1]), (3, [1, 2]), (3, [1, 2, 3])]
    assert task.current is not None and parse_release(task.current.value).batch == 3
    assert task._metrics.registry.get_sample_value("dppca_batches_total") == 3


def test_a_batch_that_waits_lets_the_release_before_it_ride() -> None:
    on = cluster()
    fill(on, 2 * BATCH)
    gate = Gate("inside_transaction")
    task = gate.until("batch_full", start_task(memory_log(on)))
    transactions: list[str] = []
    on.on_commit = transactions.append

    second = lambda: gate.reached["batch_full"] == 2  # noqa: E731
    working = threading.Thread(target=turn_until, args=(task, second), daemon=True)
    working.start()
    wait_for("the second batch to wait", lambda: task._ending._waiting)
    gate.open.set()
    working.join(PATIENCE_SECONDS)
    task.settle()
    assert transactions == ["before", "after"] * 3  # two states, and the last release
    assert check_output(memory_log(on)) == 2


def test_a_release_waits_for_all_batches_that_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the service catches up, they share a transaction, although each is ready at once."""
    monkeypatch.setattr(task_module, "RIDE_SECONDS", PATIENCE_SECONDS)
    on = cluster()
    fill(on, 5 * BATCH + 50)
    task = start_task(memory_log(on))
    turn_until(task, lambda: check_output(memory_log(on)) == 5)
    assert [s.batch for s in states(on)] == [1, 5]
    check_states(on, 5 * BATCH + 50)


@pytest.mark.parametrize("patient", [True, False])
def test_a_release_waits_a_moment_for_a_batch_that_is_being_read(
    patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That saves a transaction. The release does not wait for a batch that takes longer."""
    monkeypatch.setattr(task_module, "RIDE_SECONDS", PATIENCE_SECONDS if patient else 0.0)
    on = cluster()
    fill(on, 2 * BATCH)
    gate = Gate("after_commit")
    task = gate.until("batch_full", start_task(memory_log(on)))
    while task.input.reader._reached[0] < BATCH + BATCH // 2:
        assert task.turn(0.0)
    wait_for("the first state", lambda: gate.reached["after_commit"])
    transactions: list[str] = []
    on.on_commit = transactions.append
    gate.open.set()
    if patient:
        assert not releases(memory_log(on))
    else:
        task.settle()
        assert [r.batch for r in releases(memory_log(on))] == [1]
    drain(task)
    # The first state was committed before; then the second one and the last release, and with
    # them, or by itself, the first release.
    assert len(transactions) == 2 * (2 if patient else 3)
    assert check_output(memory_log(on)) == 2


def test_a_stale_owner_publishes_nothing_that_rides() -> None:
    on = cluster()
    fill(on, 3 * BATCH)
    task = riding(start_task(memory_log(on)), on, 3)
    drain(task, until=lambda: len(states(on)) == 1)
    assert not releases(memory_log(on))
    start_task(memory_log(on))  # publishes the first again, and fences
    with pytest.raises(Fenced):
        drain(task)
    assert [r.batch for r in releases(memory_log(on))] == [1]
    assert len(states(on)) == 1


def test_a_release_that_rode_is_published_again_if_it_is_not_seen() -> None:
    """Brokers can lose the end of a transaction on one of its partitions."""
    on = cluster()
    fill(on, 3 * BATCH)
    drain(riding(start_task(memory_log(on)), on, 3), until=lambda: len(states(on)) == 2)
    assert [r.batch for r in releases(memory_log(on))] == [1]
    for entry in on.topics[OUTPUT].partitions[0].entries:
        entry.status = "aborted"
    drain(start_task(memory_log(on)))
    assert check_output(memory_log(on)) == 3


def test_a_successor_is_no_loss_of_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that is stopped while it starts finds releases that are later than its state."""
    on = cluster()
    fill(on, 2 * BATCH)
    zombie = memory_log(on)
    scan = zombie.scan

    def stopped(topic: str) -> Any:
        drain(start_task(memory_log(on)))
        return scan(topic)

    monkeypatch.setattr(zombie, "scan", stopped)
    with pytest.raises(Fenced):
        start_task(zombie)
    assert check_output(memory_log(on)) == 2


@pytest.mark.parametrize("point", BATCH_POINTS)
def test_crashes_change_nothing_without_noise(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are equal bit for bit. With `paper`: `adaptive` begins a new C after a restart."""
    silence(monkeypatch.setattr)
    options: dict[str, Any] = {
        "method": "paper",
        "batch_size": 1000,
        "epsilon": 20.0,
        "delta": 1e-2,
        "K": 1.0,
        "a": 0.5,
        "C1": 8.0,
        "seed": 0,
    }
    whole, broken = cluster(), cluster()
    fill(whole, 7000)
    fill(broken, 7000)
    drain(start_task(memory_log(whole), **options))
    for times in (1, 2, 1):
        crash_at(point, times)
        with pytest.raises(Crash):
            drain(start_task(memory_log(broken), **options))
    crashpoints.on_reach.clear()
    drain(start_task(memory_log(broken), **options))
    wanted, found = releases(memory_log(whole)), releases(memory_log(broken))
    assert found[-1] == wanted[-1] and wanted[-1].batch == 7
    assert not wanted[-1].privacy.private
    learned = [r for r in wanted if r.components]
    assert len({r.components[0][0] for r in learned}) > 3
    assert {r.batch: r for r in found} == {r.batch: r for r in wanted}


class Gate:
    """Holds every thread that reaches a point until the gate is opened."""

    def __init__(self, point: str) -> None:
        self.reached: Counter[str] = Counter()
        self.open = threading.Event()
        self._point = point
        crashpoints.on_reach[:] = [self._reach]

    def _reach(self, point: str) -> None:
        self.reached[point] += 1
        if point == self._point:
            assert self.open.wait(PATIENCE_SECONDS)

    def until(self, point: str, task: Task) -> Task:
        """Turn until a thread reaches the point."""
        while not self.reached[point]:
            task.turn(0.0)
        return task


@pytest.mark.parametrize("point", ["before_transaction", "inside_transaction", "after_commit"])
def test_the_next_batch_is_read_while_one_is_on_its_way(point: str) -> None:
    """It cannot be committed before that one is published."""
    on = cluster()
    fill(on, 3 * BATCH)
    gate = Gate(point)
    task = gate.until("batch_full", start_task(memory_log(on)))
    while task.input.reader._reached[0] < BATCH + BATCH // 2:
        assert task.turn(0.0)
    assert task.current is None and not releases(memory_log(on))
    ending = threading.Thread(target=drain, args=(task,), daemon=True)
    ending.start()
    wait_for("the next batch", lambda: gate.reached["batch_full"] == 2)
    assert ending.is_alive() and gate.reached[point] == 1 and not releases(memory_log(on))
    gate.open.set()
    ending.join(PATIENCE_SECONDS)
    task.settle()
    assert check_output(memory_log(on)) == 3
    check_states(on, 3 * BATCH)


def test_a_task_that_closes_waits_for_a_batch_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.service.task.CLOSE_SECONDS", PATIENCE_SECONDS)
    on = cluster()
    fill(on, BATCH)
    gate = Gate("after_commit")
    task = gate.until("after_commit", start_task(memory_log(on)))
    threading.Timer(0.2, gate.open.set).start()
    task.close()
    assert check_output(memory_log(on)) == 1


def test_a_task_that_closes_does_not_wait_for_ever() -> None:
    """A batch that was being committed is lost, or comes too late."""
    on = cluster()
    fill(on, BATCH)
    gate = Gate("before_transaction")
    task = gate.until("before_transaction", start_task(memory_log(on)))
    task.close()
    assert not states(on)
    crashpoints.on_reach.clear()
    drain(start_task(memory_log(on)))
    gate.open.set()
    with pytest.raises(Fenced):
        task.settle()
    assert check_output(memory_log(on)) == 1
    check_states(on, BATCH)


def test_a_failure_on_the_way_comes_out_of_the_next_turn() -> None:
    on = cluster()
    fill(on, 2 * BATCH)
    task = start_task(memory_log(on))

    def fail(moment: str) -> None:
        raise OutcomeUnknown("no answer")

    on.on_commit = fail
    with pytest.raises(OutcomeUnknown):
        drain(task)
    with pytest.raises(OutcomeUnknown):
        task.turn(0.0)
    assert not releases(memory_log(on))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_of_unknown_outcome(moment: str) -> None:
    on = cluster()
    fill(on, 3 * BATCH)
    task = start_task(memory_log(on))

    def fail(at: str) -> None:
        if at == moment and len(states(on)) >= 1:
            on.on_commit = lambda _: None
            raise OutcomeUnknown("no answer")

    on.on_commit = fail
    with pytest.raises(OutcomeUnknown):
        drain(task)
    published = len(releases(memory_log(on)))
    task.close()
    drain(start_task(memory_log(on)))
    assert published < 3
    assert check_output(memory_log(on)) == 3
    check_states(on, 3 * BATCH)


def test_a_release_that_could_not_be_published_is_published_later() -> None:
    on = cluster()
    fill(on, BATCH)
    task = start_task(memory_log(on))
    calls = 0

    def fail(at: str) -> None:
        nonlocal calls
        calls += at == "before"
        if calls == 2:  # the first transaction is the state's
            raise ClusterError("no answer")

    on.on_commit = fail
    with pytest.raises(ClusterError):
        drain(task)
    on.on_commit = lambda _: None
    task.close()
    assert releases(memory_log(on)) == []
    stored = states(on)[-1].release.value.encode()
    start_task(memory_log(on))
    assert [r.value for r in memory_log(on).scan("m.out")] == [stored]


def test_a_zombie_publishes_nothing() -> None:
    on = cluster()
    fill(on, 3 * BATCH)
    zombie = start_task(memory_log(on))
    zombie.turn(0.0)
    on.expire("g", zombie.membership.member)  # type: ignore[attr-defined]
    owner = start_task(memory_log(on))
    drain(owner)
    before = memory_log(on).scan("m.out")
    with pytest.raises(Fenced):
        drain(zombie)
    assert memory_log(on).scan("m.out") == before
    assert check_output(memory_log(on)) == 3
    check_states(on, 3 * BATCH)


def test_a_zombie_that_wakes_after_its_commit() -> None:
    """It was stopped between commit and publish: the new owner has published, it must not."""
    on = cluster()
    fill(on, 3 * BATCH)
    zombie = start_task(memory_log(on))
    owners: list[Task] = []

    def listen(point: str) -> None:
        if point == "after_commit" and not owners:
            crashpoints.on_reach.clear()
            on.expire("g", zombie.membership.member)  # type: ignore[attr-defined]
            owners.append(start_task(memory_log(on)))
            drain(owners[0])

    crashpoints.on_reach.append(listen)
    with pytest.raises(Fenced):
        drain(zombie)
    assert [r.batch for r in releases(memory_log(on))] == [1, 2, 3]


def test_a_member_that_came_back_cannot_commit_what_it_had() -> None:
    """It was removed and has rejoined with the same task, while another owner worked on it."""
    on = cluster()
    fill(on, 2 * BATCH)
    log = memory_log(on)
    task = start_task(log)
    task.turn(0.0)  # some of the first batch
    membership = task.membership  # type: ignore[attr-defined]
    held = settled(membership)
    on.expire("g", membership.member)
    claim = settled(membership)
    assert claim.owner and claim is not held
    with pytest.raises(Fenced):
        drain(task)
    assert releases(log) == []


def test_publishing_again_is_the_same_bytes() -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    start_task(memory_log(on))
    start_task(memory_log(on))
    records = memory_log(on).scan("m.out")
    assert len(records) == 3 and len({(r.key, r.value, r.headers) for r in records}) == 1


# Rows and offsets


def fed_to(task: Task) -> list[np.ndarray]:
    """The arrays that the estimator of a task is given."""
    fed: list[np.ndarray] = []
    learn = task._learner._estimator.learn_array

    def spy(rows: Any) -> None:
        fed.append(np.array(rows))
        learn(rows)

    task._learner._estimator.learn_array = spy  # type: ignore[method-assign]
    return fed


@pytest.mark.parametrize("per_message", [1, 6, 60, 300])
@pytest.mark.parametrize("point", ["after_publish", "after_commit", "before_transaction"])
def test_every_row_of_packed_messages_is_used_once(per_message: int, point: str) -> None:
    """Whatever the crashes, the rows of the committed batches are the input, in order."""
    on = cluster()
    X = rows(1500)
    for start in range(0, len(X), per_message):
        on.produce(INPUT, X[start : start + per_message].astype("<f8").tobytes())
    committed: list[np.ndarray] = []

    def run(crash: int) -> None:
        task = start_task(memory_log(on), format="float64", rows_per_message=per_message)
        fed = fed_to(task)

        def listen(reached: str) -> None:
            if reached == "after_commit":
                committed.append(fed.pop(0))

        crash_at(point, crash)
        crashpoints.on_reach.insert(0, listen)
        drain(task)

    for crash in (1, 2):
        with pytest.raises(Crash):
            run(crash)
    run(99)
    assert np.concatenate(committed).tolist() == X.tolist()
    assert check_output(memory_log(on)) == 5


def test_messages_of_other_lengths_keep_to_their_slots() -> None:
    """Fewer rows than `rows_per_message` leave nulls, more are ignored."""
    on = cluster()
    X = rows(BATCH).reshape(-1, 3, 3)
    wanted = X.copy()
    for i, message in enumerate(X):
        packed = message.astype("<f8").tobytes()
        if i % 5 == 1:
            packed, wanted[i, 2] = packed[:48], np.nan
        elif i % 5 == 2:
            packed += packed
        elif i % 5 == 3:
            packed, wanted[i] = packed[:-1], np.nan
        on.produce(INPUT, packed)
    task = start_task(memory_log(on), format="float64", rows_per_message=3)
    fed = fed_to(task)
    drain(task)
    np.testing.assert_array_equal(np.concatenate(fed), wanted.reshape(BATCH, 3))
    assert states(on)[-1].next_positions() == {0: BATCH // 3}


def test_bad_messages_take_their_slots() -> None:
    on = cluster()
    for i, row in enumerate(rows(BATCH)):
        good = as_json(row)
        on.produce(INPUT, [good, None, b"{", good[:-3], b"\xff" * 50][i % 5])
    drain(start_task(memory_log(on)))
    assert [r.n_seen for r in releases(memory_log(on))] == [BATCH]


def test_offsets_that_retention_removed(caplog: pytest.LogCaptureFixture) -> None:
    """A batch of which nothing is left is skipped; the missing rows of a cut one are nulls."""
    on = cluster()
    fill(on, 3 * BATCH)
    task = start_task(memory_log(on))
    drain(task, until=lambda: bool(states(on)))
    task.close()
    on.trim(INPUT, 0, 2 * BATCH + 10)
    fill(on, 2 * BATCH)
    after = start_task(memory_log(on))
    fed = fed_to(after)
    drain(after)
    assert [s.next_positions()[0] // BATCH for s in states(on)] == [1, 3, 4, 5]
    null = np.isnan(np.concatenate(fed)).all(axis=1)
    assert null.tolist() == [True] * 10 + [False] * (3 * BATCH - 10)
    lost = after._metrics.registry.get_sample_value("dppca_offsets_lost_total")
    assert lost == BATCH + 10
    assert check_output(memory_log(on)) == 4
    [said] = [r.fields for r in caplog.records if r.msg == "offsets_lost"]  # type: ignore[attr-defined]
    assert (said["offset"], said["resumed_at"]) == (BATCH, 2 * BATCH + 10)


def test_the_time_of_commits_is_shown_to_the_hundredth_of_a_second() -> None:
    """A sum of exact times would show the duration of the last commit, and so what ran with it."""
    on = cluster()
    fill(on, 2 * BATCH)
    on.on_commit = lambda moment: time.sleep(0.006)
    task = start_task(memory_log(on))
    drain(task)
    seen = task._metrics.registry.get_sample_value
    total = seen("dppca_commit_seconds_sum")
    assert seen("dppca_commit_seconds_count") == 2 and total > 0
    assert total == pytest.approx(round(total, 2), abs=1e-12)


def test_a_stretch_of_which_nothing_is_left() -> None:
    on = cluster()
    fill(on, BATCH)
    task = start_task(memory_log(on))
    drain(task)
    task.close()
    fill(on, 2 * BATCH)
    on.trim(INPUT, 0, 3 * BATCH)
    after = start_task(memory_log(on))
    drain(after)
    assert [s.batch for s in states(on)] == [1]
    fill(on, BATCH)
    drain(after)
    assert [s.next_positions()[0] // BATCH for s in states(on)] == [1, 4]


def test_offsets_removed_after_they_were_planned() -> None:
    """They are nulls in their slots: the plan stays."""
    on = cluster()
    fill(on, 2 * BATCH)
    task = start_task(memory_log(on, max_records=10))
    fed = fed_to(task)
    while task.input.reader._reached[0] < 30:
        task.turn(0.0)
    on.trim(INPUT, 0, BATCH + 5)
    drain(task)
    assert [s.next_positions()[0] for s in states(on)] == [BATCH, 2 * BATCH]
    null = np.isnan(np.concatenate(fed)).all(axis=1)
    assert null.tolist() == [False] * 30 + [True] * (BATCH - 25) + [False] * (BATCH - 5)
    lost = task._metrics.registry.get_sample_value("dppca_offsets_lost_total")
    assert lost == BATCH - 25


def test_a_topic_made_anew_is_refused() -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    on.topics[INPUT].partitions[0].entries.clear()
    with pytest.raises(StateRefused, match="truncated or recreated"):
        start_task(memory_log(on))


def test_new_partitions_are_read_from_their_beginning() -> None:
    on = cluster()
    fill(on, BATCH)
    task = start_task(memory_log(on))
    drain(task)
    on.add_partitions(INPUT, 2)
    fill(on, 3 * BATCH, partitions=3)
    task.turn(0.0)
    drain(task)
    found = states(on)[-1]
    assert set(found.next_positions()) == {0, 1, 2}
    assert found.batch == 4


def test_start_at_the_end() -> None:
    on = cluster()
    fill(on, BATCH)
    log = memory_log(on)
    membership = log.join()
    made = config()
    made = type(made)(**{**made.__dict__, "start": "latest"})
    task = Task(log, membership, settled(membership), made, Metrics())
    fill(on, BATCH)
    drain(task)
    assert states(on)[-1].next_positions() == {0: 2 * BATCH}
    assert len(states(on)) == 1


# States that must not be resumed from


def test_a_state_that_is_gone_is_refused() -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    on.topics[STATE].partitions[0].entries.clear()
    with pytest.raises(StateRefused, match="states are lost"):
        start_task(memory_log(on))


def test_a_state_that_is_gone_is_refused_even_if_the_offsets_have_expired() -> None:
    """The group's offsets expire, since it subscribes to the state topic only; releases stay."""
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    on.topics[STATE].partitions[0].entries.clear()
    on.groups["g"].offsets.clear()
    with pytest.raises(StateRefused, match=r"'m\.out' holds a later release of model 'm'"):
        start_task(memory_log(on))
    # Releases of others do no harm.
    for entry in on.topics["m.out"].partitions[0].entries:
        entry.key = b"other"
    drain(start_task(memory_log(on)))


def test_an_older_state_is_refused_even_if_the_offsets_have_expired() -> None:
    """A state topic that was restored from a copy lies behind what was released."""
    on = cluster()
    fill(on, 3 * BATCH)
    drain(start_task(memory_log(on)))
    del on.topics[STATE].partitions[0].entries[1:]
    on.groups["g"].offsets.clear()
    assert len(states(on)) == 1
    with pytest.raises(StateRefused, match="a later release"):
        start_task(memory_log(on))
    assert check_output(memory_log(on)) == 3


def test_a_state_of_another_slot_rule_is_refused() -> None:
    on = cluster()
    for message in rows(BATCH).reshape(-1, 10, 3):
        on.produce(INPUT, message.astype("<f8").tobytes())
    drain(start_task(memory_log(on), format="float64", rows_per_message=10))
    with pytest.raises(StateRefused, match="with rows_per_message 10, but the settings say 5"):
        start_task(memory_log(on), format="float64", rows_per_message=5)
    entry = on.topics[STATE].partitions[0].entries[-1]
    assert entry.value is not None
    entry.value = entry.value.replace(b'"rule":"offsets"', b'"rule":"arrival"')
    with pytest.raises(StateRefused, match="rule 'arrival', but the settings say 'offsets'"):
        start_task(memory_log(on), format="float64", rows_per_message=10)


@pytest.mark.parametrize("version", [0, 2, "1"])
def test_a_state_of_another_version_is_refused(version: int | str) -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    entry = on.topics[STATE].partitions[0].entries[-1]
    entry.value = json.dumps(json.loads(entry.value or b"") | {"version": version}).encode()
    why = "cannot be read" if version == "1" else f"has version {version}, this program reads"
    with pytest.raises(StateRefused, match=why):
        start_task(memory_log(on))


def test_the_release_is_in_a_state_once() -> None:
    on = cluster()
    fill(on, 3 * BATCH)
    drain(start_task(memory_log(on)))
    entry = on.topics[STATE].partitions[0].entries[-1]
    state = json.loads(entry.value or b"")
    value = json.loads(state["release"]["value"])
    assert value["batch"] == 3 and "release" not in state["estimator"]
    assert (entry.value or b"").count(b"n_seen") == 1
    restored = start_task(memory_log(on))._learner._estimator.last_release
    assert restored is not None and restored == Release.model_validate(value)


@pytest.mark.parametrize(
    "change", [{"batch": 2}, {"version": 2}, {"components": [[1.0]]}, {"privacy": None}]
)
def test_a_state_whose_release_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    entry = on.topics[STATE].partitions[0].entries[-1]
    state = json.loads(entry.value or b"")
    value = json.loads(state["release"]["value"])
    for text in (json.dumps(value | change), "no JSON", "null"):
        state["release"]["value"] = text
        entry.value = json.dumps(state).encode()
        with pytest.raises(StateRefused, match="the stored model does not fit"):
            start_task(memory_log(on))


def test_the_time_of_a_release_is_shown_to_the_second() -> None:
    on = cluster()
    fill(on, BATCH)
    task = start_task(memory_log(on))
    drain(task)
    shown = task._metrics.registry.get_sample_value("dppca_published_timestamp_seconds")
    assert shown and shown == int(shown)
    [message] = memory_log(on).scan("m.out")
    when = dict(message.headers)["ce_time"].decode()
    assert datetime.datetime.fromisoformat(when).microsecond == 0 and "." not in when


@pytest.mark.parametrize("change", [{"epsilon": 4.0}, {"batch_size": 400}])
def test_a_state_of_other_settings_is_refused(change: dict[str, Any]) -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    with pytest.raises(StateRefused, match=r"epsilon|batch_size"):
        start_task(memory_log(on), **change)


def test_a_forked_history_is_refused() -> None:
    on = cluster()
    fill(on, 2 * BATCH)
    drain(start_task(memory_log(on)))
    entries = on.topics[STATE].partitions[0].entries
    on.produce(STATE, entries[-2].value)
    with pytest.raises(StateRefused, match="forked"):
        start_task(memory_log(on))


@pytest.mark.parametrize("junk", [b"", b"{}", b"null", b"\xff", b'{"version":2}'])
def test_junk_in_the_state_topic_is_refused(junk: bytes) -> None:
    on = cluster()
    on.produce(STATE, junk)
    with pytest.raises(StateRefused):
        start_task(memory_log(on))


def test_the_state_holds_no_record() -> None:
    on = cluster()
    marked = json.dumps({"cpu": 987654.125, "memory": 1, "disk": {"read": 2}}).encode()
    for _ in range(BATCH + 10):
        on.produce(INPUT, marked)
    drain(start_task(memory_log(on)))
    for entry in on.topics[STATE].partitions[0].entries:
        assert entry.value is not None
        assert b"987654" not in entry.value
        assert struct.pack("<d", 987654.125) not in entry.value
    assert FEATURES[0].encode() in (on.topics["m.out"].partitions[0].entries[0].value or b"")


@pytest.mark.parametrize("missing", ["null", "center"])
def test_a_record_that_lacks_a_feature(missing: str) -> None:
    """It is a null, or counts with the learned centre in place of the missing values."""
    options = {
        "center": "mean",
        "scales": "learn",
        "missing": missing,
        "batch_size": 2000,
        "seed": 1,
    }
    on = cluster()
    for cpu, memory, _ in (np.array([50.0, 1e3, -7.0]) + rows(5 * 2000)).tolist():
        on.produce(INPUT, json.dumps({"cpu": cpu, "memory": memory}).encode())  # no disk.read
    drain(start_task(memory_log(on), **options))
    last = releases(memory_log(on))[-1]
    assert last.batch == 5
    if missing == "null":
        assert last.status == "nothing_learned"  # every step asked anew
    else:
        assert last.status == "learned" and last.center is not None and last.deviation is not None
        assert last.center[0] == pytest.approx(50, abs=1)
        assert last.deviation[2] == last.components[0][2] == 0.0

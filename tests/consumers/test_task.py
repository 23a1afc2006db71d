"""One task on the in-process log: crashes at every point, zombies, rows inside messages."""

from __future__ import annotations

import json
import struct
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from consumers import testhooks
from consumers.codecs import Block
from consumers.errors import Fenced, LogError, OutcomeUnknown, StateRefused
from consumers.intake import Segment
from consumers.log import Chunk, Position
from consumers.memory_log import Cluster
from consumers.metrics import Metrics
from consumers.states import StateRecord
from consumers.task import Task

from .helpers import (
    BATCH,
    FEATURES,
    INPUT,
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

    testhooks.on_reach[:] = [listen]


def fill(on: Cluster, n: int, partitions: int = 1, seed: int = 0) -> None:
    for i, row in enumerate(rows(n, seed)):
        on.produce(INPUT, as_json(row), i % partitions)


def states(on: Cluster, task: int = 0) -> list[StateRecord]:
    import msgspec

    entries = on.topics[STATE].partitions[task].entries
    decode = msgspec.json.Decoder(StateRecord).decode
    return [decode(e.value) for e in entries if e.status == "committed" and e.value]


def check_states(on: Cluster, slots: int) -> None:
    """Batches 1, 2, ... and positions that move forward by exactly one batch each."""
    found = states(on)
    assert [s.batch for s in found] == list(range(1, len(found) + 1))
    totals = [sum(at.offset for at in s.next_positions().values()) for s in found]
    assert totals == [BATCH * (i + 1) for i in range(len(found))]
    assert len(found) == slots // BATCH


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("point", [p for p in testhooks.POINTS if p != "closing"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_crash_at_any_point(point: str, times: int, partitions: int) -> None:
    on = cluster(partitions)
    fill(on, 4 * BATCH + 50, partitions)
    crash_at(point, times)
    with pytest.raises(Crash):
        drain(start_task(memory_log(on)))
    testhooks.on_reach.clear()
    after = start_task(memory_log(on))
    drain(after)
    assert check_output(memory_log(on)) == {0: 4}
    check_states(on, 4 * BATCH + 50)


@pytest.mark.parametrize("point", [p for p in testhooks.POINTS if p != "closing"])
def test_crashes_change_nothing_without_noise(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit. With `paper`: `adaptive` starts a new block of batches after a restart."""
    monkeypatch.setenv("DPPCA_TEST_HOOKS", "1")
    monkeypatch.setenv("DPPCA_TEST_NOISE", "off")
    options: dict[str, Any] = {
        "method": "paper", "batch_size": 1000, "epsilon": 20.0, "delta": 1e-2, "K": 1.0, "a": 0.5,
        "C1": 8.0,
    }  # fmt: skip
    whole, broken = cluster(), cluster()
    fill(whole, 7000)
    fill(broken, 7000)
    drain(start_task(memory_log(whole), **options))
    for times in (1, 2, 1):
        crash_at(point, times)
        with pytest.raises(Crash):
            drain(start_task(memory_log(broken), **options))
    testhooks.on_reach.clear()
    drain(start_task(memory_log(broken), **options))
    wanted, found = releases(memory_log(whole)), releases(memory_log(broken))
    assert found[-1] == wanted[-1] and wanted[-1].batch == 7
    assert not wanted[-1].privacy.private
    assert (
        len({r.components[0].loadings["cpu"] for r in wanted if r.components}) > 3
    )  # it has learned
    assert {r.batch: r for r in found} == {r.batch: r for r in wanted}


class Gate:
    """Holds whoever reaches a point until it is opened."""

    def __init__(self, point: str) -> None:
        self.reached: Counter[str] = Counter()
        self.open = threading.Event()
        self._point = point
        testhooks.on_reach[:] = [self._reach]

    def _reach(self, point: str) -> None:
        self.reached[point] += 1
        if point == self._point:
            assert self.open.wait(30)

    def until(self, point: str, task: Task) -> Task:
        """Step until somebody reaches the point."""
        while not self.reached[point]:
            task.step(0.0)
        return task


@pytest.mark.parametrize("point", ["before_transaction", "inside_transaction", "after_commit"])
def test_the_next_batch_is_read_while_one_is_on_its_way(point: str) -> None:
    """And it cannot follow before that one is out."""
    on = cluster()
    fill(on, 3 * BATCH)
    gate = Gate(point)
    task = gate.until("batch_full", start_task(memory_log(on)))
    while task._intake.positions[0].offset < BATCH + BATCH // 2:
        assert task.step(0.0)
    assert task.current is None and not releases(memory_log(on))
    ending = threading.Thread(target=drain, args=(task,), daemon=True)
    ending.start()
    ending.join(0.3)
    assert ending.is_alive() and gate.reached["batch_full"] == 2
    assert gate.reached[point] == 1 and not releases(memory_log(on))
    gate.open.set()
    ending.join(30)
    task.settle()
    assert check_output(memory_log(on)) == {0: 3}
    check_states(on, 3 * BATCH)


def test_a_task_that_closes_waits_for_a_batch_on_its_way() -> None:
    on = cluster()
    fill(on, BATCH)
    gate = Gate("after_commit")
    task = gate.until("after_commit", start_task(memory_log(on)))
    threading.Timer(0.2, gate.open.set).start()
    task.close()
    assert check_output(memory_log(on)) == {0: 1}


def test_a_task_that_closes_does_not_wait_for_ever() -> None:
    """What was on its way is lost, or comes too late."""
    on = cluster()
    fill(on, BATCH)
    gate = Gate("before_transaction")
    task = gate.until("before_transaction", start_task(memory_log(on)))
    task.close()
    assert not states(on)
    testhooks.on_reach.clear()
    drain(start_task(memory_log(on)))
    gate.open.set()
    with pytest.raises(Fenced):
        task.settle()
    assert check_output(memory_log(on)) == {0: 1}
    check_states(on, BATCH)


def test_a_failure_on_the_way_comes_out_of_the_next_step() -> None:
    on = cluster()
    fill(on, 2 * BATCH)
    task = start_task(memory_log(on))

    def fail(moment: str) -> None:
        raise OutcomeUnknown("no answer")

    on.on_commit = fail
    with pytest.raises(OutcomeUnknown):
        drain(task)
    with pytest.raises(OutcomeUnknown):
        task.step(0.0)
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
    assert check_output(memory_log(on)) == {0: 3}
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
            raise LogError("no answer")

    on.on_commit = fail
    with pytest.raises(LogError):
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
    zombie.step(0.0)
    on.expire("g", zombie.membership.member, 1)  # type: ignore[attr-defined]
    owner = start_task(memory_log(on))
    drain(owner)
    before = memory_log(on).scan("m.out")
    with pytest.raises(Fenced):
        drain(zombie)
    assert memory_log(on).scan("m.out") == before
    assert check_output(memory_log(on)) == {0: 3}
    check_states(on, 3 * BATCH)


def test_a_zombie_that_wakes_after_its_commit() -> None:
    """Stopped between commit and publish: the new owner has published it, it must not."""
    on = cluster()
    fill(on, 3 * BATCH)
    zombie = start_task(memory_log(on))
    owners: list[Task] = []

    def listen(point: str) -> None:
        if point == "after_commit" and not owners:
            testhooks.on_reach.clear()
            on.expire("g", zombie.membership.member, 1)  # type: ignore[attr-defined]
            owners.append(start_task(memory_log(on)))
            drain(owners[0])

    testhooks.on_reach.append(listen)
    with pytest.raises(Fenced):
        drain(zombie)
    assert [r.batch for r in releases(memory_log(on))] == [1, 2, 3]


def test_a_member_that_came_back_cannot_commit_what_it_had() -> None:
    """Thrown out and back in, with the same task, while somebody else worked on it."""
    on = cluster()
    fill(on, 2 * BATCH)
    log = memory_log(on)
    task = start_task(log)
    task.step(0.0)  # some of the first batch
    membership = task.membership  # type: ignore[attr-defined]
    on.expire("g", membership.member, 1)
    claim = settled(membership)
    assert claim.tasks == {0} and claim is not task.claim
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


@pytest.mark.parametrize("per_message", [1, 7, 64, 1000])
@pytest.mark.parametrize("point", ["after_publish", "after_commit", "before_transaction"])
def test_a_batch_may_end_inside_a_message(per_message: int, point: str) -> None:
    """Every row is used once: the sum over batches of what the estimator was fed."""
    on = cluster()
    X = rows(1500)
    for start in range(0, len(X), per_message):
        on.produce(INPUT, X[start : start + per_message].astype("<f8").tobytes())
    fed: list[np.ndarray] = []

    def run(crash: int) -> None:
        task = start_task(memory_log(on), format="float64")
        learn = task._estimator.learn_array
        taken: list[np.ndarray] = []

        def spy(block: Any) -> None:
            taken.append(np.array(block))
            learn(block)

        task._estimator.learn_array = spy  # type: ignore[method-assign]

        def listen(reached: str) -> None:
            if reached == "after_commit":
                fed.extend(taken)
                taken.clear()

        crash_at(point, crash)
        testhooks.on_reach.insert(0, listen)
        drain(task)

    for crash in (1, 2):
        with pytest.raises(Crash):
            run(crash)
    run(99)
    assert np.concatenate(fed).tolist() == X.tolist()
    assert check_output(memory_log(on)) == {0: 5}


def test_positions_inside_messages() -> None:
    chunk = Chunk(0, [10, 12, 13], [b"", b"", b""])
    block = Block(np.arange(12.0).reshape(6, 2), np.array([2, 3, 6]))
    segment = Segment(chunk, block)
    found = []
    for _ in range(6):
        segment.take(1)
        found.append(segment.position())
    assert found == [
        Position(10, 1), Position(11), Position(13), Position(13, 1), Position(13, 2), Position(14),
    ]  # fmt: skip
    assert len(Segment(chunk, block, skip=1)) == 5
    assert len(Segment(chunk, block, skip=5)) == 4  # never more than the first message


def test_bad_messages_take_their_slots() -> None:
    on = cluster()
    for i, row in enumerate(rows(BATCH)):
        good = as_json(row)
        on.produce(INPUT, [good, None, b"{", good[:-3], b"\xff" * 50][i % 5])
    drain(start_task(memory_log(on)))
    assert [r.n_seen for r in releases(memory_log(on))] == [BATCH]


def test_offsets_that_retention_removed() -> None:
    on = cluster()
    fill(on, 3 * BATCH)
    task = start_task(memory_log(on))
    drain(task, until=lambda: bool(states(on)))
    task.close()
    on.trim(INPUT, 0, 2 * BATCH + 10)
    fill(on, 2 * BATCH)
    after = start_task(memory_log(on))
    drain(after)
    assert states(on)[-1].next_positions() == {0: Position(4 * BATCH + 10)}
    lost = after._metrics.registry.get_sample_value("dppca_offsets_lost_total")
    assert lost == BATCH + 10
    assert check_output(memory_log(on)) == {0: 3}


def test_offsets_removed_while_reading() -> None:
    on = cluster()
    fill(on, BATCH + 50)
    task = start_task(memory_log(on, max_records=10))
    for _ in range(3):
        task.step(0.0)
    on.trim(INPUT, 0, 40)
    assert not task.step(0.0)  # it seeks
    drain(task)
    assert states(on)[-1].next_positions()[0].offset == BATCH + 10


def test_a_topic_made_anew_is_refused() -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    on.topics[INPUT].partitions[0].entries.clear()
    with pytest.raises(StateRefused, match="truncated or made anew"):
        start_task(memory_log(on))


def test_new_partitions_are_read_from_their_beginning() -> None:
    on = cluster()
    fill(on, BATCH)
    task = start_task(memory_log(on))
    drain(task)
    on.add_partitions(INPUT, 2)
    fill(on, 3 * BATCH, partitions=3)
    task.step(0.0)
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
    task = Task(0, log, membership, settled(membership), made, Metrics())
    fill(on, BATCH)
    drain(task)
    assert states(on)[-1].next_positions() == {0: Position(2 * BATCH)}
    assert len(states(on)) == 1


def test_shards_split_the_partitions() -> None:
    on = cluster(partitions=4, shards=2)
    fill(on, 4 * BATCH, partitions=4)
    log = memory_log(on)
    membership = log.join()
    claim = settled(membership, 2)
    tasks = [Task(i, log, membership, claim, config(shards=2), Metrics()) for i in (0, 1)]
    for task in tasks:
        drain(task)
    assert check_output(log) == {0: 2, 1: 2}
    assert [set(states(on, i)[-1].next_positions()) for i in (0, 1)] == [{0, 2}, {1, 3}]


# States that must not be gone on from


def test_a_state_that_is_gone_is_refused() -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    on.topics[STATE].partitions[0].entries.clear()
    with pytest.raises(StateRefused, match="states are lost"):
        start_task(memory_log(on))


@pytest.mark.parametrize("change", [{"epsilon": 4.0}, {"batch_size": 400}, {"shards": 2}])
def test_a_state_of_other_settings_is_refused(change: dict[str, Any]) -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    with pytest.raises(StateRefused, match=r"epsilon|batch_size|shards"):
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

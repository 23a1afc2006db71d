"""Plans by samples are kept before their records are read: a successor continues with them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.errors import Fenced, StateRefused
from consumers.planning import batch_planner
from consumers.planning.kept_plan import SamplePlan, planned_sample
from consumers.planning.plan import split_batch

from .helpers import INPUT, check_output, cluster, drain, memory_log, rows, start_task
from .helpers import as_json as packed
from .test_timeline import Driver

SIZE = 7


def replay(values: list[bytes], size: int) -> list[dict[int, int]]:
    """The positions after each batch, from the kept plans alone, each of which extends the last."""
    found: list[dict[int, int]] = []
    for value in values:
        plan = SamplePlan.decode(value)
        at = dict(plan.start)
        for sample in plan.samples:
            planned = planned_sample(at, sample, size)
            at, rest = dict(planned.before), planned.ranges
            while rest:
                batch, rest = split_batch(rest, size)
                at |= {p: end for p, _, end in batch}
                if at in found:
                    continue
                before = found[-1] if found else plan.start
                assert sum(at.values()) == sum(before.values()) + size
                found.append(dict(at))
    return found


moves = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), max_size=25),
        st.sampled_from(["nothing", "look", "one", "two", "all", "again", "again"]),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(moves, st.integers(2, 4))
def test_the_kept_samples_decide(steps: list[tuple[list[int], str, bool]], k: int) -> None:
    """Whenever batches are taken and committed, and whenever a task starts again."""
    driver = Driver(k, SIZE, kind="CreateTime")
    for sent, then, committed in steps:
        for p in sent:
            driver.produce(p % k)
        if then == "again":  # it resumes after the last state: batches after it are taken again
            done = driver.notes.committed or dict.fromkeys(range(k), 0)
            driver.positions = done
            ends = driver.ends()
            driver.taken = driver.taken[: ends.index(done) + 1] if done in ends else []
            driver.start()
        elif then != "nothing":
            before = driver.notes.committed
            driver.take({"look": 0, "one": 1, "two": 2, "all": 1 << 30}[then])
            if not committed:
                driver.notes.committed = before
    decided = replay(driver.notes.values, SIZE)
    assert driver.ends() == decided[: len(driver.taken)]


def test_a_new_partition_is_part_of_the_sample() -> None:
    driver = Driver(2, SIZE, kind="CreateTime")
    driver.produce(0, n=20)
    driver.take(1)
    driver.on.add_partitions(INPUT, 1)
    driver.produce(2, n=30)
    driver.take(2)
    driver.start()
    driver.take()
    assert driver.ends() == replay(driver.notes.values, SIZE)
    assert driver.ends()[-1][2] > 0


def test_the_beginning_is_kept() -> None:
    """A new model begins where it first began, unless it is told to begin elsewhere."""
    for kind in ("CreateTime", "LogAppendTime"):
        driver = Driver(2, SIZE, kind)
        driver.positions = {}
        driver.produce(0, n=3)
        driver.begin_at = "latest"
        assert driver.start()._positions == {0: 3, 1: 0}
        driver.produce(1, n=5)
        assert driver.start()._positions == {0: 3, 1: 0}
        driver.begin_at = "earliest"
        assert driver.start()._positions == {0: 0, 1: 0}


def look(driver: Driver, times: int) -> None:
    """Fill three partitions at different rates, and sample each time, while no batch is taken."""
    for i in range(times):
        for p in range(3):
            driver.produce(p, n=SIZE * (1 + (i + p) % 3))
        driver.take(0)


def test_a_restart_moves_no_record_however_many_samples_wait() -> None:
    """A task may be dropped because a record was slow, and must not decide by it."""
    undisturbed, dropped = (Driver(3, SIZE, kind="CreateTime") for _ in range(2))
    for driver in (undisturbed, dropped):
        look(driver, 60)
        assert len(SamplePlan.decode(driver.notes.values[-1]).samples) == 60
    dropped.start()
    for driver in (undisturbed, dropped):
        for _ in range(30):
            driver.take()
    assert len(dropped.ends()) > 300 and dropped.ends() == undisturbed.ends()


def test_samples_are_committed_together_where_very_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans are written as a whole each time: they must not become the load, nor too large."""
    monkeypatch.setattr(batch_planner, "MANY", 5)
    monkeypatch.setattr(batch_planner, "PLAN_NUMBERS", 3 * 20)
    now = 0.0
    monkeypatch.setattr(batch_planner, "time", SimpleNamespace(monotonic=lambda: now))
    driver = Driver(3, SIZE, kind="CreateTime")
    kept = []
    for _ in range(30):
        look(driver, 1)
        now += 0.3
        kept.append(len(SamplePlan.decode(driver.notes.values[-1]).samples))
    assert kept[:12] == [1, 2, 3, 4, 5, 5, 5, 5, 9, 9, 9, 9]
    assert kept[-1] == 20
    driver.take()
    for _ in range(80):
        now += 2.0
        driver.take()
    decided = replay(driver.notes.values, SIZE)
    assert driver.ends() == decided and sum(decided[-1].values()) > 30 * 5 * SIZE


def test_a_plan_that_is_kept_again_has_the_samples_since_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else, while batches are taken fast, those that wait for their second wait for ever."""
    monkeypatch.setattr(batch_planner, "MANY", 5)
    now = 0.0
    monkeypatch.setattr(batch_planner, "time", SimpleNamespace(monotonic=lambda: now))
    driver = Driver(3, SIZE, kind="CreateTime")
    look(driver, 5)
    driver.produce(0, n=1000 * SIZE)
    driver.take(0)
    for _ in range(20):
        look(driver, 1)
        driver.take(16)
        now += 0.5
        driver.take(0)
        ends = {p: driver.on.topics[INPUT].partitions[p].end() for p in range(3)}
        assert SamplePlan.decode(driver.notes.values[-1]).samples[-1] == ends


def test_a_long_plan_is_kept_again_and_again() -> None:
    """A successor looks for it among the last states only, so batches wait for that."""
    driver = Driver(2, 1, kind="CreateTime")
    driver.produce(0, n=200)
    planner = driver.start()
    for taken in (32, 64, 96):
        batches = list(iter(planner.next_batch, None))
        assert len(batches) == 32 and batches[-1].positions == {0: taken, 1: 0}
        kept = len(driver.notes.values)
        driver.notes.committed = dict(batches[-1].positions)
        planner.extend()
        assert len(driver.notes.values) == kept + 1
    assert SamplePlan.decode(driver.notes.values[-1]) == SamplePlan(
        "earliest", {0: 0, 1: 0}, [{0: 200, 1: 0}]
    )


def test_one_partition_needs_no_plan_until_there_are_two() -> None:
    driver = Driver(1, SIZE, kind="CreateTime")
    driver.produce(0, n=30)
    driver.take(1)
    assert driver.notes.values == []
    driver.on.add_partitions(INPUT, 1)
    driver.produce(1, n=10)
    driver.take(1)
    driver.start()
    driver.take()
    decided = replay(driver.notes.values, SIZE)
    assert [at.get(1, 0) for at in driver.ends()] == [at.get(1, 0) for at in decided]
    assert [at[0] for at in driver.ends()] == [at[0] for at in decided]


def test_a_plan_that_cannot_be_read_is_refused() -> None:
    for value in (b"x", b"[]", b"{}", b'{"plan":2,"new":"","start":{},"samples":[]}'):
        with pytest.raises(StateRefused, match="plan on the state topic"):
            SamplePlan.decode(value)


def test_an_owner_that_was_replaced_keeps_no_plan() -> None:
    on = cluster(2)
    task = start_task(memory_log(on))
    successor = start_task(memory_log(on))
    for row in rows(400):
        on.produce(INPUT, packed(row), 0)
    with pytest.raises(Exception, match="could not be kept"):
        task.input.planner.extend()  # type: ignore[attr-defined]
    with pytest.raises(Fenced):
        task.turn(0.0)
    drain(successor)
    assert check_output(memory_log(on)) > 0

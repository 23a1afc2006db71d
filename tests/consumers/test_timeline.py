"""Batches in the order of the broker's time: a pure function of the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.monitoring.metrics import Metrics
from consumers.planning.batch_planner import BatchPlanner, PlannedBatch, PlanOver
from consumers.planning.timeline import LOG_APPEND_TIME, BrokerTime
from consumers.ranges import Range
from tests.support.memory import MemoryBroker

from .helpers import INPUT, PlanNotes, memory_log

START_MS = 1_700_000_000_000
SLACK_MS = 50


class Driver:
    """A topic whose brokers stamp messages, a clock, and a planner that can start again."""

    def __init__(self, partitions: int, size: int, kind: str = LOG_APPEND_TIME) -> None:
        self.on, self.size, self.now_ms = MemoryBroker(), size, START_MS
        self.configs = {"message.timestamp.type": kind}
        self.on.create(INPUT, partitions, self.configs)
        self.positions: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self.taken: list[PlannedBatch] = []
        self.planner: BatchPlanner | None = None
        self.notes = PlanNotes()
        self.begin_at: Literal["earliest", "latest"] = "earliest"

    def start(self) -> BatchPlanner:
        """A planner that resumes after the last batch that was taken."""
        log = memory_log(self.on)
        times = BrokerTime(log, INPUT, SLACK_MS, lambda: self.now_ms / 1000)
        self.planner = BatchPlanner(
            log.offsets(INPUT),
            INPUT,
            Metrics(),
            size=self.size,
            interval_s=3600.0,
            refresh_s=0.0,
            patience_s=60.0,
            times=times,
            plans=self.notes.plans(),
            sampler=lambda: None,
        )
        self.planner.begin(self.positions, self.begin_at)
        return self.planner

    def produce(self, partition: int, skew_ms: int = 0, n: int = 1, **more: Any) -> None:
        self.on.clock = lambda: (self.now_ms + skew_ms) / 1000
        for _ in range(n):
            self.on.produce(INPUT, b"{}", partition, **more)

    def take(self, most: int = 1 << 30) -> None:
        """Plan, and take some batches of the plan."""
        planner = self.planner or self.start()
        planner.extend()
        while most > 0 and (batch := planner.next_batch()) is not None:
            self.taken.append(batch)
            self.positions = self.notes.committed = dict(batch.positions)
            most -= 1

    def ends(self) -> list[dict[int, int]]:
        return [dict(batch.positions) for batch in self.taken]


def by_time(on: MemoryBroker, size: int) -> Iterator[dict[int, int]]:
    """The positions after each batch, from the times in the log alone."""
    rows = []
    for p, partition in enumerate(on.topics[INPUT].partitions):
        latest = 0
        for offset, entry in enumerate(partition.entries):
            latest = max(latest, entry.time_ms)
            rows.append((latest, p, offset))
    rows.sort()
    at = dict.fromkeys(range(len(on.topics[INPUT].partitions)), 0)
    for i, (_, p, offset) in enumerate(rows, 1):
        at[p] = offset + 1
        if i % size == 0:
            yield dict(at)


# Time passes, messages come, and somebody looks, takes one batch or all, or starts again.
steps = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 2, 5, 30, 200]),
        st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 0)), max_size=5),
        st.sampled_from(["nothing", "nothing", "look", "one", "all", "again"]),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps, st.integers(2, 4), st.integers(1, 9), st.lists(st.integers(-25, 24), min_size=4))
def test_the_log_alone_decides(
    moves: list[tuple[int, list[tuple[int, int]], str]], k: int, size: int, skew: list[int]
) -> None:
    """Clocks of brokers differ, times step back, looks are late, and tasks start again."""
    driver = Driver(k, size)
    for passed_ms, sent, then in moves:
        driver.now_ms += passed_ms
        for p, back in sent:
            driver.produce(p % k, skew[p % k] + back)
        if then == "again":
            driver.start()
        elif then != "nothing":
            driver.take({"look": 0, "one": 1, "all": 1 << 30}[then])
    driver.now_ms += 10 * SLACK_MS
    for _ in range(200):
        driver.take()
    assert driver.ends() == list(by_time(driver.on, size))


@settings(max_examples=100, deadline=None)
@given(steps, st.integers(1, 6))
def test_open_transactions_hold_back_and_move_nothing(
    moves: list[tuple[int, list[tuple[int, int]], str]], size: int
) -> None:
    driver = Driver(3, size)
    pending = []
    numbers = count()
    for passed_ms, sent, then in moves:
        driver.now_ms += passed_ms
        for p, back in sent:
            is_open = next(numbers) % 4 == 0
            driver.produce(p % 3, status="open" if is_open else "committed")
            if is_open:
                pending.append(driver.on.topics[INPUT].partitions[p % 3].entries[-1])
            if back:
                for entry in pending:
                    entry.status = "aborted"
        driver.take(0 if then == "look" else 1 << 30)
        for at in driver.taken[-1:]:
            for p, end in at.positions.items():
                assert end <= driver.on.topics[INPUT].partitions[p].end()
    for entry in pending:
        entry.status = "committed"
    driver.now_ms += 10 * SLACK_MS
    for _ in range(200):
        driver.take()
    assert driver.ends() == list(by_time(driver.on, size))


def test_a_silent_partition_holds_up_a_batch_for_the_slack() -> None:
    driver = Driver(2, 4)
    driver.produce(0, n=6)
    driver.now_ms += SLACK_MS
    driver.take()
    assert driver.taken == []
    driver.now_ms += 1  # the millisecond of the last message is over
    driver.take()
    assert [batch.ranges for batch in driver.taken] == [(Range(0, 0, 4),)]


def test_a_message_of_each_partition_makes_a_batch_final_at_once() -> None:
    driver = Driver(2, 4)
    driver.produce(0, n=6)
    driver.now_ms += 1
    driver.produce(0)
    driver.produce(1)
    driver.take()
    assert [batch.ranges for batch in driver.taken] == [(Range(0, 0, 4),)]


def test_a_partition_that_is_added_joins_by_its_times() -> None:
    """Its messages are in the batches of their times, although nobody had seen it before."""
    driver = Driver(2, 4)
    driver.take()
    assert driver.planner is not None
    driver.planner._refresh_s = driver.planner._refresh_at = 1e12  # nobody looks for partitions
    driver.on.add_partitions(INPUT, 1)
    for p in (2, 0, 1, 2, 2, 0, 1):
        driver.now_ms += 1
        driver.produce(p)
    driver.now_ms += 2 * SLACK_MS
    driver.take()
    assert driver.ends() == list(by_time(driver.on, 4)) == [{0: 1, 1: 1, 2: 2}]


def test_what_retention_removed_comes_first() -> None:
    """It is planned like all else, and passed over if nothing is left of a batch."""
    driver = Driver(2, 4)
    for p in (0, 1, 0, 1):
        driver.now_ms += 1
        driver.produce(p)
    driver.now_ms += 2 * SLACK_MS
    driver.take()
    for p in [1] * 10 + [0] * 6:
        driver.now_ms += 1
        driver.produce(p)
    driver.on.trim(INPUT, 0, 7)  # five messages after the first batch
    driver.now_ms += 2 * SLACK_MS
    for _ in range(5):
        driver.take()
    assert [batch.ranges for batch in driver.taken] == [
        (Range(0, 0, 2), Range(1, 0, 2)),
        (Range(0, 6, 7), Range(1, 2, 5)),  # 2 to 5 of partition 0 were a batch
        (Range(1, 5, 9),),
        (Range(0, 7, 8), Range(1, 9, 12)),
    ]


def test_times_of_senders_are_not_used() -> None:
    """Not on another topic, and not those of messages from before the topic was switched."""
    driver = Driver(2, 4, kind="CreateTime")
    assert driver.start()._timeline is None
    driver = Driver(2, 4)
    driver.produce(0, skew_ms=1000 * SLACK_MS)  # before the switch, by a sender
    for _ in range(3):
        driver.produce(0)
        driver.produce(1)
    driver.positions = {0: 1, 1: 0}
    assert driver.start()._timeline is None
    driver.now_ms += 1000 * SLACK_MS  # now the time is no longer in the future
    driver.produce(0)
    assert driver.start()._timeline is None
    driver.positions = {0: 4, 1: 0}
    assert driver.start()._timeline is not None


def test_a_first_message_of_a_sender_means_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(2, 4)
    driver.produce(1, n=3)
    monkeypatch.setattr(
        "tests.support.memory.MemoryReader._stamps",
        lambda self, p, offsets: ([None] * len(offsets), [None] * len(offsets)),
    )
    assert driver.start()._timeline is None


def test_another_setting_of_the_topic_ends_the_plan() -> None:
    for kind, other in ((LOG_APPEND_TIME, "CreateTime"), ("CreateTime", LOG_APPEND_TIME)):
        driver = Driver(2, 4, kind)
        planner = driver.start()
        planner.extend()
        driver.configs["message.timestamp.type"] = other
        driver.on.topics[INPUT].configs = driver.configs
        with pytest.raises(PlanOver, match="another message"):
            planner.extend()
        assert (driver.start()._timeline is None) is (other == "CreateTime")


def test_a_message_from_the_future_ends_the_plan() -> None:
    driver = Driver(2, 4)
    planner = driver.start()
    driver.produce(1, skew_ms=3 * SLACK_MS)
    with pytest.raises(PlanOver, match="no broker has set"):
        planner.extend()
    assert driver.start()._timeline is None


def test_one_partition_needs_no_times_until_there_are_two() -> None:
    driver = Driver(1, 4)
    driver.produce(0, n=4)
    driver.take()
    assert driver.planner is not None and driver.planner._timeline is None
    assert [batch.ranges for batch in driver.taken] == [(Range(0, 0, 4),)]
    driver.on.add_partitions(INPUT, 1)
    driver.take()
    assert driver.planner._timeline is not None

"""The plan is a function of offsets: its properties, and its independence of records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.errors import ClusterError, StateRefused, Unavailable
from consumers.monitoring.metrics import Metrics
from consumers.planning.batch_planner import BatchPlanner
from consumers.planning.plan import (
    apportion,
    skip_removed,
    slots_of,
    split_batch,
    whole_batches,
)
from consumers.planning.timeline import BrokerTime
from consumers.ranges import Range
from tests.support.memory import MemoryReader

from .helpers import INPUT, PlanNotes, as_json, cluster, memory_log, rows

counts = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


@given(counts, st.data())
def test_shares_are_whole_and_within_one_of_proportion(n: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(n)))
    shares = apportion(n, total)
    assert sum(shares) == total
    for count, share in zip(n, shares, strict=True):
        assert 0 <= share <= count
        assert abs(share - total * count / max(1, sum(n))) < 1


def test_more_than_there_is_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="between 0 and 3"):
        apportion([1, 2], 4)


samples = st.lists(  # how far each of three partitions moves, and what retention removes
    st.tuples(*[st.tuples(st.integers(0, 40), st.integers(0, 10))] * 3), max_size=12
)


@settings(max_examples=200, deadline=None)
@given(samples, st.integers(1, 30))
def test_batches_are_disjoint_whole_and_in_order(
    moves: list[tuple[tuple[int, int], ...]], size: int
) -> None:
    """For any samples, every offset is in one batch, and skipped only with its whole batch."""
    first, end = [0, 0, 0], [0, 0, 0]
    positions = dict.fromkeys(range(3), 0)
    for move in moves:
        for p, (more, gone) in enumerate(move):
            end[p] += more
            first[p] = min(end[p], first[p] + gone)
        ranges = whole_batches(positions, dict(enumerate(end)), size)
        for p, start, stop in ranges:
            assert start == positions[p] and start < stop <= end[p]
        waiting = sum(end) - sum(positions.values())
        assert sum(stop - start for _, start, stop in ranges) == waiting // size * size
        skipped, rest = skip_removed(ranges, dict(enumerate(first)), size)
        every, left = batches(ranges, size), batches(rest, size)
        for batch in every:
            assert sum(stop - start for _, start, stop in batch) == size
            for p, start, stop in batch:
                assert start == positions[p]
                positions[p] = stop
        # Retention changes no batch: some at the start are skipped, and only those.
        gone = [all(stop <= first[p] for p, _, stop in batch) for batch in every]
        passed = [*gone, False].index(False)
        assert left == every[passed:]
        assert skipped == {p: stop for batch in every[:passed] for p, _, stop in batch}


def batches(ranges: list[Range], size: int) -> list[list[Range]]:
    found = []
    while ranges:
        batch, ranges = split_batch(ranges, size)
        found.append(batch)
    return found


def test_partitions_advance_together() -> None:
    """After each batch of a long stretch, every partition is about as far as all of them are."""
    ranges = whole_batches({0: 0, 1: 0, 2: 0}, {0: 10_000, 1: 1_000, 2: 17}, 100)
    total = sum(r.end for r in ranges)
    wholes = {r.partition: r.end for r in ranges}
    done = dict.fromkeys(wholes, 0)
    taken = 0
    while ranges:
        batch, ranges = split_batch(ranges, 100)
        taken += 100
        for r in batch:
            done[r.partition] = r.end
        for p, whole in wholes.items():
            assert abs(done[p] - whole * taken / total) < 20


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_every_offset_has_its_own_place(lengths: list[int]) -> None:
    ranges = [Range(p, 7, 7 + length) for p, length in enumerate(lengths)]
    found = slots_of(ranges)
    assert sorted(found.tolist()) == list(range(sum(lengths)))
    assert np.array_equal(found, slots_of([Range(p, 50, 50 + n) for p, n in enumerate(lengths)]))


def test_partitions_are_mixed_within_a_batch() -> None:
    """Both halves hold a fair part of each partition, and pairs are as mixed as drawn ones are."""
    lengths = [3000, 1000]
    at = slots_of([Range(0, 0, 3000), Range(1, 0, 1000)])
    owner = np.empty(4000, dtype=int)
    owner[at] = np.repeat([0, 1], lengths)
    assert abs((owner[:2000] == 1).sum() - 500) < 25
    mixed = (owner[0::2] != owner[1::2]).mean()
    assert abs(mixed - 2 * 0.75 * 0.25) < 0.05


# The clock's side


class Flaky(MemoryReader):
    error: Exception | None = None

    def bounds(self, partitions):  # type: ignore[no-untyped-def]
        if self.error is not None:
            raise self.error
        return super().bounds(partitions)


def planner(offsets: MemoryReader, size: int = 10, **changes: float) -> BatchPlanner:
    how = {"interval_s": 3600.0, "refresh_s": 0.0, "patience_s": 60.0, **changes}
    log = offsets._cluster
    times = BrokerTime(log, INPUT, 50, lambda: log.broker.clock())
    return BatchPlanner(
        offsets,
        INPUT,
        Metrics(),
        size=size,
        times=times,
        plans=PlanNotes().plans(),
        sampler=lambda: None,
        **how,
    )


def test_partitions_and_lag_are_known_from_the_beginning() -> None:
    on = cluster(3)
    for row in rows(7):
        on.produce(INPUT, as_json(row), 1)
    made = planner(memory_log(on).reader(INPUT), refresh_s=3600.0)
    made.begin({}, "earliest")
    shown = made._metrics.registry.get_sample_value
    assert (shown("dppca_input_partitions"), shown("dppca_lag_messages")) == (3, 7)


def test_samples_are_used_in_order_and_only_if_they_allow_a_batch() -> None:
    on = cluster(2)
    made = planner(memory_log(on).reader(INPUT))
    made.begin({}, "earliest")

    def produce(n: int, partition: int) -> None:
        for row in rows(n):
            on.produce(INPUT, as_json(row), partition)
        made.extend()

    produce(9, 0)
    assert made.next_batch() is None and not made._stretches
    produce(1, 1)  # 9 and 1 make the first batch
    produce(5, 1)  # not enough: this sample is forgotten
    produce(25, 0)  # 25 and 5: three batches
    produce(9, 0)
    assert len(made._stretches) == 2
    batches = []
    while (batch := made.next_batch()) is not None:
        batches.append(batch.ranges)
    assert batches == [
        (Range(0, 0, 9), Range(1, 0, 1)),
        (Range(0, 9, 17), Range(1, 1, 3)),
        (Range(0, 17, 26), Range(1, 3, 4)),
        (Range(0, 26, 34), Range(1, 4, 6)),
    ]


def test_the_plan_does_not_depend_on_when_batches_are_taken() -> None:
    """A task that keeps up and one that lags get the same batches from the same samples."""
    on = cluster(3)
    eager, lazy = (
        planner(memory_log(on).reader(INPUT), 25, refresh_s=refresh_s)
        for refresh_s in (0.0, 3600.0)
    )
    for made in (eager, lazy):
        made.begin({}, "earliest")
    rng = np.random.default_rng(0)
    taken: list[list[object]] = [[], []]
    for _ in range(40):
        for p in range(3):
            for row in rows(int(rng.integers(0, 12))):
                on.produce(INPUT, as_json(row), p)
        for made in (eager, lazy):
            made.extend()
        while (batch := eager.next_batch()) is not None:
            taken[0].append(batch)
    for _ in range(10):  # samples are handed over a few at a time
        while (batch := lazy.next_batch()) is not None:
            taken[1].append(batch)
        lazy.extend()
    assert taken[0] == taken[1] and len(taken[0]) > 10


def test_nothing_of_a_new_partition_is_passed_over() -> None:
    """`start="latest"` applies to partitions that exist at the start, even if there are none.

    If retention has already removed messages, the plan still begins at offset 0.
    """
    on = cluster(0)
    made = planner(memory_log(on).reader(INPUT))
    assert made.begin({}, "latest") == {}
    made.extend()
    assert made.next_batch() is None
    on.add_partitions(INPUT, 2)
    for row in rows(24):
        on.produce(INPUT, as_json(row), 1)
    on.trim(INPUT, 1, 15)
    made.extend()
    batch = made.next_batch()
    assert batch is not None and batch.ranges == (Range(1, 10, 20),)  # nothing of 0 to 9 is left
    assert batch.positions == {0: 0, 1: 20}
    assert made.next_batch() is None

    later = planner(memory_log(on).reader(INPUT))
    assert later.begin({1: 20}, "latest") == {0: 0, 1: 20}


def test_a_partition_that_ends_early_while_it_runs_offers_nothing() -> None:
    """A new leader may lag for a moment: positions stay, and nothing is refused."""
    on = cluster()
    for row in rows(30):
        on.produce(INPUT, as_json(row))
    made = planner(memory_log(on).reader(INPUT))
    made.begin({0: 20}, "earliest")
    del on.topics[INPUT].partitions[0].entries[15:]
    made.extend()
    assert made.next_batch() is not None and made.next_batch() is None
    with pytest.raises(StateRefused, match="truncated or recreated"):
        planner(memory_log(on).reader(INPUT)).begin({0: 20}, "earliest")
    with pytest.raises(StateRefused, match="truncated or recreated"):
        planner(memory_log(on).reader(INPUT)).begin({0: 10, 1: 3}, "earliest")


def test_one_partition_is_asked_for_its_end_when_the_plan_runs_out() -> None:
    """Until then once in a while, so that brokers that are away are noticed."""
    on = cluster()
    offsets = Flaky(memory_log(on), INPUT)
    made = planner(offsets, refresh_s=3600.0)
    for row in rows(20):
        on.produce(INPUT, as_json(row))
    made.begin({}, "earliest")
    offsets.error = Unavailable("no broker answers")
    for _ in range(2):
        made.extend()  # asks nothing
        assert made.next_batch() is not None
    for _ in range(2):
        with pytest.raises(Unavailable):
            made.extend()
    offsets.error = None
    for row in rows(20):
        on.produce(INPUT, as_json(row))
    made.extend()
    assert made.next_batch() is not None
    offsets.error = Unavailable("no broker answers")
    made._ask_at = 0.0  # a second later
    for _ in range(2):
        with pytest.raises(Unavailable):
            made.extend()


def test_samples_that_fail_are_taken_again_and_in_the_end_reported() -> None:
    on = cluster()
    offsets = Flaky(memory_log(on), INPUT)
    made = planner(offsets, interval_s=0.001, patience_s=0.05)
    made.begin({}, "earliest")
    offsets.error = Unavailable("no broker answers")
    made.start()
    with pytest.raises(ClusterError, match=r"could not be read for 0\.05 s"):
        while made.next_batch() is None:
            made.wait(0.001)
    offsets.error = None
    for row in rows(10):
        on.produce(INPUT, as_json(row))
    made.wait(30)
    assert made.next_batch() is not None
    made.close()

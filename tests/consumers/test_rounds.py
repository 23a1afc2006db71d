"""Rounds by the broker's clock: the records of each round, and their order.

Neighbouring streams differ in everything that one subject sends. What the others' records become
must be the same for both: the rounds that are released, the records in each, and their order. The
mutants at the end are the obvious implementations, and each of them fails that test.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.errors import ClusterError, ConfigurationError, OffsetsGone, StateRefused
from consumers.monitoring.metrics import Metrics
from consumers.planning.round_planner import PlannedRound, RoundPlanner
from consumers.planning.timeline import BrokerTime, cuts
from consumers.protocols import Bounds, TopicOffsets
from consumers.ranges import Range
from consumers.reading.round_reader import RoundDecoder, RoundReader
from consumers.settings import RoundRule
from tests.support.memory import MemoryBroker, MemoryReader

from .helpers import INPUT, memory_log

ROUND_MS, SLACK_MS = 10_000, 2_000
RULE = RoundRule("@key", ROUND_MS, period=1)
FIRST = 100  #: the first round
START_MS = RULE.start_ms(FIRST)
BY_BROKER = {"message.timestamp.type": "LogAppendTime"}


class Sent(NamedTuple):
    """A message: its time after the start, its partition, its subject and its value."""

    at_ms: int
    partition: int
    subject: str
    value: int


class Records:
    """A codec and an estimator in one: keeps the rows of the estimator, in order."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None]
    ) -> tuple[np.ndarray, list[Any]]:
        return np.array([[int(v or b"")] for v in values], dtype=float), list(keys)

    def take(self, rows: np.ndarray, subjects: Sequence[Any]) -> None:
        found = zip(subjects, rows[:, 0].astype(int).tolist(), strict=True)
        self.taken += [(subject.decode(), value) for subject, value in found]


Rounds = dict[int, list[tuple[str, int]]]


def topic(
    sent: Iterable[Sent], partitions: int = 3, configs: dict[str, str] = BY_BROKER
) -> MemoryBroker:
    """An input topic with these messages, appended in this order."""
    on = MemoryBroker()
    on.create(INPUT, partitions, configs)
    for message in sent:
        at_s = (START_MS + message.at_ms) / 1000
        on.clock = lambda at_s=at_s: at_s
        on.produce(INPUT, b"%d" % message.value, message.partition, message.subject.encode())
    return on


class Driver:
    """Plans and reads rounds on a topic, as a task does."""

    def __init__(
        self,
        on: MemoryBroker,
        planner: type[RoundPlanner] = RoundPlanner,
        reader: type[RoundReader] = RoundReader,
        source: type[MemoryReader] = MemoryReader,
        max_records: int = 7,
        rule: RoundRule = RULE,
    ) -> None:
        log = memory_log(on, max_records=max_records)
        self.now_ms = START_MS
        self.records = Records()
        self.planner = planner(
            MemoryReader(log, INPUT),
            INPUT,
            rule,
            Metrics(),
            interval_s=0.0,
            refresh_s=0.0,
            times=BrokerTime(log, INPUT, SLACK_MS, lambda: self.now_ms / 1000),
        )
        self.reader = reader(
            source(log, INPUT, stamped=True),
            INPUT,
            self.records,
            rule,
            Metrics(),
            stall_s=60.0,
            take=self.records.take,
        )
        self.planner.begin({}, FIRST, 0)
        self.positions: dict[int, int] = {}

    def step(self) -> PlannedRound | None:
        """Plan a round, and read all of it."""
        planned = self.planner.next_round()
        if planned is not None:
            self.reader.start(planned)
            while not self.reader.complete:
                self.reader.read(0.0)
            self.reader.finish()
            self.positions = dict(planned.positions)
        return planned

    def rounds(self, until_ms: int) -> Rounds:
        """All rounds that are over at a time after the start."""
        self.now_ms = START_MS + until_ms
        found: Rounds = {}
        while (planned := self.step()) is not None:
            assert planned.number not in found
            found[planned.number - FIRST], self.records.taken = self.records.taken, []
        return found


def read_rounds(sent: Iterable[Sent], until_ms: int, **options: Any) -> Rounds:
    return Driver(topic(sent), **options).rounds(until_ms)


def others(rounds: Rounds, subject: str) -> Rounds:
    """The rounds without one subject."""
    return {r: [x for x in found if x[0] != subject] for r, found in rounds.items()}


# What is read


def test_partitions_are_known_before_the_first_round_is_over() -> None:
    metrics = Driver(topic([], partitions=3)).planner._metrics
    assert metrics.registry.get_sample_value("dppca_input_partitions") == 3


@st.composite
def streams(draw: st.DrawFn) -> list[Sent]:
    """Messages of five rounds. The clocks of partitions go back by less than the slack."""
    sent = []
    for value, at in enumerate(draw(st.lists(st.integers(0, 5 * ROUND_MS - 1), max_size=40))):
        back = draw(st.sampled_from([0, 0, 0, 1, SLACK_MS - 1]))
        sent.append((at, back, value))
    return [
        Sent(max(0, at - back), draw(st.integers(0, 2)), draw(st.sampled_from("abcd")), value)
        for at, back, value in sorted(sent)
    ]


@settings(max_examples=60, deadline=None)
@given(streams(), st.integers(1, 20))
def test_each_record_is_in_the_round_of_its_own_time(sent: list[Sent], max_records: int) -> None:
    """Once, and in the order of partitions and offsets, however messages are fetched."""
    found = read_rounds(sent, 6 * ROUND_MS, max_records=max_records)
    assert sorted(found) == [0, 1, 2, 3, 4]
    for number, records in found.items():
        mine = [m for m in sent if m.at_ms // ROUND_MS == number]
        first = (FIRST + number) % 3
        order = sorted(mine, key=lambda m: (m.partition - first) % 3)  # stable
        assert records == [(m.subject, m.value) for m in order]


def test_a_round_is_planned_once_it_is_safely_over() -> None:
    driver = Driver(topic([Sent(5, 0, "a", 1)]))
    for early_ms in (0, ROUND_MS - 1, ROUND_MS, ROUND_MS + SLACK_MS - 1):
        assert driver.rounds(early_ms) == {}
    assert driver.rounds(ROUND_MS + SLACK_MS) == {0: [("a", 1)]}


def test_missed_rounds_are_worked_through_in_order_and_empty_ones_too() -> None:
    sent = [Sent(5, 0, "a", 1), Sent(7 * ROUND_MS, 1, "b", 2)]
    found = read_rounds(sent, 20 * ROUND_MS + SLACK_MS)
    assert list(found) == list(range(20))
    assert {number: records for number, records in found.items() if records} == {
        0: [("a", 1)],
        7: [("b", 2)],
    }


def test_records_that_come_while_rounds_are_read() -> None:
    """Round by round, as in a live stream, with messages of the next round already there."""
    on = topic([])
    driver = Driver(on)
    wanted: Rounds = {}
    value = 0
    for number in range(6):
        for at_ms in (number * ROUND_MS + 3, (number + 1) * ROUND_MS - 1):
            on.clock = lambda at_ms=at_ms: (START_MS + at_ms) / 1000
            for _ in range(3):
                value += 1
                on.produce(INPUT, b"%d" % value, 1, b"a")
                wanted.setdefault(number, []).append(("a", value))
        end_ms = (number + 1) * ROUND_MS
        on.clock = lambda end_ms=end_ms: (START_MS + end_ms + 1) / 1000
        value += 1
        on.produce(INPUT, b"%d" % value, 1, b"b")
        wanted.setdefault(number + 1, []).append(("b", value))
        assert driver.rounds(end_ms + SLACK_MS) == {number: wanted[number]}


def test_the_last_stable_offset_more_waiting() -> None:
    """One open transaction holds the round up, and moves nothing."""
    on = topic([Sent(1, 0, "a", 1), Sent(2, 1, "a", 2)])
    on.clock = lambda: (START_MS + 3) / 1000
    on.produce(INPUT, b"3", 0, b"b", status="open")
    on.produce(INPUT, b"4", 0, b"c")
    driver = Driver(on)
    assert driver.rounds(5 * ROUND_MS) == {}
    on.topics[INPUT].partitions[0].entries[1].status = "committed"
    first, *rest = driver.rounds(5 * ROUND_MS).values()
    assert sorted(first) == [("a", 1), ("a", 2), ("b", 3), ("c", 4)]
    assert rest == [[]] * 3
    on.topics[INPUT].partitions[0].entries[1].status = "aborted"
    again = Driver(on).rounds(2 * ROUND_MS)
    assert sorted(again[0]) == [("a", 1), ("a", 2), ("c", 4)]


def test_a_range_may_end_in_what_cannot_be_read() -> None:
    on = topic([Sent(1, 0, "a", 1), Sent(2, 0, "b", 2), Sent(ROUND_MS, 0, "a", 3)])
    for offset in (1, 2):
        on.remove(INPUT, 0, offset)
    assert Driver(on).rounds(3 * ROUND_MS) == {0: [("a", 1)], 1: []}


def test_a_new_partition_is_read_from_the_beginning_of_the_round() -> None:
    on = topic([Sent(1, 0, "a", 1)], partitions=1)
    driver = Driver(on)
    assert driver.rounds(ROUND_MS + SLACK_MS) == {0: [("a", 1)]}
    on.add_partitions(INPUT, 1)
    on.clock = lambda: (START_MS + 5) / 1000
    on.produce(INPUT, b"7", 1, b"late")  # by a clock that is far behind: of no round any more
    on.clock = lambda: (START_MS + ROUND_MS + 5) / 1000
    on.produce(INPUT, b"8", 1, b"b")
    assert driver.rounds(2 * ROUND_MS + SLACK_MS) == {1: [("b", 8)]}


def test_what_retention_removed_is_lost() -> None:
    on = topic([Sent(1, 0, "a", 1), Sent(2, 0, "a", 2), Sent(ROUND_MS + 1, 0, "a", 3)])
    on.trim(INPUT, 0, 1)
    driver = Driver(on)
    assert driver.rounds(2 * ROUND_MS + SLACK_MS) == {0: [("a", 2)], 1: [("a", 3)]}


def test_what_retention_removes_while_a_round_is_read_is_lost() -> None:
    on = topic([Sent(i, 0, "a", i) for i in range(20)])
    driver = Driver(on, max_records=5)
    driver.now_ms = START_MS + 2 * ROUND_MS
    planned = driver.planner.next_round()
    assert planned is not None
    driver.reader.start(planned)
    driver.reader.read(0.0)
    on.trim(INPUT, 0, 12)
    while not driver.reader.complete:
        driver.reader.read(0.0)
    assert driver.records.taken == [("a", i) for i in [*range(5), *range(12, 20)]]


@pytest.mark.parametrize("failing", [True, False])
def test_a_reader_that_stands_still_is_given_up(failing: bool) -> None:
    """The error names the partition, not the offset."""

    class Broken(MemoryReader):
        def read(self, timeout_s: float) -> list[Any]:
            time.sleep(0.01)
            if failing:
                raise OffsetsGone("an offset is out of range")
            return []

    driver = Driver(topic([Sent(i, 0, "a", i) for i in range(37)]), source=Broken)
    driver.reader._stall_s = 0.05
    driver.now_ms = START_MS + 2 * ROUND_MS
    with pytest.raises(ClusterError, match=r"partition 0 of 'in' stands still$"):
        driver.step()


def test_a_topic_that_was_made_anew_is_refused() -> None:
    on = topic([Sent(1, 0, "a", 1)])
    driver = Driver(on)
    with pytest.raises(StateRefused, match="truncated or recreated") as refused:
        driver.planner.begin({0: 2}, FIRST, 0)
    assert "2" not in str(refused.value)  # offsets count records


def test_the_horizon_ends_it() -> None:
    rule = RoundRule("@key", ROUND_MS, period=1, horizon=3)
    on = topic([Sent(i * ROUND_MS, 0, "a", i) for i in range(9)])
    assert list(Driver(on, rule=rule).rounds(9 * ROUND_MS)) == [0, 1, 2]
    driver = Driver(on, rule=rule)
    driver.planner.begin({}, FIRST + 3, 3)
    assert driver.rounds(9 * ROUND_MS) == {}


# What is refused: times that brokers have not set


def test_a_topic_whose_senders_set_the_times_is_refused() -> None:
    on = topic([Sent(1, 0, "a", 1)], configs={})
    with pytest.raises(ConfigurationError, match=r"message\.timestamp\.type=LogAppendTime"):
        Driver(on).rounds(2 * ROUND_MS)


def test_messages_from_before_brokers_set_the_times_are_refused() -> None:
    class Unaware(RoundPlanner):
        """The topic says that brokers set the times; its old messages say otherwise."""

        def _check_topic(self) -> None:
            pass

    on = topic([Sent(1, 0, "a", 1)], configs={})
    with pytest.raises(ConfigurationError, match="CreateTime"):
        Driver(on, planner=Unaware).rounds(2 * ROUND_MS)


def test_messages_from_the_future_are_refused() -> None:
    """They would end every round at their place."""
    on = topic([Sent(90 * ROUND_MS, 0, "a", 1), Sent(1, 0, "b", 2)])
    with pytest.raises(ConfigurationError, match="not in order"):
        Driver(on).rounds(2 * ROUND_MS)


def test_a_slow_answer_is_not_the_future() -> None:
    """Messages that come while the planner waits for an answer are newer than its question."""
    on = topic([Sent(1, 0, "a", 1)])
    driver = Driver(on)

    class Slow(MemoryReader):
        def partitions(self) -> frozenset[int]:
            driver.now_ms += 3 * ROUND_MS
            on.clock = lambda: driver.now_ms / 1000
            on.produce(INPUT, b"2", 0, b"b")
            return super().partitions()

    driver.planner._offsets = Slow(memory_log(on), INPUT)
    driver.now_ms = START_MS + ROUND_MS + SLACK_MS
    assert driver.step() is not None
    assert driver.records.taken == [("a", 1)]


# Neighbours


STREAM = [
    Sent(at_ms, i % 3, f"s{i % 11}", i)
    for i, at_ms in enumerate(range(0, 4 * ROUND_MS, ROUND_MS // 25))
]
UNTIL_MS = 4 * ROUND_MS + SLACK_MS

Change = Callable[[list[Sent]], list[Sent]]


def gone(sent: list[Sent]) -> list[Sent]:
    return [m for m in sent if m.subject != "s3"]


def many(sent: list[Sent]) -> list[Sent]:
    """A hundred records wherever it had one, in all partitions."""
    return [
        m._replace(partition=(m.partition + i) % 3) if m.subject == "s3" else m
        for m in sent
        for i in range(100 if m.subject == "s3" else 1)
    ]


def elsewhere(sent: list[Sent]) -> list[Sent]:
    """At other times, first in every round."""
    mine = [Sent(r * ROUND_MS, p, "s3", 1000 * r + p) for r in range(4) for p in range(3)]
    return sorted([*gone(sent), *mine], key=lambda m: m.at_ms)


CHANGES: tuple[Change, ...] = (gone, many, elsewhere)


def others_alike(change: Change, **options: Any) -> bool:
    """Tell whether the others' records come in the same rounds and in the same order."""
    a = others(read_rounds(STREAM, UNTIL_MS, **options), "s3")
    b = others(read_rounds(change(STREAM), UNTIL_MS, **options), "s3")
    return a == b


@pytest.mark.parametrize("max_records", [1, 7, 1000])
@pytest.mark.parametrize("change", CHANGES)
def test_one_subject_changes_nothing_for_the_others(change: Change, max_records: int) -> None:
    assert others_alike(change, max_records=max_records)
    together = others(read_rounds(STREAM, UNTIL_MS, max_records=1000), "s3")
    assert together == others(read_rounds(change(STREAM), UNTIL_MS, max_records=max_records), "s3")


@settings(max_examples=60, deadline=None)
@given(streams(), streams(), st.integers(1, 20), st.integers(1, 20))
def test_any_subject_may_be_any_other(
    sent: list[Sent], instead: list[Sent], fetched: int, otherwise: int
) -> None:
    """Everything that one subject sends is replaced: in number, place, time and content."""
    kept = [m for m in sent if m.subject != "a"]
    mine = [m._replace(subject="a", value=1000 + m.value) for m in instead]
    changed = sorted([*kept, *mine], key=lambda m: m.at_ms)
    # Sorting must not move the others, whose clocks may have stepped back.
    assert [m for m in changed if m.subject != "a"] == sorted(kept, key=lambda m: m.at_ms)
    before = sorted(sent, key=lambda m: m.at_ms)
    a = others(read_rounds(before, 6 * ROUND_MS, max_records=fetched), "a")
    b = others(read_rounds(changed, 6 * ROUND_MS, max_records=otherwise), "a")
    assert a == b


# Mutants: each is caught by some neighbour


class InFetchOrder(RoundReader):
    """Mutant: reads all partitions at once, in the order in which fetches bring them."""

    def _read(self, planned: PlannedRound, decoder: RoundDecoder) -> Iterator[None]:
        return self._read_ranges(planned.ranges, decoder)


class ByArrivals(RoundPlanner):
    """Mutant: a round is a number of offsets, whoever sent the messages in them."""

    def next_round(self) -> PlannedRound | None:
        share = self.partitions()
        bounds = self.bounds(share)
        at = {p: self._positions.get(p, bounds[p].first) for p in share}
        ranges = [Range(p, at[p], min(at[p] + 8, bounds[p].end)) for p in share]
        if sum(r.end - r.start for r in ranges) < 24:
            return None
        self._positions = {r.partition: r.end for r in ranges}
        self._next += 1
        return PlannedRound(self._next - 1, tuple(ranges), self._positions)


class AtTheStableEnd(RoundPlanner):
    """Mutant: cuts at the last stable offset, where everything before is decided."""

    def _asked(self, partitions: Sequence[int], time_ms: int) -> dict[int, int]:
        return {
            p: min(cut, self._offsets.ends([p])[p])
            for p, cut in cuts(self._offsets, partitions, time_ms).items()
        }

    def next_round(self) -> PlannedRound | None:
        number, end_ms = self._next, self._rule.end_ms(self._next)
        if self._times.now_ms() < end_ms + self._times.slack_ms:
            return None
        share = self.partitions()
        stop = self._asked(share, end_ms + self._times.slack_ms)
        ranges = [Range(p, self._positions.get(p, 0), stop[p]) for p in share]
        self._positions, self._next = self._asked(share, end_ms), number + 1
        return PlannedRound(number, tuple(r for r in ranges if r.end > r.start), self._positions)


class WithoutEmptyRounds(RoundPlanner):
    """Mutant: a round without offsets is skipped."""

    def next_round(self) -> PlannedRound | None:
        planned = super().next_round()
        while planned is not None and not planned.ranges:
            planned = super().next_round()
        return planned


class AnyTime(MemoryReader):
    """Mutant: takes the times that senders set."""

    def _stamps(self, partition: int, offsets: Sequence[int]) -> tuple[Sequence[Any], ...]:
        entries = self._broker._topic(self._topic).partitions[partition].entries
        return [entries[o].time_ms for o in offsets], [entries[o].key for o in offsets]


class AnyTimes(BrokerTime):
    def beyond(self, offsets: TopicOffsets, bounds: Mapping[int, Bounds]) -> list[int]:
        return []


class AnyTopic(RoundPlanner):
    """Mutant, with `AnyTime`: does not check who sets the times."""

    def _check_topic(self) -> None:
        self._times = AnyTimes(**vars(self._times))


def test_mutant_fetch_order() -> None:
    assert not all(others_alike(c, reader=InFetchOrder, max_records=7) for c in CHANGES)


class AnyWindow(RoundReader):
    """With `ByArrivals`: all messages at the offsets are in the round."""

    def start(self, planned: PlannedRound) -> None:
        super().start(planned)
        assert self._decoder is not None
        self._decoder._window = 0, 1 << 62


def test_mutant_rounds_by_arrivals() -> None:
    mutant = {"planner": ByArrivals, "reader": AnyWindow}
    assert all(others_alike(lambda sent: sent, **mutant) for _ in range(2))
    assert not any(others_alike(change, **mutant) for change in (gone, many))


@pytest.mark.parametrize("planner", [RoundPlanner, AtTheStableEnd])
def test_mutant_cut_at_the_last_stable_offset(planner: type[RoundPlanner]) -> None:
    """One subject leaves a transaction open for a while. The others in its partition must not go
    to another round for it, or be lost."""

    def run(open_until_ms: int) -> Rounds:
        on = topic([], partitions=1)
        driver = Driver(on, planner=planner)
        entries = on.topics[INPUT].partitions[0].entries
        waiting, found = list(STREAM), {}
        for now_ms in range(0, UNTIL_MS + 1, 1000):
            while waiting and waiting[0].at_ms < now_ms:
                m = waiting.pop(0)
                on.clock = lambda m=m: (START_MS + m.at_ms) / 1000
                status = "open" if len(entries) == 3 else "committed"
                on.produce(INPUT, b"%d" % m.value, 0, m.subject.encode(), status=status)  # type: ignore[arg-type]
            if now_ms >= open_until_ms and len(entries) > 3:
                entries[3].status = "committed"
            found |= driver.rounds(now_ms)
        assert list(found) == [0, 1, 2, 3]
        return others(found, "s3")

    alike = run(0) == run(2 * ROUND_MS)
    assert alike is (planner is RoundPlanner)


@pytest.mark.parametrize("planner", [RoundPlanner, WithoutEmptyRounds])
def test_mutant_empty_rounds_are_passed_over(planner: type[RoundPlanner]) -> None:
    """The absence of the only record of a round is visible."""
    sent = [Sent(1, 0, "a", 1), Sent(ROUND_MS + 1, 0, "s3", 2), Sent(3 * ROUND_MS - 1, 0, "a", 3)]
    a, b = (
        others(read_rounds(stream, 3 * ROUND_MS + SLACK_MS, planner=planner), "s3")
        for stream in (sent, gone(sent))
    )
    assert (a == b) is (planner is RoundPlanner)


def test_mutant_times_of_senders() -> None:
    """A device whose clock says next year ends all rounds of its partition."""

    def run(sent: list[Sent]) -> Rounds:
        driver = Driver(topic(sent, configs={}), planner=AnyTopic, source=AnyTime)
        return others(driver.rounds(UNTIL_MS), "s3")

    next_year = [Sent(10**10, 0, "s3", 0), *STREAM]
    assert run(STREAM) == others(read_rounds(STREAM, UNTIL_MS), "s3")
    assert run(next_year) != run(STREAM)
    with pytest.raises(ConfigurationError):
        read_rounds(next_year, UNTIL_MS)


def test_a_full_table_changes_by_one_place() -> None:
    """First come, first served: without one subject the next one gets its place, and that is all.
    In fetch order a busy subject changes many places."""

    def first_come(rounds: Rounds, places: int = 6) -> list[set[str]]:
        return [
            set(itertools.islice(dict.fromkeys(subject for subject, _ in found), places))
            for found in rounds.values()
        ]

    for change in CHANGES:
        before = first_come(read_rounds(STREAM, UNTIL_MS))
        after = first_come(read_rounds(change(STREAM), UNTIL_MS))
        assert len(before) == len(after) == 4
        for a, b in zip(before, after, strict=True):
            assert len(a - b - {"s3"}) <= 1 and len(b - a - {"s3"}) <= 1
            assert len(a - b) <= 1 and len(b - a) <= 1

"""Rounds of points on the in-process cluster: the same rows however a topic is cut and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from consumers import crashpoints
from consumers.messages.fold import MOST_SERIES
from consumers.messages.gathered import Gatherer, Gathering
from consumers.model.learner import Learner
from consumers.model.releases import PublishedRelease
from consumers.scoring.score import open_rows, rounds_of
from consumers.settings import RoundRule, ScoreSettings, Settings, load_part
from tests.support.memory import MemoryBroker

from .otlp import message, resource
from .test_round_task import (
    ROUND_MS,
    START_MS,
    broker,
    check,
    drain,
    log_of,
    releases,
    start_task,
)
from .test_round_task import settings as plain
from .test_task import Crash, crash_at

S = 10**9
FEATURES = ['rate(net{dir="in"})', "mem", "max(cpu)", "last(cpu)", "count(mem)"]
Rounds = list[dict[bytes, bytes]]


def settings(**changes: Any) -> Settings:
    return plain(**{"features": FEATURES, "format": "otlp", "subject": "host.name", **changes})


def scrape(host: int, second: float, counter: float) -> Any:
    """What a host sends at a time of its own clock, which is far from the broker's."""
    time = int((second + 1e6 * host) * S)
    cpus = [
        {"name": "cpu", "time": time, "value": 0.1 * host + 0.01 * c, "attributes": {"cpu": c}}
        for c in range(3)
    ]
    net = {"name": "net", "time": time, "start": S, "kind": "counter", "value": counter}
    return resource(
        {"host.name": f"h{host}"},
        *cpus,
        {**net, "attributes": {"dir": "in"}},
        {**net, "attributes": {"dir": "out"}, "value": 1.0},
        {"name": "mem", "time": time, "value": 0.1 + counter / 3},
    )


def fill(on: MemoryBroker, rounds: int = 3, hosts: int = 8, together: int = 1) -> None:
    """Four scrapes of each host in each round; `together` hosts share a message."""
    partitions = len(on.topics["in"].partitions)
    counters = np.random.default_rng(3).uniform(1, 100, (rounds * 4, hosts)).cumsum(axis=0)
    for turn in range(rounds * 4):
        at = START_MS / 1000 + turn * ROUND_MS / 4000
        on.clock = lambda at=at: at
        sent = [scrape(host, 2.5 * turn, counters[turn, host]) for host in range(hosts)]
        for first in range(0, hosts, together):
            value = message(*sent[first : first + together])
            on.produce("in", value, (first + turn) % partitions, None)


@contextmanager
def seen() -> Iterator[Rounds]:
    """The rows that learners get, round by round."""
    found: Rounds = []
    rows: dict[bytes, bytes] = {}
    add, close = Learner.add, Learner.close_round

    def adding(self: Learner, X: Any, subjects: Any) -> None:
        for who, row in zip(subjects, X, strict=True):
            rows[who] = rows.get(who, b"") + row.tobytes()
        add(self, X, subjects)

    def closing(self: Learner, *arguments: Any) -> Any:
        found.append(dict(rows))
        rows.clear()
        return close(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "add", adding)
        patch.setattr(Learner, "close_round", closing)
        yield found


def learned(on: MemoryBroker, rounds: int = 3, **options: Any) -> Rounds:
    s = settings(**options.pop("changes", {}))
    with seen() as found:
        drain(start_task(on, rounds, s, **options))
    return found


def expected(**changes: Any) -> Rounds:
    on = broker()
    fill(on)
    return learned(on, changes=changes)


def test_a_row_is_everything_of_a_round() -> None:
    found = expected()
    assert [len(rows) for rows in found] == [8, 8, 8]
    row = np.frombuffer(found[0][b"h3"])
    assert np.isfinite(row).all()
    assert row[4] == 4  # scrapes
    assert row[2] == 0.1 * 3 + 0.01 * 2


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("together", [1, 3, 8])
@pytest.mark.parametrize("max_records", [1, 7, None])
def test_the_same_rows_however_a_topic_is_cut(
    partitions: int, together: int, max_records: int | None
) -> None:
    on = broker(partitions)
    fill(on, together=together)
    options = {} if max_records is None else {"max_records": max_records}
    assert learned(on, **options) == expected()
    check(on, 3)


def test_parts_of_a_round() -> None:
    found = expected(parts=4)
    counts = np.array([np.frombuffer(row).reshape(-1, 5)[:, 4] for row in found[1].values()])
    assert counts.shape == (8, 4) and (counts == 1).all()


def test_nothing_crosses_the_end_of_a_round() -> None:
    """Each round is as if the topic held nothing else."""
    whole = expected()
    for number in range(3):
        on = broker()
        fill(on)
        entries = on.topics["in"].partitions[0].entries
        begin = START_MS + number * ROUND_MS
        for entry in entries:
            if not begin <= entry.time_ms < begin + ROUND_MS:
                entry.value = b""
        assert learned(on)[number] == whole[number]


def test_a_counter_that_is_carried_over_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Gathering.begin
    kept: list[Gatherer] = []

    def carry(self: Gathering, window: Any, whole: bool = True) -> Gatherer:
        made = begin(self, window, whole)
        if kept:
            made.fold.merge(kept[-1].fold)
        kept.append(made)
        return made

    monkeypatch.setattr(Gathering, "begin", carry)
    with pytest.raises(AssertionError):
        test_nothing_crosses_the_end_of_a_round()


@pytest.mark.parametrize("point", ["polling", "batch_full", "before_transaction", "after_commit"])
def test_a_round_that_is_read_again_has_the_same_rows(point: str) -> None:
    on = broker(2)
    fill(on)
    crash_at(point, 2)
    with seen(), pytest.raises(Crash):
        drain(start_task(on, 3, settings(), max_records=5))
    crashpoints.on_reach.clear()
    found = learned(on)
    assert found == expected()[-len(found) :]
    check(on, 3)


def test_features_have_the_same_names_in_releases() -> None:
    on = broker()
    fill(on)
    drain(start_task(on, 3, settings()))
    found = releases(on)
    assert list(found) == [1, 2, 3]
    assert list(found[3].features) == FEATURES


@pytest.mark.parametrize("kind", ["flood", "wild times", "damage", "many series"])
@pytest.mark.parametrize("shared", [False, True])
def test_one_host_changes_no_row_of_others(kind: str, shared: bool) -> None:
    def wild(turn: int) -> Any:
        points = {
            "flood": [{"name": "mem", "value": i, "time": i} for i in range(3000)],
            "wild times": [
                {
                    "name": "net",
                    "value": 1,
                    "time": t,
                    "start": 2**64 - 1,
                    "kind": "counter",
                    "attributes": {"dir": "in"},
                }
                for t in (0, 1, 2**64 - 1)
            ],
            "damage": [{"name": "mem", "value": 1.0, "attributes": {"a": "zzzz"}}],
            "many series": [
                {"name": "cpu", "value": i, "attributes": {"cpu": i}}
                for i in range(10 * MOST_SERIES)
            ],
        }[kind]
        return resource({"host.name": "wild"}, *points)

    on = broker(2)
    counters = np.random.default_rng(3).uniform(1, 100, (12, 8)).cumsum(axis=0)
    for turn in range(12):
        at = START_MS / 1000 + turn * ROUND_MS / 4000
        on.clock = lambda at=at: at
        sent = [scrape(host, 2.5 * turn, counters[turn, host]) for host in range(8)]
        groups = (
            [[sent[0], wild(turn), *sent[1:]]] if shared else [[wild(turn)], *([s] for s in sent)]
        )
        for i, group in enumerate(groups):
            value = message(*group)
            if kind == "damage":
                value = value.replace(b"zzzz", b"\xff\xfe\xfd\xfc")
            on.produce("in", value, (i + turn) % 2, None)
    for rows, wanted in zip(learned(on), expected(), strict=True):
        rows.pop(b"wild", None)
        assert rows == wanted


class Note:
    """A number that a group remembers."""

    number: int | None = None

    def load(self) -> int | None:
        return self.number

    def keep(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        pass


def test_scores_are_for_the_same_rows_as_learning() -> None:
    """The release says whose points in what time are a row; the group remembers the round."""
    on = broker(2)
    fill(on)
    wanted = learned(on, changes={"parts": 2})
    given = load_part(ScoreSettings, {"input_topic": "in", "format": "otlp", "clock_slack": "1s"})
    note, published = Note(), releases(on)
    for number in (1, 2, 3):
        # A group that is new begins with the round of the release.
        release = published[1 if number == 1 else 3]
        source = open_rows(log_of(on), given, release, pytest.fail, lambda: note)
        found: dict[bytes, bytes] = {}
        [rows] = source.read(0.0)
        assert rows.round == published[number].round.start
        for (*_, row, subject), key, values in zip(
            rows.origins, rows.keys, rows.values, strict=True
        ):
            assert key == subject.encode() and (row == 1) == (key in found)
            found[key] = found.get(key, b"") + values.tobytes()
        assert found == wanted.pop(0)
        source.commit()
        source.close()


@pytest.mark.parametrize("length_ms", [1000, 1001, 1200, 3_600_000])
def test_the_length_of_a_round_is_exactly_that_of_the_release(length_ms: int) -> None:
    on = broker()
    fill(on, rounds=1)
    learned(on, 1)
    release = releases(on)[1]
    given = load_part(ScoreSettings, {"input_topic": "in", "format": "otlp"})
    rule, first = RoundRule("host.name", length_ms, 1), 1_790_000_000_000 // length_ms
    for number in range(first, first + 2000):
        published = PublishedRelease.of(release, "m", rule, number)
        assert rounds_of(given, published)[0] == rule


def test_a_round_without_points_is_released_like_any_other() -> None:
    on = broker()
    fill(on, rounds=1)
    assert [len(rows) for rows in learned(on, 3)] == [8, 0, 0]
    check(on, 3)

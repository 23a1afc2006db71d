"""What is still there of a topic: truncated topics are refused, what retention removed is told."""

from __future__ import annotations

import json
import re
import sys

import pytest

from consumers.errors import StateRefused
from consumers.events import set_up_logs
from consumers.monitoring.metrics import Metrics
from consumers.planning.guard import TopicGuard
from consumers.protocols import Bounds
from consumers.ranges import Range

from .helpers import BATCH, OUTPUT, STATE, cluster, drain, memory_log, start_task
from .test_task import fill

SECRET = pytest.mark.parametrize("secret", [False, True])


@SECRET
def test_a_topic_that_ends_too_early_is_refused(secret: bool) -> None:
    guard = TopicGuard("in", Metrics(), secret=secret)
    guard.check_positions({0: 8}, {0: Bounds(3, 8), 1: Bounds(0, 0)})
    assert guard.skip_lost(Range(0, 5, 8), Bounds(3, 8)) == 5
    for refused in (
        lambda: guard.check_positions({0: 19}, {0: Bounds(3, 18)}),
        lambda: guard.check_positions({2: 19}, {0: Bounds(3, 18)}),
        lambda: guard.skip_lost(Range(0, 15, 19), Bounds(3, 18)),
    ):
        with pytest.raises(StateRefused, match="was truncated or recreated") as failed:
            refused()
        assert bool(re.search(r"\d\d", str(failed.value))) is not secret


@SECRET
def test_what_retention_removed_is_counted_once(
    secret: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics()
    guard = TopicGuard("in", metrics, secret=secret)
    set_up_logs(sys.stdout)
    assert guard.skip_lost(Range(1, 15, 30), Bounds(20, 40)) == 20
    assert guard.skip_lost(Range(1, 15, 18), Bounds(20, 40)) == 20  # nothing of it is left
    assert guard.skip_lost(Range(1, 20, 30), Bounds(20, 40)) == 20
    assert metrics.registry.get_sample_value("dppca_offsets_lost_total") == 5 + 3
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["offsets_lost"] * 2
    assert all(event["partition"] == 1 for event in events)
    assert [event.get("resumed_at") for event in events] == [None if secret else 20] * 2
    assert [event.get("offset") for event in events] == [None if secret else 15] * 2


@SECRET
def test_records_that_a_state_does_not_know(secret: bool) -> None:
    guard = TopicGuard("in", Metrics(), secret=secret)
    assert guard.unknown_use({0: 10, 1: 20}, {0: 10, 1: 19}) is None
    for known in ({0: 10, 1: 20}, {0: 10}):
        said = guard.unknown_use(known, {0: 10, 1: 21})
        assert said is not None and "partition 1 of 'in'" in said
        assert ("21" in said) is not secret


def test_offsets_alone_show_that_states_are_lost() -> None:
    on = cluster()
    fill(on, BATCH)
    drain(start_task(memory_log(on)))
    for topic in (STATE, OUTPUT):
        on.topics[topic].partitions[0].entries.clear()
    with pytest.raises(StateRefused, match=f"up to offset {BATCH}, the state only up to 0"):
        start_task(memory_log(on))

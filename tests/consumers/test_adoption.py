"""A state that reached the log is the state: the next owner commits the same bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consumers import crashpoints
from consumers.errors import StateRefused
from consumers.model.states import decode_state
from consumers.service.stored import check_complete, check_stored
from consumers.settings import Settings
from tests.support.memory import MemoryBroker, MemoryReader, _Entry

from .helpers import BATCH, GROUP, INPUT, OUTPUT, STATE, check_output, cluster, config

from .helpers import drain, memory_log, releases, start_task  # isort: skip
from .test_task import Crash, check_states, crash_at, fill, grouped, riding, states

SETTINGS = Settings(
    bootstrap_servers="b:9092",
    input_topic=INPUT,
    state_topic=STATE,
    output_topic=OUTPUT,
    group=GROUP,
    features="cpu",
    epsilon=1,
    delta=1e-6,
    batch_size=BATCH,
)


@pytest.fixture(autouse=True)
def _nobody_listens() -> Any:
    yield
    crashpoints.on_reach.clear()


def log(on: MemoryBroker) -> list[_Entry]:
    return on.topics[STATE].partitions[0].entries


def kill(on: MemoryBroker, times: int = 1, **options: Any) -> bytes:
    """Work until a state is written, and die there; returns the state."""
    crash_at("inside_transaction", times)
    with pytest.raises(Crash):
        drain(start_task(memory_log(on), **options))
    crashpoints.on_reach.clear()
    value = log(on)[-1].value
    assert value is not None
    return value


def append(on: MemoryBroker, value: bytes | None, key: bytes = GROUP.encode()) -> None:
    """Append a message of a transaction that was aborted."""
    log(on).append(_Entry(key, value, status="aborted"))


def change(value: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(value) | fields).encode()


@pytest.mark.parametrize("partitions", [1, 3])
def test_six_kills_leave_one_state(partitions: int) -> None:
    """At the first batch, and at a later one."""
    on = cluster(partitions)
    for done in (0, 2):
        fill(on, 2 * BATCH, partitions, seed=done)
        assert len({kill(on) for _ in range(6)}) == 1
        assert len(states(on)) == done
        task = start_task(memory_log(on))
        assert [r.batch for r in releases(memory_log(on))][-1] == done + 1
        drain(task)
    assert check_output(memory_log(on)) == 4
    check_states(on, 4 * BATCH)
    written = {e.value for e in log(on) if not (e.key or b"").endswith(b".plan")}
    assert len(written) == 4
    for before, after in zip(states(on), states(on)[1:], strict=False):
        assert after.parent == before.writer != after.writer
    assert states(on)[0].parent == ""


@pytest.mark.parametrize("ride", [False, True])
def test_a_group_is_adopted_with_its_releases(ride: bool) -> None:
    """Those that were to ride with it are in it, too."""
    on = cluster()
    fill(on, 6 * BATCH)
    crash_at("inside_transaction", 2)
    with pytest.raises(Crash):
        task = start_task(memory_log(on))
        grouped(task, 2, ride)
        drain(task)
    crashpoints.on_reach.clear()
    assert [s.batch for s in states(on)] == [2]
    assert [r.batch for r in releases(memory_log(on))] == ([] if ride else [1, 2])
    written = [entry.value for entry in log(on)]
    task = start_task(memory_log(on))
    assert [s.batch for s in states(on)] == [2, 4] and [e.value for e in log(on)][:2] == written
    assert [r.batch for r in releases(memory_log(on))] == [1, 2, 3, 4]
    assert on.groups[GROUP].offsets[INPUT, 0] == 4 * BATCH
    drain(riding(task, on, 0))
    assert check_output(memory_log(on)) == 6
    check_states(on, 6 * BATCH)


def test_it_is_committed_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    on = cluster()
    fill(on, 2 * BATCH)
    kill(on)
    assign = MemoryReader.assign

    def begin(reader: MemoryReader, offsets: Any) -> None:
        assert len(states(on)) == 1 and offsets == {0: BATCH}
        assert not releases(memory_log(on))
        assign(reader, offsets)

    monkeypatch.setattr(MemoryReader, "assign", begin)
    task = start_task(memory_log(on))
    monkeypatch.undo()
    drain(task)
    assert check_output(memory_log(on)) == 2


def test_others_are_ignored() -> None:
    """Of another parent, of another key, torn, no states at all, and what came later."""
    on = cluster()
    fill(on, 3 * BATCH)
    value = kill(on, 2)
    assert log(on).pop().value == value and len(states(on)) == 1
    append(on, change(value, parent=""))
    append(on, change(value, parent="of a fork"))
    append(on, change(value, writer="of another topic"), key=b"other")
    for junk in (value[:-1], b"", b"{}", b"null", b"\xff", b'{"parent":1}', None):
        append(on, junk)
    append(on, value)
    append(on, change(value, writer="later"))
    drain(start_task(memory_log(on)))
    committed = [entry.value for entry in log(on) if entry.status == "committed"]
    assert committed[1] == value and len(committed) == 3
    assert check_output(memory_log(on)) == 3
    check_states(on, 3 * BATCH)


def test_one_that_was_lost_is_computed_again() -> None:
    """Compaction removes what was aborted."""
    on = cluster()
    fill(on, BATCH)
    value = kill(on)
    log(on)[-1] = _Entry(None, None, status="removed")
    drain(start_task(memory_log(on)))
    [entry] = [entry for entry in log(on) if entry.status == "committed"]
    assert entry.value != value and check_output(memory_log(on)) == 1


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"version": 2}, "has version 2, this program reads version 1"),
        ({"batch": "1"}, "cannot be read"),
        ({"batch": 3}, "holds another batch's estimator"),
        ({"identity": {"model": "m", "input": "old", "slots": {"rule": "offsets"}}}, "input 'old'"),
    ],
)
def test_one_that_does_not_fit_is_refused(fields: dict[str, Any], why: str) -> None:
    on = cluster()
    fill(on, BATCH)
    log(on)[-1:] = [_Entry(GROUP.encode(), change(kill(on), **fields), status="aborted")]
    before = list(log(on))
    with pytest.raises(StateRefused, match=why):
        start_task(memory_log(on))
    assert log(on) == before and not states(on) and not on.groups[GROUP].offsets


def test_settings_that_do_not_fit_are_refused() -> None:
    """The records of the first batch were used, although no state is committed."""
    on = cluster()
    fill(on, BATCH)
    kill(on)
    with pytest.raises(StateRefused, match="epsilon"):
        start_task(memory_log(on), epsilon=4.0)
    assert check_stored(memory_log(on), SETTINGS, config()) == 1
    with pytest.raises(StateRefused, match="epsilon"):
        check_stored(memory_log(on), SETTINGS, config(epsilon=4.0))
    assert not states(on)


def test_a_check_notices_lost_states() -> None:
    """By releases, and by offsets that were used; a new model has neither."""
    on = cluster()
    assert check_complete(memory_log(on), SETTINGS, config(), []) is None
    task = start_task(memory_log(on))
    on.groups[GROUP].offsets[INPUT, 0] = 0  # of a plan
    assert check_complete(memory_log(on), SETTINGS, config(), []) is None
    fill(on, 2 * BATCH)
    drain(task)
    assert check_complete(memory_log(on), SETTINGS, config(), []) == 2
    del on.topics[STATE].partitions[0].entries[:]
    with pytest.raises(StateRefused, match="holds a later release"):
        check_complete(memory_log(on), SETTINGS, config(), [])
    with pytest.raises(StateRefused, match="has used records"):
        check_complete(memory_log(on), SETTINGS, config(), [OUTPUT, STATE])


def test_offsets_beyond_it_are_a_loss_of_states() -> None:
    """They must not go back to where it ends, or the loss would be hidden."""
    on = cluster()
    fill(on, 2 * BATCH)
    kill(on)
    on.groups[GROUP].offsets[INPUT, 0] = 2 * BATCH
    with pytest.raises(StateRefused, match="states are lost"):
        start_task(memory_log(on))
    assert not states(on) and on.groups[GROUP].offsets[INPUT, 0] == 2 * BATCH


def test_two_copies_of_a_state_are_no_fork() -> None:
    on = cluster()
    fill(on, 2 * BATCH)
    drain(start_task(memory_log(on)))
    last = log(on)[-1].value
    on.produce(STATE, last, key=GROUP.encode())
    assert decode_state(last or b"", "").batch == start_task(memory_log(on))._learner.n_batches == 2
    on.produce(STATE, change(last or b"", writer="another"), key=GROUP.encode())
    with pytest.raises(StateRefused, match="forked"):
        start_task(memory_log(on))

"""Work in the background: its errors come out where it is waited for, and it has a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from consumers.errors import Unavailable
from consumers.service.background import Background

from ..support.processes import PATIENCE_SECONDS, wait_for


def failing(items: list[int]) -> None:
    raise KeyError("x")


def gated() -> tuple[Background[int], list[list[int]], threading.Event]:
    """Work that waits at a gate, the items that it was given, and the gate."""
    order, gate = list[list[int]](), threading.Event()

    def note(items: list[int]) -> None:
        assert gate.wait(PATIENCE_SECONDS)
        order.append(items)

    return Background("work", note, PATIENCE_SECONDS), order, gate


def test_an_error_comes_out_for_good() -> None:
    work = Background("work", failing, PATIENCE_SECONDS)
    work.give(1)
    with pytest.raises(KeyError):
        work.wait()
    for wait in (work.wait, work.check, lambda: work.give(2)):
        with pytest.raises(KeyError):
            wait()


def test_what_waits_is_worked_on_together() -> None:
    work, order, gate = gated()
    work.give(1)
    wait_for("the first", lambda: not work._waiting)
    work.give(2, 2)
    work.give(3, 2)
    work.check()
    work.wait(0.01)
    assert order == [] and len(work._waiting) == 2
    gate.set()
    work.wait()
    assert order == [[1], [2, 3]] and not work._waiting
    work.give(4)
    work.wait()
    assert order[2:] == [[4]]


def test_no_more_wait_than_may() -> None:
    work, order, gate = gated()
    giving = threading.Thread(target=lambda: [work.give(i) for i in range(4)], daemon=True)
    giving.start()
    wait_for("one to wait", lambda: work._waiting)
    giving.join(0.05)
    assert giving.is_alive() and len(work._waiting) == 1
    gate.set()
    giving.join(PATIENCE_SECONDS)
    work.wait()
    assert order == [[0], [1], [2], [3]]


@pytest.mark.parametrize("how", ["wait", "check", "give"])
def test_work_that_never_ends_is_given_up(how: str) -> None:
    gate = threading.Event()
    work = Background[int]("the end of a batch", lambda items: bool(gate.wait()) or None, 0.2)
    work.give(1)
    again: dict[str, Callable[[], None]] = {
        "wait": work.wait,
        "check": work.check,
        "give": lambda: work.give(2),
    }

    def given_up() -> bool:
        try:
            again[how]()
        except Unavailable as error:
            assert str(error) == "the end of a batch took longer than 0.2 s"
            return True
        return False

    wait_for("the limit", given_up)
    gate.set()


def test_nothing_follows_a_close() -> None:
    """Work that is under way goes on; what waits is dropped."""
    work, done, gate = gated()
    work.give(1)
    work.give(2)
    work.close()
    gate.set()
    work.wait()
    assert done == [[1]] and not work._waiting


def test_work_does_not_wait_for_a_loop_that_waits_for_it() -> None:
    seen = list[bool]()

    def ask(items: list[int]) -> None:
        seen.append(work.more_waiting(PATIENCE_SECONDS))

    work = Background("work", ask, PATIENCE_SECONDS / 2)  # less than it would ask for
    work.expect(True)
    work.give(1)
    work.wait()
    assert seen == [False]


@pytest.mark.parametrize("end", ["expect nothing", "wait", "no room"])
def test_work_waits_for_what_is_on_its_way(end: str) -> None:
    """Until nothing more is, or until the loop waits for the work: it can give nothing then."""
    order, seen = list[list[int]](), list[bool]()

    def ask(items: list[int]) -> None:
        order.append(items)
        seen.append(work.more_waiting(PATIENCE_SECONDS))

    work = Background("work", ask, PATIENCE_SECONDS / 2)  # less than it would ask for
    work.expect(True)
    for item in (1, 2, 3):
        work.give(item, 2)
    wait_for("the first", lambda: order)
    assert order == [[1]] and len(work._waiting) == 2 and not seen
    if end == "expect nothing":
        work.expect(False)
        wait_for("the others", lambda: len(seen) == 2)
    elif end == "no room":
        work.give(4, 2)
    work.wait()
    assert order == [[1], [2, 3], [4]][: 3 if end == "no room" else 2]
    assert seen[0] and not seen[-1] and not work._waiting


@pytest.mark.parametrize("expected, seconds", [(True, 0.01), (False, PATIENCE_SECONDS)])
def test_work_does_not_wait_for_ever(expected: bool, seconds: float) -> None:
    seen = list[bool]()
    work = Background[int](
        "work", lambda items: seen.append(work.more_waiting(seconds)), PATIENCE_SECONDS / 2
    )
    work.expect(expected)
    work.give(1)
    wait_for("an answer", lambda: seen)
    assert seen == [False]

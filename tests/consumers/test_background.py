"""Background work: its errors are raised where a caller waits, and it has a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from consumers.errors import Unavailable
from consumers.service.background import Background

from ..processes import PATIENCE_SECONDS, wait_for


def failing() -> None:
    raise KeyError("x")


def test_an_error_comes_out_for_good() -> None:
    work = Background("work", PATIENCE_SECONDS)
    work.start(failing)
    for wait in (work.wait, work.check, lambda: work.start(lambda: None)):
        with pytest.raises(KeyError):
            wait()


def test_one_after_the_other() -> None:
    work, order, gate = Background("work", PATIENCE_SECONDS), list[int](), threading.Event()

    def first() -> None:
        gate.wait()
        order.append(1)

    work.start(first)
    work.check()
    work.wait(0.01)
    assert order == []
    gate.set()
    work.start(lambda: order.append(2))
    work.wait()
    assert order == [1, 2]


@pytest.mark.parametrize("how", ["wait", "check", "start"])
def test_work_that_never_ends_is_given_up(how: str) -> None:
    work, gate = Background("the end of a batch", 0.2), threading.Event()
    work.start(lambda: gate.wait())
    again: dict[str, Callable[[], None]] = {
        "wait": work.wait, "check": work.check, "start": lambda: work.start(lambda: None)
    }  # fmt: skip

    def given_up() -> bool:
        try:
            again[how]()
        except Unavailable as error:
            assert str(error) == "the end of a batch took longer than 0.2 s"
            return True
        return False

    wait_for("the limit", given_up)
    gate.set()


def test_work_sees_that_more_is_waiting() -> None:
    """It sees that at once, or when more work comes; not if time is up and nothing has come."""
    work, seen = Background("work", PATIENCE_SECONDS), list[bool]()
    work.start(lambda: seen.append(work.is_waited_for(0.01)))
    work.wait()
    work.start(lambda: seen.append(work.is_waited_for(PATIENCE_SECONDS)))
    work.start(lambda: None)
    work.wait()
    assert seen == [False, True] and not work.waited_for

"""A job without an executor waits: it has not stalled, and it can be cancelled."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from consumers.errors import ClusterError, EngineLost
from consumers.monitoring.metrics import Metrics
from consumers.reading.executors import CoreWatch
from consumers.reading.remote import GuardedEngine, Remote
from consumers.service.loop import Service
from stream_dppca.engine import EngineError, SourceAway
from tests.consumers.test_service import log_of, settings
from tests.support.memory import MemoryBroker
from tests.support.processes import PATIENCE_SECONDS, wait_for


class StarvedEngine:
    """Runs no job before it has an executor; a cancelled job fails."""

    def __init__(self) -> None:
        self.executors, self.asked = 0, 0
        self._over = threading.Event()

    def look(self) -> int:
        self.asked += 1
        return self.executors

    def give(self) -> None:
        self.executors = 1
        self._over.set()

    def cancel(self) -> None:
        self._over.set()

    def map(self, task: Any, groups: Any) -> list[Any]:
        assert self._over.wait(PATIENCE_SECONDS)
        if not self.executors:
            raise EngineError("it was called off")
        return [task(group) for group in groups]


@pytest.fixture
def engine() -> StarvedEngine:
    return StarvedEngine()


@pytest.fixture
def remote(engine: StarvedEngine) -> Remote:
    cores = CoreWatch(engine.look, engine.cancel, look_s=0.01, quiet_s=0.0)
    return Remote(engine, lambda: 2, {}, lambda: None, cores)  # type: ignore[arg-type, return-value]


def waiting(remote: Remote) -> tuple[threading.Thread, list[Any]]:
    """A waiting job, and its result."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.extend(GuardedEngine(remote, Metrics()).map(lambda group: group + 1, [1, 2]))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def service_on(remote: Remote) -> Service:
    given = settings()
    return Service(given, log_of(MemoryBroker(), given), watched=False, remote=remote)


def test_a_service_that_waits_for_executors_is_alive(engine: StarvedEngine, remote: Remote) -> None:
    service = service_on(remote)
    service._watchdog._beat = float("-inf")  # it stands still for ever
    assert not service.alive()
    thread, found = waiting(remote)
    wait_for("a sign of life", service.alive)
    assert "no executors" in service.ready()[1]
    engine.give()
    thread.join()
    assert found == [2, 3]


def test_a_job_that_runs_is_not_waited_for(engine: StarvedEngine, remote: Remote) -> None:
    """Only the lack of executors excuses standing still."""
    assert remote.cores is not None
    told: list[bool] = []
    remote.cores.listener = lambda: not told.append(True)
    engine.executors = 1
    thread, found = waiting(remote)
    wait_for("many looks", lambda: engine.asked > 20)
    engine.give()
    thread.join()
    assert not told and found == [2, 3]


def test_a_signal_ends_the_wait(engine: StarvedEngine, remote: Remote) -> None:
    service = service_on(remote)
    thread, found = waiting(remote)
    service.stop.set()
    thread.join()
    assert [type(error) for error in found] == [ClusterError]


def test_an_engine_that_is_lost_ends_the_process(engine: StarvedEngine) -> None:
    """Dropping the task would not help: every other one would fail, too."""
    engine.cancel()
    for lost, kind in ((False, ClusterError), (True, EngineLost)):
        on = SimpleNamespace(engine=engine, cores=None, lost=lambda lost=lost: lost)
        with pytest.raises(kind):
            GuardedEngine(on, Metrics()).map(len, [])  # type: ignore[arg-type]
    assert not issubclass(EngineLost, ClusterError)


def test_a_signal_ends_the_wait_for_the_registry() -> None:
    """It is asked for again and again, and no stall, until the service is to end."""

    class Away:
        asked = 0

        def map(self, task: Any, groups: Any) -> list[Any]:
            self.asked += 1
            raise SourceAway("the registry is away")

    engine, metrics = Away(), Metrics()
    left = [True, False]
    on = SimpleNamespace(engine=engine, cores=None, may_wait=lambda: left.pop(0))
    with pytest.raises(ClusterError, match="the registry is away"):
        GuardedEngine(on, metrics).map(len, [])  # type: ignore[arg-type]
    assert engine.asked == 2 and not left and not metrics.registry_away

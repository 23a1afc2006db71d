"""A real broker for tests with the fixture `broker`, one per way and pytest process.

The ways are chosen by `STREAM_DPPCA_BROKERS`, a list separated by commas of

- `env`: the broker at `KAFKA_BOOTSTRAP_SERVERS`;
- `container`: testcontainers;
- `local`: Kafka on the local JVM, as `make run` has it;
- `auto` (default): env if set, or else local.

A way that this machine does not have leads to a skip with the reason, and with
`STREAM_DPPCA_REQUIRE_BROKERS=1` a failure. With `pytest -n N --dist loadgroup` the tests of one
module and way run in one process; each process has at most one broker of each way.

The contracts in `test_brokers.py` run over both ways to start one, whatever the variable says: they
show that both behave in the same way, so the other tests need only one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Protocol

import pytest

from demo.broker.base import BrokerError, BrokerUnavailable
from demo.broker.local import ADDRESS_VARIABLE, LocalBroker

WAYS_VARIABLE = "STREAM_DPPCA_BROKERS"
REQUIRE_VARIABLE = "STREAM_DPPCA_REQUIRE_BROKERS"
WAYS = ("container", "local")
#: Settings of the brokers that are started here, where the default makes tests wait for a timer.
QUICK = {
    "log.cleaner.backoff.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class RunningBroker(Protocol):
    """The interface of a broker that tests may rely on, however it was started."""

    kind: ClassVar[str]

    @property
    def bootstrap_servers(self) -> str: ...

    def start(self) -> object: ...

    def close(self) -> None: ...


class Brokers:
    """The brokers of this process: each is started when first needed, all are closed at the end."""

    def __init__(self) -> None:
        self._had: dict[str, RunningBroker | BrokerError] = {}

    def get(self, way: str) -> RunningBroker:
        if way not in self._had:
            try:
                self._had[way] = self._start(way)
            except BrokerError as error:
                self._had[way] = error  # tell the next test the same, without trying again
        had = self._had[way]
        if isinstance(had, BrokerError):
            raise had
        return had

    def _start(self, way: str) -> RunningBroker:
        address = os.environ.get(ADDRESS_VARIABLE, "")
        if way == "auto":
            return self.get("env" if address else "local")
        broker: RunningBroker
        if way == "container":
            broker = _container()
        elif way == "env" and address:
            return ExternalBroker(address)
        elif way == "local":
            broker = LocalBroker(settings=QUICK)
        else:
            raise BrokerUnavailable(f"{WAYS_VARIABLE}: there is no way {way!r} here")
        try:
            broker.start()
        except BaseException:
            broker.close()
            raise
        return broker

    def close(self) -> None:
        for broker in set(self._had.values()):
            if not isinstance(broker, BrokerError):
                broker.close()


@dataclass(frozen=True)
class ExternalBroker:
    """A broker that somebody else runs."""

    bootstrap_servers: str
    kind: ClassVar[str] = "env"

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


def _container() -> RunningBroker:
    try:
        from ..support.containers import KafkaContainer
    except ImportError as error:
        raise BrokerUnavailable(f"testcontainers is not installed ({error})") from error
    return KafkaContainer(settings=QUICK)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with the fixture `broker` over the chosen ways, unless they choose their own."""
    if "broker" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("parametrize")
    if any("broker" in str(mark.args[0]).replace(" ", "").split(",") for mark in marks):
        return
    ways = os.environ.get(WAYS_VARIABLE, "auto").split(",")
    module = metafunc.module.__name__.rpartition(".")[2]
    found = [by(way.strip(), module) for way in ways]
    metafunc.parametrize("broker", found, indirect=True)


def by(way: str, module: str) -> object:
    """The parameter of `broker` for this way, in a module."""
    return pytest.param(way, marks=[pytest.mark.broker, group(way, module)])


def group(way: str, module: str) -> pytest.MarkDecorator:
    """The tests that run in one process, because they share a broker."""
    return pytest.mark.xdist_group(f"broker-{way}-{module}")


@pytest.fixture(scope="session")
def brokers() -> Iterator[Brokers]:
    pool = Brokers()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, brokers: Brokers) -> RunningBroker:
    """A broker that serves. Other tests use it too: take topics and groups from `fresh_name`."""
    try:
        return brokers.get(request.param)
    except BrokerUnavailable as error:
        refuse(str(error))


def refuse(reason: str) -> NoReturn:
    """Skip a test that this machine cannot run, or fail where skips are not allowed."""
    if os.environ.get(REQUIRE_VARIABLE, "") not in ("", "0"):
        pytest.fail(f"{REQUIRE_VARIABLE} is set, but: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def fresh_name() -> Callable[[str], str]:
    """Names that no other test has: of topics, groups and transactional ids."""
    return lambda what: f"{what}-{uuid.uuid4().hex[:12]}"

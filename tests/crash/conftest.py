"""One broker for the crash tests of a process, which tests may kill; sessions end in a second.

With `pytest -n 2 --dist loadgroup` modules run in parallel, each process on its own broker.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.broker.base import BrokerUnavailable
from demo.broker.local import LocalBroker

from ..consumers.conftest import _no_settings_from_outside  # noqa: F401
from ..integration.conftest import QUICK, fresh_name, refuse  # noqa: F401
from ..support.harness import READERS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Clients that lose their broker leave sockets behind, which the collector finds.
    ignored = "ignore::pytest.PytestUnraisableExceptionWarning"
    for item in items:
        if item.path.parent == Path(__file__).parent and "killable" in item.fixturenames:
            item.add_marker(pytest.mark.broker)
            item.add_marker(pytest.mark.xdist_group(f"broker-crash-{item.path.stem}"))
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def killable() -> Iterator[LocalBroker]:
    """A broker that tests may kill and start again."""
    broker = LocalBroker(
        settings={
            **QUICK,
            "group.min.session.timeout.ms": "1000",
            "message.max.bytes": str(32 << 20),
        }
    )
    try:
        with broker:
            yield broker
    except BrokerUnavailable as error:
        refuse(str(error))


@pytest.fixture(params=READERS)
def each_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The client that reads the input of all models, unless they choose one."""
    monkeypatch.setenv("STREAM_DPPCA_READER", request.param)
    return str(request.param)


@pytest.fixture
def servers(killable: LocalBroker) -> Iterator[str]:
    killable.start()  # nothing, unless a test left it dead
    yield killable.bootstrap_servers
    gc.collect()

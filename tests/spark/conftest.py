"""A real cluster for the tests of Spark: one master, two workers, one session.

Without pyspark or Java the tests are skipped, with the reason. `make test-spark` installs pyspark.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
#: A helper without tests, which imports pyspark.
collect_ignore = ["cluster.py"]


def _missing() -> str | None:
    if os.environ.get("STREAM_DPPCA_REQUIRE_BROKERS"):
        return None  # nothing may be skipped
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: make test-spark"
    return None if shutil.which("java") else "there is no java on the path"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _missing()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
            # pyspark says so of pandas 3 whenever it is imported; we do not use pandas there.
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))  # its sockets
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    from tests.spark.cluster import ClusterOfTests, stop_session

    with ClusterOfTests() as running:
        yield running
        stop_session()


@pytest.fixture
def session(cluster: Any) -> Any:
    """The session of all tests that need one, until one of them stops it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cluster.session()


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    """A Kafka for all tests of this folder."""
    from demo.broker.base import BrokerUnavailable
    from demo.broker.local import LocalBroker

    broker = LocalBroker()
    try:
        broker.start()
    except BrokerUnavailable as error:
        if os.environ.get("STREAM_DPPCA_REQUIRE_BROKERS"):
            raise
        pytest.skip(str(error))
    try:
        yield broker.bootstrap_servers
    finally:
        broker.close()


@pytest.fixture(scope="session")
def telemetry(servers: str) -> str:
    """A topic with three batches of JSON: nulls, garbage, an aborted transaction, an idle
    partition."""
    from tests.integration.test_spread import fill

    fill(servers, "telemetry", "json")
    return "telemetry"

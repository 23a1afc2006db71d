"""A service that is made to stall on purpose: its probes, polled throughout, tell the truth."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kafka import KafkaAdminClient

from demo.broker.base import BrokerUnavailable

from ..integration.conftest import refuse
from ..support.harness import BATCH, READERS, Fresh, model
from ..support.processes import Instance, wait_for
from ..torture.nodes import behind_a_proxy
from ..torture.proxy import Proxy

STALL_SECONDS = 60.0
#: Longest time without progress that is normal.
PATIENCE_SECONDS = STALL_SECONDS / 4


class Polls:
    """Everything that /readyz and /livez have said, with the times before and after each poll."""

    def __init__(self, instance: Instance) -> None:
        self.ready: list[tuple[float, float, int, str]] = []
        self.live: list[int] = []
        self._instance, self._enough = instance, threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def _poll(self) -> None:
        while not self._enough.wait(0.05):
            before = time.monotonic()
            status, body = self._instance.get("/readyz")
            self.ready.append((before, time.monotonic(), status, body.decode()))
            self.live.append(self._instance.get("/livez")[0])

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._enough.set()
            self._thread.join()

    def said(self, since: float, until: float) -> set[int]:
        """What /readyz said in polls that lie in this time as a whole."""
        return {status for a, b, status, _ in self.ready if since <= a and b <= until}


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Proxy, str]]:
    """A proxy in front of a broker, and the address of the proxy."""
    try:
        with behind_a_proxy() as (_, proxy, servers):
            yield proxy, servers
    except BrokerUnavailable as error:
        refuse(str(error))


def spellings(servers: str, topic: str) -> tuple[bytes, ...]:
    """How requests for messages may name a topic: in two ways by its name, and by its id."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    [found] = admin.describe_topics([topic])
    admin.close()
    name = topic.encode()
    by_id = uuid.UUID(str(found["topic_id"])).bytes
    return len(name).to_bytes(2) + name, bytes([len(name) + 1]) + name, by_id


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_probes_tell_the_truth_while_fetches_bring_nothing(
    proxied: tuple[Proxy, str], fresh_name: Fresh, reader: str
) -> None:
    proxy, servers = proxied
    with model(
        servers,
        fresh_name("stall"),
        partitions=2,
        reader=reader,
        stall_timeout_s=STALL_SECONDS,
        session_timeout_s=30,
    ) as m:
        proxy.topic = spellings(servers, m.name)
        m.produce(3 * BATCH)
        owner = m.start()
        m.finish(owner)
        owner.wait_until_ready("working")
        polls = Polls(owner)
        with polls.running():
            began = time.monotonic()
            with proxy.held() as quiet:
                wait_for("fetches to be held back", quiet)
                m.produce(3 * BATCH)
                produced = time.monotonic()
                owner.wait_for("no_progress")
                late = time.monotonic()
                wait_for("more polls", lambda: polls.ready[-1][0] > late + PATIENCE_SECONDS / 3)
                assert owner.metric("dppca_progress_age_seconds") >= PATIENCE_SECONDS
                assert owner.metric("dppca_loop_age_seconds") < PATIENCE_SECONDS
                ended = time.monotonic()
            owner.wait_for("progress_resumed")
            m.finish(owner)
            owner.wait_until_ready("working")
        assert polls.said(began, produced + PATIENCE_SECONDS - 1) == {200}
        assert polls.said(late + 0.5, ended) == {503}
        told = {text for a, _, status, text in polls.ready if status == 503 and a < ended}
        assert told and all("(reading partition " in text for text in told), told
        assert set(polls.live) == {200}
        assert not owner.saw("task_dropped") and m.check() == m.full_batches()

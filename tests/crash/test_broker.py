"""The broker crashes and comes back: the service resumes by itself."""

from __future__ import annotations

import random
import signal
import threading
import time
from contextlib import closing
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.compat import KafkaNetClient

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.config import KafkaConfig
from demo.broker.local import LocalBroker

from ..consumers.helpers import settled
from ..support.harness import BATCH, Fresh, model, read_topic
from ..support.processes import Instance, wait_for


def test_the_broker_is_killed_under_load(
    killable: LocalBroker, servers: str, fresh_name: Fresh
) -> None:
    """An owner and a standby survive a crash and a restart of the broker without restarting."""
    rng = random.Random()
    with model(
        servers, fresh_name("broker"), format="float32", partitions=2, rows_per_message=10
    ) as m:
        owner, standby = m.start(), m.start()
        try:
            with m.loaded(lambda: m.produce_packed(BATCH // 2), 0.02):
                for end in (killable.kill, killable.stop):
                    wait_for_releases(3, owner, standby)
                    time.sleep(rng.uniform(0.0, 0.5))  # any moment will do
                    end()
                    time.sleep(rng.uniform(0.0, 2.5))
                    killable.start()
        finally:
            killable.start()
        m.finish(owner, standby)
        assert owner.process.poll() is None and standby.process.poll() is None
        assert m.check() == m.full_batches()
        for instance in (owner, standby):
            instance.wait_until_ready()


def test_no_request_of_a_transaction_is_forgotten(
    killable: LocalBroker, servers: str, fresh_name: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that begins while the broker refuses connections is made when it is back.

    kafka-python forgets such a request; the task then stood still until it was given up.
    """
    name = fresh_name("forgotten")
    config = KafkaConfig(
        connection={"bootstrap_servers": servers},
        group=name,
        session_timeout_s=30.0,
        input_topic=name,
        state_topic=f"{name}.state",
        output_topic=f"{name}.out",
    )
    cluster = KafkaCluster(config)
    with model(servers, name) as m:
        for topic in (config.state_topic, config.output_topic):
            m.create(topic, 1)
        refused = threading.Event()
        await_ready = KafkaNetClient.await_ready

        def noted(self: Any, node_id: Any, timeout_ms: float = 30_000) -> Any:
            try:
                return await_ready(self, node_id, timeout_ms)
            except KafkaConnectionError:
                refused.set()
                raise

        with (
            closing(cluster.join()) as member,
            closing(cluster.ledger(settled(member))) as ledger,
        ):
            ledger.commit(b"1", {0: 0})
            connected = ledger._producer._sender._client.connected
            second = threading.Thread(target=ledger.commit, args=(b"2", {0: 0}), daemon=True)
            killable.kill()
            try:
                wait_for("lost connections", lambda: not connected("coordinator-1"))
                monkeypatch.setattr(KafkaNetClient, "await_ready", noted)
                second.start()
                wait_for("a refusal", refused.is_set)
            finally:
                killable.start()
            wait_for("the commit", lambda: not second.is_alive())
            assert [m.value for m in read_topic(servers, config.state_topic)] == [b"1", b"2"]


def wait_for_releases(more: int, *instances: Instance) -> None:
    """Wait until the instances have released this many more batches."""

    def released() -> int:
        return sum(e["event"] == "released" for i in instances for e in list(i.events))

    before = released()
    wait_for(f"{more} more releases", lambda: released() >= before + more)


def test_sigterm_while_the_broker_is_away(
    killable: LocalBroker, servers: str, fresh_name: Fresh
) -> None:
    """At work, standing by and while starting, it ends. Code 75 says that a broker did not answer
    in time to close in order; the watchdog sees to that within `LEAVE_SECONDS`."""
    with model(servers, fresh_name("away")) as m:
        m.produce(3 * BATCH)
        owner = m.start()
        m.finish(owner)
        standby = m.start()
        standby.wait_for("group_changed", role="standby")
        killable.kill()
        try:
            starting = m.start()
            starting.wait_for("waiting_for_brokers")
            check_leaving(owner, standby, starting)
        finally:
            killable.start()
        last = m.start()
        m.produce(BATCH)
        m.finish(last)
        assert m.check() == m.full_batches()


def check_leaving(*instances: Instance) -> None:
    for instance in instances:
        instance.signal(signal.SIGTERM)
    codes = [instance.wait() for instance in instances]
    assert set(codes) <= {0, 75}, [i.text[-1500:] for i in instances]

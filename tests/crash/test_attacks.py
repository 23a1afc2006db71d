"""Attacks by operators and brokers: topics emptied, recreated, compacted, widened, deleted;
transactions that time out; instances that disagree."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from consumers.errors import Unavailable
from consumers.service.loop import Service
from consumers.settings import Settings
from tests.support.memory import MemoryBroker, MemoryCluster

from ..consumers.helpers import in_thread
from ..support.harness import BATCH, Fresh, Model, check_numbers, model
from ..support.processes import PATIENT_LEAVING, Instance, stop_at, wait_for

REFUSED = 65

pytestmark = pytest.mark.usefixtures("each_reader")


def run_to_the_end(m: Model, **environment: str) -> Instance:
    instance = m.start(**PATIENT_LEAVING, **environment)
    m.finish(instance)
    assert instance.leave() == 0
    return instance


def remake(m: Model, topic: str, partitions: int = 1, **configs: str) -> None:
    """Delete a topic and make it again, empty."""
    with m.admin() as admin:
        admin.delete_topics([topic])

    def made() -> bool:
        try:
            m.create(topic, partitions, **configs)
        except Exception:  # it is still going
            return False
        return True

    wait_for(f"{topic} to be made anew", made)


def test_states_and_offsets_are_lost(servers: str, fresh_name: Fresh) -> None:
    """Brokers forget the offsets of a group with time, since it subscribes to the state topic only.
    The releases are still there, and show that records have been used."""
    with model(servers, fresh_name("forgotten")) as m:
        m.produce(2 * BATCH)
        run_to_the_end(m)
        remake(m, m.state_topic, **{"cleanup.policy": "compact"})

        def forgotten() -> bool:
            with m.admin() as admin:
                admin.delete_groups([m.group])
                return m.group not in str(admin.list_groups())

        wait_for("the group to be deleted", forgotten)
        again = m.start()
        assert again.wait() == REFUSED, again.text[-2000:]
        assert "holds a later release of model" in again.text
        assert len(m.outputs()) == 2


def test_the_state_topic_is_emptied(servers: str, fresh_name: Fresh) -> None:
    with model(servers, fresh_name("emptied")) as m:
        m.produce(3 * BATCH)
        run_to_the_end(m)
        remake(m, m.state_topic, **{"cleanup.policy": "compact"})
        again = m.start()
        assert again.wait() == REFUSED, again.text[-2000:]
        assert len(m.outputs()) == 3


@pytest.mark.parametrize("running", [False, True])
def test_the_input_topic_is_made_anew(servers: str, fresh_name: Fresh, running: bool) -> None:
    """Its offsets begin at 0 again: they do not show whether records were used."""
    with model(servers, fresh_name("anew")) as m:
        m.produce(3 * BATCH)
        instance = m.start(**PATIENT_LEAVING)
        m.finish(instance)
        if not running:
            assert instance.leave() == 0
        remake(m, m.name)
        m.produce(BATCH)
        if not running:
            instance = m.start()
        assert instance.wait() == REFUSED, instance.text[-2000:]
        assert m.durable() == 3


def test_partitions_are_added_while_nobody_runs(servers: str, fresh_name: Fresh) -> None:
    with model(servers, fresh_name("wider")) as m:
        m.produce(2 * BATCH + 50)
        run_to_the_end(m)
        m.widen(3)
        m.produce(3 * BATCH)
        run_to_the_end(m, DPPCA_START="latest")  # of a new model; one with a state resumes
        assert m.check() == m.full_batches()


def test_the_output_topic_is_deleted(servers: str, fresh_name: Fresh) -> None:
    """The service waits, and resumes with the newest release when the topic exists again."""
    # Short, as it is waited for; but a busy broker must not take that long to commit the state.
    with model(servers, fresh_name("unseen"), request_timeout_s=10, session_timeout_s=60) as m:
        m.produce(2 * BATCH)
        instance = m.start()
        m.finish(instance)
        with m.admin() as admin:
            admin.delete_topics([m.output_topic])
        m.produce(BATCH)
        wait_for("the state", lambda: m.durable() == 3)
        instance.wait_for("task_dropped")  # the release cannot be published
        m.create(m.output_topic, 1, **{"cleanup.policy": "compact"})
        m.produce(BATCH)
        m.finish(instance)
        found = [json.loads(message.value)["batch"] for message in m.outputs()]
        assert sorted(set(found)) == [3, 4]
        assert m.durable() == 4
        check_numbers(m.states())


def test_the_state_topic_is_compacted(servers: str, fresh_name: Fresh) -> None:
    """All but the newest state are removed, and with them the markers of their transactions."""
    eager = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "100",
    }
    with model(servers, fresh_name("compacted")) as m:
        m.create(m.state_topic, 1, **eager)
        m.produce(8 * BATCH)
        instance = m.start()
        m.finish(instance)
        kept = lambda: len(m.stored())  # noqa: E731
        wait_for("the cleaner", lambda: (m.produce(BATCH), kept())[1] < 5)
        instance.process.kill()
        run_to_the_end(m)
        last = m.full_batches()
        numbers = [json.loads(message.value)["batch"] for message in m.outputs()]
        assert sorted(set(numbers)) == list(range(1, last + 1)) and numbers == sorted(numbers)
        state = m.states()[-1]
        assert m.slots_before(state["positions"]) == state["batch"] * BATCH == last * BATCH


def test_a_transaction_times_out(servers: str, fresh_name: Fresh) -> None:
    """An owner is stopped inside a transaction until the broker has aborted it. Its commit is then
    refused, and it adopts the state that it had written."""
    # If the session ends before the transaction does, as on a busy machine, nobody else takes over.
    settings = {"transaction_timeout_s": 3, "session_timeout_s": 6}
    with model(servers, fresh_name("timeout"), **settings) as m:
        m.produce(4 * BATCH)
        instance = m.start(**stop_at("inside_transaction", 2))
        instance.wait_until_stopped()
        transactional_id = f"stream-dppca.{m.group}"

        def aborted() -> bool:
            with m.admin() as admin:
                [found] = admin.describe_transactions([transactional_id]).values()
            return str(found.state.value) == "CompleteAbort"

        wait_for("the broker to abort the transaction", aborted)
        instance.signal(signal.SIGCONT)
        m.finish(instance)
        assert instance.saw("task_dropped") and instance.saw("state_adopted", batch=2)
        assert m.check() == m.full_batches()


def test_a_standby_with_other_settings(servers: str, fresh_name: Fresh) -> None:
    """It refuses the state when it joins, and the owner continues to work."""
    with model(servers, fresh_name("other")) as m:
        m.produce(2 * BATCH)
        owner = m.start()
        m.finish(owner)
        standbys = [
            m.start(**other)
            for other in ({"DPPCA_EPSILON": "40"}, {"DPPCA_FEATURES": "cpu,disk.read,memory"})
        ]
        for standby in standbys:
            assert standby.wait() == REFUSED, standby.text[-2000:]
        m.produce(BATCH)
        m.finish(owner)
        assert m.check() == m.full_batches()


class Flaky(MemoryCluster):
    """A log that cannot be joined for a while."""

    joins = 0

    def join(self) -> Any:
        self.joins += 1
        if self.joins in (2, 3):
            raise Unavailable("no broker answers")
        return super().join()


def test_no_broker_when_it_must_join_again() -> None:
    """Fenced under an unchanged claim, it joins again; that fails while the brokers are away."""
    cluster = MemoryBroker()
    cluster.create("in", 1)
    settings = Settings(
        features=("cpu", "memory"),
        epsilon=8,
        delta=1e-3,
        batch_size=40,
        input_topic="in",
        format="json-array",
        http_port=0,
        session_timeout_s=1,
    )
    log = Flaky(
        cluster,
        group=settings.group,
        state_topic=settings.state_topic,
        input_topic="in",
        output_topic=settings.output_topic,
    )
    service = Service(settings, log, watched=False)
    with in_thread(service) as failed:
        wait_for("work", lambda: service.ready()[0])
        with cluster.changed:  # somebody fences the owner, and the group does not change
            cluster.epochs[settings.group] += 1
        for i in range(200):  # more than the first step takes
            cluster.produce("in", f"[{i}, 1]".encode())
        wait_for("the joins", lambda: failed or log.joins >= 4)
        wait_for("work", lambda: failed or service.ready()[0])
        assert not failed

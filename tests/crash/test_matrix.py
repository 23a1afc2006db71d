"""kill -9 at every named point, and at random moments under load.

With noise, a batch that is computed again gives other bytes, so a batch that is published twice
shows. Without noise, and with one partition, nothing depends on the moments of the kills: the
releases of a model that was killed all the time are those of one that never was.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from ..support.harness import BATCH, EVICTED, READERS, Fresh, Model, model, stored_releases
from ..support.launch import GROUP
from ..support.processes import PATIENT_LEAVING, SILENT, Instance, crash_at, wait_for

#: Number of kills at random moments: a few in CI, 50 in `make crash`.
CRASHES = int(os.environ.get("STREAM_DPPCA_CRASHES", "4"))
POINTS = (
    ("fenced", 1),
    ("loaded", 1),
    ("polling", 3),
    ("batch_full", 2),
    ("before_transaction", 2),
    ("offsets_sent", 2),
    ("inside_transaction", 2),
    ("after_commit", 2),
    ("inside_publish", 2),
    ("after_publish", 2),
)
#: Those after which something of a batch is on the topics.
WRITING = POINTS[5:]
PACKED = {"format": "float32", "partitions": 2, "rows_per_message": 20}
#: The paper's method learns from nearly every batch with these.
PAPER = {"method": "paper", "batch": 1000, "paper_c1": 40, "max_poll_records": 300}


def kill_at(m: Model, point: str, times: int, **environment: str) -> None:
    """Run until the point is reached; the process ends there, and its session with it."""
    instance = m.start(**crash_at(point, times) | environment)
    assert instance.wait() == -signal.SIGKILL, f"{point} was not reached:\n{instance.text}"
    m.evict()


def kill_while_closing(m: Model, **environment: str) -> None:
    instance = m.start(**environment | crash_at("closing") | PATIENT_LEAVING)
    instance.wait_for("task_started")
    assert instance.leave() == -signal.SIGKILL, instance.text
    m.evict()


def run_to_the_end(m: Model, **environment: str) -> None:
    last = m.start(**environment)
    m.finish(last)


def undisturbed(m: Model, fresh_name: Fresh, **environment: str) -> dict[int, dict[str, Any]]:
    """The releases of a model on the same input that nobody kills."""
    with model(m.servers, fresh_name("undisturbed")) as other:
        other.environment = m.environment | {"DPPCA_MODEL": other.name}
        instance = other.start(**environment)
        m.finish(instance)
        return other.releases()


def check_learned(releases: dict[int, dict[str, Any]]) -> None:
    """Check that releases differ: equal releases would prove nothing."""
    distinct = {json.dumps(release["components"]) for release in releases.values()}
    assert len(distinct) > len(releases) // 2


def components(release: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.array(release["components"])


def test_every_point_without_noise(servers: str, fresh_name: Fresh) -> None:
    """Nothing is lost, nothing is used twice: equal bit for bit to a run without a kill."""
    with model(servers, fresh_name("points"), **PAPER, **EVICTED) as m:
        for point, times in POINTS:
            m.produce(2 * m.batch + 170)
            kill_at(m, point, times, **SILENT)
        kill_while_closing(m, **SILENT)
        run_to_the_end(m, **SILENT)
        assert m.check() == m.full_batches()
        check_learned(m.releases())
        assert m.releases() == undisturbed(m, fresh_name, **SILENT)


@pytest.mark.parametrize("reader", READERS)
def test_every_point_with_noise(servers: str, fresh_name: Fresh, reader: str) -> None:
    """One payload per batch, although a batch that is computed again has other noise. Packed
    messages, two partitions."""
    with model(servers, fresh_name("noisy"), reader=reader, **PACKED, **EVICTED) as m:
        for point, times in WRITING:
            m.produce_packed(4 * BATCH)
            kill_at(m, point, times)
        kill_while_closing(m)
        run_to_the_end(m)
        assert m.check() == m.full_batches()
        check_learned(m.releases())


def test_every_writing_point_of_a_group(servers: str, fresh_name: Fresh) -> None:
    """Batches that wait share a transaction: all of them are durable or none, and none is lost."""
    with model(servers, fresh_name("groups"), **PACKED, **EVICTED) as m:
        for point, times in WRITING:
            m.produce_packed(40 * BATCH)  # more than two groups
            kill_at(m, point, times, **{GROUP: "16"})
        run_to_the_end(m)
        assert m.check() == m.full_batches()
        assert any(state["earlier"] for state in m.states())


def test_a_state_that_reached_the_log_is_the_state(servers: str, fresh_name: Fresh) -> None:
    """Whoever reads uncommitted records, or a disk, must not find a batch with noise drawn twice.

    The first kills come before any state is committed, the others after some are.
    """
    with model(servers, fresh_name("one"), **PACKED, **EVICTED) as m:
        for _ in range(2):
            m.produce_packed(4 * BATCH)
            for _ in range(6):
                kill_at(m, "inside_transaction", 1)
            killed = m.written()[-6:]
            assert all(state == killed[0] for state in killed)
            run_to_the_end(m)
            m.instances[-1].process.kill()
            m.evict()
            assert m.check() == m.full_batches()
        copies: dict[int, set[str]] = defaultdict(set)
        for state in m.written():
            copies[state["batch"]].add(json.dumps(state))
        assert {number: len(found) for number, found in copies.items()} == dict.fromkeys(copies, 1)
        released = stored_releases(m.written())
        assert set(released) == set(range(1, m.full_batches() + 1))
        seen = {
            json.loads(message.value)["batch"]: message.value.decode() for message in m.outputs()
        }
        assert seen == {number: release["value"] for number, release in released.items()}


def kill_at_random(m: Model, times: int, rng: random.Random, **environment: str) -> None:
    """An owner and a standby; the owner, or either, dies at any moment, and another one starts.

    There are some batches from the beginning: the number that comes during the kills is random."""
    m.produce_packed(6 * m.batch)
    running: list[Instance] = [m.start(**environment)]
    with m.loaded(lambda: m.produce_packed(1), 0.05):
        for _ in range(times):
            running.append(m.start(**environment))
            victim = rng.choice(running)
            if rng.random() < 0.75:
                owners = wait_for("work", lambda: [i for i in running if i.saw("task_starting")])
                victim = owners[0]
            time.sleep(rng.uniform(0.0, 1.5))  # any moment will do
            victim.process.kill()
            victim.wait()
            running.remove(victim)
    m.finish(*running)


def test_random_moments_without_noise(servers: str, fresh_name: Fresh) -> None:
    with model(servers, fresh_name("random"), format="float32", rows_per_message=50, **PAPER) as m:
        kill_at_random(m, (CRASHES + 1) // 2, random.Random(), **SILENT)
        assert m.check() == m.full_batches()
        check_learned(m.releases())
        assert m.releases() == undisturbed(m, fresh_name, **SILENT)


def test_random_moments_with_noise(servers: str, fresh_name: Fresh) -> None:
    with model(servers, fresh_name("random"), **PACKED) as m:
        kill_at_random(m, CRASHES // 2, random.Random())
        assert m.check() == m.full_batches()
        check_learned(m.releases())


def test_the_adaptive_method_goes_on_as_if_nothing_had_happened(
    servers: str, fresh_name: Fresh
) -> None:
    """A restart begins a new block of correlated noise, which changes the weights of the filter a
    little: by the variance of the noise, which is small for a large batch."""
    settings = {
        "batch": 4000,
        "format": "float32",
        "rows_per_message": 500,
        "max_poll_records": 5,
        **EVICTED,
    }
    with model(servers, fresh_name("adaptive"), **settings) as m:
        m.produce_packed(5 * m.batch)
        kill_at(m, "after_commit", 2, **SILENT)
        run_to_the_end(m, **SILENT)
        m.check()
        found, expected = m.releases(), undisturbed(m, fresh_name, **SILENT)
        check_learned(found)
        assert found.keys() == expected.keys()
        for number, release in found.items():
            np.testing.assert_allclose(
                components(release), components(expected[number]), rtol=0, atol=1e-6
            )

"""kill -9 with privacy per subject: a round that was interrupted is read again, whole.

Without noise, the releases of a model that was killed all the time are those of one that never was,
bit for bit.
"""

from __future__ import annotations

import json
import signal
from typing import Any

from ..support.harness import EVICTED, Fresh, RoundModel, round_model
from ..support.processes import PATIENT_LEAVING, SILENT, stop_at, wait_for
from .test_matrix import kill_at
from .test_zombie import BACK_TO_STANDBY, STEADY

POINTS = (("polling", 30), ("inside_transaction", 2), ("after_commit", 2), ("inside_publish", 2))


def without_name(releases: dict[int, dict[str, Any]], count: int) -> list[str]:
    return [json.dumps({**releases[n], "model": ""}) for n in range(1, count + 1)]


def test_rounds_that_were_interrupted(servers: str, fresh_name: Fresh) -> None:
    with round_model(servers, fresh_name("rounds"), partitions=2, **EVICTED) as m:
        for point, times in POINTS:
            m.produce_devices(70)
            kill_at(m, point, times, **SILENT)
        m.produce_devices(70)
        last = m.start(**SILENT, **PATIENT_LEAVING)
        count = m.finish_rounds(last)
        assert last.leave() == 0  # rounds continue, with or without records
        m.check(complete=False)
        found = m.releases()
        with round_model(servers, fresh_name("undisturbed")) as other:
            other.environment = m.environment | {"DPPCA_MODEL": other.name}
            instance = RoundModel.start(other, **SILENT)
            m.finish_rounds(instance)
            wanted = other.releases()
        assert without_name(found, count) == without_name(wanted, count)
        learned = [r for r in found.values() if r["status"] == "learned"]
        assert len({json.dumps(r["components"]) for r in learned}) >= 3
        assert all("n_seen" not in r and "subjects" in r for r in found.values())


def test_a_zombie_publishes_nothing(servers: str, fresh_name: Fresh) -> None:
    """It is stopped between commit and publish, replaced, and woken. With noise, a round that was
    computed twice would show."""
    with round_model(servers, fresh_name("zombie"), partitions=2, **STEADY) as m:
        m.produce_devices(70)
        owner = m.start(**stop_at("after_commit", 2))
        owner.wait_until_stopped()
        m.evict()
        standby = m.start(**PATIENT_LEAVING)
        standby.wait_for("task_started")
        m.produce_devices(70)
        m.finish_rounds(standby)
        owner.signal(signal.SIGCONT)
        wait_for("the zombie to stand by", lambda: owner.get("/readyz") == BACK_TO_STANDBY)
        m.produce_devices(70)
        m.finish_rounds(standby)
        owner.close()
        assert standby.leave() == 0
        m.check(complete=False)

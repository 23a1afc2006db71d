"""kill -9 in a first step of several batches: nothing of a part is stored, nothing used twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ..support.harness import EVICTED, Fresh, model
from ..support.processes import SILENT
from .test_matrix import WRITING, kill_at, run_to_the_end, undisturbed

#: A first step of four batches with the default settings.
SETTINGS: dict[str, Any] = {
    "center": None,
    "scales": None,
    "epsilon": 1,
    "delta": 1e-5,
    "batch": 300,
    "format": "float32",
    "rows_per_message": 20,
    "max_poll_records": 3,
    **EVICTED,
}
FIRST, LATER = 4, 8


@pytest.mark.parametrize("silent", [False, True])
def test_every_writing_point_of_the_first_step(
    servers: str, fresh_name: Fresh, silent: bool
) -> None:
    """With noise, the bytes of a step that is published twice differ. Without noise, the result is
    that of a run without a kill, so no record can have been used again."""
    environment = SILENT if silent else {}
    with model(servers, fresh_name("first-step"), **SETTINGS) as m:
        m.first_batches = FIRST
        for row in range(0, (FIRST + LATER) * m.batch, 20):
            rows = [50, 1e9, 20] + np.array([10, 1e8, 0.3]) * (m.rows(20) + np.sin(row / 500))
            m.send(rows.astype("<f4").tobytes())
        m.producer.flush()
        kill_at(m, "batch_taken", FIRST - 1, **environment)
        assert m.durable() == 0 and not m.releases()
        for k, (point, _) in enumerate(WRITING):
            # The first run dies in the first step, the others in the first step that they come to.
            kill_at(m, point, 1, **environment)
            # States that reached the log are adopted, so that a kill may not cost a batch.
            assert m.durable() <= LATER - 1, f"kill {k} came late"
        run_to_the_end(m, **environment)
        assert m.check() == m.full_batches() == LATER + 1
        found = m.releases()
        assert {r["status"] for r in found.values()} == {"learned"}
        assert {r["first_batches"] for r in found.values()} == {FIRST}
        if not silent:
            return
        expected = undisturbed(m, fresh_name, **environment)
        assert sorted(expected) == sorted(found)
        for field in ("center", "scale", "mean", "deviation"):
            np.testing.assert_allclose(found[1][field], expected[1][field], rtol=1e-9, atol=1e-9)
        # A restart changes the noise that is expected, and so how far scales are refined, but not
        # the means. A batch that is used twice would move one by a tenth of a deviation.
        for step, release in found.items():
            wanted = expected[step]
            moved = (raw_mean(release) - raw_mean(wanted)) / np.array(wanted["scale"])
            np.testing.assert_allclose(moved, 0, atol=0.03)


def raw_mean(release: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The mean of each feature, in its own unit."""
    center, scale, mean = (np.array(release[name]) for name in ("center", "scale", "mean"))
    return np.asarray(center + scale * mean)

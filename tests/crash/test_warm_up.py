"""kill -9 while centre and scales are learned: the warm-up resumes, and uses no record again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ..harness import EVICTED, Fresh, model
from ..processes import SILENT
from .test_matrix import WRITING, kill_at, run_to_the_end, undisturbed

#: A warm-up of three batches with the default settings.
SETTINGS: dict[str, Any] = {
    "center": None, "scales": None, "epsilon": 1, "delta": 1e-5, "batch": 300,
    "format": "float32", "rows_per_message": 20, "max_poll_records": 3,
    **EVICTED,
}  # fmt: skip
WARM_UP = 3


@pytest.mark.parametrize("silent", [False, True])
def test_every_writing_point_of_the_warm_up(servers: str, fresh_name: Fresh, silent: bool) -> None:
    """With noise, the bytes of a batch that is published twice differ. Without noise, the result is
    that of a run without a kill, so no record can have been used again."""
    environment = SILENT if silent else {}
    with model(servers, fresh_name("warm-up"), **SETTINGS) as m:
        for row in range(0, 8 * m.batch, 20):
            rows = [50, 1e9, 20] + np.array([10, 1e8, 0.3]) * (m.rows(20) + np.sin(row / 500))
            m.send(rows.astype("<f4").tobytes())
        m.producer.flush()
        for k, (point, _) in enumerate(WRITING):
            # The first run dies in batch 1, the others in the first batch that they come to.
            kill_at(m, point, 1, **environment)
            assert m.durable() <= WARM_UP, f"the warm-up was over before kill {k}"
        run_to_the_end(m, **environment)
        assert m.check() == m.full_batches()
        found = m.releases()
        statuses = [found[batch]["status"] for batch in sorted(found)]
        assert statuses[:WARM_UP] == ["warming_up"] * WARM_UP
        assert all(not found[b]["components"] and found[b]["center"] is None for b in (1, 2, 3))
        assert [found[b]["warm_up_left"] for b in (1, 2, 3)] == [2, 1, 0]
        assert set(statuses[WARM_UP:]) == {"learned"}
        if not silent:
            return
        expected = undisturbed(m, fresh_name, **environment)
        assert {b: r["status"] for b, r in expected.items()} == dict(enumerate(statuses, 1))
        for batch in range(WARM_UP + 1, len(statuses) + 1):
            for field in ("center", "scale", "mean", "deviation"):
                np.testing.assert_allclose(
                    list(found[batch][field].values()), list(expected[batch][field].values()),
                    rtol=1e-9, atol=1e-9,
                )  # fmt: skip

"""The same work with and without a null. Time itself is measured by `benchmarks/timing.py`."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import stream_dppca
from stream_dppca import DPPCA, PaperDPPCA

PACKAGE = str(Path(stream_dppca.__file__).parent)
D, BATCH = 40, 5000  # five blocks
KINDS: dict[str, dict[str, Any]] = {
    "moment": {},
    "scales": {"scales": [2.0] * D},
    "paper": {"epsilon": 20.0, "delta": 1e-3},
    "paper in pairs": {"epsilon": 20.0, "delta": 1e-3, "center": "pairs"},
}


def learned(kind: str, null: bool, dtype: type) -> tuple[DPPCA | PaperDPPCA, np.ndarray]:
    """An estimator after its first batch, and the next one."""
    made = PaperDPPCA if kind.startswith("paper") else DPPCA
    budget = {"epsilon": 1.0, "delta": 1e-6}
    pca = made(features=range(D), batch_size=BATCH, seed=1, **budget | KINDS[kind])
    X = np.random.default_rng(2).standard_normal((2 * BATCH, D)).astype(dtype)
    pca.learn_array(X[:BATCH])
    if null:
        X[BATCH + BATCH // 2, 3] = np.nan
    return pca, X[BATCH:]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_a_null_changes_no_line_that_runs(kind: str, dtype: type) -> None:
    def lines(null: bool) -> list[tuple[str, int]]:
        ran: list[tuple[str, int]] = []

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            if event == "line":
                ran.append((frame.f_code.co_filename, frame.f_lineno))
            return trace

        pca, X = learned(kind, null, dtype)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            pca.learn_array(X)
        finally:
            sys.settrace(before)
        return ran

    lines(null=False)  # computed once
    without = lines(null=False)
    assert len(without) > 100
    assert lines(null=True) == without


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["moment", "scales"])  # the paper's needs a copy
def test_a_null_costs_no_memory(kind: str, dtype: type) -> None:
    """Nothing of the size of a batch is copied, and the peak does not move."""

    def peak(null: bool) -> int:
        pca, X = learned(kind, null, dtype)
        tracemalloc.start()
        try:
            pca.learn_array(X)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(null=False)  # what is loaded once
    # Threads that an earlier test has left may allocate something, too, but hardly every time.
    without, with_null = (min(peak(null) for _ in range(3)) for null in (False, True))
    assert abs(with_null - without) < 4096
    block = 1024 * D * 8
    assert without < 5 * block + BATCH * 100  # a scratch block or two, and numbers per record

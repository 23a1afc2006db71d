"""Questions of a mechanism: all implementations of `Rows` give the same answers."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stream_dppca import DPPCA, PaperDPPCA
from stream_dppca.arrays import FloatArray
from stream_dppca.batch import Batch, Reading, block_size
from stream_dppca.method.statistics import LengthCounts
from stream_dppca.statistics import Block, Statistic
from tests.conftest import batch_of, moments_in, spiked


@dataclass(frozen=True)
class ClippedMean:
    """Sum of z = clamp((x - centre)/scale) and the number of valid units: a plain total."""

    centre: float
    scale: float

    def __call__(self, block: Block) -> FloatArray:
        z = np.clip((block.X - self.centre) / self.scale, -4.0, 4.0)
        z[block.null] = 0.0
        return np.array([z.sum(), np.count_nonzero(~block.null)])


class Spread:
    """A batch in parts, as on a cluster: questions travel as bytes, partial sums come back.

    Parts are whole blocks, so that every unit has the same place as in the batch.
    """

    def __init__(self, X: FloatArray, reading: Reading, parts: int) -> None:
        step = block_size(X.shape[1])
        edges = [step * (i * len(X) // (parts * step)) for i in range(parts)]
        self.parts = [Batch(part, reading) for part in np.split(X, edges[1:]) if len(part)]
        assert len(self.parts) > 1

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def total(self, statistic: Statistic) -> FloatArray:
        question = pickle.dumps(statistic)
        return sum(part.total(pickle.loads(question)) for part in self.parts)  # type: ignore[return-value]


def records(n: int, d: int) -> FloatArray:
    X, _ = spiked(np.random.default_rng(d), n, d, 0.3)
    X[5, 0], X[n // 2], X[-1] = np.nan, 1e300, np.inf
    return X


@pytest.mark.usefixtures("several_threads")
@pytest.mark.parametrize("d", [5, 130])
@pytest.mark.parametrize("how", [{}, {"scales": True}], ids=repr)
def test_a_batch_in_parts_answers_the_same(d: int, how: dict[str, Any]) -> None:
    if "scales" in how:
        how = how | {"scales": tuple(np.random.default_rng(1).uniform(0.5, 2.0, d).tolist())}
    reading, X = Reading(1e18, **how), records(30_000, d)
    local, spread = Batch(X, reading), Spread(X, reading, parts=3)
    assert len(local) == len(spread) == 30_000
    statistic = ClippedMean(0.1, 2.0)
    assert local.total(statistic) == pytest.approx(spread.total(statistic), rel=1e-12)
    moments = moments_in(d, 2.0)
    assert local.total(moments) == pytest.approx(spread.total(moments), rel=1e-11, abs=1e-8)
    lengths = LengthCounts(
        (0.0,) * d, (1.0,) * d, (math.inf,) * d, tuple(2.0 ** np.arange(-30, 40))
    )
    assert local.total(lengths).tolist() == spread.total(lengths).tolist()


@pytest.mark.parametrize("d, known", [(5, True), (70, True), (300, True), (5, False), (70, False)])
def test_the_mechanism_never_asks_for_the_matrix(d: int, known: bool) -> None:
    """Batches in parts give the releases that local ones give: rows are seen through sums alone."""
    how: dict[str, Any] = {
        "features": range(d),
        "epsilon": 1.0,
        "delta": 1e-6,
        "batch_size": 12_288,
        "seed": 1,
    }
    how |= {"center": "none", "scales": None} if known else {}
    one, other = DPPCA(**how), DPPCA(**how)
    X = records(3 * 12_288, d)
    one.learn_array(X)
    for part in np.split(X, 3):
        other._run(Spread(part, other._slots.reading, parts=3))
    assert one.components == pytest.approx(other.components, abs=1e-9)
    assert one.last_release is not None and other.last_release is not None
    assert one.last_release.range == other.last_release.range


def test_the_paper_method_needs_the_records() -> None:
    m = PaperDPPCA(features=tuple("abcd"), epsilon=8.0, delta=1e-3, batch_size=20_000)
    with pytest.raises(TypeError, match="in this process"):
        m._run(Spread(records(20_000, 4), Reading(1e18), parts=2))


def test_nulls_add_nothing_and_keep_their_place() -> None:
    X = records(3000, 4)
    clean = np.where((np.abs(X) < 1e18).all(axis=1)[:, None], X, 0.0)
    spoiled, good = batch_of(X), batch_of(clean)
    assert len(spoiled) == 3000
    totals = (batch.total(moments_in(4, 1.0)) for batch in (spoiled, good))
    np.testing.assert_allclose(*totals, rtol=0, atol=1e-11)
    assert spoiled.total(ClippedMean(0.0, 1.0))[1] == 2997


def test_blocks_are_aligned_whatever_comes_in() -> None:
    """float32, scales and the buffer itself: products never see memory of odd alignment."""
    X = np.random.default_rng(0).standard_normal((3000, 5))
    for raw, how in (
        (X.astype(np.float32), {}),
        (np.asfortranarray(X), {}),
        (X, {"scales": (1.0, 2.0, 3.0, 4.0, 5.0)}),
    ):
        for block in batch_of(raw, **how)._blocks():
            assert block.X.ctypes.data % 64 == block.scratch.ctypes.data % 64 == 0


@pytest.mark.parametrize("d", [1, 64, 65, 1000, 10**6])
def test_blocks_fit_into_a_cache(d: int) -> None:
    rows = block_size(d)
    assert 16 <= rows <= 4096 and rows & (rows - 1) == 0
    assert rows == 16 or rows * d <= 262_144

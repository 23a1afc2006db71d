"""A batch on an engine gives the same answers as in memory, bit by bit where it matters."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stream_dppca import DPPCA, DPPCAError, ParameterError
from stream_dppca.arrays import FloatArray, aligned
from stream_dppca.batch import Batch, Reading, block_size
from stream_dppca.engine import (
    EngineBatches,
    EngineError,
    EngineRows,
    Group,
    LocalEngine,
    partials,
    split,
)
from stream_dppca.engine.kernels import fingerprint
from stream_dppca.engine.partials import multiplied
from stream_dppca.method.limits import ScoreCounts
from stream_dppca.method.statistics import LengthCounts
from stream_dppca.statistics import Block, Statistic
from tests.conftest import moments_in
from tests.engine.helpers import ArraySource, DrawnSource, PicklingEngine

SIZE = 12_288


def records(n: int, d: int, **how: Any) -> FloatArray:
    X = aligned(n, d)
    X[:] = DrawnSource(3, d, far=97, bad=89, **how).read(Group(0, n))
    X[5], X[n // 2], X[-1] = np.inf, 1e300, np.nan
    return X


def model(d: int, **how: Any) -> DPPCA:
    how = {"epsilon": 1.0, "delta": 1e-6, "batch_size": SIZE, "seed": 1} | how
    return DPPCA(features=range(d), **how)


def on_engine(X: FloatArray, reading: Reading, tasks: int) -> EngineRows:
    groups = split(len(X), X.shape[1], tasks)

    def ask(question: Statistic) -> list[partials.Partial]:
        return [partials.answer(question, ArraySource(X), reading, group) for group in groups]

    return EngineRows(ask, len(X))


def lengths_of(d: int) -> LengthCounts:
    return LengthCounts((0.0,) * d, (1.0,) * d, (9.0,) * d, tuple(2.0 ** np.arange(-5, 20)))


def scores_of(d: int, k: int) -> ScoreCounts:
    W = np.linalg.qr(np.random.default_rng(k).standard_normal((d, k)))[0]
    center, scale, mean = (5.0,) * d, (2.0,) * d, np.full(d, 0.1)
    expected = (float(d), float(k))
    return ScoreCounts(center, scale, (5.0,) * d, mean, np.ones(d), W, np.ones(k), expected)


# Splits


@pytest.mark.parametrize("slots, d", [(100, 3), (SIZE, 3), (SIZE + 2, 130), (2**20, 1000)])
@pytest.mark.parametrize("tasks", [1, 3, 8, 1000])
def test_groups_cover_all_slots_in_order_and_keep_blocks_whole(
    slots: int, d: int, tasks: int
) -> None:
    groups = split(slots, d, tasks)
    assert groups[0].start == 0 and groups[-1].stop == slots
    assert all(a.stop == b.start for a, b in pairwise(groups))
    step = block_size(d)
    assert all(group.slots > 0 and group.start % step == 0 for group in groups)
    assert all(group.slots * d <= 2**24 or len(groups) == slots // step for group in groups)


def test_tasks_must_be_a_number() -> None:
    with pytest.raises(ParameterError, match="`tasks` must be"):
        split(100, 3, 0)


# Answers


@pytest.mark.usefixtures("several_threads")
@pytest.mark.parametrize("d", [5, 130])
@pytest.mark.parametrize("how", [{}, {"scales": True}, {"partial": True}], ids=repr)
@pytest.mark.parametrize("tasks", [1, 3])
def test_counts_are_equal_and_sums_agree(d: int, how: dict[str, Any], tasks: int) -> None:
    if "scales" in how:
        how = {"scales": tuple(np.linspace(0.5, 2.0, d).tolist())}
    reading, X = Reading(1e18, **how), records(SIZE + 1000, d)
    if reading.partial:
        X[7, 0] = np.nan
    local, spread = Batch(X, reading), on_engine(X, reading, tasks)
    assert len(local) == len(spread)
    assert spread.present() == np.count_nonzero(~local.matrix()[1])
    moments = moments_in(d, 9.0)
    one_total, other_total = local.total(moments), spread.total(moments)
    assert np.abs(one_total - other_total).max() <= 1e-12 * np.abs(one_total).max()
    for counts in (lengths_of(d), scores_of(d, 3)):
        assert local.total(counts).tolist() == spread.total(counts).tolist()
        assert local.total(counts).any()


@pytest.mark.usefixtures("several_threads")
def test_rows_whose_place_is_not_public_are_measured_alike_everywhere() -> None:
    d, k = 200, 3
    reading, X = Reading(1e18), records(3000, d)
    X[~np.isfinite(X) | (np.abs(X) > 1e18)] = 0.0
    W = np.linalg.qr(np.random.default_rng(0).standard_normal((d, k)))[0]
    order = np.random.default_rng(1).permutation(len(X))

    def measured(rows: FloatArray) -> FloatArray:
        blocks = Batch(np.ascontiguousarray(rows), reading, placed=False)._blocks()
        return np.concatenate(
            [np.column_stack([b.along(W, b.X), b.sq_lengths(b.X)]) for b in blocks]
        )

    every = measured(X)
    for places in (order, order[1:], order[:7]):
        assert measured(X[places]).tobytes() == every[places].tobytes()


@pytest.mark.parametrize("d", [5, 8193, 20_000])
def test_a_lone_row_is_measured_as_it_is_among_others(d: int) -> None:
    """Where a frame is cut is not public, so a row may be alone in its block."""
    X = np.random.default_rng(d).standard_normal((24, d))
    ones, edges = (1.0,) * d, (0.5 * d, d, 2.0 * d)
    statistic = LengthCounts((0.0,) * d, ones, (9.0,) * d, edges)

    def block(rows: np.ndarray) -> Block:
        free = np.zeros(len(rows), dtype=bool)
        return Block(rows, free, np.empty((2, *rows.shape)), placed=False)

    together = block(X)
    alone = [block(X[i : i + 1].copy()) for i in range(len(X))]
    for measure in (Block.sq_lengths, Block.moment_norms):
        lengths = [measure(one, one.X) for one in alone]
        assert np.concatenate(lengths).tobytes() == measure(together, X).tobytes()
    assert sum(statistic(one) for one in alone).tolist() == statistic(together).tolist()


@pytest.mark.parametrize("rows", [1, block_size(300)])
def test_the_fingerprint_sees_how_a_block_is_rounded(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, before = np.vecdot, fingerprint.__wrapped__(300, 2)

    def other(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return exact(a, b) * (1 + 2.0**-50 if len(a) == rows else 1)

    monkeypatch.setattr(np, "vecdot", other)
    assert fingerprint.__wrapped__(300, 2) != before


def test_the_fingerprint_is_that_of_the_products_of_scores() -> None:
    """A bin follows from a product with all components, so processes must round that alike."""
    assert multiplied(scores_of(6, 3)) == 4
    assert multiplied(lengths_of(6)) == 1


# The mechanism


@pytest.mark.parametrize(
    "d, how",
    [
        (5, {"center": "none", "scales": None}),  # second moments
        (70, {"center": "none", "scales": None, "n_components": 2}),  # scales in one unit
        (300, {"center": "none", "scales": None, "batch_size": 4096}),  # long blocks
        (5, {}),  # centre and scales learned, in the first step
        (70, {"n_components": 3}),
        (5, {"missing": "center"}),
    ],
    ids=repr,
)
def test_seeded_releases_are_those_of_the_local_estimator(d: int, how: dict[str, Any]) -> None:
    local, spread = model(d, **how), model(d, **how)
    engine, batches = PicklingEngine(), 4
    made = EngineBatches(engine, spread, tasks=3)
    assert len(made.groups) > 1
    X = records(batches * local.batch_size, d)
    for part in np.split(X, batches):
        local.learn_array(part)
        spread.learn_rows(made.rows(ArraySource(part)))
        one, other = local.last_release, spread.last_release
        assert one is not None and other is not None
        assert (one.status, one.reason, one.range) == (other.status, other.reason, other.range)
        assert local.components == pytest.approx(spread.components, abs=1e-9)
        for a, b in ((one.spread, other.spread), (one.center, other.center)):
            assert (a is None and b is None) or a == pytest.approx(b, rel=1e-9, abs=1e-9)
    assert local.state()["n_batches"] == spread.state()["n_batches"] == batches
    assert len(local.components)


def test_one_job_per_batch_after_the_first_step() -> None:
    spread, engine = model(6), PicklingEngine()
    made = EngineBatches(engine, spread, tasks=3)
    for seed in range(spread.first_batches):
        spread.learn_rows(made.rows(DrawnSource(seed, 6)))
    assert spread.last_release is not None and spread.last_release.status == "learned"
    before = engine.jobs
    for seed in range(100, 110):
        spread.learn_rows(made.rows(DrawnSource(seed, 6)))
    assert engine.jobs - before == 10


# Refusals and errors


def test_rows_that_do_not_fit_are_refused() -> None:
    m = model(5)
    made = EngineBatches(LocalEngine(), model(5, batch_size=2 * SIZE), tasks=2)
    with pytest.raises(ParameterError, match="`rows` must have 12288 places"):
        m.learn_rows(made.rows(DrawnSource(1, 5)))
    m.learn_one({0: 1.0})
    with pytest.raises(ParameterError, match="while 1 records wait"):
        m.learn_rows(EngineBatches(LocalEngine(), m, tasks=2).rows(DrawnSource(1, 5)))


def test_whole_batches_and_single_records_do_not_share_a_step() -> None:
    m = model(5, epsilon=0.05)
    made = EngineBatches(LocalEngine(), m, tasks=2)
    assert m.step_batches > 2
    X = records(SIZE, 5)
    for taken in range(1, m.step_batches):
        m.learn_rows(made.rows(ArraySource(X)))
        assert m.n_seen == taken * SIZE
        for give in (
            lambda: m.learn_array(X[:1]),
            lambda: m.learn_array(X),
            lambda: m.learn_one(dict.fromkeys(range(5), 1.0)),
            lambda: m.learn_many(pd.DataFrame(X[:3])),
        ):
            with pytest.raises(DPPCAError, match=f"{taken} whole batches wait for the first step"):
                give()
        assert m.n_seen == taken * SIZE and m.n_batches == 0
    m.learn_rows(made.rows(ArraySource(X)))
    assert m.n_batches == 1
    m.learn_one(dict.fromkeys(range(5), 1.0))
    release = m.last_release
    assert release is not None and m.n_seen == (release.n_seen or 0) + 1


@dataclass(frozen=True)
class FailingSource:
    how: str

    def read(self, group: Group) -> Any:
        if self.how == "raise":
            raise ValueError("record 31337 cannot be read")
        return np.full((group.slots - 1, 5), 31337.0)


@pytest.mark.parametrize(
    "how, problem",
    [("raise", "ValueError in a task"), ("short", "a source must give 8192 rows of floats")],
)
def test_errors_of_tasks_name_the_slots_and_no_record(how: str, problem: str) -> None:
    m = model(5, batch_size=2 * SIZE)
    made = EngineBatches(LocalEngine(), m, tasks=3)
    with pytest.raises(EngineError) as failed:
        m.learn_rows(made.rows(FailingSource(how)))
    assert str(failed.value) == f"slots 0 to 8192: {problem}"
    assert failed.value.__cause__ is None and failed.value.__suppress_context__
    assert "31337" not in repr(failed.value)
    with pytest.raises(Exception, match="interrupted"):  # its records count as used
        m.learn_rows(made.rows(DrawnSource(1, 5)))


def test_processes_that_round_differently_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model(5, batch_size=2 * SIZE)
    made = EngineBatches(LocalEngine(), m, tasks=2)
    prints = iter(["a", "b"] * 50)
    monkeypatch.setattr(partials, "fingerprint", lambda *shape: next(prints))
    with pytest.raises(EngineError, match="do not round in the same way"):
        m.learn_rows(made.rows(DrawnSource(1, 5)))


def test_a_batch_with_more_records_than_slots_is_refused() -> None:
    X, reading = records(1000, 3), Reading(1e18)
    ask = lambda question: [partials.partial_of(question, X, reading)]  # noqa: E731
    assert EngineRows(ask, 1000).present() > 0
    with pytest.raises(EngineError, match="a batch of 999 slots had 1000 records"):
        EngineRows(ask, 999).present()


def test_secrets_are_not_shown() -> None:
    partial = partials.partial_of(partials.Present(), records(50, 3), Reading(1))
    assert "array" not in repr(partial) and "total" not in repr(partial)
    assert pickle.loads(pickle.dumps(partial)).slots == 50

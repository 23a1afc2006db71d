"""The contribution of a subject: its value, its sensitivity, and its independence of positions."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dppca import rowwise
from stream_dppca.mechanisms.packing import unpack
from stream_dppca.method.statistics import (
    AugmentedMoments,
    GridCounts,
    LengthCounts,
    MomentsInBall,
    OctaveCounts,
)
from stream_dppca.statistics import Statistic
from stream_dppca.subjects import SubjectRows
from tests.conftest import FloatArray, batch_of, moments_in
from tests.subjects.fleets import fleet, round_of

D, RECORDS = 5, 3
STANDARD: dict[str, Any] = {
    "center": (0.1,) * D,
    "scale": (0.7, 1.0, 2.0, 0.1, 1.0),
    "clamp": (5.0,) * D,
}
STATISTICS: dict[str, Statistic] = {
    "octaves": OctaveCounts(tuple(range(D)), (0.1,) * D),
    "grid": GridCounts((0, 2), (-1.0, -2.0), (0.25, 0.5), 8),
    "lengths": LengthCounts(**STANDARD, edges=(1.0, 3.0, 9.0)),
    "ball": MomentsInBall(**STANDARD, radius=2.0),
    "augmented": AugmentedMoments(**STANDARD, constant=0.5, radius=4.0, each=RECORDS),
}
SENSITIVITY = {
    "octaves": math.sqrt(2 * D),
    "grid": 2.0,
    "lengths": math.sqrt(2),
    "ball": 4.0,
    "augmented": math.sqrt(2) * 4.0,
}


@pytest.mark.parametrize("radius", [0.2, 1.0, 1e3])
def test_the_mean_over_rows_is_clipped_and_added_up(radius: float) -> None:
    X, ids, _ = fleet(np.random.default_rng(0), 60, D)
    total = round_of(X, ids, 100, records=RECORDS).total(moments_in(D, radius, RECORDS))
    terms = [np.mean([np.outer(x, x) for x in X[ids == i][:RECORDS]], axis=0) for i in range(60)]
    expected = sum(min(1.0, radius / np.linalg.norm(t)) * t for t in terms)
    np.testing.assert_allclose(unpack(total)[:D, :D], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_of_a_subject_is_the_mean_over_its_rows(name: str) -> None:
    """One row each: as for records. The same row several times: still the same."""
    X = np.random.default_rng(1).normal(size=(70, D))
    ids = np.arange(70)
    once = round_of(X, ids, 80, records=RECORDS).total(STATISTICS[name])
    np.testing.assert_allclose(once, batch_of(X).total(STATISTICS[name]), rtol=1e-12, atol=1e-12)
    often = round_of(np.repeat(X, 5, axis=0), np.repeat(ids, 5), 80, records=RECORDS)
    np.testing.assert_allclose(often.total(STATISTICS[name]), once, rtol=1e-12, atol=1e-12)


def test_batches_of_records_can_say_how_many_are_there_too() -> None:
    X = np.ones((9, D))
    X[2, 0], X[5] = np.nan, 1e300
    assert batch_of(X).present() == round_of(X, range(9), 9).present() == 7


def test_nulls_partial_rows_and_scales() -> None:
    X = np.ones((6, D))
    X[1, 0], X[2], X[4] = np.nan, 1e300, np.inf
    rows = round_of(X, ["a", "a", "b", "c", "c", "a"], 10, scales=(2.0,) * D)
    assert rows.present() == 2 and len(rows) == 10  # b has nothing that can be used
    moment = rows.total(moments_in(D, 1e9, 3))
    np.testing.assert_allclose(unpack(moment)[:D, :D], 2 * np.full((D, D), 0.25))
    assert round_of(X, ["a", "a", "b", "c", "c", "a"], 10, partial=True).present() == 2
    empty = round_of(np.zeros((0, D)), [], 10)
    assert empty.present() == 0
    for name, statistic in STATISTICS.items():
        assert empty.total(statistic).shape == rows.total(statistic).shape, name
        assert not empty.total(statistic).any()


def test_deviations_from_the_subjects_own_mean() -> None:
    X, ids, _ = fleet(np.random.default_rng(2), 40, D)
    offset = np.random.default_rng(3).normal(size=(40, D)) * 100
    rows = round_of(X + offset[ids], ids, 40, records=4, own=True)
    covariances = [np.cov(X[ids == i][:4].T) for i in range(40) if np.count_nonzero(ids == i) > 1]
    assert rows.present() == len(covariances)
    total = rows.total(moments_in(D, 1e9, 4))
    np.testing.assert_allclose(unpack(total)[:D, :D], np.sum(covariances, axis=0), rtol=1e-9)


# How far a subject reaches

numbers = st.floats(-1e18, 1e18, allow_nan=False) | st.sampled_from([0.0, 1.0, -1.0, 1e-30, np.nan])
contents = st.lists(st.lists(numbers, min_size=D, max_size=D), max_size=RECORDS)


@settings(max_examples=60, deadline=None)
@given(one=contents, other=contents, radius=st.sampled_from([1e-6, 0.3, 1.0, 1e3, 1e30]))
def test_no_subject_moves_a_sum_further_than_its_sensitivity(
    one: list[list[float]], other: list[list[float]], radius: float
) -> None:
    X, ids, _ = fleet(np.random.default_rng(4), 12, D)
    rounds = [
        round_of(
            np.concatenate([X, np.array(rows).reshape(-1, D)]), [*ids, *["canary"] * len(rows)], 13
        )
        for rows in (one, other)
    ]
    assert abs(rounds[0].present() - rounds[1].present()) <= 1
    moments = moments_in(D, radius, RECORDS)
    a, b = (rows.total(moments) for rows in rounds)
    assert np.linalg.norm(a - b) <= moments.sensitivity(13)
    for name, statistic in STATISTICS.items():
        totals = [rows.total(statistic) for rows in rounds]
        assert np.linalg.norm(totals[0] - totals[1]) <= SENSITIVITY[name] * (1 + 1e-9), name


def test_rounds_that_are_spread_over_machines_add_up() -> None:
    """Subjects in three parts, as on a cluster: questions travel as bytes, counts are exact."""
    X, ids, _ = fleet(np.random.default_rng(6), 500, D)
    whole = round_of(X, ids, 600, records=RECORDS)
    parts = [round_of(X[ids % 3 == i], ids[ids % 3 == i], 600, records=RECORDS) for i in range(3)]
    assert sum(part.present() for part in parts) == whole.present()
    for statistic in STATISTICS.values():
        total = sum(part.total(pickle.loads(pickle.dumps(statistic))) for part in parts)
        np.testing.assert_allclose(total, whole.total(statistic), rtol=1e-12, atol=1e-12)


# Positions


def prints(rows: SubjectRows) -> Counter[bytes]:
    """Every unit by the bits of its rows, its lengths and its means."""
    found: Counter[bytes] = Counter()
    for block in rows._blocks():
        units = len(block.X) // block.each
        content = block.X.reshape(units, -1)
        means = block.means(block.X)
        norms, lengths = block.moment_norms(block.X), block.sq_lengths(means)
        for i in range(units):
            parts = (content[i], means[i], norms[i], lengths[i])
            found[b"".join(np.ascontiguousarray(part).tobytes() for part in parts)] += 1
    return found


rows_of = st.tuples(st.integers(0, 11), st.integers(0, 2**32 - 1))


@settings(max_examples=60, deadline=None)
@given(
    others=st.lists(rows_of, max_size=60),
    one=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 99)), max_size=30),
    other=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 99)), max_size=30),
    size=st.sampled_from([1, 3, 8, 13, 40]),
    cut=st.integers(0, 90),
)
def test_one_subject_replaces_one_contribution_at_most(
    others: list[tuple[int, int]],
    one: list[tuple[int, int]],
    other: list[tuple[int, int]],
    size: int,
    cut: int,
) -> None:
    """All that one subject sends is replaced: in number, place and content."""

    def events(canary: list[tuple[int, int]]) -> tuple[FloatArray, list[Any]]:
        stream: list[tuple[Any, int]] = list(others)
        for place, seed in sorted(canary, reverse=True):
            stream.insert(min(place, len(stream)), ("canary", seed))
        rows = [np.random.default_rng(seed).standard_normal(D) for _, seed in stream]
        return np.array(rows).reshape(-1, D), [who for who, _ in stream]

    found = []
    for canary in (one, other):
        X, ids = events(canary)
        found.append(prints(round_of(X, ids, size, records=RECORDS)))
    gone, come = found[0] - found[1], found[1] - found[0]
    assert gone.total() <= 1 and come.total() <= 1


@pytest.mark.parametrize("d", [1, 7, 50, 131])
def test_a_unit_has_the_same_bits_wherever_it_stands(d: int) -> None:
    rng = np.random.default_rng(d)
    X, ids, _ = fleet(rng, 3000, d, mean=2.0)
    all_of_them = prints(round_of(X, ids, 4000))
    for first in (1, 2, 1000, 2999):  # subjects in other places, and in other blocks
        keep = (ids + 1) % 3001 >= first
        order = np.argsort(np.where(ids[keep] % 7 == 3, 0, 1), kind="stable")
        some = prints(round_of(X[keep][order], ids[keep][order], 4000))
        assert some - all_of_them == Counter()
        assert some.total() == len(set(ids[keep].tolist()))


def test_arithmetic_that_knows_positions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(values: FloatArray) -> FloatArray:
        """Sums whose order depends on where a column stands, as in the kernels of a product."""
        forward, back = np.add.accumulate(values), np.add.accumulate(values[::-1])
        return np.where(np.arange(values.shape[1]) % 4 == 0, forward[-1], back[-1])

    monkeypatch.setattr(rowwise, "fold", product)
    with pytest.raises(AssertionError):
        test_a_unit_has_the_same_bits_wherever_it_stands(50)

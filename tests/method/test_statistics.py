"""Statistics of raw records: their counts and their sensitivities."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dppca.batch import Batch, Reading
from stream_dppca.mechanisms.packing import unpack
from stream_dppca.method.components import components
from stream_dppca.method.drift import DriftAlarm
from stream_dppca.method.memory import RunningMoments
from stream_dppca.method.statistics import (
    OCTAVES,
    AugmentedMoments,
    GridCounts,
    LengthCounts,
    MomentsInBall,
    OctaveCounts,
    octave_edges,
)

D, N = 3, 20
STANDARD: dict[str, Any] = {
    "center": (0.0, 10.0, -1e6),
    "scale": (1.0, 0.5, 1e3),
    "clamp": (5.0, 5.0, 3.0),
}
KINDS: dict[str, tuple[Any, float]] = {
    "octaves": (OctaveCounts((0, 1, 2), (0.0, 10.0, -1e6)), math.sqrt(2 * D)),
    "distances": (OctaveCounts((0, 2), (0.0, -1e6), signs=False), 2.0),
    "cells": (GridCounts((0, 1, 2), (-1.0, 9.0, -2e6), (0.1, 0.2, 1e5), 16), math.sqrt(2 * D)),
    "lengths": (LengthCounts(**STANDARD, edges=(1.0, 2.0, 4.0)), math.sqrt(2)),
    "ball": (MomentsInBall(**STANDARD, radius=3.0), 6.0),
    "moments": (AugmentedMoments(**STANDARD, constant=0.5, radius=4.0), math.sqrt(2) * 4.0),
}
VALUES = st.one_of(
    st.floats(-1e18, 1e18), st.sampled_from([0.0, 10.0, -1e6, math.nan, math.inf, 1e300, 5e-324])
)
RECORDS = st.tuples(*[VALUES] * D)


def batch(rows: Any, partial: bool = False) -> Batch:
    X = np.array(rows, dtype=np.float64)
    return Batch(X, Reading(max_norm=1e18, partial=partial))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partial", [False, True])
@given(others=st.lists(RECORDS, min_size=4, max_size=4), one=RECORDS, other=RECORDS)
@settings(max_examples=150, deadline=None)
def test_one_unit_moves_a_sum_no_further_than_it_says(
    kind: str, partial: bool, others: Any, one: Any, other: Any
) -> None:
    statistic, bound = KINDS[kind]
    a = batch([*others, one], partial).total(statistic)
    b = batch([*others, other], partial).total(statistic)
    assert np.isfinite(a).all() and np.isfinite(b).all()
    assert float(np.linalg.norm(a - b)) <= bound * (1 + 1e-9)
    stated = statistic.sensitivity
    stated = stated(5) if callable(stated) else stated
    assert bound <= stated <= bound * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_reached(kind: str) -> None:
    """Contents that move a sum by nearly all of its sensitivity."""
    statistic, bound = KINDS[kind]
    corners = np.array(np.meshgrid(*[[-1e17, -1e6, 0.0, 10.0, 10.7, 1e17]] * D)).reshape(D, -1).T
    totals = [batch([row]).total(statistic) for row in corners]
    furthest = max(float(np.linalg.norm(a - b)) for a in totals for b in totals[::7])
    assert furthest > (0.7 if kind == "ball" else 0.85) * bound


def test_octaves_cover_the_line_without_gaps() -> None:
    edges = [octave_edges(i, i) for i in range(OCTAVES)]
    for (_, end), (start, _) in itertools.pairwise(edges):
        assert end == start
    values = np.array([-3.0, -0.75, 0.0, 0.3, 1.0, 5.0, 1e9])
    for value in values.tolist():
        counts = batch([[value]]).total(OctaveCounts((0,), (0.0,)))[0]
        low, high = octave_edges(int(counts.argmax()), int(counts.argmax()))
        assert counts.sum() == 1 and low <= value <= high


def test_nulls_add_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(N, D))
    spoiled = np.concatenate([rows, np.full((3, D), np.nan), [[1.0, math.inf, 2.0]]])
    for statistic, _ in KINDS.values():
        plain, with_nulls = batch(rows).total(statistic), batch(spoiled).total(statistic)
        assert with_nulls == pytest.approx(plain, rel=1e-12, abs=1e-12)


def test_a_missing_value_is_in_no_count_and_at_the_centre() -> None:
    one = batch([[math.nan, 10.5, -1e6]], partial=True)
    assert one.total(KINDS["octaves"][0]).sum(axis=1).tolist() == [0.0, 1.0, 1.0]
    moments = one.total(AugmentedMoments(**STANDARD, constant=1.0, radius=100.0))
    assert unpack(moments)[-1].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_a_state_is_plain_where_noise_is_larger_than_what_is_seen() -> None:
    """The alarm for drift compares the noise with the advantage, and keeps the larger. That was a
    numpy number, which the state of a task cannot hold: the service ended."""
    moments = RunningMoments(3)
    moments.add(np.diag([0.1, 0.1, 0.1, 0.7]), 1.0, 1.0)
    known = np.ones(3, dtype=np.bool_)
    found = components(moments, k=1, known=known, known_center=False, deviation=None)
    assert type(found.valid) is type(found.sd) is float
    alarm = DriftAlarm()
    alarm(0.0, 0.0, 5.0 / found.valid, 1)
    assert {type(number) for number in alarm.state()["normal"]} == {float, int}


def test_a_batch_with_little_of_the_usual_variance_does_not_drop_the_past() -> None:
    """Counters that climb through their centre have next to no variance along their component."""

    def dropped(*quiet: tuple[float, float]) -> bool:
        alarm = DriftAlarm()
        for _ in range(8):
            alarm(20.0, 20.0, 0.1, 1, 22.0)
        return any(alarm(kept, recent, 0.1, 1, 22.0) for kept, recent in quiet)

    assert dropped((2.0, 20.0), (2.0, 20.0))  # a turn
    assert dropped((0.6, 6.0), (0.6, 6.0))  # a turn, and half as wide
    assert not dropped((1.0, 2.0), (1.0, 2.0))


def test_the_share_of_valid_units_is_what_is_known_best() -> None:
    """A share that drowned in noise was taken for .05, and scales were widened to five times."""
    moments = RunningMoments(3)
    moments.constant, moments.first_valid = 1.0, (0.9, 0.05)
    moments.add(np.diag([1.0, 1.0, 1.0, -0.3]), 0.09, 1.0)  # noise of sd .3
    assert 0.7 < moments.valid < 0.9
    moments.add(np.diag([99.0, 99.0, 99.0, 20.0]), 0.09, 1.0, weight=99.0)  # now of sd .003
    assert moments.valid == pytest.approx(0.197, abs=0.002)

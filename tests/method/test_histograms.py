"""Noisy histograms: an empty bin must hardly ever count as occupied."""

from __future__ import annotations

import numpy as np
import pytest

from stream_dppca.method.histograms import FAR, NEAR, SURE, hull, spread
from stream_dppca.method.statistics import OCTAVES
from tests.conftest import FloatArray

ZERO = OCTAVES // 2
SD = 40.0


def values() -> FloatArray:
    """Values from 2^-5 to 2."""
    counts = np.zeros(OCTAVES)
    counts[ZERO + 60 : ZERO + 66] = [90, 180, 350, 700, 1000, 600]
    return counts


def distances() -> FloatArray:
    counts = np.zeros(OCTAVES - ZERO)
    counts[58:65] = [60, 120, 230, 460, 900, 1000, 300]
    return counts


def octave_of(found: tuple[float, float, float] | None) -> float:
    assert found is not None
    return float(np.log2(found[1]))


def test_far_away_it_takes_more() -> None:
    """One empty bin in 3.5 million is 5 sds above zero, and there are thousands of bins."""
    plain, far = values(), values()
    far[ZERO + 90] = (SURE + FAR - 0.1) * SD
    assert octave_of(hull(far, SD)) == octave_of(hull(plain, SD)) == 1
    far[ZERO + 90] = (SURE + FAR + 0.1) * SD
    assert octave_of(hull(far, SD)) == 26

    scale = spread(distances(), SD, 3000.0, 0.0)
    assert scale is not None and 0.3 < scale < 1
    strange = distances()
    strange[90] = (SURE + FAR - 0.1) * SD
    assert spread(strange, SD, 3000.0, 0.0) == scale
    strange[90] = (SURE + FAR + 0.1) * SD
    found = spread(strange, SD, 3000.0, 0.0)
    assert found is not None and found > 1e6


def test_near_by_it_takes_less() -> None:
    """Next to known octaves, on the other side of zero, at zero, and where nothing else is."""
    weak = (SURE + 0.1) * SD
    beside = values()
    beside[ZERO + 65 + NEAR] = weak
    assert octave_of(hull(beside, SD)) == 1 + NEAR
    negative = values()
    negative[ZERO - 64] = weak
    found = hull(negative, SD)
    assert found is not None and found[0] == -1.0
    zero = values()
    zero[ZERO] = weak
    found = hull(zero, SD)
    assert found is not None and found[0] <= 0 < found[1]
    mostly_zero = np.zeros(OCTAVES)
    mostly_zero[ZERO], mostly_zero[ZERO + 72] = 3000.0, weak
    assert octave_of(hull(mostly_zero, SD)) == 8
    alone = np.zeros(OCTAVES)
    alone[ZERO + 80] = weak
    assert octave_of(hull(alone, SD)) == 16


@pytest.mark.audit
def test_noise_is_hardly_ever_taken_for_an_octave() -> None:
    """The chance is about 5e-9 for a feature; with `FAR` = 0 it was 1.2e-4, several times here."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(25_000):
        found = hull(values() + SD * rng.standard_normal(OCTAVES), SD)
        scale = spread(distances() + SD * rng.standard_normal(OCTAVES - ZERO), SD, 3000.0, 0.0)
        wrong += octave_of(found) > 5 or scale is None or scale > 100
    assert wrong == 0


def test_empty_octaves_around_zero_add_no_noise_to_the_mass() -> None:
    counts = values() + values()[::-1]
    found = hull(counts, SD)
    counts[ZERO - 55 : ZERO + 56] -= 0.5 * SD  # their noise, which happens to be low
    assert hull(counts, SD) == found and found is not None and found[2] == counts[counts > 0].sum()

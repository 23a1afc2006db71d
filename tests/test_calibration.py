"""Every formula against Google's dp-accounting, an independent implementation."""

from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent
from dp_accounting.mechanism_calibration import calibrate_dp_mechanism
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from stream_dppca.calibration import (
    gaussian_delta,
    gaussian_mu,
    gaussian_threshold,
    laplace_threshold,
    mu_with_threshold,
)
from stream_dppca.errors import ParameterError

BUDGETS = [(0.1, 1e-9), (0.5, 1e-6), (1.0, 1e-6), (2.0, 0.02), (4.0, 1e-5), (8.0, 1e-3)]


@pytest.mark.parametrize("epsilon, delta", BUDGETS)
def test_sigma_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    from dp_accounting.pld.common import DifferentialPrivacyParameters
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    oracle = GaussianPrivacyLoss.from_privacy_guarantee(
        DifferentialPrivacyParameters(epsilon, delta)
    )
    assert 1 / gaussian_mu(epsilon, delta) == pytest.approx(oracle.standard_deviation, rel=1e-5)
    # and never below what is needed
    assert gaussian_delta(epsilon, gaussian_mu(epsilon, delta)) <= delta


@pytest.mark.parametrize("epsilon, delta", BUDGETS)
def test_mus_compose_as_the_pld_accountant_says(epsilon: float, delta: float) -> None:
    """Range and mean share mu^2; the accountant must find no more than delta."""
    mu = gaussian_mu(epsilon, delta)
    shares = (0.03, 0.2, 0.77)
    accountant = PLDAccountant(privacy_accountant.NeighboringRelation.REPLACE_ONE)
    # For REPLACE_ONE the accountant doubles the sensitivity of a Gaussian event.
    events = [GaussianDpEvent(2 / (mu * math.sqrt(share))) for share in shares]
    accountant.compose(ComposedDpEvent(events))
    assert accountant.get_delta(epsilon) == pytest.approx(delta, rel=0.02)


def test_the_check_value() -> None:
    assert 1 / gaussian_mu(1.0, 1e-6) == pytest.approx(4.2247, abs=1e-4)


def test_composition_over_batches_of_other_records_is_free() -> None:
    """Calibrating 1 batch or 1000 disjoint ones asks for the same noise: nothing to compose."""
    sigma = calibrate_dp_mechanism(
        lambda: PLDAccountant(privacy_accountant.NeighboringRelation.REPLACE_ONE),
        lambda s: dp_event.GaussianDpEvent(s),
        1.0,
        1e-6,
    )
    assert sigma / 2 == pytest.approx(1 / gaussian_mu(1.0, 1e-6), rel=1e-3)


@given(
    epsilon=st.floats(0.01, 20),
    log_delta=st.floats(-25, -0.5),
    factor=st.floats(1.01, 3),
)
@settings(max_examples=200, deadline=None)
def test_mu_is_the_edge(epsilon: float, log_delta: float, factor: float) -> None:
    delta = 10**log_delta
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    assert gaussian_delta(epsilon, mu * factor) > delta


@pytest.mark.parametrize("epsilon, delta", BUDGETS)
def test_laplace_threshold(epsilon: float, delta: float) -> None:
    scale = 2 / epsilon
    T = laplace_threshold(epsilon, delta)

    def surfaces(threshold: int) -> float:  # P(1 + L > threshold), summed term by term
        p = math.exp(-1 / scale)
        weight = (1 - p) / (1 + p)
        return sum(weight * p ** abs(k) for k in range(threshold, threshold + 20_000))

    assert surfaces(T) <= delta * (1 + 1e-9)
    assert surfaces(T - 1) > delta  # and not a count higher than needed
    assert abs(T - (1 + scale * math.log(1 / (2 * delta)))) < 1.5


@pytest.mark.parametrize("dimension", [1, 50, 4000])
def test_gaussian_threshold(dimension: int) -> None:
    sigma, delta = 140.0, 5e-7
    T = gaussian_threshold(sigma, delta, dimension)
    none_surfaces = math.exp(dimension * norm.logcdf((T - 1) / sigma))
    assert 1 - none_surfaces == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("epsilon, delta", BUDGETS)
def test_threshold_and_noise_share_delta(epsilon: float, delta: float) -> None:
    mu = mu_with_threshold(epsilon, delta, delta / 2)
    spent = delta / 2 + gaussian_delta(epsilon + math.log1p(-delta / 2), mu)
    assert spent <= delta
    assert spent == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize(
    "epsilon, delta, named",
    [
        (0.0, 1e-6, "epsilon"),
        (-1.0, 1e-6, "epsilon"),
        (math.nan, 1e-6, "epsilon"),
        (math.inf, 1e-6, "epsilon"),
        (True, 1e-6, "epsilon"),
        ("1", 1e-6, "epsilon"),
        (1.0, 0.0, "delta"),
        (1.0, 1.0, "delta"),
        (1.0, math.nan, "delta"),
    ],
)
def test_a_budget_that_is_none(epsilon: float, delta: float, named: str) -> None:
    with pytest.raises(ParameterError, match=f"`{named}` must lie between"):
        gaussian_mu(epsilon, delta)


@pytest.mark.parametrize("epsilon, delta, threshold", [(0.001, 0.5, 0.45), (0.001, 0.5, 0.26)])
def test_a_threshold_that_leaves_nothing_is_refused(
    epsilon: float, delta: float, threshold: float
) -> None:
    """Epsilon + ln(1 - threshold) is below 0, and no mu brings delta down to the rest."""
    with pytest.raises(ParameterError, match="`delta_threshold` leaves nothing"):
        mu_with_threshold(epsilon, delta, threshold)


@given(st.floats(1e-3, 3.0), st.floats(1e-6, 0.5), st.floats(0.01, 0.99))
@settings(max_examples=200, deadline=None)
def test_mu_with_a_threshold_keeps_the_total(epsilon: float, delta: float, share: float) -> None:
    threshold = delta * share
    try:
        mu = mu_with_threshold(epsilon, delta, threshold)
    except ParameterError:
        return
    total = threshold + gaussian_delta(epsilon + math.log1p(-threshold), mu)
    assert mu > 0 and total <= delta

"""Promises that all baselines share: nulls, clips, signs, seeds, messages."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from benchmarks import baselines
from benchmarks.baselines import (
    _common,
    analyze_gauss,
    clipped_oja,
    noisy_power_method,
    oja,
    private_oja,
    step_search,
)
from stream_dppca import InverseTime
from stream_dppca.errors import ParameterError

STEPS = InverseTime(2.0, 5.0)
BUDGET = {"epsilon": 0.3, "delta": 1e-5}
N = 2000

#: Each takes records and a seed only. Those of Oja use few, large batches, so that results differ
#: from their starting point.
METHODS = {
    "oja": lambda X, **kw: oja(X, steps=STEPS, **kw),
    "clipped_oja": lambda X, **kw: clipped_oja(
        X, clip=1.0, batch_size=N // 4, steps=STEPS, **BUDGET, **kw
    ),
    "private_oja": lambda X, **kw: private_oja(X, clip=1.0, steps=STEPS, **BUDGET, **kw),
    "analyze_gauss": lambda X, **kw: analyze_gauss(X, clip=1.0, n_components=2, **BUDGET, **kw),
    "unit_norm": lambda X, **kw: analyze_gauss(X, unit_norm=True, **BUDGET, **kw),
    "power_rows": lambda X, **kw: noisy_power_method(
        X, clip=1.0, n_iterations=3, n_components=2, **BUDGET, **kw
    ),
    "power_gradient": lambda X, **kw: noisy_power_method(
        X, clip=1.0, clip_on="gradient", n_iterations=3, **BUDGET, **kw
    ),
    "step_search": lambda X, **kw: (
        step_search(
            X, run_size=N // 4, score_size=N // 8, clip=1.0, batch_size=N // 8, **BUDGET, **kw
        ).fit
    ),
}
PRIVATE = [name for name in METHODS if name != "oja"]
every = pytest.mark.parametrize("name", METHODS)
every_private = pytest.mark.parametrize("name", PRIVATE)


@every
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.1e18, -1e300])
def test_a_bad_record_is_a_null_in_its_slot(name, bad, gaussian):
    X = gaussian(N, 4, 0)
    X[[3, 700], :] = 0.0
    expected = METHODS[name](X, seed=5)
    X[[3, 700], 2] = bad
    found = METHODS[name](X, seed=5)
    np.testing.assert_array_equal(found.components, expected.components)
    assert found.n_used == expected.n_used
    assert found.sigma == expected.sigma
    # The test can fail: without the two slots it would be another result.
    dropped = METHODS[name](np.delete(X, [3, 700], axis=0), seed=5)
    same = np.array_equal(dropped.components, expected.components)
    assert not same or dropped.n_used != expected.n_used


@every
def test_components_are_orthonormal_rows_with_a_stable_sign(name, gaussian):
    fit = METHODS[name](gaussian(N, 4, 1), seed=2)
    gram = fit.components @ fit.components.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)
    largest = np.abs(fit.components).argmax(axis=1)
    assert (fit.components[np.arange(len(gram)), largest] > 0).all()


@every
def test_seeded_is_repeatable_and_not_private(name, gaussian):
    X = gaussian(N, 4, 1)
    one, same, other = (METHODS[name](X, seed=s) for s in (2, 2, 3))
    np.testing.assert_array_equal(one.components, same.components)
    assert not np.array_equal(one.components, other.components)
    assert one.private is False
    assert (one.adjacency, one.unit) == ("replace one record in place", "record")


@every_private
def test_without_a_seed_it_is_private_and_fresh(name, gaussian):
    X = gaussian(N, 4, 1)
    if name == "private_oja":  # the exact sampler takes 30 us per coordinate
        X = X[:1000, :2]
    one, other = METHODS[name](X), METHODS[name](X)
    assert one.private is True
    assert not np.array_equal(one.components, other.components)
    assert (one.epsilon, one.delta) == (0.3, 1e-5)
    assert one.sigma > 0


def test_oja_is_never_private(gaussian):
    fit = METHODS["oja"](gaussian(N, 4, 1))
    assert fit.private is False
    assert fit.epsilon == math.inf


@pytest.mark.parametrize("name", ["clipped_oja", "analyze_gauss", "power_rows", "power_gradient"])
def test_a_record_beyond_the_bound_moves_the_query_no_further_than_one_at_it(name, still, gaussian):
    X = gaussian(N, 4, 3) * 0.3

    def first_query(record):
        still.queries.clear()
        Y = X.copy()
        Y[10] = record
        METHODS[name](Y)
        return still.queries[0]

    direction = np.array([3.0, 2.0, -1.0, 0.5])
    direction /= np.linalg.norm(direction)
    without = first_query(np.zeros(4))
    near, far, farther = (
        np.linalg.norm(first_query(r * direction) - without) for r in (0.5, 1e3, 1e17)
    )
    assert near < far
    assert far <= 1.0 + 1e-12  # the clip
    if name != "power_rows":  # where a term is ||x|| ||W^T x||
        assert far == pytest.approx(1.0, rel=1e-9)
    assert farther == pytest.approx(far, rel=1e-9)


@pytest.mark.parametrize(
    "name", ["clipped_oja", "analyze_gauss", "unit_norm", "power_rows", "power_gradient"]
)
def test_no_neighbour_moves_the_query_beyond_its_sensitivity(name, still, gaussian):
    """And the worst found is close to it: the sensitivity is neither too small nor slack."""
    X = gaussian(N, 4, 3) * 0.3
    rng = np.random.default_rng(0)
    # Start of the iterations, as `start` makes it from the still noise.
    w = _common.start(still, 4)[:, 0]
    across = np.linalg.qr(np.column_stack([w, rng.normal(size=4)]))[0][:, 1]
    half = (w + across) / math.sqrt(2), (w - across) / math.sqrt(2)
    pairs = [(w, across), half, (w, np.zeros(4))]
    pairs += [(rng.normal(size=4), rng.normal(size=4)) for _ in range(40)]
    moved = []
    for x, y in pairs:
        found = []
        for record in (x, y):
            still.queries.clear()
            Y = X.copy()
            Y[10] = record * 1e3
            METHODS[name](Y)
            found.append(still.queries[0])
        moved.append(np.linalg.norm(found[0] - found[1]))
    bound = still.sensitivities[0]
    assert max(moved) <= bound
    if name != "power_gradient":
        # Two gradients of one w point at most 90 degrees apart: there 2 clip is never reached.
        assert max(moved) >= bound * (0.7 if name in ("clipped_oja", "power_rows") else 0.999)


def test_norm_bound_never_falls_short():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 7)) * 10.0 ** rng.integers(-17, 18, size=(300, 1))
    for row, bound in zip(rows, _common.norm_bound(rows), strict=True):
        square = sum(Fraction(float(x)) ** 2 for x in row)
        assert square <= Fraction(float(bound)) ** 2
    for row in _common.clip_rows(rows, 0.1):
        assert sum(Fraction(float(x)) ** 2 for x in row) <= Fraction(0.1) ** 2


def test_sensitivity_holds_for_sums_as_computed():
    # One unit in the last place of each partial sum, at worst.
    added = _common.computed_sensitivity(1.0, terms=10_000, largest=1.0) - 1.0
    assert 2 * 10_000**2 * 2.0**-53 <= added <= 1e-6


MESSAGES = [
    ("analyze_gauss", {"clip": -1.0}, "`clip` must lie between"),
    ("analyze_gauss", {"clip": None}, "`clip` must be given"),
    ("analyze_gauss", {"clip": 1.0, "unit_norm": True}, "`clip` must be given"),
    ("analyze_gauss", {"clip": 1.0, "n_components": 5}, "at least 1 and at most 4. Found 5"),
    ("analyze_gauss", {"clip": 1.0, "epsilon": 0.0}, "`epsilon` must lie"),
    (
        "analyze_gauss",
        {"clip": 1.0, "seed": -1},
        "`seed` must be an integer of at least 0. Found -1",
    ),
    ("clipped_oja", {"clip": 1.0, "batch_size": 101, "steps": STEPS}, "`batch_size`.*Found 101"),
    ("clipped_oja", {"clip": 1.0, "batch_size": 1.5, "steps": STEPS}, "`batch_size`.*integer"),
    ("clipped_oja", {"clip": 1.0, "batch_size": 50, "steps": [1.0]}, "`steps`.*2 entries. Found 1"),
    ("clipped_oja", {"clip": 1.0, "batch_size": 50, "steps": [1, math.nan]}, "`steps`.*Found nan"),
    ("noisy_power_method", {"clip": 1.0, "n_iterations": 0}, "`n_iterations`.*Found 0"),
    ("noisy_power_method", {"clip": 1, "n_iterations": 1, "clip_on": "x"}, "`clip_on`.*Found 'x'"),
    ("step_search", {"run_size": 90, "score_size": 20, "clip": 1.0}, "`X`.*130 records.*Found 100"),
    ("step_search", {"run_size": 50, "score_size": 20}, "`clip` must be given"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), MESSAGES)
def test_errors_name_the_parameter_the_rule_and_the_value(function, arguments, message):
    X = np.zeros((100, 4))
    with pytest.raises(ParameterError, match=message):
        getattr(baselines, function)(X, **{**BUDGET, **arguments})


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros(5), "two dimensions"),
        (np.zeros((0, 5)), "two dimensions"),
        ([[1.0, 42.5], [1.0]], "rectangular"),
        (["secret", "se"], "rectangular"),
        ([42.5], "rectangular"),
    ],
)
def test_bad_input_is_refused_without_quoting_it(X, message):
    with pytest.raises(ParameterError, match=message) as caught:
        oja(X, steps=STEPS)
    assert "secret" not in str(caught.value)
    assert "42.5" not in str(caught.value)


def test_exports_are_alphabetical_and_real():
    assert baselines.__all__ == sorted(baselines.__all__)
    assert all(hasattr(baselines, name) for name in baselines.__all__)

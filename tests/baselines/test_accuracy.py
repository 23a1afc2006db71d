"""The baselines find what they should, with the noise they should have."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from scipy.stats import chi2

from benchmarks.baselines import (
    Fit,
    analyze_gauss,
    candidates,
    clip_threshold,
    clipped_oja,
    noisy_power_method,
    oja,
    private_oja,
    step_search,
)
from benchmarks.baselines._common import orient, start
from benchmarks.baselines.private_oja import random_order
from benchmarks.baselines.shuffling import shuffled_gaussian_mu
from benchmarks.baselines.step_search import find_clip
from stream_dppca import InverseTime
from stream_dppca.noise import Noise, SeededNoise

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
SEEDS = range(5)
#: numpy draws the same numbers from the seeds s and (s, 0): noise and data must not share one.
APART = 1000


def median(values) -> float:
    return float(np.median(list(values)))


# Algorithm 1


def test_oja_approaches_eigh(gaussian):
    def distance(n, seed):
        X = gaussian(n, 8, seed)
        top = np.linalg.eigh(X.T @ X)[1][:, -1]
        w = oja(X, steps=InverseTime(1.5, 20.0), seed=seed + APART).components[0]
        return math.sqrt(max(0.0, 1 - (w @ top) ** 2))

    coarse, fine = (median(distance(n, s) for s in SEEDS) for n in (500, 20_000))
    assert fine < 0.02
    assert fine < coarse / 3


def test_oja_in_batches_agrees_with_single_records(gaussian, sine):
    X = gaussian(20_000, 8, 0)
    assert sine(oja(X, steps=InverseTime(4.0, 1.0), batch_size=200, seed=9)) < 0.03
    assert oja(X, steps=[0.1] * 3, batch_size=6000, seed=0).n_used == 18_000


# Algorithm 2


@pytest.mark.audit
def test_private_oja_has_a_floor_that_the_data_does_not_lower(toy, sine):
    """The paper's Example: less noise in the records helps Oja and does not help Private Oja."""

    def errors(s):
        public, private = [], []
        for seed in SEEDS:
            X = toy(10_000, 5, seed, s)
            steps = InverseTime(2.0, 30.0)
            public.append(sine(oja(X, steps=steps, seed=seed + APART)))
            fit = private_oja(X, epsilon=0.5, delta=1e-6, clip=1.3, steps=steps, seed=seed + APART)
            private.append(sine(fit))
        return median(public), median(private)

    (public_loud, private_loud), (public_quiet, private_quiet) = errors(0.1), errors(0.001)
    assert public_quiet < public_loud / 20
    assert 0.6 < private_quiet / private_loud < 1.6
    assert 0.02 < private_quiet < 0.5  # it does find the direction, up to the floor


def test_private_oja_without_noise_is_oja_in_another_order(still, gaussian, sine):
    fit = private_oja(
        gaussian(5000, 5, 0), epsilon=0.3, delta=1e-6, clip=50.0, steps=InverseTime(1.5, 20.0)
    )
    assert sine(fit) < 0.05


@pytest.mark.parametrize("length", [1e3, 1e17])
def test_private_oja_clips_a_gradient(still, length):
    """One record among nulls: w moves by eta times the clip towards it, however long it is."""
    X = np.zeros((2000, 3))
    X[7] = np.array([0.6, 0.0, 0.8]) * length
    fit = private_oja(X, epsilon=0.3, delta=1e-5, clip=0.5, steps=[1.0] * 2000)
    expected = start(still, 3)[:, 0]
    expected = expected + 0.5 * np.sign(expected @ X[7]) * X[7] / length
    np.testing.assert_allclose(
        fit.components[0], orient(expected[np.newaxis])[0] / np.linalg.norm(expected), atol=1e-6
    )


def test_private_oja_reads_the_records_in_a_secret_order(monkeypatch):
    """All weight on the first step: the answer shows which third of the records it came from.

    In their own order always the first third; shuffled, with probability 3^-12 = 2e-6.
    """
    monkeypatch.setattr(SeededNoise, "_rounded_gaussian", lambda self, values, sd: np.rint(values))
    X = np.repeat(np.eye(3), 400, axis=0)
    steps = [1e9] + [0.0] * 1199
    fits = [
        private_oja(X, epsilon=0.2, delta=1e-5, clip=1.0, steps=steps, seed=s) for s in range(12)
    ]
    assert all(fit.components.max() > 0.999 for fit in fits)
    assert len({int(fit.components.argmax()) for fit in fits}) > 1


def test_private_oja_adds_the_noise_it_states():
    """Its squared length over sigma^2 is chi2; false alarm 1e-6 per side."""
    n, d = 2000, 3
    seen = []

    class Watching(SeededNoise):
        def gaussian(self, query, *, sensitivity, mu):
            released = super().gaussian(query, sensitivity=sensitivity, mu=mu)
            seen.append((released, self.gaussian_sd(sensitivity=sensitivity, mu=mu)))
            return released

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.baselines._common.make_noise", Watching)
        fit = private_oja(
            np.zeros((n, d)), epsilon=0.3, delta=1e-5, clip=1.0, steps=[1.0] * n, seed=0
        )
    draws = np.array([z for z, _ in seen])
    assert len(draws) == n  # a fresh draw for every step
    assert {sd for _, sd in seen} == {fit.sigma}
    assert fit.sigma == pytest.approx(
        2.0 * 1.0 * (1 / shuffled_gaussian_mu(0.3, 1e-5, n)), rel=1e-4
    )
    low, high = chi2.ppf([1e-6, 1 - 1e-6], n * d)
    assert low < (draws**2).sum() / fit.sigma**2 < high


@pytest.mark.parametrize("source", [Noise(), SeededNoise(3)])
def test_the_order_is_a_fresh_permutation(source):
    one, other = random_order(source, 1000), random_order(source, 1000)
    assert sorted(one) == list(range(1000))
    assert not np.array_equal(one, other)
    # First positions of many orders of 4: chi2 with 3 degrees of freedom, false alarm 1e-6.
    firsts = np.bincount([random_order(source, 4)[0] for _ in range(2000)], minlength=4)
    assert ((firsts - 500) ** 2 / 500).sum() < chi2.ppf(1 - 1e-6, 3)


def test_clip_threshold_is_the_papers():
    found = clip_threshold(lambda1=2.0, K=3.0, gamma=0.5, a=2.0, zeta=0.1, n=100, d=4)
    assert found == pytest.approx(2 * 2 * (1.5 * math.log(4000) ** 2 + 1))


# Eq. (6)


def test_clipped_oja_is_accurate_and_uses_whole_batches(gaussian, sine):
    def run(seed):
        X = gaussian(100_500, 10, seed)
        steps = InverseTime(4.0, 1.0)
        fit = clipped_oja(X, clip=3.0, batch_size=4000, steps=steps, seed=seed + APART, **BUDGET)
        assert fit.n_used == 100_000
        return sine(fit)

    assert median(run(s) for s in SEEDS) < 0.02


def test_every_batch_of_clipped_oja_has_the_whole_budget(still, gaussian):
    fit = clipped_oja(
        gaussian(1000, 3, 0), clip=3.0, batch_size=100, steps=InverseTime(1, 1), **BUDGET
    )
    assert len(still.mus) == 10
    assert len(set(still.mus)) == 1
    assert fit.sigma * 100 == pytest.approx(6.0 * get_sigma_gaussian(1.0, 1e-6), rel=1e-3)


def test_clipped_oja_reads_every_slot_of_a_batch(still):
    """The paper's sum stops at Bt - 1."""
    X = np.zeros((10, 2))
    X[[4, 9]] = 0.1
    clipped_oja(X, clip=1.0, batch_size=5, steps=[1.0, 1.0], **BUDGET)
    assert all(np.linalg.norm(query) > 0 for query in still.queries)


# Section 2.4


@pytest.mark.parametrize(
    "method",
    [
        lambda X, s: analyze_gauss(X, clip=2.5, seed=s, **BUDGET),
        lambda X, s: analyze_gauss(X, unit_norm=True, seed=s, **BUDGET),
        lambda X, s: noisy_power_method(X, clip=2.5, n_iterations=4, seed=s, **BUDGET),
        lambda X, s: noisy_power_method(
            X, clip=4.0, clip_on="gradient", n_iterations=4, seed=s, **BUDGET
        ),
    ],
    ids=["analyze_gauss", "unit_norm", "power_rows", "power_gradient"],
)
def test_accuracy_on_gaussian_data(method, gaussian, sine):
    errors = [sine(method(gaussian(100_000, 10, s), s + APART)) for s in SEEDS]
    assert median(errors) < 0.01


def test_more_components():
    X = np.random.default_rng(0).normal(size=(50_000, 6)) * [2.0, 1.4, 0.2, 0.2, 0.2, 0.2]
    for fit in (
        analyze_gauss(X, clip=5.0, n_components=2, seed=1, **BUDGET),
        noisy_power_method(X, clip=5.0, n_iterations=8, n_components=2, seed=1, **BUDGET),
    ):
        np.testing.assert_allclose(fit.components, np.eye(2, 6), atol=0.05)


def test_noise_of_analyze_gauss_is_isotropic_on_symmetric_matrices(monkeypatch):
    """Zeros in, noise out: sd sigma on the diagonal, sigma/sqrt 2 off it. False alarm 4e-6."""
    d = 60
    seen = []
    monkeypatch.setattr(np.linalg, "eigh", lambda M: seen.append(M) or (np.zeros(d), np.eye(d)))
    for seed in range(20):
        fit = analyze_gauss(np.zeros((50, d)), clip=2.0, seed=seed, **BUDGET)
    assert fit.sigma == pytest.approx(
        math.sqrt(2) * 4 / 50 * get_sigma_gaussian(1.0, 1e-6), rel=1e-4
    )
    M = np.array(seen)
    np.testing.assert_array_equal(M, M.transpose(0, 2, 1))
    i, j = np.triu_indices(d, 1)
    for values, sd in (
        (M[:, np.arange(d), np.arange(d)], fit.sigma),
        (M[:, i, j], fit.sigma / math.sqrt(2)),
    ):
        low, high = chi2.ppf([1e-6, 1 - 1e-6], values.size)
        assert low < (values**2).sum() / sd**2 < high


@pytest.mark.parametrize("n_iterations", [1, 5, 20])
def test_iterations_of_the_power_method_share_the_budget(n_iterations, still, gaussian):
    X = gaussian(500, 3, 0)
    noisy_power_method(X, clip=2.0, n_iterations=n_iterations, **BUDGET)
    assert len(still.mus) == n_iterations
    accountant = PLDAccountant()
    event = GaussianDpEvent(noise_multiplier=1 / still.mus[0])
    accountant.compose(SelfComposedDpEvent(event, n_iterations))
    assert accountant.get_epsilon(1e-6) == pytest.approx(1.0, rel=2e-3)


def test_one_column_of_the_power_method_has_the_smaller_sensitivity(still, gaussian):
    for k in (1, 2, 3):
        noisy_power_method(gaussian(500, 3, 0), clip=2.0, n_iterations=1, n_components=k, **BUDGET)
    assert still.sensitivities == pytest.approx([4.0, math.sqrt(32), math.sqrt(32)], rel=1e-6)


# The search


def test_candidates_are_the_papers_rounds():
    first = list(islice(candidates(), 1 + 8 + 16))
    assert len(set(first)) == 25
    powers = (0.25, 0.5, 1.0, 2.0, 4.0)
    assert set(first) == {(a, b) for a in powers for b in powers}
    assert all(max(c1, 1 / c1, c2, 1 / c2) == 2.0 for c1, c2 in first[1:9])


def test_search_picks_a_good_candidate(gaussian, sine):
    X = gaussian(9 * 12_000 + 2000, 10, 0)
    arguments = dict(run_size=10_000, score_size=2000, clip=3.0, batch_size=1000, **BUDGET)
    # Few batches per candidate: the start matters, so this is a median over starts.
    assert np.median([sine(step_search(X, seed=s, **arguments).fit) for s in range(7)]) < 0.3
    found = step_search(X, seed=1, **arguments)
    assert len(found.scores) == 9
    assert found.fit.n_used == len(X)
    best = max(found.scores, key=lambda c: c.score)
    assert (found.c1, found.c2) == (best.c1, best.c2)
    # The scores mean something: about the captured variance, which is between .1 and 1.
    assert 0.85 < max(c.score for c in found.scores) < 1.1
    assert not found.target_met


def _runner(cosines, calls):
    """A runner whose fits have given cosines with the first axis, and which notes what it reads."""

    def run(rows, steps, seed):
        cosine = cosines[len(calls)]
        calls.append((rows[:, -1].copy(), steps(1), seed))
        w = np.zeros(rows.shape[1])
        w[0], w[1] = cosine, math.sqrt(1 - cosine**2)
        return Fit(w[np.newaxis], len(rows), 2.0, 1e-7, True, 1.0)

    return run


def test_search_stops_at_the_target_and_reads_every_record_once(gaussian):
    X = gaussian(40_000, 4, 0)
    X[:, -1] = np.arange(40_000) * 1e-9  # a label
    calls = []
    runner = _runner([0.3, 0.5, 1.0, 0.1], calls)
    found = step_search(
        X, run_size=1000, score_size=3000, runner=runner, target=0.8, seed=1, **BUDGET
    )
    assert found.target_met
    assert len(calls) == len(found.scores) == 3
    assert (found.c1, found.c2) == (0.5, 1.0)
    assert [eta for _, eta, _ in calls] == [c.c1 / (c.c2 + 1) for c in found.scores]
    assert found.fit.n_used == 3000 + 3 * 4000
    labels = [np.rint(rows * 1e9).astype(int) for rows, _, _ in calls]
    assert [(r[0], r[-1] + 1) for r in labels] == [(3000, 4000), (7000, 8000), (11000, 12000)]
    assert len({seed for _, _, seed in calls}) == 3
    # The larger promise of the two holds, in each number.
    assert (found.fit.epsilon, found.fit.delta) == (2.0, 1e-6)
    assert found.fit.private is False


def test_search_scores_are_clipped_and_noisy(still, gaussian):
    X = gaussian(2000, 4, 0)
    X[1500] = 1e17  # in the scored stretch
    found = step_search(
        X, run_size=1000, score_size=1000, runner=_runner([1.0], []), score_clip=4.0, **BUDGET
    )
    expected = np.minimum(X[1000:, 0] ** 2, 4.0).mean()
    assert found.scores[0].score == pytest.approx(expected, rel=1e-6)
    assert still.sensitivities == pytest.approx([4.0], rel=1e-6)


def test_sought_clip_is_the_quantile_on_the_grid(still, gaussian):
    for scale in (1e-3, 1.0, 300.0):
        X = gaussian(4000, 4, 0) * scale
        found = find_clip(X, still, mu=0.2)
        share = np.mean((X**2).sum(axis=1) <= found)
        assert share >= 0.95
        assert np.mean((X**2).sum(axis=1) <= found / 2) < 0.95
    assert len(still.mus) == 21
    assert math.hypot(*still.mus[:7]) == pytest.approx(0.2)
    # Nulls, and records beyond the grid, end at its ends.
    assert find_clip(np.zeros((10, 2)), still, mu=0.2) == 2.0**-40
    assert find_clip(np.full((10, 2), 1e17), still, mu=0.2) == 2.0**40

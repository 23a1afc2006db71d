"""The search for a step size: the paper's remark before its section on private mean estimation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np
from numpy.typing import ArrayLike

from stream_dppca.arrays import FloatArray
from stream_dppca.calibration import gaussian_mu
from stream_dppca.checks import whole
from stream_dppca.errors import ParameterError
from stream_dppca.noise import Noise
from stream_dppca.paper.oja import InverseTime

from ._common import (
    Fit,
    Schedule,
    clean,
    computed_sensitivity,
    in_range,
    noise_source,
    norm_bound,
)
from .clipped_oja import clipped_oja

__all__ = ["Candidate", "Runner", "Search", "candidates", "step_search"]

#: Runs a private algorithm on records with a schedule and a seed; its Fit states the guarantee.
Runner = Callable[[FloatArray, Schedule, int | None], Fit]

#: Exponents of the public grid on which a clip for the scores is sought.
_GRID = range(-40, 41)
#: Share of the records of a batch that the sought clip should leave alone.
_QUANTILE = 0.95


@dataclass(frozen=True)
class Candidate:
    """A schedule eta_t = c1/(c2 + t) and its noisy captured variance."""

    c1: float
    c2: float
    score: float


@dataclass(frozen=True, eq=False)
class Search:
    """The best fit, its schedule, everything tried in order, and whether the target was met."""

    fit: Fit
    c1: float
    c2: float
    scores: tuple[Candidate, ...]
    target_met: bool


def candidates() -> Iterator[tuple[float, float]]:
    """The paper's (c1, c2), round after round, without repeats and without end.

    Round i is the edge of the square of powers of two from 2^-(i-1) to 2^(i-1).

    Examples
    --------
    >>> from itertools import islice
    >>> list(islice(candidates(), 4))
    [(1.0, 1.0), (0.5, 0.5), (0.5, 1.0), (0.5, 2.0)]
    """
    for r in count():
        side = range(-r, r + 1)
        edge = ((i, j) for i in side for j in side if max(abs(i), abs(j)) == r)
        yield from ((2.0**i, 2.0**j) for i, j in edge)


def step_search(
    X: ArrayLike,
    *,
    epsilon: float,
    delta: float,
    run_size: int,
    score_size: int,
    target: float = math.inf,
    clip: float | None = None,
    batch_size: int | None = None,
    runner: Runner | None = None,
    score_clip: float | None = None,
    seed: int | None = None,
) -> Search:
    """Try schedules eta_t = c1/(c2 + t) on fresh records until one is good enough.

    Each candidate is run on the next `run_size` slots and scored on the `score_size` slots after
    those, by the variance it captures: the mean of (x.w)^2, clipped and noisy. (The paper scores
    by sin(w, v1), which cannot be computed without v1.) It stops at the target or when the records
    end, and returns the best.

    **Guarantee.** (epsilon, delta), replace one record in place, unit: a record, for everything
    returned. Runs and scores read disjoint slots, so each has the *whole* budget; the paper runs
    all on the same records and pays epsilon/(2^(i+1) (2i - 1)) in round i. A score is a Gaussian
    mechanism on a sum of numbers in [0, score_clip], sensitivity score_clip (plus the float64
    bound). When to stop and which is best is decided from noisy scores. A `score_clip` that is not
    given is searched for on the first `score_size` slots by a noisy binary search over
    2^-40 ... 2^40 for the 0.95 quantile of ||x||^2: 7 counts, sensitivity 1, mu/sqrt(7) each. With
    a `runner` that promises less, the result promises less, too: the larger epsilon and the larger
    delta hold.

    Parameters
    ----------
    X
        n x d, one record per row. Unusable records count as zeros in their slots.
    epsilon, delta
        The guarantee of each run and each score, and of all together.
    run_size, score_size
        Slots on which a candidate is run and scored. The number of candidates follows from n.
    target
        Stop at the first noisy score of at least this.
    clip, batch_size
        Parameters of `clipped_oja`, the default runner. Not allowed with another runner.
    runner
        Function to run instead, called with (records, schedule, seed).
    score_clip
        Public bound on (x.w)^2. With None it is found privately.
    seed
        For tests and simulations; the result is then not private.

    Returns
    -------
    Search

    Examples
    --------
    >>> from benchmarks.baselines import step_search
    >>> X = np.random.default_rng(0).normal(size=(60_000, 5)) * [1.0, 0.3, 0.3, 0.3, 0.3]
    >>> found = step_search(X, epsilon=1.0, delta=1e-6, run_size=4000, score_size=1000,
    ...                     clip=3.0, batch_size=400, seed=1)
    >>> len(found.scores), bool(found.fit.components[0, 0] > 0.95)
    (11, True)

    References
    ----------
    [^1]: Liu, Kong, Jain, Oh. DP-PCA, remark before "Private mean estimation ...".
    """
    mu = gaussian_mu(epsilon, delta)
    rows = clean(X)
    whole("run_size", run_size)
    whole("score_size", score_size)
    used = score_size if score_clip is None else 0
    if used + run_size + score_size > len(rows):
        needed = used + run_size + score_size
        raise ParameterError("X", f"must have at least {needed} records for one trial", len(rows))
    if runner is None:
        runner = _default_runner(epsilon, delta, clip, batch_size)
    elif clip is not None or batch_size is not None:
        raise ParameterError(
            "runner", "must come without clip and batch_size, which it sets itself", runner
        )
    noise = noise_source(seed)
    if score_clip is None:
        score_clip = find_clip(rows[:score_size], noise, mu=mu)
    in_range("score_clip", score_clip)

    trial = run_size + score_size
    fits: list[Fit] = []
    tried: list[Candidate] = []
    for c1, c2 in islice(candidates(), (len(rows) - used) // trial):
        run, held_out = rows[used : used + run_size], rows[used + run_size : used + trial]
        used += trial
        fit = runner(run, InverseTime(c1, c2), _derived(seed, len(tried)))
        score = captured_variance(held_out, fit.components[0], noise, score_clip, mu=mu)
        fits.append(fit)
        tried.append(Candidate(c1, c2, score))
        if score >= target:
            break
    best = max(range(len(tried)), key=lambda i: tried[i].score)
    fit = replace(
        fits[best],
        n_used=used,
        epsilon=max(epsilon, *(f.epsilon for f in fits)),
        delta=max(delta, *(f.delta for f in fits)),
        private=noise.private and all(f.private for f in fits),
    )
    winner = tried[best]
    return Search(fit, winner.c1, winner.c2, tuple(tried), winner.score >= target)


def captured_variance(
    batch: FloatArray, w: FloatArray, noise: Noise, clip: float, *, mu: float
) -> float:
    """Noisy mean of min((x.w)^2, clip): sensitivity clip/m for m records."""
    total = np.minimum((batch @ w) ** 2, clip).sum(keepdims=True)
    sensitivity = computed_sensitivity(clip, terms=len(batch), largest=clip)
    return float(noise.gaussian(total, sensitivity=sensitivity, mu=mu)[0]) / len(batch)


def find_clip(batch: FloatArray, noise: Noise, *, mu: float) -> float:
    """A power of two near the 0.95 quantile of ||x||^2, by noisy binary search on a public grid.

    Adjacency: one record is replaced.
    Sensitivity: each step asks how many records lie beyond a length; one record changes each of
        the m answers by at most 1, all of them together by sqrt(m).
    Noise: N(0, m/mu^2) on each count. Their number is the same whatever the answers are.
    Delta: none beyond that of mu.
    """
    squares, allowed = norm_bound(batch) ** 2, (1 - _QUANTILE) * len(batch)
    low, high = _GRID[0], _GRID[-1]
    counts = math.ceil(math.log2(len(_GRID)))
    for _ in range(counts):
        middle = (low + high) // 2
        beyond = np.count_nonzero(squares > 2.0**middle, keepdims=True).astype(np.float64)
        if noise.gaussian(beyond, sensitivity=1.0, mu=mu / math.sqrt(counts))[0] > allowed:
            low = min(middle + 1, high)
        else:
            high = middle
    return 2.0**low


def _default_runner(
    epsilon: float, delta: float, clip: float | None, batch_size: int | None
) -> Runner:
    if clip is None:
        raise ParameterError("clip", "must be given with the default runner", clip)
    if batch_size is None:
        raise ParameterError("batch_size", "must be given with the default runner", batch_size)

    def run(rows: FloatArray, steps: Schedule, seed: int | None) -> Fit:
        return clipped_oja(
            rows,
            epsilon=epsilon,
            delta=delta,
            clip=clip,
            batch_size=batch_size,
            steps=steps,
            seed=seed,
        )

    return run


def _derived(seed: int | None, trial: int) -> int | None:
    """Another seed for every trial."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, trial]).generate_state(1)[0])

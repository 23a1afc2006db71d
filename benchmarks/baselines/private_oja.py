"""Private Oja's algorithm with shuffling: the paper's Algorithm 2."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from stream_dppca.checks import whole
from stream_dppca.noise import Noise

from ._common import (
    Fit,
    Schedule,
    clean,
    clip_rows,
    computed_sensitivity,
    in_range,
    noise_source,
    normalised,
    orient,
    start,
    step_sizes,
)
from .shuffling import shuffled_gaussian_mu

__all__ = ["clip_threshold", "private_oja"]


def private_oja(
    X: ArrayLike,
    *,
    epsilon: float,
    delta: float,
    clip: float,
    steps: Schedule | Sequence[float],
    seed: int | None = None,
) -> Fit:
    """Top principal component by Oja's algorithm with noise at every record, in a secret order.

    w <- w + eta_t (clip(x_t (x_t.w)) + 2 beta alpha z_t), w <- w / ||w||, over the records in a
    uniformly random order that is never released. It is a batch method: it needs all records before
    the first step. With the operating system's noise it takes about 30 us per coordinate and
    record.

    **Guarantee.** (epsilon, delta), replace one record in place, unit: a record. Each step is a
    Gaussian local randomizer: one gradient of norm at most beta = `clip`, L2 sensitivity 2 beta
    (plus the float64 bound), noise sd 2 beta alpha, so mu = 1/alpha. It depends on earlier steps
    through w. The n steps in random order are amplified by shuffling; alpha comes from the
    numerical bound in `benchmarks.baselines.shuffling`, which also explains how the randomizers'
    own delta is paid for. The paper's alpha is C' ln(n/delta)/(epsilon sqrt(n)) with C' left open.

    Parameters
    ----------
    X
        n x d, one record per row. Unusable records count as zeros, with noise like any other.
    epsilon, delta
        The guarantee. Epsilon is at most `shuffling.epsilon_limit(n, delta)`, about 0.55.
    clip
        Bound beta on the norm of a gradient, public. `clip_threshold` gives the paper's.
    steps
        eta_t for t = 1, 2, ... n: a function of t or a sequence.
    seed
        For tests and simulations; the result is then not private.

    Returns
    -------
    Fit
        `sigma` is the noise sd in each coordinate of one gradient, 2 beta alpha.

    Examples
    --------
    >>> from stream_dppca import InverseTime
    >>> from benchmarks.baselines import private_oja
    >>> X = np.random.default_rng(0).normal(size=(20_000, 3)) * [1.0, 0.1, 0.1]
    >>> fit = private_oja(X, epsilon=0.5, delta=1e-6, clip=2.0, steps=InverseTime(2.0, 500.0),
    ...                   seed=1)
    >>> bool(fit.components[0, 0] > 0.9), round(fit.sigma, 1), fit.private
    (True, 6.2, False)
    >>> private_oja(X, epsilon=2.0, delta=1e-6, clip=2.0, steps=InverseTime(2.0, 500.0))
    Traceback (most recent call last):
    ...
    stream_dppca.errors.ParameterError: `epsilon` must lie between 0.001 and 0.5393 ...

    References
    ----------
    [^1]: Liu, Kong, Jain, Oh. DP-PCA, Algorithm 2 and "The analysis of Private Oja's Algorithm".
    """
    in_range("clip", clip)
    rows = clean(X)
    n, d = rows.shape
    mu = shuffled_gaussian_mu(epsilon, delta, n)
    etas = step_sizes(steps, n)
    noise = noise_source(seed)
    sensitivity = computed_sensitivity(2.0 * clip, terms=1, largest=clip)

    w = start(noise, d)[:, 0]
    for record, eta in zip(random_order(noise, n), etas, strict=True):
        x = rows[record]
        gradient = clip_rows(x * (x @ w), clip)
        noisy = noise.gaussian(gradient, sensitivity=sensitivity, mu=mu)
        w = normalised(w + eta * noisy, w)
    return Fit(
        components=orient(w[np.newaxis]),
        n_used=n,
        epsilon=epsilon,
        delta=delta,
        private=noise.private,
        sigma=noise.gaussian_sd(sensitivity=sensitivity, mu=mu),
    )


def random_order(noise: Noise, n: int) -> np.ndarray:
    """A uniformly random order of n records: that of random numbers."""
    return noise.direction(n, 1)[:, 0].argsort()


def clip_threshold(
    *, lambda1: float, K: float, gamma: float, a: float, zeta: float, n: int, d: int, C: float = 1.0
) -> float:
    """The paper's beta = C lambda1 sqrt(d) (K gamma ln(nd/zeta)^a + 1).

    No gradient is longer, except with probability zeta, under the paper's Assumption 1: lambda1 is
    the top eigenvalue, gamma^2 the variance of a gradient over lambda1^2, K and a its tail. All of
    them must be public knowledge; computing them from X would not be private.

    Examples
    --------
    >>> round(clip_threshold(lambda1=1.0, K=1.0, gamma=1.0, a=1.0, zeta=0.01, n=10**4, d=10), 1)
    54.1
    """
    for name, value in (("lambda1", lambda1), ("K", K), ("a", a), ("C", C)):
        in_range(name, value)
    in_range("gamma", gamma, low=0.0)
    in_range("zeta", zeta, high=1.0)
    whole("n", n)
    whole("d", d)
    tail = math.pow(math.log(n * d / zeta), a)
    return C * lambda1 * math.sqrt(d) * (K * gamma * tail + 1.0)

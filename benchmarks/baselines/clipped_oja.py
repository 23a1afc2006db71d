"""Clipped minibatch Oja: the paper's Eq. (6), DP-SGD for PCA on disjoint batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from stream_dppca.arrays import FloatArray
from stream_dppca.calibration import gaussian_mu
from stream_dppca.checks import whole

from ._common import (
    Fit,
    Schedule,
    clean,
    computed_sensitivity,
    in_range,
    noise_source,
    norm_bound,
    normalised,
    orient,
    start,
    step_sizes,
)

__all__ = ["clipped_oja"]


def clipped_oja(
    X: ArrayLike,
    *,
    epsilon: float,
    delta: float,
    clip: float,
    batch_size: int,
    steps: Schedule | Sequence[float],
    seed: int | None = None,
) -> Fit:
    """Top principal component by minibatch Oja with clipped gradients and Gaussian noise.

    For each batch, in one pass:
    w <- w + eta_t (mean of clip(x (x.w)) + noise), w <- w / ||w||, where clip scales a gradient
    down to norm `clip`. Every w_t may be published.

    **Guarantee.** (epsilon, delta), replace one record in place, unit: a record. Each batch is one
    Gaussian mechanism: a sum of gradients of norm at most `clip`, L2 sensitivity 2 clip (plus the
    float64 bound), noise sd sensitivity/mu with mu from the exact Gaussian formula. Batches are
    disjoint, so each has the *whole* budget; the paper composes them one after the other and pays
    with about sqrt(T) times the noise. The paper's sum also stops one record early (Bt - 1 for Bt);
    this one has all B records.

    Parameters
    ----------
    X
        n x d, one record per row. Unusable records count as zeros in their slots.
    epsilon, delta
        The guarantee.
    clip
        Bound beta on the norm of a gradient, public. About the 0.9 quantile of ||x|| |x.v1|.
    batch_size
        Slots per batch, B; a short last batch is not processed.
    steps
        eta_t for t = 1, 2, ... floor(n/B): a function of t or a sequence.
    seed
        For tests and simulations; the result is then not private.

    Returns
    -------
    Fit
        `sigma` is the noise sd in each coordinate of a mean gradient.

    Examples
    --------
    >>> from stream_dppca import InverseTime
    >>> from benchmarks.baselines import clipped_oja
    >>> X = np.random.default_rng(0).normal(size=(20_000, 5)) * [1.0, 0.3, 0.3, 0.3, 0.3]
    >>> fit = clipped_oja(X, epsilon=1.0, delta=1e-6, clip=3.0, batch_size=1000,
    ...                   steps=InverseTime(2.0, 1.0), seed=1)
    >>> bool(fit.components[0, 0] > 0.99), fit.n_used, fit.private
    (True, 20000, False)

    References
    ----------
    [^1]: Liu, Kong, Jain, Oh. DP-PCA, Eq. (6), "First challenge".
    [^2]: Abadi et al. Deep learning with differential privacy. CCS 2016.
    """
    mu = gaussian_mu(epsilon, delta)
    in_range("clip", clip)
    rows = clean(X)
    whole("batch_size", batch_size, high=len(rows))
    n_batches = len(rows) // batch_size
    etas = step_sizes(steps, n_batches)
    noise = noise_source(seed)
    sensitivity = computed_sensitivity(2.0 * clip, terms=batch_size, largest=clip)
    w = start(noise, rows.shape[1])[:, 0]
    for t, eta in enumerate(etas):
        batch = rows[t * batch_size : (t + 1) * batch_size]
        total = noise.gaussian(clipped_sum(batch, w, clip), sensitivity=sensitivity, mu=mu)
        w = normalised(w + (eta / batch_size) * total, w)
    return Fit(
        components=orient(w[np.newaxis]),
        n_used=n_batches * batch_size,
        epsilon=epsilon,
        delta=delta,
        private=noise.private,
        sigma=noise.gaussian_sd(sensitivity=sensitivity, mu=mu) / batch_size,
    )


def clipped_sum(batch: FloatArray, w: FloatArray, clip: float) -> FloatArray:
    """Sum over a batch of the gradients x (x.w), each scaled down to norm `clip` if longer."""
    p = batch @ w
    # ||x (x.w)|| = ||x|| |x.w|: no matrix of gradients is needed.
    scale = np.minimum(1.0, clip / (norm_bound(batch) * np.abs(p) + 1e-150))
    return np.asarray((p * scale) @ batch)

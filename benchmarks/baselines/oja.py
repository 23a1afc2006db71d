"""Oja's algorithm, without privacy: the paper's Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from stream_dppca.checks import whole

from ._common import (
    Fit,
    Schedule,
    clean,
    noise_source,
    normalised,
    orient,
    start,
    step_sizes,
)

__all__ = ["oja"]


def oja(
    X: ArrayLike,
    *,
    steps: Schedule | Sequence[float],
    batch_size: int = 1,
    seed: int | None = None,
) -> Fit:
    """Top principal component by Oja's algorithm. **Not private**: the yardstick for the others.

    In one pass, w <- w + eta_t A_t w, w <- w / ||w||, from a random w on the sphere, with
    A_t = x_t x_t^T, or its average over `batch_size` records. It takes O(d) memory and O(n d) time;
    batches of a few hundred records are many times faster than single records.

    Parameters
    ----------
    X
        n x d, one record per row, not centred here. Unusable records count as zeros.
    steps
        eta_t for t = 1, 2, ...: a function of t or a sequence. `InverseTime` is the paper's.
    batch_size
        Records per step; a short last batch is left out.
    seed
        Seed of the starting point. None gives a fresh one.

    Returns
    -------
    Fit
        The result, with infinite epsilon and sigma 0.

    Examples
    --------
    >>> from stream_dppca import InverseTime
    >>> from benchmarks.baselines import oja
    >>> X = [[2.0, 0.1], [-2.0, 0.1], [2.0, -0.1], [-2.0, -0.1]] * 100
    >>> fit = oja(X, steps=InverseTime(1.0, 5.0), seed=0)
    >>> bool(fit.components[0, 0] > 0.999), fit.private
    (True, False)

    References
    ----------
    [^1]: Liu, Kong, Jain, Oh. DP-PCA: statistically optimal and differentially private PCA,
        Algorithm 1.
    [^2]: Jain, Jin, Kakade, Netrapalli, Sidford. Streaming PCA. COLT 2016.
    """
    rows = clean(X)
    whole("batch_size", batch_size, high=len(rows))
    n_steps = len(rows) // batch_size
    etas = step_sizes(steps, n_steps)
    w = start(noise_source(seed), rows.shape[1])[:, 0]
    for t, eta in enumerate(etas):
        batch = rows[t * batch_size : (t + 1) * batch_size]
        w = normalised(w + (eta / batch_size) * ((batch @ w) @ batch), w)
    return Fit(
        components=orient(w[np.newaxis]),
        n_used=n_steps * batch_size,
        epsilon=math.inf,
        delta=0.0,
        private=False,
        sigma=0.0,
    )

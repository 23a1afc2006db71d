"""The noisy power method (the paper's section 2.4; Hardt and Price)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stream_dppca.arrays import FloatArray
from stream_dppca.calibration import gaussian_mu
from stream_dppca.checks import whole
from stream_dppca.errors import ParameterError

from ._common import (
    Fit,
    clean,
    clip_rows,
    computed_sensitivity,
    in_range,
    noise_source,
    norm_bound,
    orient,
    start,
)

__all__ = ["noisy_power_method"]


def noisy_power_method(
    X: ArrayLike,
    *,
    epsilon: float,
    delta: float,
    clip: float,
    n_iterations: int,
    clip_on: Literal["row", "gradient"] = "row",
    n_components: int = 1,
    seed: int | None = None,
) -> Fit:
    """Top principal components by power iteration with Gaussian noise in every iteration.

    W <- Q of the QR decomposition of (1/n) sum x x^T W + noise, `n_iterations` times over the
    same records. It needs O(d k) memory beyond the records. Every W may be published.

    **Guarantee.** (epsilon, delta), replace one record in place, unit: a record. Every iteration
    is a Gaussian mechanism on the same records, so they share the budget: each has
    mu / sqrt(n_iterations). L2 sensitivity of the sum (plus the float64 bound):

    - clip_on="row", records scaled to norm b = `clip`: b^2 for one component, as x (x.w) lies in
      the ball of radius b^2/2 around b^2 w/2; sqrt(2) b^2 for more, as
      ||(x x^T - y y^T) W||_F <= ||x x^T - y y^T||_F.
    - clip_on="gradient", x x^T W scaled to Frobenius norm `clip`: 2 clip.

    Noise of sd sensitivity sqrt(n_iterations) / mu, with mu from the exact Gaussian formula for
    delta, goes to every coordinate of the d x k sum.

    **The noise does not grow with k.** The bounds hold for the whole d x k product, because W has
    orthonormal columns. To bound each column by b^2 and compose the k of them would cost
    sqrt(k) b^2. Variance that no longer grows linearly with the rank is what [^3] announces for the
    randomised power method, in the central and in a decentralised setting. This is its counterpart
    for replace-one and records of norm at most b, with a proof of its own; the paper's text beyond
    its abstract was not available, so its adjacency and its constants may differ. With k = 2 both
    ways of counting agree, sqrt(2) b^2.

    Parameters
    ----------
    X
        n x d, one record per row, not centred here. Unusable records count as zeros in their slots.
    epsilon, delta
        The guarantee, for all iterations together.
    clip
        Public bound on the norm of records or gradients, see `clip_on`.
    n_iterations
        L. The error falls like (lambda_2/lambda_1)^L, the noise grows like sqrt(L).
    clip_on
        Clip records, or gradients.
    n_components
        Columns of W, k.
    seed
        For tests and simulations; the result is then not private.

    Returns
    -------
    Fit
        `sigma` is the noise sd in each coordinate of the mean (1/n) sum x x^T W.

    Examples
    --------
    >>> from benchmarks.baselines import noisy_power_method
    >>> X = np.random.default_rng(0).normal(size=(20_000, 5)) * [1.0, 0.3, 0.3, 0.3, 0.3]
    >>> fit = noisy_power_method(X, epsilon=1.0, delta=1e-6, clip=2.5, n_iterations=4, seed=1)
    >>> bool(fit.components[0, 0] > 0.99), fit.private
    (True, False)

    References
    ----------
    [^1]: Hardt, Price. The noisy power method: a meta algorithm with applications. NIPS 2014.
    [^2]: Liu, Kong, Jain, Oh. DP-PCA, section 2.4.
    [^3]: Nicolas, Sabater, Maouche, Ben Mokhtar, Coates. Differentially private and decentralized
        randomized power method. arXiv 2411.01931.
    """
    whole("n_iterations", n_iterations)
    mu = gaussian_mu(epsilon, delta) / math.sqrt(n_iterations)
    in_range("clip", clip)
    if clip_on not in ("row", "gradient"):
        raise ParameterError("clip_on", "must be 'row' or 'gradient'", clip_on)
    rows = clean(X)
    n, d = rows.shape
    whole("n_components", n_components, high=d)
    noise = noise_source(seed)

    if clip_on == "row":
        rows = clip_rows(rows, clip)
        # k columns of the product of two unit vectors: a term is at most clip^2 in norm.
        exact, largest = math.sqrt(min(n_components, 2)) * clip**2, clip**2
    else:
        exact, largest = 2.0 * clip, clip
    sensitivity = computed_sensitivity(exact, terms=n, largest=largest)
    norms = norm_bound(rows)
    W = start(noise, d, n_components)
    for _ in range(n_iterations):
        P = rows @ W
        if clip_on == "gradient":
            P = _scaled(P, norms, clip)
        total = noise.gaussian(rows.T @ P, sensitivity=sensitivity, mu=mu)
        W = np.asarray(np.linalg.qr(total)[0])
    return Fit(
        components=orient(W.T),
        n_used=n,
        epsilon=epsilon,
        delta=delta,
        private=noise.private,
        sigma=noise.gaussian_sd(sensitivity=sensitivity, mu=mu) / n,
    )


def _scaled(P: FloatArray, norms: FloatArray, clip: float) -> FloatArray:
    """Projections p = W^T x scaled so that ||x p^T||_F = ||x|| ||p|| is at most `clip`."""
    return P * np.minimum(1.0, clip / (norms * norm_bound(P) + 1e-150))[:, np.newaxis]

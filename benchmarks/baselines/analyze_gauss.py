"""Analyze-Gauss: PCA of a noisy second-moment matrix (the paper's section 2.4)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from stream_dppca.calibration import gaussian_mu
from stream_dppca.checks import whole
from stream_dppca.errors import ParameterError
from stream_dppca.mechanisms.packing import pack, unpack

from ._common import (
    Fit,
    clean,
    clip_rows,
    computed_sensitivity,
    in_range,
    noise_source,
    norm_bound,
    orient,
)

__all__ = ["analyze_gauss"]


def analyze_gauss(
    X: ArrayLike,
    *,
    epsilon: float,
    delta: float,
    clip: float | None = None,
    unit_norm: bool = False,
    n_components: int = 1,
    seed: int | None = None,
) -> Fit:
    """Top eigenvectors of the second-moment matrix plus symmetric Gaussian noise.

    It uses all n records at once, makes one release, and needs O(d^2) memory: the one-shot method
    to compare with.

    **Guarantee.** (epsilon, delta), replace one record in place, unit: a record. One Gaussian
    mechanism on sum x x^T over records scaled down to norm `clip`. For two such records
    ||x x^T - y y^T||_F^2 = ||x||^4 + ||y||^4 - 2 (x.y)^2 <= 2 clip^4, so the L2 sensitivity is
    sqrt(2) clip^2 (plus the float64 bound) in the Frobenius norm. The noise is isotropic in that
    norm on symmetric matrices: sd sigma on the diagonal, sigma/sqrt(2) off it (each off-diagonal
    entry counts twice in the norm). Independent noise of sd sigma on the whole upper triangle, as
    in the paper, would be sqrt(2) too much off the diagonal. sigma = sensitivity/(n mu) with mu
    from the exact Gaussian formula.

    Parameters
    ----------
    X
        n x d, one record per row, not centred here. Unusable records count as zeros in their slots.
    epsilon, delta
        The guarantee.
    clip
        Bound on the norm of a record, public. Required unless `unit_norm`.
    unit_norm
        Scale every record to norm 1 instead: needs no bound, keeps the eigenvectors of elliptical
        data, changes the eigenvalues. The centre must be known. With differences of records, each
        record in one of them, it need not be: that is Kim and Jung's method [^3] on n/2 pairs in
        place of all n (n - 1)/2 of them, at the same noise, 2 sqrt(2)/(n mu): a record is in one
        pair of n/2, or in n - 1 of n (n - 1)/2.
    n_components
        Number of eigenvectors, k.
    seed
        For tests and simulations; the result is then not private.

    Returns
    -------
    Fit
        `sigma` is the noise sd on the diagonal of the mean second-moment matrix.

    Examples
    --------
    >>> from benchmarks.baselines import analyze_gauss
    >>> X = np.random.default_rng(0).normal(size=(20_000, 5)) * [1.0, 0.3, 0.3, 0.3, 0.3]
    >>> fit = analyze_gauss(X, epsilon=1.0, delta=1e-6, clip=2.5, seed=1)
    >>> bool(fit.components[0, 0] > 0.999), fit.n_used, fit.private
    (True, 20000, False)

    References
    ----------
    [^1]: Dwork, Talwar, Thakurta, Zhang. Analyze Gauss: optimal bounds for privacy-preserving
        principal component analysis. STOC 2014.
    [^2]: Liu, Kong, Jain, Oh. DP-PCA, section 2.4.
    [^3]: Kim, Jung. Robust and differentially private PCA for non-Gaussian data. arXiv 2507.15232.
    """
    mu = gaussian_mu(epsilon, delta)
    if unit_norm == (clip is not None):
        raise ParameterError("clip", "must be given without unit_norm, and not with it", clip)
    bound = 1.0 if clip is None else clip
    in_range("clip", bound)
    rows = clean(X)
    n, d = rows.shape
    whole("n_components", n_components, high=d)
    noise = noise_source(seed)

    rows = rows / norm_bound(rows)[:, np.newaxis] if unit_norm else clip_rows(rows, bound)
    sensitivity = computed_sensitivity(math.sqrt(2.0) * bound**2, terms=n, largest=bound**2)
    query = pack(rows.T @ rows)
    moment = unpack(noise.gaussian(query, sensitivity=sensitivity, mu=mu)) / n
    _, vectors = np.linalg.eigh(moment)
    return Fit(
        components=orient(vectors[:, ::-1][:, :n_components].T),
        n_used=n,
        epsilon=epsilon,
        delta=delta,
        private=noise.private,
        sigma=noise.gaussian_sd(sensitivity=sensitivity, mu=mu) / n,
    )

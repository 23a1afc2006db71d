"""Settings and figures that others published, for `benchmarks.comparisons`.

| name | from |
|---|---|
| `CAPE` | the result matrices of github.com/hafizimtiaz/capePCA at 66e0ec8, `en_pool_dp` over \
`en_pool_ndp`, means of ten runs |
| `FPCA`, `MOD_SULQ` | the figure `imgs/dp-synth.JPG` of github.com/andylamp/federated_pca at \
e25c564, parts (a) and (b), read off by eye to about .02 |

The data is made here as their papers and scripts describe it; none of their code is used.
"""

from __future__ import annotations

import gzip
import math

import numpy as np

from .methods import top
from .real_data import Array, Missing, Paths

__all__ = [
    "CAPE",
    "CAPE_BY_N",
    "FPCA",
    "MOD_SULQ",
    "cape_analyze_gauss",
    "cape_synthetic",
    "fashion_pixels",
    "mod_sulq",
    "power_law",
    "spiked",
]

EPSILONS = (0.1, 0.5, 1.0, 5.0, 10.0)
#: Relative captured energy of pooled Analyze-Gauss, delta .01: (d, K, N), then by epsilon.
CAPE = {
    "MNIST": ((784, 50, 10_000), (0.085, 0.296, 0.498, 0.861, 0.953)),
    "covtype": ((54, 10, 5_000), (0.647, 0.955, 0.971, 0.991, 0.996)),
    "synthetic": ((200, 50, 10_000), (0.301, 0.552, 0.788, 0.985, 0.996)),
}
#: The same for MNIST at epsilon 1, by N.
CAPE_BY_N = {1000: 0.085, 5000: 0.297, 20_000: 0.673, 40_000: 0.821}

#: Utility by alpha and epsilon.
FPCA = {
    0.01: {0.5: 0.18, 1.0: 0.19, 2.0: 0.19, 4.0: 0.20},
    0.1: {0.5: 0.20, 1.0: 0.20, 2.0: 0.22, 4.0: 0.39},
    0.5: {0.5: 0.18, 1.0: 0.26, 2.0: 0.64, 4.0: 0.97},
    1.0: {0.5: 0.19, 1.0: 0.20, 2.0: 0.41, 4.0: 0.94},
}
MOD_SULQ = {
    0.01: {0.5: 0.18, 1.0: 0.18, 2.0: 0.19, 4.0: 0.21},
    0.1: {0.5: 0.19, 1.0: 0.20, 2.0: 0.24, 4.0: 0.38},
    0.5: {0.5: 0.20, 1.0: 0.41, 2.0: 0.82, 4.0: 0.96},
    1.0: {0.5: 0.20, 1.0: 0.30, 2.0: 0.68, 4.0: 0.94},
}


def cape_synthetic(seed: int, n: int = 60_000, d: int = 200, k: int = 50) -> Array:
    """capePCA's synthetic records: independent, variances 10 to 1, then uniform below .5."""
    rng = np.random.default_rng([seed, 21])
    variances = np.r_[np.linspace(10, 1, k), 0.5 * rng.random(d - k)]
    return np.asarray(rng.standard_normal((n, d)) * np.sqrt(variances))


def fashion_pixels(paths: Paths) -> Array:
    """All 784 pixels of the 60,000 pictures."""
    if not paths.fashion.exists():
        raise Missing(f"no file {paths.fashion}")
    with gzip.open(paths.fashion) as file:
        return np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784).astype(np.float64)


def cape_analyze_gauss(X: Array, k: int, epsilon: float, delta: float, seed: int) -> Array:
    """Analyze-Gauss as capePCA runs it: exact mean, exact largest norm, and their noise.

    sd sqrt(2 ln(1.25/delta))/(n epsilon) on the diagonal and above it. That is the sensitivity of
    adding a record, not of replacing one (sqrt 2 more), and a formula that is proven for epsilon
    up to 1. The exact largest norm and mean of the data are not private.
    """
    X = X - X.mean(axis=0)
    n, d = X.shape
    S = X.T @ X / (n * np.square(X).sum(axis=1).max())
    sd = math.sqrt(2 * math.log(1.25 / delta)) / (n * epsilon)
    E = np.triu(np.random.default_rng([seed, 22]).standard_normal((d, d)))
    return top(S + sd * (E + np.triu(E, 1).T), k)


def spiked(seed: int, n: int, sigma: float, d: int = 200) -> tuple[Array, Array]:
    """Gaussian records with variances 10 and 5 along two random directions, and sigma^2 elsewhere.

    The caption of k-DP-PCA's Figure 1 gives k = 2, d = 200 and lambda1 = 10. The second eigenvalue
    (5) and the Gaussian law are ours.
    """
    rng = np.random.default_rng([seed, 23])
    V = np.linalg.qr(rng.standard_normal((d, 2)))[0]
    X = rng.standard_normal((n, 2)) * np.sqrt([10.0, 5.0]) @ V.T
    return X + sigma * rng.standard_normal((n, d)), V


def power_law(seed: int, alpha: float, d: int = 20, n: int = 5000) -> Array:
    """Grammenos et al.: Gaussian, singular values i^-alpha, divided by the exact largest norm."""
    rng = np.random.default_rng([seed, 24])
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = rng.standard_normal((n, d)) * np.arange(1.0, d + 1) ** -alpha @ Q.T
    return np.asarray(X / np.sqrt(np.square(X).sum(axis=1).max()))


def mod_sulq(X: Array, epsilon: float, delta: float, seed: int) -> Array:
    """MOD-SuLQ (Chaudhuri, Sarwate, Sinha, JMLR 2013): their noise, symmetric; k = 1, norms <= 1.

    sd (d + 1)/(n epsilon) sqrt(2 ln((d^2 + d)/(2 sqrt(2 pi) delta))) + 1/(n sqrt(epsilon)).
    """
    n, d = X.shape
    log = math.log((d * d + d) / (delta * 2 * math.sqrt(2 * math.pi)))
    sd = (d + 1) / (n * epsilon) * math.sqrt(2 * log) + 1 / (n * math.sqrt(epsilon))
    E = np.random.default_rng([seed, 25]).standard_normal((d, d))
    return top(X.T @ X / n + sd * (np.triu(E) + np.triu(E, 1).T), 1)

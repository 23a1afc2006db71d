"""Algorithm 4: private top eigenvalue estimation, the range of the gradients.

Adjacency: one gradient is replaced, or turns null.
Sensitivity: a gradient is in one difference, so in one subset, so one of the k eigenvalues moves
    to another bin: L1 = 2, at most one new bin.
Noise and delta: those of `private_histogram`.

Differences double the covariance. The histogram therefore finds 2 lambda_1^2 ||H||, and the
estimate is halved; the paper's text forgets this.
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays import BoolArray, FloatArray, IntArray
from ..calibration import laplace_threshold
from ..errors import ParameterError
from ..noise import Noise

#: The label of the bin [0, 0]; all others are floor(4 log2 eigenvalue).
ZERO_BIN = np.iinfo(np.int64).min
SMALLEST_BIN = 4 * -900


def subset_count(epsilon: float, delta: float, zeta: float, C1: float) -> int:
    """Line 2: k = C1 ln(1 / (delta zeta)) / epsilon."""
    return max(math.ceil(C1 * -math.log(delta * zeta) / epsilon), 1)


def private_top_eigenvalue(
    G: FloatArray,
    null: BoolArray,
    *,
    epsilon: float,
    delta: float,
    zeta: float = 0.01,
    C1: float = 4.0,
    noise: Noise,
) -> float | None:
    """An estimate of the top eigenvalue of the covariance of the rows of G, or None.

    Parameters
    ----------
    G
        Gradients, one row each. Null rows are zero.
    null
        Mask of the null rows. A pair with a null has difference zero.
    zeta
        Failure probability.
    C1
        Sets the number of subsets. Below about 4 the fullest bin can miss the threshold.

    Returns
    -------
    None where the paper returns bottom: no bin released, or the bin [0, 0] won (or 2^-900).
    """
    k = subset_count(epsilon, delta, zeta, C1)
    # Line 1: differences of neighbours.
    differences = G[1::2] - G[: len(G) - 1 : 2]
    differences[null[1::2] | null[: len(G) - 1 : 2]] = 0.0
    # Line 2: k subsets of b consecutive differences; the remainder is left over.
    b = len(differences) // k
    if b == 0:
        raise ParameterError("G", f"must have at least {2 * k} rows here", len(G))
    # Line 3: the top eigenvalue of each (1/b) G_j G_j^T.
    subsets = differences[: k * b].reshape(k, b, -1)
    eigenvalues = np.array([_top_eigenvalue(subset) for subset in subsets])
    # Lines 4 and 5: bins with edges 2^(j/4), and the histogram over them.
    bins, counts = private_histogram(_bins(eigenvalues), epsilon=epsilon, delta=delta, noise=noise)
    # Line 6: all empty.
    if len(bins) == 0:
        return None
    # Line 7: the fullest bin, on a tie the lowest.
    fullest = int(bins[int(counts.argmax())])
    if fullest < SMALLEST_BIN:  # the bin [0, 0], or one where later steps would underflow
        return None
    # Line 8: its lower edge, halved because differences double the covariance.
    return math.pow(2.0, fullest / 4) / 2


def private_histogram(
    labels: IntArray, *, epsilon: float, delta: float, noise: Noise
) -> tuple[IntArray, IntArray]:
    """Lemma B.1 (Karwa, Vadhan 2017): bins with many labels, their noisy counts, sorted by bin.

    Adjacency: one label is replaced, or turns null.
    Sensitivity: one count falls and one rises by 1, so L1 = 2; at most one bin is occupied in one
        histogram and not in the other.
    Noise: discrete Laplace of scale 2/epsilon on the count of every occupied bin.
    Delta: a bin is released if its noisy count exceeds T; a lone record surfaces its bin with
        probability at most delta (`calibration.laplace_threshold`).

    Parameters
    ----------
    labels
        The bin of each record. Nulls are left out by the caller.

    Examples
    --------
    >>> from stream_dppca.noise import SeededNoise
    >>> labels = np.array([7] * 500 + [-3] * 400 + [1])
    >>> bins, counts = private_histogram(labels, epsilon=1.0, delta=1e-6, noise=SeededNoise(1))
    >>> bins.tolist()
    [-3, 7]
    """
    bins, counts = np.unique(labels, return_counts=True)
    noisy = noise.laplace(counts, scale=2.0 / epsilon)
    released = noisy > laplace_threshold(epsilon, delta)
    return bins[released].astype(np.int64), noisy[released]


def _bins(eigenvalues: FloatArray) -> IntArray:
    positive = eigenvalues > 0
    logs = np.log2(eigenvalues, where=positive, out=np.zeros_like(eigenvalues))
    return np.where(positive, np.floor(4 * logs).astype(np.int64), ZERO_BIN)


def _top_eigenvalue(rows: FloatArray) -> float:
    """Top eigenvalue of rows^T rows / b, through the smaller Gram matrix. Never raises."""
    b, d = len(rows), len(rows[0])
    gram = rows @ rows.T if b < d else rows.T @ rows
    try:
        return max(float(np.linalg.eigvalsh(gram)[-1]) / b, 0.0)
    except np.linalg.LinAlgError:  # this subset alone lands in the bin [0, 0]
        return 0.0

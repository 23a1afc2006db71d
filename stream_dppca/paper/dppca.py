"""Algorithm 3: DP-PCA.

A batch is split by slot number. The range is estimated on the first half, the mean gradient on
the second, and only the released range passes between them: the halves are disjoint, so **each
has the whole (epsilon, delta)**, where the paper gives each a half.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays import BoolArray, FloatArray
from ..basis import checked_basis
from ..batch import Batch
from ..errors import BatchSizeError
from ..noise import Noise
from ..outcome import Method, Outcome
from ..statistics import Rows
from .eigenvalue import private_top_eigenvalue, subset_count
from .mean import MeanBudget, private_mean
from .oja import InverseTime, oja_step


@dataclass(frozen=True, repr=False)  # it holds records
class Half:
    """Rows of one half of a batch, with zeros for nulls."""

    X: FloatArray
    null: BoolArray


def halves(X: FloatArray, null: BoolArray) -> tuple[Half, Half]:
    """The first floor(n/2) rows and the rest."""
    n1 = len(X) // 2
    first, second = slice(0, n1), slice(n1, None)
    return Half(X[first], null[first]), Half(X[second], null[second])


def differences(X: FloatArray, null: BoolArray) -> tuple[FloatArray, BoolArray]:
    """Neighbouring records x, y as (y - x)/sqrt 2: mean zero, and the covariance of a record.

    One record is in one difference. A pair with a null is a null.
    """
    null = null[0::2] | null[1::2]
    rows = (X[1::2] - X[0::2]) * 0.5**0.5
    rows[null] = 0.0
    return rows, null


@dataclass
class PaperMethod(Method):
    """The steps of Algorithm 3 for one batch, and the iterate w.

    Adjacency, sensitivity, noise and delta are those of Algorithms 4 and 5 on disjoint halves.
    """

    W: FloatArray  #: d x k, orthonormal columns
    epsilon: float
    delta: float
    K: float
    a: float
    zeta: float
    C1: float
    schedule: InverseTime
    pairs: bool = False  #: rows are differences of neighbouring records
    budget: MeanBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = MeanBudget.split(self.epsilon, self.delta)

    def smallest_batch(self) -> int:
        """Records below which some bin can never be released, whatever the data."""
        # First half: two differences at least in each subset. Second half: all slots in one bin.
        for_range = 2 * 2 * 2 * subset_count(self.epsilon, self.delta, self.zeta, self.C1)
        for_mean = 2 * int(np.ceil(self.budget.threshold(self.W.size)))
        return max(for_range, for_mean) * (2 if self.pairs else 1)

    def check_batch(self, rows: int) -> None:
        """Raise if batches of this many records cannot work."""
        smallest = self.smallest_batch()
        if rows < smallest:
            why = "with fewer records no bin of Algorithms 4 and 5 can pass its threshold"
            raise BatchSizeError(rows, smallest, why)

    def step(self, rows: Rows, t: int, noise: Noise) -> Outcome:
        """Lines 3 to 5 for batch number t = 1, 2, ..."""
        if not isinstance(rows, Batch):  # eigenvalues of subsets are not sums over records
            raise TypeError("Algorithm 3 needs the records of a batch in this process")
        X, null = rows.matrix()
        first, second = halves(*(differences(X, null) if self.pairs else (X, null)))
        # Line 3: private top eigenvalue estimation on the first half.
        eigenvalue = private_top_eigenvalue(
            self._gradients(first),
            first.null,
            epsilon=self.epsilon,
            delta=self.delta,
            zeta=self.zeta,
            C1=self.C1,
            noise=noise,
        )
        if eigenvalue is None:
            return Outcome(reason="no range released")
        # Line 4: private mean estimation on the second half, with twice the estimate.
        mean = private_mean(
            self._gradients(second),
            second.null,
            eigenvalue=2 * eigenvalue,
            budget=self.budget,
            K=self.K,
            a=self.a,
            zeta=self.zeta,
            noise=noise,
        )
        if mean is None:
            return Outcome(reason="no centre released", range=eigenvalue)
        # Line 5: the Oja step.
        gradient = mean.mean.reshape(self.W.shape)
        eta = self.schedule(t)
        spread = np.einsum("ij,ij->j", self.W, gradient)
        self.W = oja_step(self.W, gradient, eta)
        return Outcome(spread=spread, range=eigenvalue, step=eta, sigma=mean.sigma)

    def state(self) -> dict[str, Any]:
        return {"W": self.W.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        self.W = checked_basis(state["W"], like=self.W)

    def _gradients(self, half: Half) -> FloatArray:
        """g_i = A_i w = x_i (x_i . w), one row each; with k columns, k of them side by side."""
        P = half.X @ self.W
        return (half.X[:, :, None] * P[:, None, :]).reshape(len(half.X), -1)

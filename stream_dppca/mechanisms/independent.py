"""Independent noise for every release, which subjects need, because they are in every round.

The release is y_t = q_t + xi_t, with q_t the query of round t in units of its noise and xi_t fresh
noise of sd 1.

Adjacency: everything that one subject sends in some rounds is replaced.
Sensitivity: in each of these rounds q_t changes by at most mu. Nothing of a round is in the release
    of another.
Noise: a round spends mu, K rounds spend mu sqrt(K), also when queries are chosen from earlier
    releases. With noise that is correlated over releases (`correlated`), K rounds of one subject
    would spend up to 3.85 times that.
Delta: none beyond that of mu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..noise import Noise
from .correlated import DECAYS, Released, Weights

if TYPE_CHECKING:
    from ..arrays import FloatArray


class IndependentRelease:
    """Releases one query per round, and remembers nothing.

    Parameters
    ----------
    mu
        Budget that each round spends here.
    """

    def __init__(self, *, mu: float) -> None:
        self.mu = mu
        self.decays = DECAYS  # of sums that stay empty

    def forget(self) -> None:
        """Do nothing, because there is nothing to forget."""

    def release(self, query: FloatArray, *, sensitivity: float, noise: Noise) -> Released:
        """Release the query of a round, in units of its noise."""
        unit = self.mu / sensitivity
        y = noise.gaussian(query, sensitivity=sensitivity, mu=self.mu) * unit
        return Released(Weights(1.0, (0.0,) * len(self.decays)), y, y.copy(), first=False)

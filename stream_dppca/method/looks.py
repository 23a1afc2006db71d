"""Looks at features whose spread is not known: repeated counts of their distances from the centre.

Adjacency: one unit is replaced, or turns null.
Sensitivity: that of `OctaveCounts` for the features that are looked at, with the rounding of
    `count_slack`.
Noise: N(0, (sensitivity/mu_look)^2) on every count; the caller pays mu_look.
Delta: none beyond that of mu.

Looks of different batches use different records. The features to look at follow from earlier
releases, and adding up looks is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import FloatArray, IntArray
from ..noise import Noise
from ..statistics import Rows
from .histograms import spread
from .standard import Standard
from .statistics import OctaveCounts, count_slack

#: Share of mu^2 that every batch spends on scales that are not known.
LOOK = 0.06
#: More than `histograms.SURE`, because looks are repeated.
_SURE = 5.5
_BINS = 129


@dataclass(frozen=True, eq=False)
class Look:
    """Noisy counts of one batch."""

    counts: FloatArray
    sd: float  #: of their noise
    which: IntArray  #: the features


class Looks:
    """The sum of the looks so far.

    Parameters
    ----------
    d
        Number of features.
    """

    def __init__(self, d: int) -> None:
        self.counts = np.zeros((d, _BINS))
        self.times = np.zeros(d)

    @staticmethod
    def ask(rows: Rows, standard: Standard, *, each: int, mu: float, noise: Noise) -> Look:
        """Look at the features whose spread is not known."""
        which = np.flatnonzero(~standard.known)
        center = tuple(standard.center[which].tolist())
        octaves = OctaveCounts(tuple(which.tolist()), center, signs=False)
        sensitivity = octaves.sensitivity * count_slack(len(rows), each)
        counts = noise.gaussian(rows.total(octaves), sensitivity=sensitivity, mu=mu)
        return Look(counts, sensitivity / mu, which.astype(np.int64))

    def add(self, look: Look, standard: Standard, units: float) -> Iterator[tuple[int, float]]:
        """Add a look. Yields each feature whose spread shows now, and its scale.

        Parameters
        ----------
        units
            Approximate number of valid units per batch.
        """
        self.counts[look.which] += look.counts
        self.times[look.which] += 1
        for j in look.which.tolist():
            times = float(self.times[j])
            found = spread(
                self.counts[j],
                look.sd * math.sqrt(times),
                times * units,
                float(standard.resolution[j]),
                sure=_SURE,
            )
            if found is not None and found >= standard.scale[j]:
                yield j, found

    def state(self, standard: Standard) -> dict[str, Any]:
        """The sums of the features that are still looked at."""
        return {
            str(j): [float(self.times[j]), self.counts[j].tolist()]
            for j in np.flatnonzero(~standard.known & (self.times > 0)).tolist()
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`, or raise a ValueError."""
        for name, (times, counts) in state.items():
            look = np.array(counts, dtype=np.float64)
            j, fits = int(name), look.shape == (_BINS,) and np.isfinite(look).all()
            if not (fits and times >= 0 and 0 <= j < len(self.counts)):
                raise ValueError("not a state of this method")
            self.counts[j], self.times[j] = look, float(times)

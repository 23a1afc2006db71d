"""Corrects centre and scales by what has been released: all of it post-processing.

The first step sees the beginning of a stream only. Scales are

- *refined* after the first steps, because questions find a scale to about 20 % only;
- *widened* where a step's second moments are too large for the clamp; scales that were told are
  about the whole stream, and widened only if most values of all steps are at the clamp;
- *narrowed*, with another centre, where the spread is far too small for them;
- *found* where the spread was not known, by the sum of the looks.

Moments that were released in the old scales are converted; no question is asked again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import BoolArray, FloatArray
from .looks import Look, Looks
from .memory import Memory
from .parameters import Parameters
from .standard import CLAMP, Standard

#: A scale is widened if the second moment of z in one batch is above this.
WIDEN_ABOVE = 2.25
#: A scale that was told, if the second moment of z in all batches is above this.
WIDEN_TOLD_ABOVE = CLAMP**2 / 2
#: It must be above by more than this many sds of its noise.
WIDEN_SDS = 3.0
#: A scale is narrowed if the variance of z is below this by so many sds of its noise, and the mean
#: is this many standard deviations off the centre. (Where it is not, the feature may be quiet now.)
NARROW_BELOW, NARROW_SDS, FAR_OFF = 0.2, 3.0, 3.0
#: Steps after which scales are refined.
REFINED_AFTER = (1, 2, 4)
#: Smallest and largest factor by which refining changes a scale, all in all.
REFINED_MOST = (0.75, 1.5)
#: Sd of a variance after the questions: measured .4 on Gaussian data with 10 to 200 features.
_REFINED_SD = 0.4


class Correction:
    """Decides how later records are standardised, after what has been released."""

    def __init__(self, given: Parameters) -> None:
        self.given = given
        self.looks = Looks(given.features)
        # Scales that are known are not refined, nor are those of subjects, which are few.
        learned = given.scales is None and not given.one_unit and given.subjects is None
        self.refined = 0 if learned else REFINED_AFTER[-1]  # steps so far
        self.refined_by = np.ones(given.features)  # factors of the scales that the questions found

    def correct(
        self, standard: Standard, memory: Memory, squares: FloatArray, sd: float
    ) -> Standard:
        """Correct scales after a step.

        Parameters
        ----------
        squares, sd
            Second moments of z in the step alone, and the sd of their noise.
        """
        standard = self._widen(standard, memory, squares, sd)
        standard = self._refine(standard, memory)
        return self._narrow(standard, memory)

    def _widen(
        self, standard: Standard, memory: Memory, squares: FloatArray, sd: float
    ) -> Standard:
        if self.given.one_unit:
            return standard
        above = WIDEN_ABOVE
        if self.given.scales is not None:
            squares, sd, above = np.diag(memory.all.mean)[:-1], memory.all.sd, WIDEN_TOLD_ABOVE
        square, sd = squares / memory.all.valid, sd / memory.all.valid
        too_small = standard.known & (square > above + WIDEN_SDS * sd)
        factor = np.where(too_small, np.sqrt(np.clip(square, 1.0, CLAMP**2)), 1.0)
        return _rescaled(standard, memory, factor)

    def _refine(self, standard: Standard, memory: Memory) -> Standard:
        """Make scales more equal, by the moments of the first steps.

        The error of the questions adds to the length of records, and so to the noise: 10 % of it
        with 50 to 200 features. A variance that is uncertain is moved towards their answer.
        """
        known = standard.known
        if self.refined >= REFINED_AFTER[-1]:
            return standard
        self.refined += 1
        if self.refined not in REFINED_AFTER or not known.any():
            return standard
        mean, variance, sd = memory.all.mean_and_variance()
        if self.given.known_center:
            variance = variance + mean**2
        # In the units of the questions: what was believed before is not believed once more.
        variance = variance * self.refined_by**2
        # Clipping lowers all variances: their mean stays as it is.
        typical = max(float(np.mean(variance[known])), sd)
        trust = _REFINED_SD**2 / (_REFINED_SD**2 + (sd / typical) ** 2)
        square = 1 + (variance / typical - 1) * trust
        factor = np.where(known, np.clip(np.sqrt(np.maximum(square, 0.0)), *REFINED_MOST), 1.0)
        again, self.refined_by = factor / self.refined_by, factor
        return _rescaled(standard, memory, again)

    def _narrow(self, standard: Standard, memory: Memory) -> Standard:
        """Move the centre to the mean, and narrow the scale, where the spread is far too small.

        Questions that drown in noise leave a centre in the middle of its octave, and a scale that
        covers the distance. The moments of all batches show both.
        """
        given = self.given
        if given.one_unit or given.known_center or given.subjects is not None:
            return standard
        mean, variance, sd = memory.all.mean_and_variance()
        most = np.maximum(variance, 0.0) + NARROW_SDS * sd  # noise may make it negative
        inside = np.abs(mean) < CLAMP / 2  # others may be at the clamp, and are widened instead
        narrow = standard.known & inside & (most < NARROW_BELOW)
        narrow &= mean**2 > FAR_OFF**2 * most
        if not narrow.any():
            return standard
        shift = np.where(narrow, mean, 0.0)
        memory.shift(shift)
        moved = replace(standard, center=standard.center + shift * standard.scale)
        factor = np.where(narrow, np.sqrt(np.maximum(most, 1 / CLAMP**2)), 1.0)
        return _rescaled(moved, memory, factor)

    def find(self, standard: Standard, memory: Memory, look: Look) -> Standard:
        """Add up the looks, and take the scales that show."""
        valid, sd, d = memory.all.valid, memory.all.sd, self.given.features
        second = np.diag(memory.all.mean)
        factor, known, undone = np.ones(d), standard.known.copy(), np.ones(d)
        for j, scale in self.looks.add(look, standard, self.given.units * valid):
            known[j] = True
            factor[j] = scale / standard.scale[j]
            # Up to now z was 0 or at its clamp. With the new scale its second moment becomes 1.
            before = max(second[j] / valid, 4 * sd / valid, 0.05)
            undone[j] = factor[j] / math.sqrt(before)
        memory.rescale(undone)
        return _rescaled(standard, memory, factor, known)

    # State

    def state(self, standard: Standard | None) -> dict[str, Any]:
        return {
            "refined": self.refined,
            "refined_by": self.refined_by.tolist(),
            "looks": {} if standard is None else self.looks.state(standard),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`, or raise a ValueError."""
        self.refined = int(state["refined"])
        self.refined_by = np.array(state["refined_by"], dtype=np.float64).reshape(-1)
        kept = np.clip(self.refined_by, *REFINED_MOST)
        if len(kept) != self.given.features or (kept != self.refined_by).any():
            raise ValueError("not a state of this method")
        self.looks.load(state["looks"])


def _rescaled(
    standard: Standard, memory: Memory, factor: FloatArray, known: BoolArray | None = None
) -> Standard:
    """Multiply scales by factors; moments in the old scales are converted."""
    memory.rescale(1 / factor)
    return standard.with_scale(standard.scale * factor, standard.known if known is None else known)

"""The questions of the first step: centre, scales and clip radius of records nobody knows.

A step is in memory when its questions are asked, so each question uses the answers before it, and
the moments of the same records are asked last (`step`). The first step takes W whole batches at
once: rows that are pooled need the noise of one answer, where W batches by themselves would need W.

| question | statistic | sensitivity | parts |
|---|---|---|---|
| octaves of all features | `OctaveCounts` around 0 | sqrt(2 d) | 5 |
| places in these octaves | `GridCounts` | sqrt(2 d) | 3 |
| places in the middle cells | `GridCounts`, the d' features that need it | sqrt(2 d') | 1 |
| places in the middle of these | `GridCounts`, the d' features that need it | sqrt(2 d') | 1 |
| distances from the centre | `OctaveCounts` around the centre | sqrt(2 d) | 5 |
| mean and variance within the clamp | `MomentsInBall` | 2 R | 3 |
| octaves of the lengths of records | `LengthCounts` around the centre | sqrt 2 | 2 |
| lengths of standardised records | `LengthCounts` | sqrt 2 | 2 |

Adjacency: one record is replaced, or turns null.
Noise: a question with share f has N(0, (sensitivity/mu)^2/f) on every coordinate, where mu is the
    budget of all questions together (`FIRST` of the mu^2 of the step), and f the question's parts
    over the sum of all that are asked. Which ones are asked follows from public parameters, and for
    the finer grids, whose shares go to the next question, from released counts.
Delta: none beyond that of mu.

Whoever knows the centre (`center="none"`, `"own"`) leaves out the first four questions, whoever
knows the scales leaves out the distances, whose parts the lengths of standardised records have
then, and whoever knows both leaves out the sixth, too.
Features in one unit (`scales=None`) have one scale, which the seventh question finds in place of
the fifth and the sixth; it is left out otherwise. If the centre is known, too, the lengths of
standardised records have the parts of the sixth. Nothing else changes.

**Subjects.** A step is then a round, and mu is that of a round, because subjects come back. So
pooled rounds would need more noise, and gain nothing. If one round has too few subjects, each
question extends over several rounds, with all of their budgets, and its answers are averaged. A
subject adds the mean over its rows of what a record adds (to lengths, the length of its mean
moment), so one subject moves every sum as far as one record does, plus the rounding of sums of
shares (`count_slack`). A place that is not taken is a null. Where centre and scales are known, the
lengths need less of a round than the questions of records have (`question_share`): the budget of a
round is small, and the release after the first one is the first that anybody sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays import FloatArray
from ..noise import Noise
from ..statistics import Block, Rows, Statistic
from .histograms import SURE, hull, locate, spread
from .radius import clip_radius, length_grid, share_beyond
from .standard import CLAMP, FLOOR, Standard
from .statistics import GridCounts, LengthCounts, MomentsInBall, OctaveCounts, count_slack

#: Parts of the budget, question by question; divided by the sum of those that are asked.
SHARES = {
    "octaves": 5,
    "grid": 3,
    "fine grid": 1,
    "finest grid": 1,
    "distances": 5,
    "moments": 3,
    "norms": 2,
    "lengths": 2,
}
#: Cells of the grids. Three cells of one are the range of the next, so that a centre is found to
#: 2^-17 of its size. A record is in one cell, however many there are; but where many have to be
#: taken together, their noise adds up. So a grid has few cells, and a feature between 30 and 60,000
#: times as far away as it is wide stands out of the noise in one of them.
CELLS = {"grid": 64, "fine grid": 128, "finest grid": 128}
#: The ball of `MomentsInBall` has R^2 = this times d: Gaussian data has 1.5 d on average.
BALL = 3.0
#: A spread below this part of the centre counts as none: the grids cannot resolve it.
_COARSEST = 2.0**-20
#: With a smaller share of valid units than this, no answer is trusted.
_ENOUGH = 0.25
#: Largest value that is searched for, and smallest width of the searched range, by itself and as a
#: part of the value: the octaves go from 2^-64 to 2^64, and three cells of each grid are left.
_FARTHEST, _NARROWEST, _NARROWEST_PART = 2.0**66, 2.0**-84, 2.0**-20
#: Squared lengths of raw records, in octaves of the length.
_NORMS = 4.0 ** np.arange(-60.0, 61.0)


@dataclass
class _Answer:
    """Noisy answers to one question, averaged over the rounds that it was asked in."""

    total: FloatArray
    share: float  # of budgets, in rounds

    def state(self) -> dict[str, Any]:
        return {"total": self.total.tolist(), "share": self.share}


@dataclass(frozen=True, eq=False)
class FirstAnswers:
    """The answers: how records are standardised, and where they are clipped. All released."""

    standard: Standard
    radius: float  #: of |z|^2
    valid: tuple[float, float]  #: share of the units that are not nulls, and its sd

    def state(self) -> dict[str, Any]:
        return {"standard": self.standard.state(), "radius": self.radius, "valid": [*self.valid]}

    @classmethod
    def load(cls, state: dict[str, Any], d: int, one_unit: bool) -> FirstAnswers:
        """Restore a result of `state`, or raise a ValueError.

        A state that was tampered with must not bring parameters with which a query overflows or
        divides by zero: the consequences would depend on the records.
        """
        radius = float(state["radius"])
        shortest, *_, longest = length_grid(d).tolist()
        if not shortest * (1 - 1e-9) <= radius <= longest * (1 + 1e-9):
            raise ValueError("not a radius")
        return cls(Standard.load(state["standard"], d, one_unit), radius, _checked(state["valid"]))


def _checked(valid: Any) -> tuple[float, float]:
    share, sd = (float(value) for value in valid)
    if not (0 <= share <= 1 and 0 <= sd < math.inf):
        raise ValueError("not a share of units")
    return share, sd


class Questions:
    """Asks everything in order, in one step, or in several rounds of subjects.

    Parameters
    ----------
    d
        Number of features.
    mu
        Budget of all questions together.
    units
        Units of the step.
    batch
        Units of a later batch; 0 if there is none.
    mu_batch
        Budget of a later batch.
    known_center
        If true, the centre is 0.
    scales
        Known standard deviations; None to learn them.
    one_unit
        If true, features are in one unit, and one scale for all of them is learned.
    each
        Rows per unit, at most.
    rounds
        Steps over which the questions extend.
    counted
        If true, it is known that units are there, and half of the share that is valid is enough.
    """

    def __init__(
        self,
        *,
        d: int,
        mu: float,
        units: int,
        batch: int,
        mu_batch: float,
        known_center: bool,
        scales: FloatArray | None = None,
        one_unit: bool = False,
        each: int = 1,
        rounds: int = 1,
        counted: bool = False,
    ) -> None:
        self.d, self.mu, self.units = d, mu, units
        self.counted, self.one_unit = counted, one_unit
        self.share_beyond = share_beyond(d=d, mu=mu_batch, units=units, batch=batch)
        self.count_slack = count_slack(units, each)
        left_out = {"octaves", *CELLS} if known_center else set()
        left_out |= {"distances", "moments"} if one_unit else {"norms"}
        left_out |= {"distances"} if scales is not None else set()
        left_out |= {"moments"} if known_center and scales is not None else set()
        parts = {name: part for name, part in SHARES.items() if name not in left_out}
        parts["lengths"] += 0 if scales is None else SHARES["distances"]
        parts["lengths"] += SHARES["moments"] if one_unit and known_center else 0
        # Integers, so that shares add up exactly.
        self._whole = sum(parts.values())
        self._ends = dict(zip(parts, (np.cumsum([*parts.values()]) * rounds).tolist(), strict=True))
        self.rounds, self.scales = rounds, scales
        self._begin()

    def _begin(self) -> None:
        d, every = self.d, np.ones(self.d, dtype=np.bool_)
        self._at = 0  # budget spent so far, in parts of which a step has `_whole`
        self._answer: _Answer | None = None
        # The results so far, all of them released.
        self.low, self.high = np.full(d, -1.0), np.full(d, 1.0)
        self.mass = np.full(d, float(self.units))
        self.coarse = every.copy()  # still to be located
        self.standard = Standard(np.zeros(d), np.ones(d), np.zeros(d), ~every)
        if self.scales is not None:
            self.standard = self.standard.with_scale(self.scales, every)
        if self.one_unit:
            self.standard = self.standard.in_one_unit(1.0)
        self.valid = 1.0, 0.0  # noisy share of units that are not nulls, and its sd
        self.radius = 0.0

    @property
    def rounds_left(self) -> int:
        return self.rounds - self._at // self._whole

    def ask(self, rows: Rows, noise: Noise) -> FirstAnswers | None:
        """Spend the budget of one step; None if there is no answer yet.

        If hardly any unit could be read, everything is asked again from the next step on.

        **Private**: every number of the data passes through here.
        """
        end_of_step = self._at + self._whole
        while self._at < end_of_step:
            name = self._next()
            until = min(self._ends[name], end_of_step)
            self._put(name, rows, (until - self._at) / self._whole, noise)
            self._at = until
            if until == self._ends[name]:
                self._learn(name)
        if self.rounds_left:
            return None
        found = FirstAnswers(self.standard, self.radius, self.valid)
        enough = self.valid[0] >= (_ENOUGH / 2 if self.counted else _ENOUGH)
        self._begin()
        return found if enough else None

    def _next(self) -> str:
        """The question to ask now. A grid that no feature needs leaves its share to the next."""
        needed = self.coarse.any()
        return next(
            name
            for name, end in self._ends.items()
            if end > self._at and (needed or name not in CELLS)
        )

    def _put(self, name: str, rows: Rows, share: float, noise: Noise) -> None:
        """Ask a question with this share of the step's budget."""
        statistic, sensitivity = self._question(name)
        released = noise.gaussian(
            rows.total(statistic), sensitivity=sensitivity, mu=self.mu * math.sqrt(share)
        )
        before = self._answer or _Answer(np.zeros(()), 0.0)
        self._answer = _Answer(before.total + released * share, before.share + share)

    def _question(self, name: str) -> tuple[Statistic, float]:
        """The statistic and the sensitivity of its sum."""
        every = tuple(range(self.d))
        if name in ("octaves", "distances"):
            center = tuple(self.standard.center.tolist())
            octaves = OctaveCounts(every, center, signs=name == "octaves")
            return octaves, octaves.sensitivity * self.count_slack
        if name in CELLS:
            columns = np.flatnonzero(self.coarse)
            width = (self.high - self.low) / CELLS[name]
            cells = GridCounts(
                tuple(columns.tolist()),
                tuple(self.low[columns].tolist()),
                tuple(width[columns].tolist()),
                CELLS[name],
            )
            return cells, cells.sensitivity * self.count_slack
        if name == "moments":
            radius = math.sqrt(BALL * self.d + 1)
            moments = MomentsInBall(**self.standard.parameters(), radius=radius)
            return moments, moments.sensitivity(self.units)
        edges = _NORMS if name == "norms" else length_grid(self.d)
        lengths = LengthCounts(**self.standard.parameters(), edges=tuple(edges.tolist()))
        return lengths, lengths.sensitivity

    # Post-processing.

    def _learn(self, name: str) -> None:
        if self._answer is None:
            raise RuntimeError("nothing was asked")
        answer, share = self._answer.total / self._answer.share, self._answer.share
        self._answer = None
        sd = self._question(name)[1] / (self.mu * math.sqrt(share))
        {
            "octaves": self._learn_hulls,
            "distances": self._learn_scales,
            "moments": self._learn_moments,
            "norms": self._learn_one_scale,
            "lengths": self._learn_radius,
        }.get(name, self._learn_places)(answer, sd)

    def _learn_hulls(self, counts: FloatArray, sd: float) -> None:
        for j in range(self.d):
            found = hull(counts[j], sd)
            if found is not None:
                self.low[j], self.high[j], self.mass[j] = found
        center = np.where(self.low * self.high < 0, 0.0, (self.low + self.high) / 2)
        self._center(center, self.standard.resolution)

    def _learn_places(self, counts: FloatArray, sd: float) -> None:
        center, resolution = self.standard.center.copy(), self.standard.resolution.copy()
        for cells, j in zip(counts, np.flatnonzero(self.coarse), strict=True):
            width = (self.high[j] - self.low[j]) / len(cells)
            place, known_to = locate(cells, sd, float(self.mass[j]))
            center[j] = self.low[j] + place * width
            if known_to is None:  # spread over the grid: near enough
                self.coarse[j], resolution[j] = False, 0.0
            else:
                resolution[j] = width
                self.low[j], self.high[j] = center[j] - 1.5 * width, center[j] + 1.5 * width
        self._center(center, resolution)

    def _center(self, center: FloatArray, resolution: FloatArray) -> None:
        at_zero = np.abs(center) <= 2 * FLOOR
        center = np.where(at_zero, 0.0, center)
        self.standard = replace(self.standard, center=center, resolution=resolution)

    def _learn_scales(self, counts: FloatArray, sd: float) -> None:
        center, resolution = self.standard.center, self.standard.resolution
        each = zip(counts, self.mass.tolist(), resolution.tolist(), strict=True)
        scale = np.array([spread(count, sd, mass, to) or 0.0 for count, mass, to in each])
        known = (scale > 0) & (scale > _COARSEST * np.abs(center))
        fallback = np.maximum(resolution, _COARSEST * np.abs(center))
        self.standard = self.standard.with_scale(np.where(known, scale, fallback), known)

    def _learn_moments(self, total: FloatArray, sd: float) -> None:
        d, standard = self.d, self.standard
        mean, sd = total / self.units, sd / self.units
        valid = float(np.clip(mean[-1], 0.05, 1.0))
        self.valid = valid, sd
        first = np.clip(mean[:d] / valid, -2.0, 2.0)
        square = 1 + 2 * mean[d : 2 * d] / valid
        # Within three sds of the noise a variance is not known; it is at least a quarter then.
        floor = min(max(6 * sd / valid, 0.05), 0.25)
        variance = np.clip(square - first**2, floor, CLAMP**2 / 2)
        center = standard.center + np.where(standard.known, first * standard.scale, 0.0)
        scale = standard.scale
        if self.scales is None:
            scale = scale * np.where(standard.known, np.sqrt(variance), 1.0)
        self.standard = replace(standard, center=center, scale=np.maximum(scale, FLOOR))

    def _learn_one_scale(self, counts: FloatArray, sd: float) -> None:
        """Take the median length of records, to an octave, for that of d standard deviations."""
        # As in `histograms.hull`: two neighbours together stand out sooner than one alone.
        two = np.pad(counts[:-1] + counts[1:], 1) > SURE * math.sqrt(2) * sd
        held = np.where((counts > SURE * sd) | two[:-1] | two[1:], np.maximum(counts, 0), 0)
        held[0] = 0.0  # those at the centre
        if not held.any():
            self.valid = 0.0, 0.0
            return
        middle = int(np.searchsorted(np.cumsum(held), held.sum() / 2))
        typical = math.sqrt(0.5 * _NORMS[min(middle, len(_NORMS) - 1)] / self.d)
        self.standard = self.standard.in_one_unit(typical)

    def _learn_radius(self, counts: FloatArray, sd: float) -> None:
        """Take the radius that the counts show (`radius`).

        If scales were told, the units of the whole stream have the mean squared length d, however
        short those of the first step are, and the radius is at least that.
        """
        there, there_sd = counts.sum() / self.units, sd * math.sqrt(len(counts)) / self.units
        if "moments" not in self._ends and self.valid[0] > 0:
            self.valid = float(np.clip(there, 0.05, 1.0)), there_sd
        elif not self.counted and there < min(_ENOUGH, 1 - 4 * there_sd):
            self.valid = 0.0, 0.0  # two counts do not both take noise for units
        allowed = self.share_beyond * self.valid[0] * self.units
        least = 0.0 if self.scales is None else float(self.d)
        self.radius = max(clip_radius(counts, sd, d=self.d, allowed=allowed), least)

    # State

    def state(self) -> dict[str, Any]:
        """Released values and counters only."""
        return {
            "at": self._at,
            "answer": None if self._answer is None else self._answer.state(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "mass": self.mass.tolist(),
            "coarse": self.coarse.tolist(),
            "standard": self.standard.state(),
            "valid": [*self.valid],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`, or raise a ValueError.

        A state that was tampered with must not bring parameters with which a question overflows or
        divides by zero: the consequences would depend on the records.
        """
        d = self.d
        self._at = int(state["at"])
        if self._at % self._whole or not 0 <= self._at < self.rounds * self._whole:
            raise ValueError("not a state of these questions")
        self.low, self.high, self.mass = (
            np.array(state[name], dtype=np.float64).reshape(d) for name in ("low", "high", "mass")
        )
        farthest = np.maximum(np.abs(self.low), np.abs(self.high))
        narrowest = np.maximum(_NARROWEST, _NARROWEST_PART * farthest)
        within = (farthest <= _FARTHEST) & (self.high - self.low >= narrowest)
        if not (within & np.isfinite(self.mass)).all():
            raise ValueError("not a state of these questions")
        self.coarse = np.array(state["coarse"], dtype=np.bool_).reshape(d)
        self.standard = Standard.load(state["standard"], d, self.one_unit)
        self.valid = _checked(state["valid"])
        self._answer = None
        if state["answer"] is not None:
            total = np.array(state["answer"]["total"], dtype=np.float64)
            self._answer = _Answer(total, float(state["answer"]["share"]))
            finite = np.isfinite(total).all() and 0 < self._answer.share <= self.rounds
            if not (finite and total.shape == self._shape()):
                raise ValueError("not a state of these questions")

    def _shape(self) -> tuple[int, ...]:
        """Shape of the answer to the question that is being asked."""
        X = np.zeros((1, self.d))
        nothing = Block(X, np.ones(1, dtype=np.bool_), np.empty((2, *X.shape)))
        return self._question(self._next())[0](nothing).shape

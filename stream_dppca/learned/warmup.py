"""The warm-up: centre, scales and clip radius from the first batches, used for nothing else.

Six questions are asked one after the other, each with parameters from the answers before:

| question | statistic | sensitivity | budget |
|---|---|---|---|
| octaves of all features | `OctaveCounts` around 0 | sqrt(2 d) | 5/20 |
| places in these octaves | `GridCounts`, 64 cells | sqrt(2 d) | 3/20 |
| places in the fullest cells | `GridCounts`, 256, d' features that need it | sqrt(2 d') | 2/20 |
| distances from the centre | `OctaveCounts` around the centre | sqrt(2 d) | 5/20 |
| mean and variance within the clamp | `MomentsInBall` | 2 R | 3/20 |
| lengths of standardised records | `LengthCounts` | sqrt 2 | 2/20 |

Adjacency: one record is replaced, or turns null.
Noise: a question with share f of a batch has N(0, (sensitivity/mu)^2/f) on every coordinate.
    The shares of a batch add up to 1, so every batch spends mu as a whole, and no record is in
    two batches. A question may extend over several batches; its answers are then averaged.
Delta: none beyond that of mu.

With a known centre (`center="none"` or `"own"`) the first three questions are left out.

**Subjects.** A batch is then a round, and mu is that of a round, because subjects come back: the
warm-up spends as much as every other round. A subject adds the mean over its rows of what a record
adds (to lengths, the length of its mean moment), so one subject moves every sum as far as one
record does, plus the rounding of sums of shares (`count_slack`). A place that is not taken is a
null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays import FloatArray
from ..noise import Noise
from ..statistics import Block, Rows, Statistic
from .histograms import hull, locate, spread
from .standard import CLAMP, FLOOR, Standard
from .statistics import GridCounts, LengthCounts, MomentsInBall, OctaveCounts, count_slack

__all__ = ["ENOUGH", "WarmUp", "length_grid", "warm_up_batches"]

#: Twentieths of the warm-up's budget, question by question.
SHARES = {"octaves": 5, "grid": 3, "fine grid": 2, "distances": 5, "moments": 3, "lengths": 2}
_OF_CENTER = ("octaves", "grid", "fine grid")
_BATCH = 20
#: sqrt(d)/mu times this many records, with the whole budget, are a good warm-up. Fitted to the
#: real data of docs/accuracy.md.
RECORDS = 70.0
#: Cells of the two grids. Three cells of the first are the range of the second, so that a centre
#: is found to 2^-12 of its size.
CELLS = {"grid": 64, "fine grid": 256}
#: The ball of `MomentsInBall` has R^2 = this times d: Gaussian data has 1.5 d on average.
BALL = 3.0
#: A spread below this part of the centre counts as none: the grids cannot resolve it.
_COARSEST = 2.0**-14
#: With a smaller share of valid records than this, no result of the warm-up is trusted.
ENOUGH = 0.25
#: Largest value that is searched for, and smallest width of the searched range: the octaves go from
#: 2^-64 to 2^64, and three cells of the first grid are the least that is left.
_FARTHEST, _NARROWEST = 2.0**66, 2.0**-80
#: A share of this, over radius/d, of all units may be longer than the radius. Fitted to the real
#: data of docs/accuracy.md, and to Gaussian data with up to 200 features.
_LONGER = 0.06
#: Edges of `LengthCounts` over d: a quarter of an octave each, from 1 to 8. The mean is 1 by
#: definition of the scales; a quiet start must not lead to a radius below that.
_LENGTHS = 2.0 ** (np.arange(13) / 4)


def warm_up_batches(*, d: int, mu: float, units: int, known_center: bool) -> int:
    """Number of batches of the warm-up.

    A question needs a certain precision; over several batches the precision grows only with the
    root of their number, because each batch has noise of its own. So the number of batches falls
    with the square of the batch size.

    Examples
    --------
    >>> warm_up_batches(d=38, mu=0.2367, units=8192, known_center=False)
    1
    >>> warm_up_batches(d=28, mu=0.2367, units=1390, known_center=False)
    2
    """
    needed = (RECORDS * math.sqrt(d) / mu / units) ** 2
    if known_center:
        needed *= sum(SHARES[name] for name in SHARES if name not in _OF_CENTER) / _BATCH
    return max(1, math.ceil(needed))


def length_grid(d: int) -> FloatArray:
    """Squared lengths between which the radius is chosen."""
    return np.asarray(_LENGTHS * d)


def _crossing(grid: FloatArray, excess: FloatArray) -> float:
    """The place on a geometric grid after which the excess stays below zero, interpolated.

    Examples
    --------
    >>> _crossing(np.array([1.0, 4.0, 16.0]), np.array([5.0, 3.0, -3.0]))
    8.0
    """
    above = np.flatnonzero(excess > 0)
    if not above.size:
        return float(grid[0])
    last = int(above[-1])
    if last + 1 == len(grid):
        return float(grid[last])
    part = excess[last] / (excess[last] - excess[last + 1])
    return float(grid[last] ** (1 - part) * grid[last + 1] ** part)


@dataclass
class _Answer:
    """Noisy answers to one question, averaged over the batches that it was asked in."""

    total: FloatArray
    share: float  # of budgets, in batches

    def state(self) -> dict[str, Any]:
        return {"total": self.total.tolist(), "share": self.share}


class WarmUp:
    """Asks the questions in order, batch by batch.

    Parameters
    ----------
    d
        Number of features.
    mu
        Budget of a batch.
    units
        Units per batch.
    longer
        Share of the units that may be longer than the radius in any case.
    known_center
        If true, the centre is 0.
    each
        Rows per unit, at most.
    enough
        With a smaller share of valid units than this, the warm-up starts over.
    constant
        a of `MomentsInBall`.
    """

    def __init__(
        self,
        *,
        d: int,
        mu: float,
        units: int,
        longer: float,
        known_center: bool,
        each: int = 1,
        enough: float = ENOUGH,
        constant: float = 1.0,
    ) -> None:
        self.enough = enough
        self.constant = constant
        self.d, self.mu, self.units, self.longer = d, mu, units, longer
        self.count_slack = count_slack(units, each)
        self.batches = warm_up_batches(d=d, mu=mu, units=units, known_center=known_center)
        names = [name for name in SHARES if not (known_center and name in _OF_CENTER)]
        # The remaining questions fill the whole batches: integers, so that shares add up exactly.
        whole = sum(SHARES[name] for name in names)
        self._ends = dict(zip(names, np.cumsum([SHARES[n] for n in names]).tolist(), strict=True))
        self._ends = {name: end * self.batches for name, end in self._ends.items()}
        self._batch = whole
        self._begin()

    def _begin(self) -> None:
        d = self.d
        self._at = 0  # budget spent so far, in parts of which a batch has `_batch`
        self._answer: _Answer | None = None
        # The results so far, all of them released.
        self.low = np.full(d, -1.0)
        self.high = np.full(d, 1.0)
        self.mass = np.full(d, float(self.units))
        self.coarse = np.ones(d, dtype=np.bool_)  # still to be located
        self.standard = Standard(np.zeros(d), np.ones(d), np.zeros(d), np.zeros(d, dtype=np.bool_))
        self.valid = 1.0  # noisy share of units that are not nulls
        self.radius: float | None = None  # of |z|^2, when everything is known

    @property
    def done(self) -> bool:
        return self.radius is not None

    @property
    def batches_left(self) -> int:
        return self.batches - self._at // self._batch

    def step(self, rows: Rows, noise: Noise) -> None:
        """Spend one batch."""
        end_of_batch = self._at + self._batch
        while self._at < end_of_batch and not self.done:
            name = next(n for n, end in self._ends.items() if end > self._at)
            until = min(self._ends[name], end_of_batch)
            share = (until - self._at) / self._batch
            self._ask(name, rows, share, noise)
            self._at = until
            if until == self._ends[name]:
                self._learn(name)
                if self._at == 0:  # hardly any record could be read: the next batches start over
                    return

    # Private: every number of the data passes through here.

    def _ask(self, name: str, rows: Rows, share: float, noise: Noise) -> None:
        """Ask a question with this share of the batch's budget."""
        statistic, sensitivity = self._question(name)
        if sensitivity == 0.0:  # no feature is asked about
            self._answer = _Answer(np.zeros((0, 1)), share)
            return
        released = noise.gaussian(
            rows.total(statistic), sensitivity=sensitivity, mu=self.mu * math.sqrt(share)
        )
        if self._answer is None:
            self._answer = _Answer(released * share, share)
        else:
            self._answer = _Answer(
                self._answer.total + released * share, self._answer.share + share
            )

    def _question(self, name: str) -> tuple[Statistic, float]:
        """The statistic and the sensitivity of its sum."""
        every = tuple(range(self.d))
        if name in ("octaves", "distances"):
            center = tuple(self.standard.center.tolist())
            octaves = OctaveCounts(every, center, signs=name == "octaves")
            return octaves, octaves.sensitivity * self.count_slack
        if name in ("grid", "fine grid"):
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
            radius = math.sqrt(BALL * self.d + self.constant**2)
            moments = MomentsInBall(
                **self.standard.parameters(), radius=radius, constant=self.constant
            )
            return moments, moments.sensitivity(self.units)
        lengths = LengthCounts(
            **self.standard.parameters(), edges=tuple(length_grid(self.d).tolist())
        )
        return lengths, lengths.sensitivity

    # Post-processing.

    def _learn(self, name: str) -> None:
        assert self._answer is not None  # noqa: S101 (asked just before)
        answer = self._answer.total / self._answer.share
        sensitivity = self._question(name)[1]
        sd = sensitivity / (self.mu * math.sqrt(self._answer.share))
        self._answer = None
        steps: dict[str, Callable[[FloatArray, float], None]] = {
            "octaves": self._learn_hulls,
            "grid": self._learn_places,
            "fine grid": self._learn_places,
            "distances": self._learn_scales,
            "moments": self._learn_moments,
            "lengths": self._learn_radius,
        }
        steps[name](answer, sd)

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
        self.standard = Standard(
            np.where(at_zero, 0.0, center), self.standard.scale, resolution, self.standard.known
        )

    def _learn_scales(self, counts: FloatArray, sd: float) -> None:
        center, resolution = self.standard.center, self.standard.resolution
        found = [
            spread(counts[j], sd, float(self.mass[j]), float(resolution[j])) for j in range(self.d)
        ]
        scale = np.array([0.0 if value is None else value for value in found])
        known = (scale > 0) & (scale > _COARSEST * np.abs(center))
        fallback = np.maximum(resolution, _COARSEST * np.abs(center))
        self.standard = self.standard.with_scale(np.where(known, scale, fallback), known)

    def _learn_moments(self, total: FloatArray, sd: float) -> None:
        d, standard = self.d, self.standard
        mean, sd = total / self.units, sd / self.units
        self.valid = float(np.clip(mean[-1] / self.constant, 0.05, 1.0))
        first = np.clip(mean[:d] / self.valid, -2.0, 2.0)
        square = 1 + 2 * mean[d : 2 * d] / self.valid
        # Within three sds of the noise a variance is not known; it is at least a quarter then.
        floor = min(max(6 * sd / self.valid, 0.05), 0.25)
        variance = np.clip(square - first**2, floor, CLAMP**2 / 2)
        center = standard.center + np.where(standard.known, first * standard.scale, 0.0)
        scale = standard.scale * np.where(standard.known, np.sqrt(variance), 1.0)
        self.standard = replace(standard, center=center, scale=np.maximum(scale, FLOOR))

    def _learn_radius(self, counts: FloatArray, sd: float) -> None:
        """Take the smallest length beyond which few enough of the valid units lie.

        The cost of clipping is what it cuts off, so fewer units may be longer than a large radius.
        Noise adds up in the counts beyond a length, so the tolerance grows with the number of bins:
        in doubt the radius is smaller, and so is the noise in every later batch.
        """
        beyond = np.cumsum(counts[::-1])[::-1][1:]  # longer than each edge
        grid = length_grid(self.d)
        allowed = np.maximum(_LONGER * self.d / grid, self.longer) * self.valid * self.units
        forgiven = 2 * sd * np.sqrt(np.arange(len(beyond), 0, -1))
        self.radius = _crossing(grid, beyond - allowed - forgiven)
        if self.valid < self.enough:
            self._begin()

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
            "valid": self.valid,
            "radius": self.radius,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a result of `state`, or raise a ValueError.

        A state that was tampered with must not bring parameters with which a question overflows or
        divides by zero: the consequences would depend on the records.
        """
        d = self.d
        self._at = int(state["at"])
        if self._at % self._batch or not 0 <= self._at <= self.batches * self._batch:
            raise ValueError("not a state of this warm-up")
        self.low, self.high, self.mass = (
            np.array(state[name], dtype=np.float64).reshape(d) for name in ("low", "high", "mass")
        )
        within = (np.abs([self.low, self.high]) <= _FARTHEST).all()
        if not (within and (self.high - self.low >= _NARROWEST).all()):
            raise ValueError("not a state of this warm-up")
        if not np.isfinite(self.mass).all():
            raise ValueError("not a state of this warm-up")
        self.coarse = np.array(state["coarse"], dtype=np.bool_).reshape(d)
        self.standard = Standard.load(state["standard"], d)
        self.valid = float(state["valid"])
        radius = state["radius"]
        self.radius = None if radius is None else float(radius)
        shortest, *_, longest = length_grid(d).tolist()
        if self.radius is None:
            known = self._at < self.batches * self._batch
        else:  # a few roundings of another machine apart
            known = shortest * (1 - 1e-9) <= self.radius <= longest * (1 + 1e-9)
        if not (known and 0 < self.valid <= 1):
            raise ValueError("not a state of this warm-up")
        answer = state["answer"]
        self._answer = None
        if answer is not None:
            total = np.array(answer["total"], dtype=np.float64)
            self._answer = _Answer(total, float(answer["share"]))
            if not (np.isfinite(total).all() and 0 < self._answer.share <= self.batches):
                raise ValueError("not a state of this warm-up")
            if self.done or total.shape != self._shape():
                raise ValueError("not a state of this warm-up")

    def _shape(self) -> tuple[int, ...]:
        """Shape of the answer to the question that is being asked."""
        name = next(n for n, end in self._ends.items() if end > self._at)
        statistic, sensitivity = self._question(name)
        if sensitivity == 0.0:
            return (0, 1)
        X = np.zeros((1, self.d))
        return statistic(Block(X, np.zeros(1), np.ones(1, dtype=np.bool_), X.copy())).shape

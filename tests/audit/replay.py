"""An exact audit of every composition of the method: what one unit does, in units of noise.

A stream is learned once, and its releases are written to a tape. Then one unit gets contents of all
kinds, one after the other, and each of these streams is given the *releases of the tape*, whatever
its own answers are. So everything that follows from releases is equal in all runs, and the distance
of the exact answers of two of them is what replacing the one content by the other does. Squares of
distances, in units of the noise that was asked for, add up to what is spent: at most mu^2 over all
steps and questions, through all later releases that correlated noise puts a batch into. No single
question may spend more than the mu that it was asked with, however small its share.

Whatever else differs between the runs, the saved state above all, depends on the unit without noise
in between: that is a leak. The answers from which the first step learns are compared as well: a
decision from exact counts would mostly come out the same.

The ledger does not depend on the contents: it adds up the budgets that the questions of a step are
asked with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from unittest.mock import patch

import numpy as np

from stream_dppca import DPPCA, PerSubject
from stream_dppca.arrays import FloatArray
from stream_dppca.mechanisms.correlated import CorrelatedRelease
from stream_dppca.mechanisms.independent import IndependentRelease
from stream_dppca.method import parameters
from stream_dppca.method.drift import Change, Drift
from stream_dppca.method.first import Questions
from stream_dppca.method.limits import ScoreCounts
from stream_dppca.method.statistics import AugmentedMoments
from stream_dppca.noise import SeededNoise
from tests.audit.evidence import gaussian_mu

EPSILON, DELTA, BATCH, D = 8.0, 1e-3, 256, 4
PLACES, PERIOD, RECORDS = 160, 2, 4
MU = gaussian_mu(EPSILON, DELTA)
HUGE = 1e15
SLOT = 17  # of the unit, in its batch
NO_CHANGE = Change(False, False)


# The tape


@dataclass
class Tape:
    """Questions to the source of noise, in units of its noise, and the releases."""

    exact: list[FloatArray] = field(default_factory=list)
    mu: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    released: list[FloatArray] = field(default_factory=list)
    budget: dict[int, float] = field(default_factory=dict)  # mu^2 asked for, by step

    @property
    def over(self) -> float:
        """The largest budget of a step."""
        return math.sqrt(max(self.budget.values()))


class Source:
    """A seeded source that writes a tape, or returns the releases of another tape."""

    private = False

    def __init__(self, seed: int, tape: Tape, given: Tape | None, step: int = 0) -> None:
        self._seed, self._tape, self._given, self._step = seed, tape, given, step
        self._source = SeededNoise(seed, step)

    def __deepcopy__(self, memo: Any) -> Source:
        return self

    def at_batch(self, batch: int) -> Source:
        return Source(self._seed, self._tape, self._given, batch)

    def direction(self, dimension: int, columns: int) -> FloatArray:
        return self._source.direction(dimension, columns)

    def gaussian(self, query: FloatArray, *, sensitivity: float, mu: float) -> FloatArray:
        tape, part = self._tape, _claims.pop() if _claims else 1.0
        tape.exact.append(np.ravel(query) * (mu / sensitivity))
        tape.mu.append(mu)
        tape.steps.append(self._step)
        tape.budget[self._step] = tape.budget.get(self._step, 0.0) + part * mu**2
        if self._given is None:
            released = self._source.gaussian(query, sensitivity=sensitivity, mu=mu)
        else:
            released = self._given.released[len(tape.exact) - 1].reshape(query.shape)
        tape.released.append(np.array(released))
        return np.asarray(released)


_honest: list[float] = []  # the newest sensitivity that a statistic has stated
_claims: list[float] = []  # the part of mu^2 that the next release spends


@contextmanager
def honest_sensitivities() -> Iterator[None]:
    """Let the ledger know what a release that claims a larger sensitivity than its own spends."""
    with ExitStack() as stack:
        for kind, method in ((CorrelatedRelease, "release"), (IndependentRelease, "release")):
            stack.enter_context(patch.object(kind, method, _claiming(getattr(kind, method))))
        for asked in (AugmentedMoments, ScoreCounts):
            stack.enter_context(patch.object(asked, "sensitivity", _stating(asked.sensitivity)))
        yield


def _claiming(release: Any) -> Any:
    def claiming(self: Any, query: Any, *, sensitivity: float, **how: Any) -> Any:
        _claims[:] = [(_honest[-1] / sensitivity) ** 2]
        return release(self, query, sensitivity=sensitivity, **how)

    return claiming


def _stating(sensitivity: Any) -> Any:
    """The sensitivity, noted."""

    def stating(self: Any, *how: Any) -> float:
        _honest[:] = [float(sensitivity(self, *how))]
        return _honest[0]

    return stating


# Compositions


@dataclass(frozen=True)
class Composition:
    """One way to put the method together."""

    scales: str = "learn"  #: or "known", "one unit"
    center: str = "mean"
    rounds: int = 0  #: of the questions of subjects; 0 for records
    first: int = 1  #: W
    batches: int | None = None
    changes: bool = False  #: the stream is said to have changed, so a first step comes again
    more: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        unit = f"subjects in {self.rounds}" if self.rounds else f"records, W = {self.first}"
        extra = [f"{name} {value}" for name, value in self.more]
        one = ["one batch"] if self.batches else []
        one += ["changes"] if self.changes else []
        return ", ".join([self.scales, self.center, unit, *one, *extra])

    @property
    def knows_all(self) -> bool:
        return self.center != "mean" and self.scales != "learn"

    @property
    def period(self) -> int:
        return PERIOD if self.rounds else 1

    @property
    def steps(self) -> int:
        return self.judged + 3 if self.changes else max(self.rounds, 1) + 3

    @property
    def judged(self) -> int:
        """The first batch that is compared with those before it: two there must be."""
        return max(self.first, 2)

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Make models as this composition says, whatever their number of units."""
        with (
            patch.object(parameters, "first_batches", lambda **public: self.first),
            patch.object(parameters, "question_rounds", lambda **public: max(self.rounds, 1)),
        ):
            yield

    def model(self) -> DPPCA:
        scales: dict[str, Any] = {"learn": "learn", "known": [1.0, 300.0, 1.0, 1.0]}
        how: dict[str, Any] = {"batch_size": BATCH}
        if self.rounds:
            unit = PerSubject("id", places=PLACES, period=PERIOD, records=RECORDS)
            how = {"unit": unit}
        with self.chosen():
            return DPPCA(
                features=tuple(range(D)),
                epsilon=EPSILON,
                delta=DELTA,
                n_components=2,
                seed=5,
                center=self.center,  # type: ignore[arg-type]
                scales=scales.get(self.scales),
                batches=self.batches,
                **how | dict(self.more),
            )

    def stream(self) -> list[tuple[FloatArray, list[str]]]:
        """Batches or rounds: features that are wide, far from zero, constant, and growing."""
        rng = np.random.default_rng(1)
        found = []
        for t in range(self.steps + self.first - 1 + self.changes):
            n = 3 * 120 if self.rounds else BATCH
            X = rng.normal(size=(n, D)) @ rng.normal(size=(D, D))
            if self.scales != "one unit":
                X[:, 1] = 300 * X[:, 1] + (1e6 if self.center == "mean" else 0.0)
                X[:, 3] = 7.0 if self.center == "mean" else 0.0
            X[:, 2] *= 30 if t == self.steps + self.first - 3 else 1  # not in the first step
            X[rng.random(n) < 0.03, 0] = np.nan
            found.append((X, [f"d{i % 120}" for i in range(n)]))
        return found


def compositions() -> Iterator[Composition]:
    for scales in ("learn", "known", "one unit"):
        for center in ("mean", "none"):
            yield Composition(scales, center, batches=1)
            for first in (1, 3):
                yield Composition(scales, center, first=first)
        for center in ("mean", "none", "own"):
            yield Composition(scales, center, rounds=1, batches=1)
            yield Composition(scales, center, rounds=1)
            if not Composition(scales, center).knows_all:
                yield Composition(scales, center, rounds=3)
    yield Composition(more=(("memory", 3.0),))
    yield Composition(more=(("missing", "center"),))
    yield Composition(more=(("limits", False),))
    for how in ({"first": 1}, {"first": 3}, {"rounds": 1}, {"rounds": 3}):
        yield Composition(changes=True, **how)
    yield Composition("one unit", changes=True, first=3)
    yield Composition("one unit", "own", changes=True, rounds=1)
    yield Composition("known", "none", changes=True)
    yield Composition(rounds=3, more=(("missing", "center"),))


COMPOSITIONS = {str(c): c for c in compositions()}


# Contents of a unit

Content = tuple[tuple[float, ...], ...]  #: its rows: one, or those of a subject


@dataclass
class Seen:
    """What an attacker who knows the releases knows of each step."""

    tape: Tape = field(default_factory=Tape)
    shown: list[Any] = field(default_factory=list)
    standards: list[Any] = field(default_factory=list)


def run(
    c: Composition, batches: Sequence[tuple[FloatArray, list[str]]], given: Tape | None
) -> Seen:
    """Learn everything, and keep what must not differ between runs with equal releases."""
    seen, pca = Seen(), c.model()
    pca._noise = Source(5, seen.tape, given)  # type: ignore[assignment]
    learn = Questions._learn

    def learning(self: Questions, name: str) -> None:
        seen.shown.append([name, None if self._answer is None else self._answer.state()])
        learn(self, name)

    verdicts = iter([Change(c.changes, False)])
    judge = patch.object(Drift, "judge", lambda *how, **more: next(verdicts, NO_CHANGE))
    _claims.clear()
    with honest_sensitivities(), patch.object(Questions, "_learn", learning), judge:
        for X, ids in batches:
            if c.rounds:
                pca.learn_array(X, subjects=ids)
                seen.shown.append(pca.close_round().model_dump_json())
            else:
                pca.learn_array(X)
            found: Any = pca._method
            seen.standards.append(found._answers)
    seen.shown.append(json.dumps(pca.state()))
    return seen


def contents(c: Composition, at: int, seen: Seen) -> list[Content]:
    """Nothing, the centre, far out in all ways, at the clamp, and at the radius."""
    corners = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [-1, -1, -1, -1], [1, 1, -1, -1]], float)
    found = next(r for r in seen.standards[at:] + seen.standards if r is not None)
    center, scale = found.standard.center, found.standard.scale
    rows = [np.full(D, np.nan), center, center + 1e-9 * scale]
    rows += [*(HUGE * corners), 1e9 * corners[1]]
    rows += [center + 4.999 * scale * corner for corner in corners[:2]]
    rows += [center + math.sqrt(found.radius) * scale * e for e in np.eye(D)[[0, 2]]]
    if ("missing", "center") in c.more:
        rows += [
            np.where(np.eye(D)[0] > 0, np.nan, HUGE),
            np.where(np.eye(D)[1] > 0, center, np.nan),
        ]
    one: list[Content] = [(tuple(row.tolist()),) for row in rows]
    if not c.rounds:
        return one
    # Subjects: nobody, rows that cancel, many equal rows, more than are used.
    a, b, far = (tuple(row.tolist()) for row in (rows[3], rows[5], rows[4]))
    return [(), *one, (a, b), (a, far), (a,) * 4, (b,) * 9, *(row * 4 for row in one[1:5])]


def with_content(
    c: Composition, batches: list[tuple[FloatArray, list[str]]], at: int, content: Content
) -> list[tuple[FloatArray, list[str]]]:
    """The stream in which the unit has this content, in the batch or in the rounds of a period."""
    found = list(batches)
    if not c.rounds:
        X = batches[at][0].copy()
        X[SLOT] = content[0]
        found[at] = (X, [])
        return found
    for r in range(at, min(at + PERIOD, len(batches))):
        X, ids = batches[r]
        rows = np.array(content).reshape(-1, D)
        found[r] = (np.concatenate([rows, X]), ["canary"] * len(content) + ids)
    return found


# Findings


@dataclass(frozen=True)
class Finding:
    """The worst pair of contents: what it spends over mu, in a step, and of a single question."""

    at: int
    spent: float
    single: float
    asked: float  #: the ledger: the largest budget of a step, over that of a step
    leak: bool

    @property
    def caught(self) -> bool:
        return self.leak or not max(self.spent, self.single, self.asked) <= 1 + 1e-9


def places(c: Composition) -> tuple[int, ...]:
    """Batches or rounds whose unit is replaced: of a first step, and two others."""
    if c.changes:
        return c.judged, c.judged + c.first, c.judged + c.first + 1
    return (0, c.rounds + 1) if c.rounds else (c.first - 1, c.first, c.first + 1)


def attack(c: Composition, at: Sequence[int] | None = None) -> Iterator[Finding]:
    """All pairs of contents in each of these places."""
    batches = c.stream()
    seen = run(c, batches, None)
    mu_step = MU / math.sqrt(c.period)
    for place in places(c) if at is None else at:
        runs, leak = [], False
        for content in contents(c, place, seen):
            try:
                runs.append(run(c, with_content(c, batches, place, content), seen.tape))
            except (ValueError, IndexError):  # other questions were asked
                leak = True
        leak |= len({json.dumps(r.shown) for r in runs}) > 1
        leak |= len({tuple(map(len, r.tape.exact)) for r in runs}) > 1
        spent = single = 0.0
        for one, other in [] if leak else combinations(runs, 2):
            pairs = zip(one.tape.exact, other.tape.exact, strict=True)
            squares = np.array([float(np.sum((a - b) ** 2)) for a, b in pairs])
            by_step = np.bincount(one.tape.steps, squares)
            most = max(float(by_step.sum()) / MU**2, float(by_step.max()) / mu_step**2)
            spent = max(spent, math.sqrt(most))
            single = max(single, float(np.max(np.sqrt(squares) / np.array(one.tape.mu))))
        yield Finding(place, spent, single, seen.tape.over / mu_step, leak)


def ledger(c: Composition) -> list[float]:
    """Budget of all questions of each step together, over that of a step."""
    tape = run(c, c.stream(), None).tape
    return [math.sqrt(b) / MU * math.sqrt(c.period) for b in tape.budget.values()]

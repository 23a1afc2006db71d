"""An exact audit of the learned centre and scales: the effect of one record, in units of noise.

Two runs of the whole estimator on neighbouring streams. The first draws its noise; the second is
given the *released values* of the first, whatever its own answers are. So everything that follows
from releases is equal in both runs, and the difference of their exact answers is what the replaced
record does. The squares of these differences, in units of the noise that was asked for, add up to
what the record has spent: at most mu^2, over all batches and questions. No single question may
spend more than the mu that it was asked with, however small its share.

Whatever else differs between the two runs, the saved state above all, depends on the record without
noise in between: the audit calls that a leak. The answers from which the warm-up learns are
compared as well: a decision from exact counts would mostly come out the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from stream_dppca import DPPCA, estimator
from stream_dppca.adaptive.correlated import CorrelatedRelease
from stream_dppca.arrays import FloatArray
from stream_dppca.learned import statistics, wide
from stream_dppca.learned.gradients import CenteredGradients, MomentsAlong
from stream_dppca.learned.method import LearnedMethod
from stream_dppca.learned.standard import CLAMP
from stream_dppca.learned.statistics import (
    AugmentedMoments,
    GridCounts,
    LengthCounts,
    MomentsInBall,
    OctaveCounts,
)
from stream_dppca.learned.warmup import WarmUp
from stream_dppca.learned.wide import WideMethod, _Gradients
from stream_dppca.noise import SeededNoise
from tests.audit.evidence import gaussian_mu

EPSILON, DELTA, BATCH, D = 8.0, 1e-3, 256, 5
MU = gaussian_mu(EPSILON, DELTA)
BATCHES = 7


@dataclass
class Tape:
    """Questions to the noise source, in units of its noise, and the releases."""

    exact: list[FloatArray] = field(default_factory=list)
    mu: list[float] = field(default_factory=list)
    released: list[FloatArray] = field(default_factory=list)


class Source:
    """A seeded source that writes a tape, or returns the releases of another tape."""

    private = False
    MOST_COORDINATES = SeededNoise.MOST_COORDINATES

    def __init__(self, seed: int, tape: Tape, given: Tape | None) -> None:
        self._seed, self._tape, self._given = seed, tape, given
        self._source = SeededNoise(seed)

    def at_batch(self, batch: int) -> Source:
        source = Source(self._seed, self._tape, self._given)
        source._source = self._source.at_batch(batch)
        return source

    def direction(self, dimension: int, columns: int) -> FloatArray:
        return self._source.direction(dimension, columns)

    def gaussian_each(self, count: int, *, sensitivity: float, mu: float) -> Callable[[int], float]:
        how = {"sensitivity": sensitivity, "mu": mu}
        return lambda number: float(self.gaussian(np.array([float(number)]), **how)[0])

    def gaussian(
        self, query: FloatArray, *, sensitivity: float, mu: float, size: int | None = None
    ) -> FloatArray:
        self._tape.exact.append(np.ravel(query) * (mu / sensitivity))
        self._tape.mu.append(mu)
        number = len(self._tape.exact) - 1
        if self._given is None:
            released = self._source.gaussian(query, sensitivity=sensitivity, mu=mu, size=size)
        else:
            released = self._given.released[number].reshape(query.shape)
        self._tape.released.append(np.array(released))
        return np.asarray(released)


def stream(seed: int = 1) -> FloatArray:
    """Features of all kinds: wide, far from zero, sparse, constant, and one that grows."""
    rng = np.random.default_rng(seed)
    n = BATCH * BATCHES
    X = rng.normal(size=(n, D)) @ rng.normal(size=(D, D))
    X[:, 1] = 1e6 + 300 * X[:, 1]
    X[:, 2] = np.where(rng.random(n) < 0.1, np.exp(rng.normal(size=n)), 0.0)
    X[:, 3] = 7.0
    X[n // 2 :, 4] *= 30
    X[rng.random(n) < 0.03, 0] = np.nan
    return X


@dataclass(frozen=True)
class Canary:
    """Two contents of one slot."""

    name: str
    one: tuple[float, ...]
    other: tuple[float, ...]


HUGE = 1e15
CENTER = (0.0, 1e6, 0.0, 7.0, 0.0)
CANARIES = (
    Canary("centre to corner", CENTER, (HUGE, -HUGE, HUGE, -HUGE, HUGE)),
    Canary("corner to corner", (HUGE,) * D, (HUGE, -HUGE, HUGE, -HUGE, HUGE)),
    Canary("there and back", (HUGE,) * D, (-HUGE,) * D),
    Canary("null", (HUGE, -HUGE, HUGE, -HUGE, HUGE), (math.nan,) * D),
    Canary("partly missing", CENTER, (math.nan, 1e6, math.nan, 7.0, HUGE)),
    Canary("one step", CENTER, (0.0, 1e6, 0.0, 8.0, 0.0)),
)


@dataclass(frozen=True)
class Finding:
    """Budget that a canary in a batch has spent, over mu, and the leaks that were found.

    `single` is the most that it has spent of the mu of a single question.
    """

    canary: str
    batch: int
    spent: float
    leak: bool
    single: float

    @property
    def caught(self) -> bool:
        return self.leak or not max(self.spent, self.single) <= 1 + 1e-6


def model(**settings: Any) -> DPPCA:
    how: dict[str, Any] = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "batch_size": BATCH,
        "n_components": 2,
        "seed": 5,
    }
    return DPPCA(features=tuple(range(D)), **how | settings)


def run(X: FloatArray, given: Tape | None, settings: dict[str, Any]) -> tuple[Tape, str]:
    """The tape of a run, and everything that must not differ between runs with equal releases."""
    tape, pca = Tape(), model(**settings)
    pca._noise = Source(5, tape, given)  # type: ignore[assignment]
    answers: list[Any] = []
    learn = WarmUp._learn

    def listening(self: WarmUp, name: str) -> None:
        answers.append([name, None if self._answer is None else self._answer.state()])
        learn(self, name)

    form = _Gradients._form

    def form_heard(self: _Gradients) -> CenteredGradients:
        asked = form(self)
        answers.append([a.tolist() for a in (asked.W, asked.L, asked.along, asked.offset)])
        return asked

    with (
        patch.object(WarmUp, "_learn", listening),
        patch.object(_Gradients, "_form", form_heard),
    ):
        pca.learn_array(X)
    return tape, json.dumps([answers, pca.state()])


@contextmanager
def many_features() -> Iterator[None]:
    """The method of more than 1023 features, for a few."""
    with patch.object(estimator, "MOST_FEATURES", 0):
        yield


def crafted(batch: int, settings: dict[str, Any]) -> tuple[Canary, ...]:
    """Canaries of somebody who knows all releases before the batch, for its gradients.

    z = a h + b u and a h - b u, with h along W and u across: their gradients are about opposite.
    """
    asked: list[CenteredGradients] = []
    form = _Gradients._form

    def heard(self: _Gradients) -> CenteredGradients:
        asked.append(form(self))
        return asked[-1]

    with patch.object(_Gradients, "_form", heard):
        model(**settings).learn_array(stream()[: (batch + 1) * BATCH])
    found = asked[-1]
    center, scale, clamp = map(np.array, (found.center, found.scale, found.clamp))
    h = found.W[:, 0] * (clamp > 0)
    u = np.random.default_rng(3).standard_normal(D) * (clamp > 0)
    W = np.linalg.qr(found.W * (clamp > 0)[:, np.newaxis])[0]
    u -= W @ (W.T @ u)
    h, u = h / np.linalg.norm(h), u / np.linalg.norm(u)
    units = np.max(clamp) / CLAMP
    pairs = [(h + b * u, h - b * u) for b in (1.0, 2.0)] + [(h, -h), (W[:, 0], W[:, 1])]
    pairs = [
        (length * one, length * other)
        for one, other in pairs
        for length in (2.0, 0.99 * CLAMP / float(np.abs([one, other]).max()))
    ]
    return tuple(
        Canary(f"crafted {i}", tuple(center + scale * units * one),
               tuple(center + scale * units * other))
        for i, (one, other) in enumerate(pairs)
    )  # fmt: skip


def attack(
    canaries: tuple[Canary, ...] = CANARIES,
    batches: tuple[int, ...] = (0, 1, 4),
    craft: bool = False,
    **settings: Any,
) -> Iterator[Finding]:
    """Each canary in each of these batches."""
    X = stream()
    for batch in batches:
        for canary in canaries + (crafted(batch, settings) if craft and batch > 1 else ()):
            one, other = X.copy(), X.copy()
            slot = batch * BATCH + 17
            one[slot], other[slot] = canary.one, canary.other
            tape, state = run(one, None, settings)
            try:
                again, state_again = run(other, tape, settings)
                same = len(tape.exact) == len(again.exact)
                pairs = list(zip(tape.exact, again.exact, strict=True)) if same else []
                squares = [float(np.sum((a - b) ** 2)) for a, b in pairs]
                leak = not same or state != state_again
            except (ValueError, IndexError):  # other questions were asked
                squares, leak = [], True
            singles = [math.sqrt(s) / mu for s, mu in zip(squares, tape.mu, strict=False)]
            spent = math.sqrt(sum(squares)) / MU
            yield Finding(canary.name, batch, spent, leak, max(singles, default=0.0))


# Mutants


@contextmanager
def whole_budget_for_every_question() -> Iterator[None]:
    ask = WarmUp._ask

    def mutant(self: WarmUp, name: str, rows: Any, share: float, noise: Any) -> None:
        ask(self, name, rows, 1.0, noise)

    with patch.object(WarmUp, "_ask", mutant):
        yield


def exact(*names: str) -> Any:
    """Answers without noise, for these questions."""

    @contextmanager
    def planted() -> Iterator[None]:
        ask = WarmUp._ask

        def mutant(self: WarmUp, name: str, rows: Any, share: float, noise: Any) -> None:
            ask(self, name, rows, share, noise)
            if name in names and self._answer is not None:
                total = rows.total(self._question(name)[0])
                self._answer = replace(self._answer, total=total * self._answer.share)

        with patch.object(WarmUp, "_ask", mutant):
            yield

    return planted


@contextmanager
def used_again() -> Iterator[None]:
    """Mutant: the last batch of the warm-up is also learned from."""
    step = LearnedMethod.step

    def mutant(self: LearnedMethod, rows: Any, t: int, noise: Any) -> Any:
        warming_up = self.warming_up
        outcome = step(self, rows, t, noise)
        return step(self, rows, t, noise) if warming_up and not self.warming_up else outcome

    with patch.object(LearnedMethod, "step", mutant):
        yield


@contextmanager
def unclipped(kind: Any) -> Iterator[None]:
    call = kind.__call__

    def mutant(self: Any, block: Any) -> Any:
        return call(replace(self, radius=1e12), block)

    with patch.object(kind, "__call__", mutant):
        yield


@contextmanager
def scaled_sensitivity(kind: Any, factor: float) -> Iterator[None]:
    honest = vars(kind)["sensitivity"]
    if isinstance(honest, property):
        mutant: Any = property(lambda self: factor * honest.fget(self))  # type: ignore[misc]
    else:

        def mutant(self: Any, units: int) -> float:
            return factor * float(honest(self, units))

    with patch.object(kind, "sensitivity", mutant):
        yield


@contextmanager
def unclamped() -> Iterator[None]:
    """Nothing is cut off coordinate by coordinate, nor in the ball."""

    def mutant(block: Any, center: Any, scale: Any, clamp: Any) -> Any:
        Z = (block.X - np.array(center)) / np.array(scale)
        Z[block.null] = 0.0
        return Z

    with patch.object(statistics, "standardised", mutant), unclipped(MomentsInBall):
        yield


@contextmanager
def scales_from_exact_moments() -> Iterator[None]:
    release = CorrelatedRelease.release

    def mutant(self: Any, query: Any, *, sensitivity: float, **how: Any) -> Any:
        released = release(self, query, sensitivity=sensitivity, **how)
        return replace(released, alone=query * (self.mu / sensitivity))

    with patch.object(CorrelatedRelease, "release", mutant):
        yield


@contextmanager
def looks_for_free() -> Iterator[None]:
    init = LearnedMethod.__init__

    def mutant(self: LearnedMethod, **how: Any) -> None:
        init(self, **how)
        self.mu_look = 0.0  # as far as the moments know

    def look(self: LearnedMethod, rows: Any, noise: Any) -> Any:
        self.mu_look = self.mu
        try:
            return honest(self, rows, noise)
        finally:
            self.mu_look = 0.0

    honest = LearnedMethod._look
    with (
        patch.object(LearnedMethod, "__init__", mutant),
        patch.object(LearnedMethod, "_look", look),
    ):
        yield


@contextmanager
def missing_values_from_other_records() -> Iterator[None]:
    honest = statistics.standardised

    def mutant(block: Any, center: Any, scale: Any, clamp: Any) -> Any:
        Z = honest(block, center, scale, clamp)
        return np.where(np.isfinite(block.X), Z, Z.max(axis=0))

    with patch.object(statistics, "standardised", mutant):
        yield


MUTANTS: dict[str, Any] = {
    "every question has the whole budget": whole_budget_for_every_question,
    "exact medians": exact("grid", "fine grid"),
    "exact octaves": exact("octaves"),
    "scale decided from exact counts": exact("distances"),
    "radius from exact lengths": exact("lengths"),
    "refinement without noise": exact("moments"),
    "warm-up records used again": used_again,
    "unclamped refinement": unclamped,
    "refinement without a ball": lambda: unclipped(MomentsInBall),
    "moments without a clip": lambda: unclipped(AugmentedMoments),
    "octaves count as one": lambda: scaled_sensitivity(OctaveCounts, 0.5**0.5),
    "cells count as one": lambda: scaled_sensitivity(GridCounts, 0.5**0.5),
    "lengths count as one": lambda: scaled_sensitivity(LengthCounts, 0.5),
    "ball of half the size": lambda: scaled_sensitivity(MomentsInBall, 0.5),
    "sensitivity of moments without the root of two": lambda: scaled_sensitivity(
        AugmentedMoments, 0.5**0.5
    ),
    "scales widened by exact moments": scales_from_exact_moments,
    "looks for free": looks_for_free,
    "missing values from other records": missing_values_from_other_records,
}


def ledger(**settings: Any) -> list[float]:
    """Budget of all questions of each batch together, over mu, by the calls for noise.

    A correlated release is asked for with a claimed sensitivity; what it spends is mu times the
    honest one over that.
    """
    spent: list[float] = []
    honest: list[float] = []
    release, along = CorrelatedRelease.release, Source.gaussian
    ball, gradient = MomentsInBall.sensitivity, CenteredGradients.sensitivity

    def of_ball(self: MomentsInBall, units: int) -> float:
        honest.append(ball(self, units) / units)
        return honest[-1] * units

    def of_gradient(self: CenteredGradients, radius: float, units: int) -> float:
        honest.append(gradient(self, radius, units))
        return honest[-1]

    def released(self: CorrelatedRelease, query: Any, *, sensitivity: float, **how: Any) -> Any:
        spent[-1] += (self.mu * honest[-1] / sensitivity) ** 2
        return release(self, query, sensitivity=sensitivity, **how)

    def asked(self: Source, query: Any, *, sensitivity: float, mu: float, **how: Any) -> Any:
        if "size" not in how:  # not one of the correlated ones
            spent[-1] += mu**2
        return along(self, query, sensitivity=sensitivity, mu=mu, **how)

    pca, X = model(**settings), stream()
    pca._noise = Source(5, Tape(), None)  # type: ignore[assignment]
    with (
        patch.object(CorrelatedRelease, "release", released),
        patch.object(Source, "gaussian", asked),
        patch.object(MomentsInBall, "sensitivity", of_ball),
        patch.object(CenteredGradients, "sensitivity", of_gradient),
    ):
        for t in range(BATCHES):
            spent.append(0.0)
            pca.learn_array(X[t * BATCH : (t + 1) * BATCH])
    return [math.sqrt(square) / MU for square in spent]


# Mutants of the method of many features


@contextmanager
def gradients_without_a_clip() -> Iterator[None]:
    honest = CenteredGradients.clipped_sum

    def mutant(self: Any, block: Any, measured: Any, factors: Any) -> Any:
        return honest(self, block, measured, np.where(block.null, 0.0, 1.0))

    with patch.object(CenteredGradients, "clipped_sum", mutant):
        yield


@contextmanager
def gradients_of_half_the_size() -> Iterator[None]:
    honest = CenteredGradients.sensitivity

    def mutant(self: Any, radius: float, units: int) -> float:
        return honest(self, radius, units) / 2

    with patch.object(CenteredGradients, "sensitivity", mutant):
        yield


@contextmanager
def centred_at_the_exact_mean() -> Iterator[None]:
    honest = WideMethod._ask_along

    def mutant(self: Any, rows: Any, before: Any, noise: Any) -> Any:
        answers: list[Any] = []

        class Listening:
            def total(self, query: Any) -> Any:
                answers.append(rows.total(query))
                return answers[-1]

        p, along = honest(self, Listening(), before, noise)  # type: ignore[arg-type]
        return p, replace(along, shift=answers[-1][:-2, -1] / self.units)

    with patch.object(WideMethod, "_ask_along", mutant):
        yield


@contextmanager
def variance_along_without_noise() -> Iterator[None]:
    honest = WideMethod._learn_along

    def mutant(self: Any, along: Any) -> None:
        honest(self, replace(along, second=exact[-1][:-2, :-2] / self.units))

    exact: list[Any] = []
    call = MomentsAlong.__call__

    def heard(self: Any, block: Any) -> Any:
        exact.append(call(self, block))
        return exact[-1]

    with (
        patch.object(WideMethod, "_learn_along", mutant),
        patch.object(MomentsAlong, "__call__", heard),
    ):
        yield


@contextmanager
def scales_refined_by_exact_moments() -> Iterator[None]:
    honest = WideMethod._add

    def mutant(self: Any, released: Any, unit: float) -> Any:
        return honest(self, replace(released, alone=self.beside._sums[0] / unit), unit)

    with patch.object(WideMethod, "_add", mutant):
        yield


@contextmanager
def warm_up_used_for_gradients() -> Iterator[None]:
    step = WideMethod.step

    def mutant(self: WideMethod, rows: Any, t: int, noise: Any) -> Any:
        warming_up = self.warming_up
        outcome = step(self, rows, t, noise)
        return step(self, rows, t, noise) if warming_up and not self.warming_up else outcome

    with patch.object(WideMethod, "step", mutant):
        yield


MUTANTS_OF_MANY_FEATURES: dict[str, Any] = {
    "gradients without a clip": gradients_without_a_clip,
    "gradients of half the size": gradients_of_half_the_size,
    "centred at the exact mean": centred_at_the_exact_mean,
    "variance along without noise": variance_along_without_noise,
    "moments along without a clip": lambda: unclipped(MomentsAlong),
    "moments along without the root of two": lambda: scaled_sensitivity(MomentsAlong, 0.5**0.5),
    "means and variances without a ball": lambda: unclipped(MomentsInBall),
    "scales refined by exact moments": scales_refined_by_exact_moments,
    "warm-up records used again": warm_up_used_for_gradients,
}


@contextmanager
def set_after(kind: Any, **values: Any) -> Iterator[None]:
    """Attributes that are set when an object is made; `mu` stands for its own."""
    init = kind.__init__

    def mutant(self: Any, **how: Any) -> None:
        init(self, **how)
        for name, value in values.items():
            setattr(self, name, self.mu * value)

    with patch.object(kind, "__init__", mutant):
        yield


OVERSPENDING: dict[str, Any] = {
    "means and variances for free": lambda: patch.object(wide, "claimed", lambda s, part: s),
    "looks for free": lambda: patch.object(
        wide, "claimed", lambda s, part: s / math.sqrt(wide.BESIDE)
    ),
    "moments along with the whole budget": lambda: set_after(WideMethod, mu_along=1.0),
    "the range for free": lambda: set_after(_Gradients, mu_range=1.0),
}

__all__ = [
    "CANARIES",
    "MUTANTS",
    "MUTANTS_OF_MANY_FEATURES",
    "OVERSPENDING",
    "D",
    "attack",
    "ledger",
    "many_features",
]

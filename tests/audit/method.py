"""Broken variants of the method, which the exact audit (`replay`) must catch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from stream_dppca.mechanisms.correlated import CorrelatedRelease
from stream_dppca.method import AdaptiveMethod, statistics
from stream_dppca.method import step as steps
from stream_dppca.method.first import Questions
from stream_dppca.method.limits import Limits, ScoreCounts
from stream_dppca.method.statistics import (
    AugmentedMoments,
    GridCounts,
    LengthCounts,
    MomentsInBall,
    OctaveCounts,
)
from tests.audit.mutants import Mutant
from tests.audit.replay import Composition


@contextmanager
def whole_budget_for_every_question() -> Iterator[None]:
    ask = Questions._put

    def mutant(self: Questions, name: str, rows: Any, share: float, noise: Any) -> None:
        ask(self, name, rows, 1.0, noise)

    with patch.object(Questions, "_put", mutant):
        yield


def exact(*names: str) -> Any:
    """Answers without noise, for these questions."""

    @contextmanager
    def planted() -> Iterator[None]:
        ask = Questions._put

        def mutant(self: Questions, name: str, rows: Any, share: float, noise: Any) -> None:
            ask(self, name, rows, share, noise)
            if name in names and self._answer is not None:
                total = rows.total(self._question(name)[0])
                self._answer = replace(self._answer, total=total * self._answer.share)

        with patch.object(Questions, "_put", mutant):
            yield

    return planted


@contextmanager
def used_again(kind: Any) -> Iterator[None]:
    """Mutant: the records of the first step are learned from once more."""
    step = kind.step

    def mutant(self: Any, rows: Any, t: int, noise: Any) -> Any:
        first = self._answers is None
        outcome = step(self, rows, t, noise)
        return step(self, rows, t, noise) if first and self._answers is not None else outcome

    with patch.object(kind, "step", mutant):
        yield


@contextmanager
def learned_anew_at_once() -> Iterator[None]:
    """Mutant: the batch that shows a change is that of the next first step, too."""
    step = AdaptiveMethod.step

    def mutant(self: Any, rows: Any, t: int, noise: Any) -> Any:
        outcome = step(self, rows, t, noise)
        return step(self, rows, t, noise) if self._changed else outcome

    with patch.object(AdaptiveMethod, "step", mutant):
        yield


@contextmanager
def change_from_exact_moments() -> Iterator[None]:
    """Mutant: digits of moments without noise decide whether there is a first step again."""
    learn, release = AdaptiveMethod._learn, CorrelatedRelease.release
    exact: dict[int, Any] = {}

    def noting(self: Any, query: Any, **how: Any) -> Any:
        exact[id(self)] = query
        return release(self, query, **how)

    def mutant(self: Any, *how: Any) -> Any:
        change = learn(self, *how)
        self._changed &= int(1e6 * np.abs(exact[id(self.mechanism)]).sum()) % 2 == 0
        return change

    with (
        patch.object(CorrelatedRelease, "release", noting),
        patch.object(AdaptiveMethod, "_learn", mutant),
    ):
        yield


@contextmanager
def unclipped(kind: Any) -> Iterator[None]:
    name = "add" if hasattr(kind, "add") else "__call__"  # of a block
    honest = getattr(kind, name)

    def mutant(self: Any, *block: Any) -> Any:
        return honest(replace(self, radius=1e12), *block)

    with patch.object(kind, name, mutant):
        yield


@contextmanager
def scaled_sensitivity(kind: Any, factor: float) -> Iterator[None]:
    honest = vars(kind)["sensitivity"]
    if isinstance(honest, property):
        mutant: Any = property(lambda self: factor * honest.fget(self))  # type: ignore[misc]
    else:

        def mutant(self: Any, *units: int) -> float:
            return factor * float(honest(self, *units))

    with patch.object(kind, "sensitivity", mutant):
        yield


@contextmanager
def unclamped() -> Iterator[None]:
    """Nothing is cut off coordinate by coordinate, nor in the ball."""

    def mutant(block: Any, how: Any) -> Any:
        Z = (block.X - how.center) * how.factor
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
def limits_from_exact_scores() -> Iterator[None]:
    add = Limits.add

    def mutant(self: Limits, counts: Any, **how: Any) -> None:
        total = self.histograms.total + counts.ravel()
        add(self, counts, **how)
        self.histograms.total = total

    with patch.object(Limits, "add", mutant):
        yield


@contextmanager
def missing_values_from_other_records() -> Iterator[None]:
    honest = statistics.standardised

    def mutant(block: Any, how: Any) -> Any:
        Z = honest(block, how)
        return np.where(np.isfinite(block.X), Z, Z.max(axis=0))

    with patch.object(statistics, "standardised", mutant):
        yield


def source(function: str, *changes: tuple[str, str]) -> Callable[[], Any]:
    """Other source of a function of `stream_dppca.method`."""
    (old, new), *more = changes
    function = f"method.{function}"
    return Mutant(new, function, old, new, "", (), also=tuple((function, *c) for c in more)).planted


STEP = "step:AdaptiveMethod.step"
LOOKING = "(LOOK if looking and not spent else 0.0)"
SENSITIVITY = "claimed(query.sensitivity(len(rows)), part)"
SHARE = " - (0.0 if self.limits is None else LIMITS)"
FIRST, LATER = "part = 1 - spent", "(LOOK if looking else 0.0)"
MOMENTS, POOLED = Composition(), Composition(first=3)
CHANGES = Composition(changes=True)
ROUND, ROUNDS = Composition(rounds=1), Composition(rounds=3)

#: By name: the mutant, and the composition that shows it.
MUTANTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Composition]] = {
    # Budgets
    "the whole budget for the first moments": (source(STEP, (FIRST, "part = 1")), MOMENTS),
    "the whole budget for the first moments, pooled": (source(STEP, (FIRST, "part = 1")), POOLED),
    "the whole budget for the first moments of subjects": (
        source(STEP, (FIRST, "part = 1")),
        ROUND,
    ),
    "the whole budget for questions": (
        source("step:AdaptiveMethod._make_questions", ("* math.sqrt(budget.first_share)", "")),
        MOMENTS,
    ),
    "moments after questions that have spent everything": (
        source(STEP, ("spent == 1.0", "False"), ("1 - spent", "1")),
        ROUNDS,
    ),
    "every question has the whole budget": (whole_budget_for_every_question, MOMENTS),
    "every question has the whole budget in every round": (whole_budget_for_every_question, ROUNDS),
    "looks for free": (source(STEP, (LATER, "0.0")), MOMENTS),
    "a look in the first step for free": (
        source(STEP, ("spent == 0.0 and ", ""), (LATER, LOOKING)),
        MOMENTS,
    ),
    "the number of subjects for free": (
        source("parameters:Budget.__init__", ("self.mu * math.sqrt(1 - COUNT)", "self.mu")),
        ROUND,
    ),
    "limits for free": (source(STEP, (SHARE, "")), MOMENTS),
    "limits for free, in the first step": (source(STEP, (SHARE, "")), Composition(batches=1)),
    "limits with the whole budget": (
        source("limits:Limits.__init__", ("self.mu, ", "mu /= math.sqrt(LIMITS); self.mu, ")),
        MOMENTS,
    ),
    "first records used again": (lambda: used_again(AdaptiveMethod), MOMENTS),
    "records that show a change used again": (learned_anew_at_once, CHANGES),
    "the whole budget for the first moments after a change": (
        source(STEP, (FIRST, "part = 1")),
        CHANGES,
    ),
    "a change decided from exact moments": (change_from_exact_moments, CHANGES),
    "correlated noise for subjects": (
        lambda: patch.object(steps, "IndependentRelease", CorrelatedRelease),
        ROUND,
    ),
    # Sensitivities
    "sensitivity of a mean": (
        source(STEP, (SENSITIVITY, "claimed(query.sensitivity(len(rows)) / self.units, part)")),
        MOMENTS,
    ),
    "noise of one batch for the mean of several": (
        source(
            STEP,
            (SENSITIVITY, "claimed(query.sensitivity(len(rows)) * self.units / len(rows), part)"),
        ),
        POOLED,
    ),
    "octaves count as one": (lambda: scaled_sensitivity(OctaveCounts, 0.5**0.5), MOMENTS),
    "cells count as one": (lambda: scaled_sensitivity(GridCounts, 0.5**0.5), POOLED),
    "lengths count as one": (lambda: scaled_sensitivity(LengthCounts, 0.5), MOMENTS),
    "norms count as one": (
        lambda: scaled_sensitivity(LengthCounts, 0.5),
        Composition("one unit", "none"),
    ),
    "scores count as one": (
        lambda: scaled_sensitivity(ScoreCounts, 0.5**0.5),
        Composition(batches=1),
    ),
    "scores of subjects count as one": (lambda: scaled_sensitivity(ScoreCounts, 0.5**0.5), ROUND),
    "ball of half the size": (lambda: scaled_sensitivity(MomentsInBall, 0.5), MOMENTS),
    "sensitivity of moments without the root of two": (
        lambda: scaled_sensitivity(AugmentedMoments, 0.5**0.5),
        Composition(batches=1),
    ),
    # Bounds of a unit
    "unclamped": (unclamped, MOMENTS),
    "moments of the questions without a ball": (lambda: unclipped(MomentsInBall), MOMENTS),
    "moments without a clip": (lambda: unclipped(AugmentedMoments), MOMENTS),
    "moments of one unit without a clip": (
        lambda: unclipped(AugmentedMoments),
        Composition("one unit", "none"),
    ),
    # What is not noisy
    "exact medians": (exact("grid", "fine grid", "finest grid"), MOMENTS),
    "exact octaves": (exact("octaves"), MOMENTS),
    "scale decided from exact counts": (exact("distances"), MOMENTS),
    "one scale decided from exact counts": (exact("norms"), Composition("one unit")),
    "radius from exact lengths": (exact("lengths"), Composition("known", "none")),
    "centre from exact moments": (exact("moments"), Composition("known")),
    "scales widened by exact moments": (scales_from_exact_moments, MOMENTS),
    "limits from exact scores": (limits_from_exact_scores, MOMENTS),
    "missing values from other records": (
        missing_values_from_other_records,
        Composition(more=(("missing", "center"),)),
    ),
}

__all__ = ["MUTANTS"]

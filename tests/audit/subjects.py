"""An audit of privacy per subject: the effect of all that one subject sends, in units of noise.

The exact audit works like `replay`, for what is special about subjects: two runs on neighbouring
streams, the second of which gets the *releases* of the first. The neighbours differ in everything
that one subject sends within `PERIOD` consecutive rounds: whether it comes, when, how often, with
what. The squares of the differences of exact answers, in units of their noise, add up to what it
has spent: at most mu^2 over the period, and mu^2/`PERIOD` in each round. Whatever else differs, a
release or a saved state, is a leak; and no round may ask for more than mu^2/`PERIOD` in all its
questions.

The statistical audit sees what an attacker sees: a coin decides for each period what the subject
sends, and error rates bound mu from below (`evidence`).
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

from stream_dppca import DPPCA
from stream_dppca.mechanisms.correlated import CorrelatedRelease
from stream_dppca.method import AdaptiveMethod, parameters, step
from stream_dppca.method.limits import ScoreCounts
from stream_dppca.method.statistics import (
    AugmentedMoments,
    LengthCounts,
    MomentsInBall,
    OctaveCounts,
)
from stream_dppca.outcome import Outcome
from stream_dppca.participation import PerSubject, mu_of
from stream_dppca.statistics import Bundle
from stream_dppca.subjects import SubjectTable, first_rows, units
from stream_dppca.subjects import table as tables
from stream_dppca.subjects.ids import canonical
from tests.audit.evidence import Spy, gaussian_mu, mu_lb
from tests.audit.replay import Source, Tape, honest_sensitivities

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

EPSILON, DELTA, D = 8.0, 1e-3, 5
PLACES, PERIOD, RECORDS = 160, 3, 4
MU = gaussian_mu(EPSILON, DELTA)


# The exact audit


@dataclass(frozen=True)
class Canary:
    """The records of one subject in each round of the period, in two worlds: places and values."""

    name: str
    one: tuple[tuple[float, FloatArray], ...]  # place in the round, from 0 to 1
    other: tuple[tuple[float, FloatArray], ...]
    ids: tuple[Any, ...] = ("canary",)  # spellings, in turn


HUGE = 1e12
E = np.eye(D)
NAN = np.full(D, np.nan)
CANARIES = (
    Canary("absent or far out", (), ((0.0, HUGE * E[0]),)),
    Canary("across", ((0.3, HUGE * (E[0] + E[1])),), ((0.6, HUGE * (E[0] - E[1])),)),
    Canary("small or far out", ((0.5, 1e-12 * E[2]),), ((0.5, HUGE * E[2]),)),
    Canary("bad or far out", ((0.0, NAN),), ((1.0, HUGE * E[1]),)),
    Canary("absent or very busy", (), tuple((i / 40, HUGE * E[0]) for i in range(40))),
    Canary("busy in front or absent", tuple((0.0, HUGE * E[3]) for _ in range(60)), ()),
    Canary("one row or four", ((0.0, HUGE * E[0]),), ((0.0, HUGE * E[1]),) * 4),
    Canary("two spellings", (), ((0.0, HUGE * E[0]),) * 6, ids=("7", 7, b"7", 7.0, "7.0")),
    Canary(
        "partly missing", ((0.0, HUGE * E[0]),), ((0.2, np.r_[np.nan, HUGE, np.nan, 0.0, 0.0]),)
    ),
    Canary("rows that cancel", (), ((0.0, E[0] + HUGE * E[1]), (0.9, E[0] - HUGE * E[1]))),
    Canary(
        "four in the middle or far out", ((0.0, 1e-12 * E[2]),) * 4, ((0.0, HUGE * E.sum(0)),) * 4
    ),
    Canary("there and back", ((0.0, HUGE * E.sum(0)),) * 2, ((0.0, -HUGE * E.sum(0)), (0.1, NAN))),
)
#: Subjects of a round besides the canary, round by round, and where the canary's period begins:
#: room for all, from the first round on; too many; and now and then nobody.
FLEETS: dict[str, tuple[tuple[int, ...], int]] = {
    "room": ((120,) * 8, 0),
    "full": ((200,) * 5, 2),
    "alone": ((120, 120, 120, 0, 120), 2),
}


def fleet(subjects: int, round_: int) -> tuple[FloatArray, list[Any]]:
    rng = np.random.default_rng([subjects, round_])
    ids = rng.permutation(np.repeat(np.arange(subjects), 1 + rng.integers(0, 6, subjects)))
    scale = np.array([3.0, 1.0, 1.0, 0.5, 0.2])
    return rng.standard_normal((len(ids), D)) * scale, [f"d{i}" for i in ids.tolist()]


def with_canary(
    X: FloatArray, ids: list[Any], sends: tuple[tuple[float, FloatArray], ...], spellings: Any
) -> tuple[FloatArray, list[Any]]:
    at = [round(place * len(ids)) for place, _ in sends]
    names = [spellings[i % len(spellings)] for i in range(len(sends))]
    order = np.argsort(at, kind="stable")
    rows = np.insert(X, [at[i] for i in order], [sends[i][1] for i in order], axis=0) if at else X
    mixed = list(ids)
    for i in order[::-1]:
        mixed.insert(at[i], names[i])
    return rows, mixed


KINDS: dict[str, dict[str, Any]] = {
    "one unit": {"center": "none", "scales": None},
    "learned": {"center": "mean", "scales": "learn"},
    "own": {"center": "own", "scales": None},
    "own, learned": {"center": "own", "scales": "learn"},
    "known scales": {"center": "mean", "scales": [1.0] * D},
    "missing": {"center": "mean", "scales": "learn", "missing": "center"},
}


def model(kind: str) -> DPPCA:
    settings: dict[str, Any] = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "unit": PerSubject("id", places=PLACES, period=PERIOD, records=RECORDS),
        "seed": 5,
    }
    return DPPCA(features=tuple(range(D)), **settings | KINDS[kind])


def run(
    kind: str, rounds: list[tuple[FloatArray, list[Any]]], given: Tape | None
) -> tuple[Tape, str]:
    """The tape of a run, and everything that must not differ between runs with equal releases.

    In the middle of every round a copy of the model is made, and closes its round as well.
    """
    tape, pca = Tape(), model(kind)
    pca._noise = Source(5, tape, given)  # type: ignore[assignment]
    shown: list[Any] = []
    with honest_sensitivities():
        for X, ids in rounds:
            pca.learn_array(X, subjects=ids)
            twin = copy.deepcopy(pca)
            budget = dict(tape.budget)
            shown.append(twin.close_round().model_dump_json())
            tape.budget = budget  # of its own records, of which there are none
            shown.append(pca.close_round().model_dump_json())
    return tape, json.dumps([shown, pca.state()])


@dataclass(frozen=True)
class Finding:
    """Budget that a canary has spent, over its share of mu, and the leaks that were found.

    Over the period that is mu, in each of its rounds mu/sqrt(`PERIOD`); the larger of the two.
    """

    fleet: str
    canary: str
    spent: float
    leak: bool
    over_budget: bool

    @property
    def caught(self) -> bool:
        return self.leak or self.over_budget or not self.spent <= 1 + 1e-6


def attack(kind: str) -> Iterator[Finding]:
    """Each canary in each fleet."""
    for name, (fleets, first) in FLEETS.items():
        base = [fleet(subjects, r) for r, subjects in enumerate(fleets)]
        for canary in CANARIES:
            worlds = []
            for sends in (canary.one, canary.other):
                world = list(base)
                for r in range(first, first + PERIOD):
                    world[r] = with_canary(*base[r], sends, canary.ids)
                worlds.append(world)
            tape, shown = run(kind, worlds[0], None)
            over = tape.over > MU / math.sqrt(PERIOD) * (1 + 1e-9)
            try:
                again, shown_again = run(kind, worlds[1], tape)
                same = len(tape.exact) == len(again.exact)
                pairs = list(zip(tape.exact, again.exact, strict=True)) if same else []
                squares = np.array([float(np.sum((a - b) ** 2)) for a, b in pairs])
                by_round = np.bincount(tape.steps, squares) if same else np.zeros(1)
                square = max(float(by_round.sum()), PERIOD * float(by_round.max()))
                leak = not same or shown != shown_again
            except (ValueError, IndexError):  # other questions were asked
                square, leak = 0.0, True
            yield Finding(name, canary.name, math.sqrt(square) / MU, leak, over)


# Mutants


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.enter_context(patch.object(owner, name, value))
        yield


def a_place_per_record() -> Any:
    def mutant(ids: Any) -> list[bytes]:
        return [b"%d %a" % (number, who) for number, who in enumerate(ids)]

    return patched((tables, "canonical_all", mutant))


def spelling_counts() -> Any:
    return patched((tables, "canonical_all", lambda ids: [repr(who).encode() for who in ids]))


def capacity_in_records() -> Any:
    enter = SubjectTable._enter

    def mutant(self: SubjectTable, X: Any, keys: Any) -> None:
        enter(self, X[: 2 * PLACES], keys[: 2 * PLACES])

    return patched((SubjectTable, "_enter", mutant))


def rounds_by_arrivals() -> Any:
    """Mutant: a round is over after a number of records."""
    learn, close = DPPCA.learn_array, DPPCA.close_round
    arrived: dict[int, int] = {}

    def learning(self: DPPCA, X: Any, subjects: Any = None) -> None:
        for i, who in enumerate(subjects):
            learn(self, X[i : i + 1], subjects=[who])
            arrived[id(self)] = arrived.get(id(self), 0) + 1
            if arrived[id(self)] % 400 == 0:
                close(self)

    def closing(self: DPPCA) -> Any:
        return self.last_release or close(self)

    return patched((DPPCA, "learn_array", learning), (DPPCA, "close_round", closing))


def _by_row(self: Any) -> Iterator[Bundle]:
    """Blocks in which every row is a unit."""
    for block in _blocks(self):
        yield Bundle.of(block.X, 1)


_blocks = units.SubjectRows._blocks


def clip_then_sum() -> Any:
    return patched((units.SubjectRows, "_blocks", _by_row))


def rows_are_units_in(kind: Any) -> Any:
    call = kind.__call__
    return patched((kind, "__call__", lambda self, block: call(self, Bundle.of(block.X, 1))))


def budget_of_one_round() -> Any:
    def mutant(epsilon: float, delta: float, subjects: Any, units: int) -> float:
        return mu_of(epsilon, delta, None, units)

    return patched((parameters, "mu_of", mutant))


def questions_with_the_budget_of_a_period() -> Any:
    init = AdaptiveMethod.__init__

    def mutant(self: AdaptiveMethod, given: Any) -> None:
        init(self, given)
        self.questions.mu *= math.sqrt(PERIOD)

    return patched((AdaptiveMethod, "__init__", mutant))


def correlated_noise() -> Any:
    return patched((step, "IndependentRelease", CorrelatedRelease))


def empty_rounds_skipped() -> Any:
    honest = AdaptiveMethod.step

    def mutant(self: Any, rows: Any, t: int, noise: Any) -> Any:
        nobody = Outcome(reason="nobody", subjects=0.0)
        return honest(self, rows, t, noise) if rows.present() else nobody

    return patched((AdaptiveMethod, "step", mutant))


def divided_by_the_exact_number() -> Any:
    honest = AdaptiveMethod.step

    def mutant(self: Any, rows: Any, t: int, noise: Any) -> Any:
        self.units = max(rows.present(), 1)
        return honest(self, rows, t, noise)

    return patched((AdaptiveMethod, "step", mutant))


def exact_number_of_subjects() -> Any:
    count = AdaptiveMethod._count

    def mutant(self: Any, rows: Any, noise: Any) -> float:
        count(self, rows, noise)
        return float(rows.present())

    return patched((AdaptiveMethod, "_count", mutant))


def a_table_that_survives_a_copy() -> Any:
    def state(self: SubjectTable) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self: SubjectTable, state: dict[str, Any]) -> None:
        vars(self).update(state)

    changes = (SubjectTable, "__getstate__", state), (SubjectTable, "__setstate__", restore)
    return patched(*changes)


def deviations_from_the_mean_of_all() -> Any:
    def mutant(rows: FloatArray, each: int) -> FloatArray:
        return np.asarray(rows - rows.mean(axis=0))

    return patched((units, "_deviations", mutant))


def octaves_of_all_rows() -> Any:
    call = OctaveCounts.__call__

    def mutant(self: Any, block: Any) -> Any:
        return call(self, block) * block.each

    return patched((OctaveCounts, "__call__", mutant))


def scores_of_all_rows() -> Any:
    measure, counts, each = ScoreCounts.measure, ScoreCounts.counts, [1]

    def seen(self: Any, block: Any, *args: Any) -> Any:
        each[0] = block.each
        return measure(self, block, *args)

    def mutant(self: Any, parts: Any) -> Any:
        return counts(self, parts) * each[0]

    return patched((ScoreCounts, "measure", seen), (ScoreCounts, "counts", mutant))


def read_by_tasks(tasks: int = 3, places_of_their_own: bool = False) -> Any:
    """Rounds that the tasks of an engine read, each a piece. Where pieces end depends on how many
    records there are, as it does in a topic.

    The mutant counts and clips a subject in every piece by itself.
    """
    learn = DPPCA.learn_array

    def learning(self: DPPCA, X: Any, subjects: Any = None) -> None:
        edges = np.linspace(0, len(X), tasks + 1).astype(int).tolist()
        for task, (a, b) in enumerate(pairwise(edges)):
            kept = [a + i for i in first_rows(subjects[a:b], RECORDS)]
            whose = [subjects[i] for i in kept]
            if places_of_their_own:
                whose = [b"%d %b" % (task, canonical(who) or b"") for who in whose]
            learn(self, X[kept], subjects=whose)

    return patched((DPPCA, "learn_array", learning))


#: Mutants, and the kinds of model that must show them.
MUTANTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a place per record": (a_place_per_record, "one unit"),
    "spellings are subjects": (spelling_counts, "one unit"),
    "capacity in records": (capacity_in_records, "one unit"),
    "rounds by arrivals": (rounds_by_arrivals, "one unit"),
    "clip, then sum": (clip_then_sum, "one unit"),
    "the budget of one round in each": (budget_of_one_round, "one unit"),
    "the budget of one round in each, learned": (budget_of_one_round, "learned"),
    "questions with the budget of a period": (questions_with_the_budget_of_a_period, "learned"),
    "correlated noise": (correlated_noise, "one unit"),
    "correlated noise, learned": (correlated_noise, "learned"),
    "empty rounds skipped": (empty_rounds_skipped, "one unit"),
    "divided by the exact number": (divided_by_the_exact_number, "one unit"),
    "exact number of subjects": (exact_number_of_subjects, "one unit"),
    "a table that survives a copy": (a_table_that_survives_a_copy, "one unit"),
    "deviations from the mean of all": (deviations_from_the_mean_of_all, "own"),
    "tasks that clip by themselves": (lambda: read_by_tasks(places_of_their_own=True), "one unit"),
    "octaves of all rows": (octaves_of_all_rows, "learned"),
    "scores of all rows": (scores_of_all_rows, "learned"),
    "ball by row": (lambda: rows_are_units_in(MomentsInBall), "learned"),
    "lengths by row": (lambda: rows_are_units_in(LengthCounts), "learned"),
    "moments: clip, then sum": (lambda: rows_are_units_in(AugmentedMoments), "learned"),
}


# The statistical audit

LOUD: dict[str, Any] = {"epsilon": 2.0, "delta": 0.02}
CLAIMED = gaussian_mu(**LOUD)


def coin_flips(periods: int, period: int, seed: int = 1) -> float:
    """A lower bound on the mu of a period: the canary is across, one way or the other."""
    d, places = 4, 200
    base = np.repeat(np.eye(d), 40, axis=0)
    ids: list[Any] = list(range(len(base)))
    pca = DPPCA(
        features=tuple(range(d)),
        unit=PerSubject("id", places=places, period=period),
        center="none",
        scales=None,
        seed=seed,
        memory="all",
        limits=False,
        **LOUD,
    )
    spy = Spy(seed)
    pca._noise = spy  # type: ignore[assignment]
    coins = np.random.default_rng(seed).random(periods) < 0.5
    scores = np.zeros(periods)
    spellings = ["7", 7, b"7", 7.0] * 2
    for t, coin in enumerate(coins):
        x = np.array([1e6, 1e6 if coin else -1e6, 0.0, 0.0])
        for _ in range(period):
            X = np.concatenate([base, np.tile(x, (8, 1))])
            pca.learn_array(X, subjects=ids + spellings)
            sd = pca.close_round().sigma
            moments = [
                c.noisy for c in spy.last.gaussians if len(c.exact) == (d + 1) * (d + 2) // 2
            ]
            if moments:  # the entry (0, 1), in units of its noise
                scores[t] += moments[0][1] / sd
    return mu_lb(scores, coins)


__all__ = ["CANARIES", "CLAIMED", "KINDS", "MUTANTS", "attack", "coin_flips"]

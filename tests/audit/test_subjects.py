"""The audit of privacy per subject, and the mutants that it must catch."""

from __future__ import annotations

import pytest

from tests.audit import subjects


@pytest.mark.parametrize("kind", subjects.KINDS)
def test_no_subject_spends_more_than_it_may(kind: str) -> None:
    found = list(subjects.attack(kind))
    assert not [finding for finding in found if finding.caught]
    # The canaries are good ones: at the start and later they find most of what there is.
    for fleet in ("room", "full"):
        assert max(f.spent for f in found if f.fleet == fleet) > 0.6


@pytest.mark.parametrize("kind", ["one unit", "learned"])
def test_no_subject_spends_more_in_rounds_that_tasks_read(kind: str) -> None:
    with subjects.read_by_tasks():
        found = list(subjects.attack(kind))
    assert not [finding for finding in found if finding.caught]
    assert max(f.spent for f in found) > 0.6


@pytest.mark.parametrize("mutant", subjects.MUTANTS)
def test_a_mutant_is_caught(mutant: str) -> None:
    plant, kind = subjects.MUTANTS[mutant]
    with plant():
        assert any(finding.caught for finding in subjects.attack(kind))


def test_an_attacker_learns_no_more_than_was_promised() -> None:
    # The means have .89 of it, of which this small number of coins proves about half.
    assert 0.25 < subjects.coin_flips(1200, period=2) <= subjects.CLAIMED


@pytest.mark.parametrize(
    ("mutant", "periods"),
    [
        ("a place per record", 180),
        ("spellings are subjects", 180),
        ("the budget of one round in each", 550),
    ],
)
def test_an_attacker_breaks_a_mutant(mutant: str, periods: int) -> None:
    with subjects.MUTANTS[mutant][0]():
        assert subjects.coin_flips(periods, period=6) > subjects.CLAIMED + 0.1

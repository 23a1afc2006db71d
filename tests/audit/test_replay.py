"""The exact audit of every composition of the method, and the mutants that it must catch."""

from __future__ import annotations

import pytest

from tests.audit import method, replay


@pytest.mark.parametrize("name", replay.COMPOSITIONS)
def test_no_unit_spends_more_than_it_may(name: str) -> None:
    c = replay.COMPOSITIONS[name]
    found = list(replay.attack(c))
    assert not [finding for finding in found if finding.caught]
    # The contents are good ones: in the first step and later they find most of what there is.
    assert found[0].spent > (0.65 if c.changes else 0.7)  # a change ends the column of a batch
    assert found[1].spent > 0.7


@pytest.mark.parametrize("name", replay.COMPOSITIONS)
def test_the_questions_of_a_step_spend_its_budget_together(name: str) -> None:
    # A little is left for rounding, see `claimed`.
    spent = replay.ledger(replay.COMPOSITIONS[name])
    assert all(0.999 <= part <= 1 + 1e-9 for part in spent), spent


@pytest.mark.parametrize("mutant", method.MUTANTS)
def test_a_mutant_is_caught(mutant: str) -> None:
    plant, composition = method.MUTANTS[mutant]
    with plant():
        assert any(finding.caught for finding in replay.attack(composition))

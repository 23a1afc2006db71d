"""The exact audit of the learned centre and scales, and the mutants that it must catch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit import learned

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "missing features": {"missing": "center"},
    "known centre": {"center": "none"},
    "known scales": {"scales": [1.0] * learned.D},
    "memory": {"memory": 3.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_record_spends_more_than_it_may(kind: str) -> None:
    found = list(learned.attack(**KINDS[kind]))
    assert not [finding for finding in found if finding.caught]
    # The canaries are good ones: in the warm-up and after it they find most of what there is.
    for batch in (0, 4):
        assert max(f.spent for f in found if f.batch == batch) > 0.7


@pytest.mark.parametrize("kind", KINDS)
def test_no_record_spends_more_with_many_features(kind: str) -> None:
    with learned.many_features():
        found = list(learned.attack(craft=True, **KINDS[kind]))
    assert not [finding for finding in found if finding.caught]
    assert max(f.spent for f in found if f.batch == 4) > 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_the_questions_of_a_batch_spend_mu_together(kind: str) -> None:
    with learned.many_features():
        spent = learned.ledger(**KINDS[kind])
    # A little is left for rounding, see `claimed`.
    assert all(0.999 <= part <= 1 + 1e-9 for part in spent), spent


@pytest.mark.parametrize("mutant", learned.OVERSPENDING)
def test_overspending_is_caught(mutant: str) -> None:
    with learned.many_features(), learned.OVERSPENDING[mutant]():
        assert max(learned.ledger()) > 1 + 1e-3


@pytest.mark.parametrize("mutant", learned.MUTANTS_OF_MANY_FEATURES)
def test_a_mutant_with_many_features_is_caught(mutant: str) -> None:
    with learned.many_features(), learned.MUTANTS_OF_MANY_FEATURES[mutant]():
        assert any(finding.caught for finding in learned.attack(craft=True))


@pytest.mark.parametrize("mutant", learned.MUTANTS)
def test_a_mutant_is_caught(mutant: str) -> None:
    with learned.MUTANTS[mutant]():
        found = learned.attack(missing="center" if "missing" in mutant else "null")
        assert any(finding.caught for finding in found)

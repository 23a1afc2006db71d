"""The audit of batches on an engine: nothing is found, and every planted mutant is."""

from __future__ import annotations

import pytest

from tests.audit import engine
from tests.audit.mutants import Mutant

_SKIPS_A_BAD_RECORD = (
    "engine.rows:EngineBatches.rows",
    "return self._engine.map(task, self.groups)",
    "first = [int(not (abs(source.read(g)[0]) < 9).all()) for g in self.groups]; "
    "groups = tuple(Group(g.start + i, g.stop) for g, i in zip(self.groups, first)); "
    "return self._engine.map(task, groups)",
)
MUTANTS = (
    Mutant("a group begins after a bad record", *_SKIPS_A_BAD_RECORD, "tasks", ("engine",), 1),
    Mutant(
        "groups split by the content of the batch",
        "engine.rows:EngineBatches.rows",
        "return self._engine.map(task, self.groups)",
        "full = source.read(Group(0, self._slots)); "
        "middle = 2 * int(abs(full[:, 0]).argmax() // 2) or 2; "
        "groups = tuple(Group(a, b) for a, b in ((0, middle), (middle, self._slots)) if a < b); "
        "return self._engine.map(task, groups)",
        "tasks",
        ("engine",),
        1,
    ),
    Mutant(
        "a group ends at a bad record",
        "engine.rows:EngineBatches.rows",
        "return self._engine.map(task, self.groups)",
        "ends = [next((i for i, x in enumerate(source.read(g)) if not (abs(x) < 1e14).any()), "
        "g.slots) for g in self.groups]; "
        "groups = tuple(Group(g.start, g.start + max(i, 1)) for g, i in zip(self.groups, ends)); "
        "return self._engine.map(task, groups)",
        "spent",
        ("engine",),
        1,
    ),
)


def test_a_batch_on_an_engine_passes() -> None:
    (mean,) = engine.canary(1600)
    assert not mean.caught
    assert mean.value > 0.4 * mean.limit, mean  # the attack is a good one


@pytest.mark.parametrize("audit", engine.AUDITS)
def test_no_record_changes_the_split(audit: str) -> None:
    found = engine.audit(audit, 3)
    assert not [s for s in found if s.caught]
    if audit == "spent":  # the canaries are good ones
        assert max(s.value for s in found) > 0.7


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.name}-{m.audit}")
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    with mutant.planted():
        measured = engine.audit(mutant.audit, mutant.n)
    assert any(s.caught for s in measured), measured

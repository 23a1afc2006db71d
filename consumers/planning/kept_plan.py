"""Keeps plans by samples on the state topic, before any of their records is read.

A successor continues with the plan that it finds there. So which records share a batch does not
depend on when a task was dropped, which may depend on how long its records took.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import StateRefused
from ..protocols import Ledger, Positions
from ..ranges import Range
from .plan import split_batch, whole_batches


@dataclass(frozen=True)
class PlannedSample:
    """A sample, and the whole batches that it adds to a plan."""

    before: Mapping[int, int]  #: positions, those of new partitions included
    ends: Mapping[int, int]  #: the sample
    ranges: list[Range]  #: none if the sample allows no batch

    @property
    def after(self) -> dict[int, int]:
        return {**self.before, **{p: end for p, _, end in self.ranges}}


def planned_sample(positions: Positions, ends: Mapping[int, int], size: int) -> PlannedSample:
    """Plan a sample from these positions. Partitions that are new to it begin at 0."""
    before = {**dict.fromkeys(ends, 0), **positions}
    return PlannedSample(before, ends, whole_batches(before, ends, size))


@dataclass(frozen=True)
class SamplePlan:
    """Samples, in order, and the positions at which they begin."""

    new: str  #: where a new model begins, as set when this one began
    start: Mapping[int, int]
    samples: Sequence[Mapping[int, int]]

    def samples_after(
        self, positions: Positions, size: int
    ) -> list[tuple[PlannedSample, PlannedSample]]:
        """The samples whose batches end after these positions, which must be those after a batch.

        Each is given twice: whole, as it has to be kept, because a part of it would be divided into
        other batches, and with only the batches that are left. The two differ for the first one at
        most. Empty if the plan is used up.
        """
        found: list[tuple[PlannedSample, PlannedSample]] = []
        at: Mapping[int, int] = self.start
        for sample in self.samples:
            whole = planned_sample(at, sample, size)
            at = whole.after
            if found:
                found.append((whole, whole))
                continue
            here, rest = dict(whole.before), whole.ranges
            while rest and not _same(here, positions):
                batch, rest = split_batch(rest, size)
                here |= {p: end for p, _, end in batch}
            if rest:
                found.append((whole, PlannedSample(here, sample, rest)))
        return found

    def encode(self) -> bytes:
        content = {"plan": 1, "new": self.new, "start": self.start, "samples": self.samples}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> SamplePlan:
        try:
            content: dict[str, Any] = json.loads(value)
            if content["plan"] != 1:
                raise ValueError("another version")
            samples = [_offsets(sample) for sample in content["samples"]]
            return cls(str(content["new"]), _offsets(content["start"]), samples)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise StateRefused("the plan on the state topic cannot be read") from None


def _offsets(found: Mapping[str, int]) -> dict[int, int]:
    return {int(p): int(at) for p, at in found.items()}


def _same(a: Positions, b: Positions) -> bool:
    return all(a.get(p, 0) == b.get(p, 0) for p in {*a, *b})


class KeptPlans:
    """The plan of a model on its state topic.

    Parameters
    ----------
    committed
        Returns the positions of the last committed state.
    """

    def __init__(self, ledger: Ledger, committed: Callable[[], Positions]) -> None:
        self._ledger, self.committed = ledger, committed

    def load(self) -> SamplePlan | None:
        value = self._ledger.load_plan()
        return None if value is None else SamplePlan.decode(value)

    def keep(self, plan: SamplePlan) -> None:
        """Commit a plan. The offsets that go with it say that nothing more was used."""
        used = {**dict.fromkeys(plan.start, 0), **self.committed()}
        self._ledger.keep_plan(plan.encode(), used)

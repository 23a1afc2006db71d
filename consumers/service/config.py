"""Settings of a task, as its parts need them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ..messages.codecs import Codec, SubjectCodec
from ..messages.gathered import Gathering
from ..model.states import ModelIdentity, SlotRule
from ..settings import EstimatorRecipe, RoundRule

if TYPE_CHECKING:
    from ..reading.remote import Remote

#: The error about a state that is none.
REFUSAL: Final = "the state record cannot be read: is this the state topic?"


@dataclass(frozen=True)
class RoundConfig:
    """Settings of a task that learns round by round."""

    rule: RoundRule
    codec: SubjectCodec | Gathering
    first_round: Callable[[int], int]  #: of a new model that starts at a time, in milliseconds


@dataclass(frozen=True)
class TaskConfig:
    """Settings of a task."""

    model: str
    input_topic: str
    output_topic: str
    features: tuple[str, ...]
    estimator_recipe: EstimatorRecipe
    codec: Codec
    start: Literal["earliest", "latest"] = "earliest"
    plan_interval_s: float = 0.05  #: time between samples of the ends of the partitions
    refresh_s: float = 10.0  #: time between checks for new partitions, and of the lag
    stall_s: float = 120.0  #: longest time that a partition with unread messages may stand still
    slack_ms: int = 10_000  #: largest difference between clocks
    clock: Callable[[], float] = time.time
    rounds: RoundConfig | None = None  #: with privacy per subject
    remote: Remote | None = None  #: reads in the tasks of an engine; None for this process

    def identity(self) -> ModelIdentity:
        """The identity that the state must have."""
        if self.rounds is None:
            slots, rule = SlotRule("offsets", self.codec.rows_per_message), None
        else:
            slots, rule = SlotRule("rounds"), self.rounds.rule
        return ModelIdentity(self.model, self.input_topic, slots, rule)

    def offsets_per_batch(self, batch_size: int) -> int:
        """Return the offsets per batch; `Settings` refuses batches that end inside a message."""
        return batch_size // self.codec.rows_per_message

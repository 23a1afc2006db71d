"""What a task stores at the end of a batch, and the estimator made from it.

The state topic is inside the trust boundary: besides what is published it holds where each
partition was left off. It never holds a record, a partial batch or noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from stream_dppca import DPPCA, DPPCAError
from stream_dppca.noise import make_noise

from ..errors import StateRefused
from ..protocols import Message, Position

__all__ = ["StateRecord", "check_history", "check_state", "decode_state", "encode_state",
           "make_estimator", "parse_state", "restore_estimator", "warm_up"]  # fmt: skip

VERSION: Final = 1


class Published(msgspec.Struct, frozen=True):
    """The exact message to publish."""

    key: str
    value: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, record: Message) -> Published:
        headers = tuple((name, value.decode()) for name, value in record.headers)
        return cls(record.key.decode(), record.value.decode(), headers)

    def record(self) -> Message:
        headers = tuple((name, value.encode()) for name, value in self.headers)
        return Message(self.key.encode(), self.value.encode(), headers)


class StateRecord(msgspec.Struct, frozen=True):
    """Everything that a task needs to go on after a batch."""

    version: int
    model: str
    task: int
    shards: int
    input: str
    batch: int
    #: Unique to this write: what is read back after a commit is ours or it is not.
    writer: str
    positions: dict[str, Position]
    estimator: dict[str, Any]
    release: Published

    def next_positions(self) -> dict[int, Position]:
        return {int(partition): position for partition, position in self.positions.items()}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StateRecord)


def encode_state(record: StateRecord) -> bytes:
    return _encoder.encode(record)


def decode_state(value: bytes, *, model: str, task: int, shards: int, input: str) -> StateRecord:
    """Read a state, and refuse one that is not of this task."""
    record = parse_state(value, "the state record cannot be read: is this the state topic?")
    check_state(record, model=model, task=task, shards=shards, input=input)
    return record


def parse_state(value: bytes, refusal: str) -> StateRecord:
    """Read a state; `refusal` says where it should have been."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise StateRefused(refusal) from None


def check_state(record: StateRecord, *, model: str, task: int, shards: int, input: str) -> None:
    """Refuse a state that is not of this task."""
    for name, found, wanted in (
        ("version", record.version, VERSION),
        ("model", record.model, model),
        ("task", record.task, task),
        ("shards", record.shards, shards),
        ("input topic", record.input, input),
    ):
        if found != wanted:
            raise StateRefused(
                f"the state is of {name} {found!r}, the settings say {wanted!r}. Records that it "
                "has used must not be used again: go back to the old setting, or give the new "
                "model its own name, group and state topic, and start='latest'."
            )


def check_history(records: Sequence[StateRecord]) -> None:
    """Refuse a history in which a batch number comes twice or a position goes back.

    Fencing makes both impossible. If they are there all the same (somebody wrote to the topic, or
    it was restored from a copy), going on would use records twice.
    """
    for before, after in itertools.pairwise(records):
        earlier, later = before.next_positions(), after.next_positions()
        forward = all(p in later and later[p] >= earlier[p] for p in earlier)
        if after.batch <= before.batch or not forward:
            raise StateRefused(
                f"the state topic has forked: batch {after.batch} follows batch {before.batch}. "
                "Find who else writes to it."
            )


def make_estimator(parameters: Mapping[str, Any]) -> DPPCA:
    return DPPCA(**parameters)


def restore_estimator(state: dict[str, Any], parameters: Mapping[str, Any]) -> DPPCA:
    """The estimator of a state; refuses settings that differ from those it was made with."""
    try:
        return DPPCA.from_state(state, **parameters)
    except DPPCAError as error:
        raise StateRefused(
            f"the stored model does not fit the settings: {error}. Go back to the old setting, or "
            "give the new model its own name, group and state topic."
        ) from None


def warm_up() -> None:
    """Load what the first batch would load: it takes seconds, in which a task cannot leave."""
    make_noise(None).gaussian(np.zeros(1), sensitivity=1.0, mu=1.0)

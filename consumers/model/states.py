"""States: all that is kept at the end of a batch, and the estimator made from it.

A state is inside the trust boundary: besides what is published it holds the next offset of each
partition, or the number of rows of a file that were used. It never holds a record, a partial batch,
noise, or anything else that depends on records other than through released numbers. The release is
in it once, as the message that was published: the estimator is restored with the release of that
message.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from stream_dppca import DPPCA, DPPCAError, PaperDPPCA, PerSubject
from stream_dppca.noise import make_noise

from ..errors import StateRefused
from ..protocols import Message
from ..settings import EstimatorRecipe, RoundRule
from ..settings.durations import duration_text

VERSION: Final = 1
#: What to do instead of changing a setting that is bound to the model.
_NEW_MODEL: Final = (
    "begin a new model with records that were not used: on a topic with its own name and "
    "start='latest', with files with its own --state"
)


class StoredMessage(msgspec.Struct, frozen=True):
    """The exact message to publish."""

    key: str
    value: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, message: Message) -> StoredMessage:
        headers = tuple((name, value.decode()) for name, value in message.headers)
        return cls(message.key.decode(), message.value.decode(), headers)

    def message(self) -> Message:
        headers = tuple((name, value.encode()) for name, value in self.headers)
        return Message(self.key.encode(), self.value.encode(), headers)


class SlotRule(msgspec.Struct, frozen=True):
    """The rule by which records take slots. Another rule would put records into other batches.

    - `offsets`: one offset of a partition is `rows_per_message` slots (`consumers.planning.plan`).
    - `rows`: one row of a file is one slot.
    - `rounds`: a subject has one place in a round (`RoundRule` defines the rounds).
    """

    rule: str
    rows_per_message: int = 1


class ModelIdentity(msgspec.Struct, frozen=True):
    """Identifies the owner of a state. A state of another identity is refused."""

    model: str
    input: str
    slots: SlotRule
    rounds: RoundRule | None = None  #: with privacy per subject

    def settings(self) -> dict[str, object]:
        """What a state and the settings must agree in."""
        found: dict[str, object] = {
            "model": self.model,
            "input": self.input,
            "unit": "record" if self.rounds is None else "subject",
            "slot rule": self.slots.rule,
            "rows_per_message": self.slots.rows_per_message,
        }
        if (rounds := self.rounds) is not None:
            found |= {
                "subject": rounds.subject,
                "clock": rounds.clock,
                "round": duration_text(rounds.length_ms),
                "period": rounds.period,
                "horizon": rounds.horizon,
            }
        return found


class UsedInput(msgspec.Struct, frozen=True):
    """A file, and how much of it was used. Nothing here depends on the content of a row.

    What recognises its rows is as secret as they are, and not in a state (`files.inputs`).
    """

    name: str
    rows: int  #: used, from the beginning; 0 with privacy per subject, where rounds are counted


class StateRecord(msgspec.Struct, frozen=True):
    """Everything that is needed to resume after a batch."""

    version: int
    identity: ModelIdentity
    batch: int
    writer: str  #: unique to this state: its name
    #: The `writer` of the committed state that it was computed from; empty for the first one.
    parent: str
    positions: dict[str, int]
    estimator: dict[str, Any]  #: without its release
    release: StoredMessage
    inputs: tuple[UsedInput, ...] = ()  #: of files, in the order of their use
    last_round: int | None = None  #: with privacy per subject: the last one that was released
    #: Releases of the batches before that became visible or durable with this state, in order.
    earlier: tuple[StoredMessage, ...] = ()

    def next_positions(self) -> dict[int, int]:
        return {int(partition): offset for partition, offset in self.positions.items()}

    def messages(self) -> list[Message]:
        """The releases that may not be visible yet, in the order of their batches."""
        return [stored.message() for stored in (*self.earlier, self.release)]


class _Head(msgspec.Struct):
    version: int
    parent: str | None = None


_encoder = msgspec.json.Encoder()
_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(StateRecord).decode


def encode_state(record: StateRecord, parent: str, earlier: Sequence[Message] = ()) -> bytes:
    """Encode a state, with the releases of earlier batches that may not be visible yet."""
    stored = tuple(StoredMessage.of(message) for message in earlier)
    return _encoder.encode(msgspec.structs.replace(record, parent=parent, earlier=stored))


def decode_state(value: bytes, refusal: str) -> StateRecord:
    """Read a state; `refusal` is the error if it is not one."""
    try:
        version = _head(value).version
        if version == VERSION:
            return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise StateRefused(refusal) from None
    raise StateRefused(
        f"the state has version {version}, this program reads version {VERSION}. Use the "
        "program that wrote the state."
    )


def read_history(
    committed: Iterable[bytes], unfinished: Iterable[bytes], refusal: str
) -> tuple[list[StateRecord], bytes | None]:
    """Read the committed states, and the one that was to follow them.

    Of the states that were written and not committed, that is the earliest one that was computed
    from the last committed one. What is torn, or no state, or of another parent, is passed over.

    Returns
    -------
    history
        All these states, in order.
    following
        The bytes of the last of them, if it is not committed.
    """
    history = [decode_state(value, refusal) for value in committed]
    parent = history[-1].writer if history else ""
    for value in unfinished:
        if _parent_of(value) == parent:
            return [*history, decode_state(value, refusal)], value
    return history, None


def _parent_of(value: bytes) -> str | None:
    try:
        return _head(value).parent
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def check_state(record: StateRecord, identity: ModelIdentity) -> None:
    """Refuse a state that is not of this model, or whose slots follow another rule."""
    its = record.identity.settings()
    for name, wanted in identity.settings().items():
        if its[name] != wanted:
            raise StateRefused(
                f"the state was made with {name} {its[name]!r}, but the settings say {wanted!r}. "
                "The records of that model must not be used again: go back to the old setting, or "
                f"{_NEW_MODEL}."
            )


def check_history(records: Sequence[StateRecord]) -> None:
    """Refuse a history in which a batch number comes twice or a position goes back.

    Fencing makes both impossible. If they occur all the same (somebody wrote to the topic, or it
    was restored from a copy), resuming would use records twice. Two copies of one state are no
    fork.
    """
    for before, after in itertools.pairwise(records):
        if after == before:
            continue
        earlier, later = before.next_positions(), after.next_positions()
        forward = all(p in later and later[p] >= earlier[p] for p in earlier)
        if before.last_round is not None and after.last_round is not None:
            forward = forward and after.last_round - before.last_round == after.batch - before.batch
        if after.batch <= before.batch or not forward:
            raise StateRefused(
                f"the state topic has forked: batch {after.batch} follows batch {before.batch}. "
                "Find out who else writes to it."
            )


def make_estimator(recipe: EstimatorRecipe) -> DPPCA | PaperDPPCA:
    return _kind(recipe)(**_parameters(recipe))


def restore_estimator(
    state: dict[str, Any], release: str, recipe: EstimatorRecipe
) -> DPPCA | PaperDPPCA:
    """Restore the estimator of a state; refuse settings that differ from its own.

    Parameters
    ----------
    release
        The JSON of its last release, which is not part of the state.
    """
    try:
        whole = state | {"release": msgspec.json.decode(release)}
        return _kind(recipe).from_state(whole, **_parameters(recipe))
    except (DPPCAError, msgspec.MsgspecError, RecursionError) as error:
        raise StateRefused(
            f"the stored model does not fit the settings: {error}. Go back to the old setting, or "
            f"{_NEW_MODEL}."
        ) from None


def _kind(recipe: EstimatorRecipe) -> type[DPPCA] | type[PaperDPPCA]:
    return PaperDPPCA if recipe.method == "paper" else DPPCA


def _parameters(recipe: EstimatorRecipe) -> dict[str, Any]:
    parameters = dict(recipe.parameters)
    if "unit" in parameters:
        parameters["unit"] = PerSubject(**parameters["unit"])
    return parameters


def warm_up() -> None:
    """Load the libraries of the first batch: that takes seconds, in which a task cannot stop."""
    make_noise(None).gaussian(np.zeros(1), sensitivity=1.0, mu=1.0)

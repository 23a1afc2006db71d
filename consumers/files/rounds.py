"""Privacy per subject on files: `stream-dppca run --subject COLUMN --round 1h --time COLUMN`.

A row belongs to the round that its time is in. The rounds of a file are those from its first time
to its last, which count as public; each of them is released, also one without any row.

Rows must be in the order of their rounds; within a round they may stand in any order. A file is
read twice: the first time only to check that, before anything of it is released. An error at that
moment has told nobody anything. To take rows as they come, and close a round when a later one
begins, would let one row with a wrong time close the round for all rows after it.

The state knows the last round that was released. Rows of that round and of earlier ones are
ignored, whatever file they are in, so no file can be used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from .. import crashpoints
from ..errors import ConfigurationError
from ..model.learner import Finisher, Learner
from ..model.states import StateRecord, UsedInput, decode_state
from ..protocols import FinishedBatch
from ..settings import MESSAGE_KEY, FileSettings, RoundRule
from .blocks import FileFormat
from .run import how_far, identity_of
from .stamped import StampedRows, read_stamped_blocks
from .store import NoState, StateFile

__all__ = ["Outcome", "run_rounds"]

#: More rounds than these in one file are taken for a mistake in the times.
MOST_ROUNDS: Final = 100_000


class Outcome(NamedTuple):
    """What became of an input."""

    rounds: int  #: released in this run
    finished: bool  #: whether the horizon is reached


class _Span(NamedTuple):
    """The rounds of a file."""

    first: int
    last: int


def run_rounds(
    settings: FileSettings,
    source: str,
    format: FileFormat,
    time: str,
    *,
    state: Path | None,
    out: Callable[[bytes], None],
    progress: Callable[[int, int], None] = lambda slots, batches: None,
    new_records: bool = False,
) -> Outcome:
    """Learn from a file, round by round; releases go to `out`.

    Parameters
    ----------
    time
        The column that says when a row is from.
    state
        Where to keep the state; without one, nothing is kept.
    new_records
        The input may have another name than the last one.
    """
    rule = _rule(settings, source, time)
    span = _checked_span(_rounds_of(settings, source, format, rule, time), source, time)
    store = NoState(out) if state is None else StateFile(state, out)
    try:
        refusal = f"--state {state} cannot be read: is it a state that `run` has written?"
        history = [decode_state(value, refusal) for value in store.load()]
        last = history[-1] if history else None
        identity = identity_of(settings, last, state, new_records, rule)
        learner = Learner(identity, settings.estimator(), history)
        if learner.current is not None:
            store.publish([learner.current], learner.positions)
        released = 0
        if span is not None:
            inputs = _inputs(settings.input_topic, last)
            blocks = _rounds_of(settings, source, format, rule, time)
            finisher = Finisher(store)
            for batch in _finished_rounds(learner, blocks, span, rule, inputs):
                finisher.finish(batch)
                released += 1
                progress(learner.n_batches * learner.batch_size, learner.n_batches)
        crashpoints.reach("closing")
        return Outcome(released, rule.horizon is not None and learner.n_batches >= rule.horizon)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_far(store, settings, new_records)) from None
    finally:
        store.close()


def _rule(settings: FileSettings, source: str, time: str) -> RoundRule:
    rule = settings.rounds()
    if rule is None:
        raise ConfigurationError("`subject` must be set: the column that says whose row it is")
    if rule.subject == MESSAGE_KEY:
        raise ConfigurationError("`subject` must be a column of the file: it has no message keys")
    if source == "-":
        raise ConfigurationError("--subject needs a file: it is read twice, first to check it")
    return replace(rule, clock=f"time column {time}")


def _rounds_of(
    settings: FileSettings, source: str, format: FileFormat, rule: RoundRule, time: str
) -> Iterator[tuple[StampedRows, np.ndarray]]:
    """The rows of a file that are somebody's, in blocks, with the round of each."""
    for block in read_stamped_blocks(source, format, settings.features, rule.subject, time):
        usable = [
            i
            for i, (who, when) in enumerate(zip(block.subjects, block.times_ms, strict=True))
            if who is not None and when is not None
        ]
        kept = StampedRows(
            block.rows[usable],
            [block.subjects[i] for i in usable],
            [block.times_ms[i] for i in usable],
        )
        rounds = [rule.round_at(when) for when in kept.times_ms if when is not None]
        yield kept, np.array(rounds, dtype=np.int64)


def _checked_span(
    blocks: Iterator[tuple[StampedRows, np.ndarray]], source: str, time: str
) -> _Span | None:
    """The rounds of a file, None if it has no rows; refuses a file that is not in order."""
    first: int | None = None
    last = 0
    for _, rounds in blocks:
        if not len(rounds):
            continue
        if first is None:
            first = last = int(rounds[0])
        if int(rounds[0]) < last or np.any(np.diff(rounds) < 0):
            raise ConfigurationError(
                f"the rows of {source} must be in the order of their rounds: sort them by the "
                f"column {time}. Nothing of the file was used."
            )
        last = int(rounds[-1])
    if first is None:
        return None
    if last - first >= MOST_ROUNDS:
        raise ConfigurationError(
            f"the times in column {time} of {source} must be within {MOST_ROUNDS} rounds. Are "
            "they ISO 8601, or seconds since 1970? Nothing of the file was used."
        )
    return _Span(first, last)


def _finished_rounds(
    learner: Learner,
    blocks: Iterator[tuple[StampedRows, np.ndarray]],
    span: _Span,
    rule: RoundRule,
    inputs: tuple[UsedInput, ...],
) -> Iterator[FinishedBatch]:
    """Every round after the last released one, up to the last of the file or the horizon."""
    current = span.first if learner.last_round is None else learner.last_round + 1

    def over() -> bool:
        done = rule.horizon is not None and learner.n_batches >= rule.horizon
        return current > span.last or done

    def close() -> FinishedBatch:
        nonlocal current
        batch = learner.close_round(current, {0: current + 1}, inputs)
        current += 1
        return batch

    for block, rounds in blocks:
        crashpoints.reach("polling")
        at = int(np.searchsorted(rounds, current))
        while at < len(rounds):
            while not over() and current < int(rounds[at]):
                yield close()
            if over():
                return
            end = int(np.searchsorted(rounds, current, side="right"))
            learner.add(block.rows[at:end], block.subjects[at:end])
            at = end
    while not over():
        yield close()


def _inputs(name: str, last: StateRecord | None) -> tuple[UsedInput, ...]:
    """The names of the inputs so far. Rounds tell what was used of them."""
    before = () if last is None else last.inputs
    if before and before[-1].name == name:
        return before
    return (*before, UsedInput(name, "", 0, "", ""))

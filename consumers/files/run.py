"""Learns from files as the service learns from topics: `stream-dppca run`.

The steps are those of the service (`consumers.model.learner`), with a state file for a store. A bad
row is a null in its slot. The state of a batch is on disk, whole and fsynced, before its release is
printed. A run that starts again prints the last release again, with the same bytes, and resumes at
the row after it. A short last batch is not processed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import crashpoints
from ..errors import StateRefused
from ..model.learner import Finisher, Learner
from ..model.states import ModelIdentity, SlotRule, StateRecord, decode_state
from ..settings import FileSettings, RoundRule
from .blocks import FileFormat, read_blocks
from .inputs import InputRecord, seen_inputs
from .store import NoState, StateFile


class Counted(NamedTuple):
    """Rows of an input."""

    read: int
    waiting: int  #: of these, rows that wait for a full step
    used: int  #: of these, rows in steps of this run
    step: int  #: rows that the next step takes: those of a batch, or of several


def run_file(
    settings: FileSettings,
    source: str,
    format: FileFormat,
    *,
    state: Path | None,
    out: Callable[[bytes], None],
    progress: Callable[[int, int], None] = lambda slots, batches: None,
    new_records: bool = False,
    share: Callable[[float], None] = lambda share: None,
    resumed: Callable[[int], object] = lambda rows: None,
) -> Counted:
    """Learn from a file; releases go to `out`. An interrupt says how far the run came.

    Parameters
    ----------
    state
        File that keeps the state; without one, nothing is kept.
    new_records
        The input holds only rows that come after the state. Otherwise it is the last input again,
        and the rows that the state has used are skipped.
    share
        Called with the share of the file that has been read, where that is known.
    resumed
        Called with the number of rows to pass over, if the state has used some of this input.
    """
    with opened_model(settings, state, out, new_records) as (store, learner, last):
        used = () if last is None else last.inputs
        seen = seen_inputs(store.secret(), used, state)
        again = bool(seen) and not new_records
        record = InputRecord(settings.input_topic, learner.capacity, seen, again)
        if record.missing:
            resumed(record.missing)
        if learner.unpublished:
            store.publish(learner.unpublished, learner.positions)
        finisher = Finisher(store, learner.writer)
        size, total = learner.capacity, learner.positions.get(0, 0)
        before = total
        batch = np.empty((size, len(settings.features)))
        read = filled = 0
        for block in read_blocks(source, format, settings.features, share):
            crashpoints.reach("polling")
            read += len(block)
            rows = record.pass_over(block)
            while len(rows):
                taken = rows[: size - filled]
                batch[filled : filled + len(taken)] = taken
                filled, rows = filled + len(taken), rows[len(taken) :]
                if filled == size:
                    record.use(batch)
                    total, filled = total + size, 0
                    store.keep_secret(record.secret())
                    finished = learner.learn(batch, {0: total}, record.inputs())
                    if finished is not None:
                        finisher.finish([finished])
                        record.commit()
                progress(total + filled, learner.n_batches)
        record.check_end(read)
        crashpoints.reach("closing")
        early = learner.taken * size
        return Counted(read, filled + early, total - early - before, size * learner.step_batches)


@contextlib.contextmanager
def opened_model(
    settings: FileSettings,
    state: Path | None,
    out: Callable[[bytes], None],
    new_records: bool,
    rounds: RoundRule | None = None,
) -> Iterator[tuple[NoState, Learner, StateRecord | None]]:
    """Open the store, and the learner that resumes after its last state; an interrupt explains."""
    store = NoState(out) if state is None else StateFile(state, out)
    try:
        refusal = f"--state {state} cannot be read: is it a state that `run` has written?"
        history = [decode_state(value, refusal) for value in store.load()]
        last = history[-1] if history else None
        identity = identity_of(settings, last, state, new_records, rounds)
        yield store, Learner(identity, settings.estimator(), history), last
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_far(store, settings, new_records)) from None
    finally:
        store.close()


def identity_of(
    settings: FileSettings,
    last: StateRecord | None,
    path: Path | None,
    new_records: bool,
    rounds: RoundRule | None = None,
) -> ModelIdentity:
    """The identity of the model. After the first input, names follow the state where they may."""
    model, name = settings.model, settings.input_topic
    if last is not None:
        if not last.inputs:
            raise StateRefused(f"--state {path} is not the state of a file: it names no input")
        first, before = last.identity, last.inputs[-1].name
        if name != before and not new_records:
            raise StateRefused(
                f"--state {path} was made from another input: {before}, not {name}. To continue "
                "with new records, give --new-records."
            )
        if name != first.input and model == name:
            model = first.model
        name = first.input
        if model != first.model:
            raise StateRefused(
                f"--state {path} is of model {first.model}, not {model}. Go back to the old name, "
                "or give the new model another state."
            )
    if rounds is not None:
        return ModelIdentity(model, name, SlotRule("rounds"), rounds)
    return ModelIdentity(model, name, SlotRule("rows"))


def how_far(store: NoState, settings: FileSettings, new_records: bool) -> str:
    """Return how far an interrupted run came, and what to do now."""
    states = store.load()
    if not isinstance(store, StateFile):
        return (
            "stopped; without --state nothing was kept. The releases that were printed have used "
            "their records: another run on the same input would use these a second time and weaken "
            "the guarantee. With --state FILE a run that is stopped can be resumed."
        )
    if not states:
        return "stopped before the end of the first batch; run again to start over"
    last = decode_state(states[-1], "the state cannot be read")
    if new_records and last.inputs[-1].name == settings.input_topic:
        return f"stopped after batch {last.batch}; run again without --new-records to resume"
    return f"stopped after batch {last.batch}; run again to resume"

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
from ..model.finisher import Finisher
from ..model.learner import Learner
from ..model.states import ModelIdentity, SlotRule, StateRecord, read_history
from ..settings import FileSettings, OnceSettings, RoundRule
from .blocks import FileFormat, read_columns
from .inputs import InputRecord, seen_inputs
from .store import FileStore, NoState, StateFile


class Run(NamedTuple):
    """A run on a file."""

    settings: FileSettings
    source: str  #: path of the file, or `-`
    format: FileFormat
    state: Path | None  #: file that keeps the state; without one, nothing is kept
    #: The input holds only rows that come after the state. Otherwise it is the last input again,
    #: and the rows that the state has used are skipped.
    new_records: bool
    out: Callable[[bytes], None]  #: of releases
    tell: Callable[[str], object]  #: of what there is to know about the run
    progress: Callable[[float | None], object]  #: the share of the file that has been read

    @property
    def name(self) -> str:
        """The name of the input, which the settings hold in the place of a topic."""
        return self.settings.input_topic


def run_file(run: Run) -> None:
    """Learn from a file, batch by batch."""
    settings = run.settings
    with opened_model(run) as (store, learner, last):
        used = () if last is None else last.inputs
        seen = seen_inputs(store.secret(), used, run.state)
        again = bool(seen) and not run.new_records
        record = InputRecord(run.name, learner.capacity, seen, again)
        if record.missing:
            run.tell(f"resuming after {record.missing} rows")
        if learner.unpublished:
            store.publish(learner.unpublished, learner.positions)
        finisher = Finisher(store, learner.writer)
        size, total = learner.capacity, learner.positions.get(0, 0)
        before = total
        batch = np.empty((size, len(settings.features)))
        read = filled = 0
        for block in read_columns(run.source, run.format, settings.features, ()):
            crashpoints.reach("polling")
            run.progress(block.share)
            read += len(block.rows)
            rows = record.pass_over(block.rows)
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
        record.check_end(read)
        crashpoints.reach("closing")
        waiting, step = filled + learner.taken * size, size * learner.step_batches
        if not read:
            run.tell("there were no records in the input")
        elif waiting and run.state and not run.new_records:
            run.tell(f"{waiting} rows wait for a full step of {step}")
        elif waiting:
            run.tell(f"{waiting} rows were left over: fewer than a step of {step}")
        elif total == before:
            run.tell(f"all {read} rows were used before: this is the last release again")


@contextlib.contextmanager
def opened_model(
    run: Run, rounds: RoundRule | None = None
) -> Iterator[tuple[FileStore, Learner, StateRecord | None]]:
    """Open the store, and the learner that resumes after its last state; an interrupt explains."""
    store: FileStore = NoState(run.out) if run.state is None else StateFile(run.state, run.out)
    try:
        refusal = f"--state {run.state} cannot be read: is it a state that `run` has written?"
        history, following = read_history(store.load(), store.unfinished(), refusal)
        if following is not None:
            store.commit(following, {})
        last = history[-1] if history else None
        learner = Learner(identity_of(run, last, rounds), run.settings.estimator_recipe(), history)
        yield store, learner, last
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_far(run, store)) from None
    finally:
        store.close()


def identity_of(run: Run, last: StateRecord | None, rounds: RoundRule | None) -> ModelIdentity:
    """The identity of the model. After the first input, names follow the state where they may."""
    model, name = run.settings.model, run.name
    if last is not None:
        if not last.inputs:
            raise StateRefused(f"--state {run.state} is not the state of a file: it names no input")
        first, before = last.identity, last.inputs[-1].name
        if name != before and not run.new_records:
            raise StateRefused(
                f"--state {run.state} was made from another input: {before}, not {name}. To "
                "continue with new records, give --new-records."
            )
        used, size = last.inputs[0].rows, run.settings.batch_size
        batch_size = last.estimator.get("config", {}).get("batch_size", used)
        if isinstance(run.settings, OnceSettings) and (last.batch > 1 or batch_size != used):
            raise StateRefused(
                f"--state {run.state} has learned in batches, and --once is for one file as one "
                "batch, never after batches. Leave out --once, or put rows that were never used "
                "into a file of their own, with its own --state."
            )
        if isinstance(run.settings, OnceSettings) and used != size:
            raise StateRefused(
                f"--state {run.state} has learned from {used} rows, and this file has {size}. With "
                "--once a model learns from one file once: put new rows into a file of their "
                "own, with its own --state."
            )
        if name != first.input and model == name:
            model = first.model
        name = first.input
        if model != first.model:
            raise StateRefused(
                f"--state {run.state} is of model {first.model}, not {model}. Go back to the old "
                "name, or give the new model another state."
            )
    return ModelIdentity(model, name, SlotRule("rows" if rounds is None else "rounds"), rounds)


def how_far(run: Run, store: FileStore) -> str:
    """Return how far an interrupted run came, and what to do now."""
    if run.state is None:
        return (
            "stopped; without --state nothing was kept. The releases that were printed have used "
            "their records: another run on the same input would use these a second time and weaken "
            "the guarantee. With --state FILE a run that is stopped can be resumed."
        )
    history, _ = read_history(store.load(), store.unfinished(), "the state cannot be read")
    if not history:
        return "stopped before the end of the first batch; run again to start over"
    last = history[-1]
    new = run.new_records and last.inputs[-1].name == run.name
    how = " without --new-records" if new else ""
    return f"stopped after batch {last.batch}; run again{how} to resume"

"""Privacy per subject on files: `stream-dppca run --subject COLUMN --round 1h --time COLUMN`.

The rounds to release are declared (`--from`, `--until`), never derived from the file; each of them
is released, also one without any row. A row belongs to the round that its own time is in, wherever
it stands in the file (`sorting`), so what one subject sends changes neither the number of releases
nor the round of anybody else's row. A row that is in no declared round is ignored silently.

The state knows the last round that was released. Rows of that round and of earlier ones are
ignored, whatever file they are in, so no file can be used twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .. import crashpoints
from ..errors import ConfigurationError
from ..model.finisher import Finisher
from ..model.states import StateRecord, UsedInput
from ..settings import MESSAGE_KEY, RoundRule
from .blocks import FileRows, read_columns
from .run import Run, opened_model
from .sorting import rounds_at_once, sorted_rounds
from .times import declared_rounds, time_text


def run_rounds(run: Run, time: str, begin: str | None, until: str) -> None:
    """Learn from a file, round by round.

    Parameters
    ----------
    time
        The column with the time of each row.
    begin, until
        The beginning of the first round and the end of the last one. A model that has a state
        begins where its state ended.
    """
    rule, settings = _rule(run, time), run.settings
    with opened_model(run, rule) as (store, learner, last):
        before = learner.last_round
        rounds = declared_rounds(rule, begin, until, before)
        if rule.horizon is not None:
            rounds = rounds[: max(0, rule.horizon - learner.n_batches)]
        if learner.unpublished:
            store.publish(learner.unpublished, learner.positions)

        def read() -> Iterator[FileRows]:
            columns = (rule.subject, time)
            for block in read_columns(run.source, run.format, settings.features, columns):
                crashpoints.reach("polling")
                run.progress(block.share)
                yield block

        inputs = _inputs(run.name, last)
        finisher = Finisher(store, learner.writer)
        width, places, records = len(settings.features), learner.capacity, settings.records
        at_once = rounds_at_once(width, places, records)
        for number, kept in sorted_rounds(
            read, rule, rounds, at_once=at_once, places=places, records=records
        ):
            learner.add(kept.rows(width), kept.subjects)
            finisher.finish([learner.close_round(number, {0: number + 1}, inputs)])
        crashpoints.reach("closing")
        finished = rule.horizon is not None and learner.n_batches >= rule.horizon
        if rounds and before is not None:
            run.tell(f"began at {time_text(rule.end_ms(before))}, where the state ended")
        if finished:
            run.tell("the horizon is reached: this model learns nothing more")
        elif not rounds:
            run.tell("no round before --until is left to release: this is the last release again")


def _rule(run: Run, time: str) -> RoundRule:
    rule = run.settings.rounds()
    if rule is None:
        raise ConfigurationError("`subject` must be set: the column with the subject of each row")
    if rule.subject == MESSAGE_KEY:
        raise ConfigurationError("`subject` must be a column of the file: it has no message keys")
    if run.source == "-":
        raise ConfigurationError(
            "--subject needs a file, not standard input: many rounds need several passes over it"
        )
    if run.format == "npy":
        raise ConfigurationError("--subject needs columns with names: csv, jsonl or parquet")
    return replace(rule, clock=f"time column {time}")


def _inputs(name: str, last: StateRecord | None) -> tuple[UsedInput, ...]:
    """The names of the inputs so far. The rounds tell which of their rows were used."""
    before = () if last is None else last.inputs
    if before and before[-1].name == name:
        return before
    return (*before, UsedInput(name, 0))

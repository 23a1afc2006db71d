"""Privacy per subject on files: `stream-dppca run --subject COLUMN --round 1h --time COLUMN`.

The rounds to release are declared (`--from`, `--until`), never derived from the file; each of them
is released, also one without any row. A row belongs to the round that its own time is in, wherever
it stands in the file (`sorting`), so what one subject sends changes neither the number of releases
nor the round of anybody else's row. A row that is in no declared round is ignored silently.

The state knows the last round that was released. Rows of that round and of earlier ones are
ignored, whatever file they are in, so no file can be used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .. import crashpoints
from ..errors import ConfigurationError
from ..model.learner import Finisher
from ..model.states import StateRecord, UsedInput
from ..settings import MESSAGE_KEY, FileSettings, RoundRule
from .blocks import FileFormat
from .run import opened_model
from .sorting import rounds_at_once, sorted_rounds
from .span import declared_span
from .stamped import StampedRows, read_stamped_blocks


class Outcome(NamedTuple):
    """The result of a run. All of it follows from the options and the state."""

    rounds: int  #: released in this run
    finished: bool  #: the horizon is reached
    state_end_ms: int | None  #: end of the state before this run; None for a new model


def run_rounds(
    settings: FileSettings,
    source: str,
    format: FileFormat,
    time: str,
    *,
    begin: str | None,
    until: str,
    state: Path | None,
    out: Callable[[bytes], None],
    progress: Callable[[int, int], None] = lambda slots, batches: None,
    new_records: bool = False,
) -> Outcome:
    """Learn from a file, round by round; releases go to `out`.

    Parameters
    ----------
    time
        The column with the time of each row.
    begin, until
        The beginning of the first round and the end of the last one. A model that has a state
        begins where its state ended.
    state
        File that keeps the state; without one, nothing is kept.
    new_records
        The input may have another name than the last one.
    """
    rule = _rule(settings, source, time)
    with opened_model(settings, state, out, new_records, rule) as (store, learner, last):
        before = learner.last_round
        span = declared_span(rule, begin, until, before)
        if rule.horizon is not None:
            left = max(0, rule.horizon - learner.n_batches)
            span = span._replace(end=min(span.end, span.first + left))
        if learner.unpublished:
            store.publish(learner.unpublished, learner.positions)

        def read(wanted: Callable[[int], bool]) -> Iterator[StampedRows]:
            for block in read_stamped_blocks(
                source, format, settings.features, rule.subject, time, wanted
            ):
                crashpoints.reach("polling")
                yield block

        inputs = _inputs(settings.input_topic, last)
        finisher = Finisher(store, learner.writer)
        width, places, records = len(settings.features), learner.capacity, settings.records
        at_once = rounds_at_once(width, places, records)
        for number, kept in sorted_rounds(
            read, rule, span, at_once=at_once, places=places, records=records
        ):
            learner.add(kept.rows(width), kept.subjects)
            finisher.finish([learner.close_round(number, {0: number + 1}, inputs)])
            progress(learner.n_batches * learner.capacity, learner.n_batches)
        crashpoints.reach("closing")
        return Outcome(
            rounds=span.end - span.first,
            finished=rule.horizon is not None and learner.n_batches >= rule.horizon,
            state_end_ms=None if before is None else rule.end_ms(before),
        )


def _rule(settings: FileSettings, source: str, time: str) -> RoundRule:
    rule = settings.rounds()
    if rule is None:
        raise ConfigurationError("`subject` must be set: the column with the subject of each row")
    if rule.subject == MESSAGE_KEY:
        raise ConfigurationError("`subject` must be a column of the file: it has no message keys")
    if source == "-":
        raise ConfigurationError(
            "--subject needs a file, not standard input: many rounds need several passes over it"
        )
    return replace(rule, clock=f"time column {time}")


def _inputs(name: str, last: StateRecord | None) -> tuple[UsedInput, ...]:
    """The names of the inputs so far. The rounds tell which of their rows were used."""
    before = () if last is None else last.inputs
    if before and before[-1].name == name:
        return before
    return (*before, UsedInput(name, 0))

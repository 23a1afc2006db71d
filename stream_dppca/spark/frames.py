"""Learns from data frames: data at rest on Spark.

A frame has a slot for each of its rows (a public column of whole numbers), or each frame is one
batch. Every task adds up the rows of a partition of the frame as they come; no row is moved between
machines. Since the place of a row in its partition may depend on others (files are split by their
sizes), its distances are computed row by row, and nothing depends on places.

**Slots must be public.** The slot of a row, or the frame that it is in, decides its batch, so it
must not depend on the content of the row or of any other row: it may be the line number of an
import, a time of arrival, a sequence number. An earlier filter, `limit` or order by content breaks
the guarantee; so does a join that drops or doubles rows by content. Plans that are not
deterministic are refused.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, NumericType

from ..arrays import aligned
from ..batch import Reading
from ..checks import whole
from ..engine import EngineError, EngineRows
from ..engine.partials import Partial, merged, partial_of
from ..errors import ParameterError
from ..estimator import DPPCA
from ..statistics import Statistic
from .engine import refuse_exposed, safe_reason


def fit(
    frames: DataFrame | Iterable[DataFrame],
    *,
    features: Sequence[str],
    epsilon: float,
    delta: float,
    batch_size: int,
    slot: str | None = None,
    allow_insecure: bool = False,
    **parameters: Any,
) -> DPPCA:
    """Learn a private model from data frames.

    Frames must be deterministic: every batch reads its rows in one job, and the first step in
    several. Nothing is cached. A frame that is laid out by its slot column (partitions, or sorted
    Parquet files) is read once; others are read once per batch.

    Parameters
    ----------
    frames
        A frame with a slot column; or frames of which each is one batch, with at most `batch_size`
        rows.
    features
        Columns of numbers.
    epsilon, delta, batch_size
        As for `DPPCA`.
    slot
        The column that numbers the slots of the whole stream: 0, 1, 2, ... Row s is in batch
        s // batch_size. A slot without a row is a null; a last batch that is not full is left out.
    allow_insecure
        If true, a remote master may do without authentication and encryption.
    parameters
        Other parameters of `DPPCA`, except `unit`.

    Returns
    -------
    DPPCA
        The model, with `components`, `last_release`, `transform_many`, `state` and so on.
    """
    model = DPPCA(
        features=tuple(features), epsilon=epsilon, delta=delta, batch_size=batch_size, **parameters
    )
    if slot is None:
        batches: Iterable[DataFrame] = [frames] if isinstance(frames, DataFrame) else frames
    else:
        if not isinstance(frames, DataFrame):
            raise ParameterError("slot", "must be None if frames are batches", slot)
        refuse_exposed(frames.sparkSession, allow_insecure)
        batches = _batches(frames, slot, batch_size, _slots(frames, slot) // batch_size)
    for frame in batches:
        refuse_exposed(frame.sparkSession, allow_insecure)
        ask = partial(_ask, _numbers(frame, features), model.reading)
        model.learn_rows(EngineRows(ask, batch_size))
    return model


def _column(name: str) -> str:
    """The name of a column as Spark reads it: a dot in it is part of the name."""
    return "`" + name.replace("`", "``") + "`"


def _slots(frame: DataFrame, slot: str) -> int:
    """Number of slots: one more than the largest of the public numbers."""
    if slot not in frame.columns or not isinstance(frame.schema[slot].dataType, IntegralType):
        raise ParameterError("slot", "must be a column of whole numbers", slot)
    _refuse_indeterminate(frame)
    column = F.col(_column(slot))
    try:
        first, last = frame.agg(F.min(column), F.max(column)).collect()[0]
    except Exception as error:
        reason = safe_reason(error)
    else:
        if first is None:
            return 0
        whole("slot", first, 0, 2**62)
        return int(last) + 1
    raise EngineError(f"the slots could not be read: {reason}") from None


def _batches(frame: DataFrame, slot: str, size: int, count: int) -> Iterator[DataFrame]:
    column = F.col(_column(slot))
    for i in range(count):
        yield frame.where((column >= i * size) & (column < (i + 1) * size))


def _numbers(frame: DataFrame, features: Sequence[str]) -> DataFrame:
    """The features as float64, by one rule for every value."""
    _refuse_indeterminate(frame)
    for name in features:
        found = frame.schema[name].dataType if name in frame.columns else None
        if not isinstance(found, NumericType):
            what = "missing" if found is None else found.simpleString()
            raise ParameterError("features", f"must be columns of numbers: {name!r}", what)
    return frame.select(
        *(F.col(_column(name)).cast("double").alias(f"x{i}") for i, name in enumerate(features))
    )


def _refuse_indeterminate(frame: DataFrame) -> None:
    if not frame._jdf.queryExecution().analyzed().deterministic():
        rule = "must be deterministic: rand() and the like give other rows in every job"
        raise ParameterError("frames", rule, "a plan that is not")


def _ask(frame: DataFrame, reading: Reading, question: Statistic) -> list[Partial]:
    """Ask all partitions of a frame."""
    width = len(frame.columns)
    task = partial(_answer, question, reading, width)
    try:
        rows = frame.mapInArrow(task, "answer binary").collect()
    except Exception as error:
        reason = safe_reason(error)
    else:
        # Executors are as trusted with the answers as with the records.
        answers = (pickle.loads(bytes(row[0])) for row in rows)  # noqa: S301
        return [_nothing(question, reading, width), *answers]
    raise EngineError(f"a job of Spark failed: {reason}") from None


def _nothing(question: Statistic, reading: Reading, width: int) -> Partial:
    """The answer about no rows at all, so that an empty frame or partition has an answer."""
    null = partial_of(question, np.full((1, width), np.nan), reading, placed=False)
    return Partial(null.total, 0, frozenset())


def _answer(
    question: Statistic, reading: Reading, width: int, batches: Iterator[Any]
) -> Iterator[Any]:
    """Run a task: answer a question about the rows of a partition, in one row.

    The task turns batches of Arrow records into batches of Arrow records.
    """
    pa = importlib.import_module("pyarrow")  # without types

    def partials() -> Iterator[Partial]:
        for batch in batches:
            if batch.num_rows:
                rows = aligned(batch.num_rows, width)
                for j, column in enumerate(batch.columns):
                    rows[:, j] = column.to_numpy(zero_copy_only=False)
                yield partial_of(question, rows, reading, placed=False)

    try:
        with np.errstate(all="ignore"):  # a warning would say something about the records
            answer = merged(chain([_nothing(question, reading, width)], partials()))
    except Exception as error:
        problem = type(error).__name__
    else:
        yield pa.record_batch({"answer": pa.array([pickle.dumps(answer)], pa.binary())})
        return
    raise EngineError(f"a task failed with {problem}") from None

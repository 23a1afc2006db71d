"""One model whose batches are spread over the tasks of an engine.

A batch is a number of slots. It is split into groups of slots by public numbers (`split`). A task
reads the rows of its group from a `Source`, wherever it runs, and answers a question with partial
sums; the driver adds them in the order of the groups. The mechanism uses `EngineRows` like a batch
in memory, and does not know which engine runs: noise, state and releases stay in the driver.

    model = DPPCA(...)
    batches = EngineBatches(engine, model, tasks=8)
    model.learn_rows(batches.rows(source))

`LocalEngine` runs the tasks in this process. `stream_dppca.spark` has an engine for Apache Spark.
"""

from .groups import Group, split
from .protocol import Engine, EngineError, LocalEngine, Source, SourceAway
from .rows import EngineBatches, EngineRows

__all__ = [
    "Engine",
    "EngineBatches",
    "EngineError",
    "EngineRows",
    "Group",
    "LocalEngine",
    "Source",
    "SourceAway",
    "split",
]

"""Apache Spark as an engine, and the settings that a cluster must have."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from ..engine import EngineError, SourceAway
from ..errors import ParameterError

G = TypeVar("G")
R = TypeVar("R")

#: Without these settings, partial sums cross the network and lie on disks in the clear. Of several
#: names, one is enough.
REQUIRED: Final = (
    ("spark.authenticate",),
    ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled"),
    ("spark.io.encryption.enabled",),
)
#: Error texts of our own tasks: slots and kinds of errors, never a record.
_OURS: Final = re.compile(r"EngineError: (slots \d+ to \d+: [^\n]{1,200}|[a-z][^\n]{1,300})")
_AWAY: Final = re.compile(r"SourceAway: ([a-z][^\n]{1,300})")


def refuse_exposed(session: SparkSession, allow_insecure: bool = False) -> None:
    """Refuse a remote master that would send and store partial sums in the clear.

    Partial sums are exact, and as secret as records.
    """
    master = str(session.sparkContext.master)
    if allow_insecure or master.startswith("local[") or master == "local":
        return
    conf = session.sparkContext.getConf()
    missing = [
        " or ".join(names)
        for names in REQUIRED
        if not any(str(conf.get(name, "false")).lower() == "true" for name in names)
    ]
    if missing:
        rule = f"must have {', '.join(missing)} set to true: partial sums are as secret as records"
        raise ParameterError("session", rule, master, "Or take the risk: allow_insecure=True.")


def safe_reason(error: Exception) -> str:
    """The reason why a job failed, without anything that an error may quote of a record."""
    found = _OURS.search(str(error))
    return found[1] if found else f"{type(error).__name__}: see the log of the executors"


class SparkEngine:
    """Runs one task per group on the executors of a session.

    `stream_dppca` must be installed where executors run, in the same version. Spark runs a task
    again if its process or its machine is lost; after the number of failures that
    `spark.task.maxFailures` allows, the job ends in an `EngineError`.

    Parameters
    ----------
    session
        The session; it stays open.
    allow_insecure
        If true, a remote master may do without authentication and encryption.
    """

    def __init__(self, session: SparkSession, *, allow_insecure: bool = False) -> None:
        refuse_exposed(session, allow_insecure)
        self._context = session.sparkContext

    @property
    def parallelism(self) -> int:
        """Number of tasks that run at a time."""
        return int(self._context.defaultParallelism)

    @property
    def executors(self) -> int:
        """Number of processes that can run tasks now."""
        # The driver stores blocks, too, and is counted here.
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    @property
    def stopped(self) -> bool:
        """True if the session or the process of its driver has ended: nothing runs any more."""
        try:
            return bool(self._context._jsc.sc().isStopped())
        except Exception:
            return True

    def cancel(self) -> None:
        """End all running jobs; each ends in an `EngineError`."""
        self._context.cancelAllJobs()

    def map(self, task: Callable[[G], R], groups: Sequence[G]) -> list[R]:
        """The results of all groups, in the order of the groups."""
        try:
            return list(self._context.parallelize(list(groups), len(groups)).map(task).collect())
        except Exception as error:
            away, reason = _AWAY.search(str(error)), safe_reason(error)
        if away:
            raise SourceAway(away[1])
        raise EngineError(f"a job of Spark failed: {reason}") from None

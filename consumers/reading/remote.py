"""An engine whose tasks read a topic, and what they need for that.

An *engine* runs tasks in other processes, and nothing else (`stream_dppca.engine.Engine`). There
are two uses of it. With privacy per record, tasks read a batch and send back sums over its rows
(`RemoteSums`). With privacy per subject, they read pieces of a round and send back rows
(`RemoteRows`), because all rows of a subject must meet in one process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from stream_dppca.engine import Engine, EngineError, SourceAway

from ..errors import ClusterError, EngineLost, RegistryAway
from ..kafka.config import TaskConnection
from ..kafka.registry import open_registry
from ..messages.codecs import Codec, SubjectCodec
from ..messages.gathered import Gathering
from ..messages.recipe import MessageRecipe
from ..monitoring.metrics import Metrics
from .executors import CoreWatch
from .registry_wait import RegistryWait

G = TypeVar("G")
R = TypeVar("R")

#: Pause before a job that needed the registry runs again.
ASK_AGAIN_SECONDS: Final = 1.0


# With a Schema Registry, tasks fetch schemas themselves, each process once per schema: the schemas
# are known when messages are read, and the driver reads none. An id that is unknown makes its own
# message a null and is not remembered (`messages.registered`), so how a message is read depends on
# no other message, in any process. While the registry is away, tasks fail and are run again
# (`GuardedEngine`).


@lru_cache(maxsize=8)
def codec_of(recipe: MessageRecipe) -> Codec:
    """The codec of a recipe, made once per process, with the schemas that it has fetched."""
    return recipe.codec(open_registry(recipe))


@lru_cache(maxsize=8)
def subject_codec_of(recipe: MessageRecipe) -> SubjectCodec | Gathering:
    """The same, for privacy per subject."""
    return recipe.subject_codec(open_registry(recipe))


@contextlib.contextmanager
def later_if_away() -> Iterator[None]:
    """Turn the error of a registry that is away into one that lets the job run again."""
    try:
        yield
    except RegistryAway as error:
        raise SourceAway(str(error)) from None


@dataclass(frozen=True)
class Remote:
    """Everything that is needed to read a topic in the tasks of an engine."""

    engine: Engine
    tasks: Callable[[], int]  #: approximate number of groups of the next batch
    connection: TaskConnection
    recipe: MessageRecipe  #: of the messages
    cores: CoreWatch | None = None  #: watches whether the engine has executors
    lost: Callable[[], bool] = lambda: False  #: True if no job can ever run on the engine again
    #: Called again and again while a job waits for the registry; False ends the wait.
    may_wait: Callable[[], bool] = lambda: True


class GuardedEngine:
    """An engine whose failures drop the service's `Task`: its successor begins at the last state.

    A lost engine ends the process, whose successor has a new engine. A job that needs a schema
    registry that is away is run again, and the plan stays as it is: if the `Task` were dropped, a
    record that names a schema of its own choice would decide when the plan begins anew.
    """

    def __init__(self, remote: Remote, metrics: Metrics) -> None:
        self._remote, self._registry_wait = remote, RegistryWait(metrics)
        self._progress = metrics.progress

    def map(self, task: Callable[[G], R], groups: Sequence[G]) -> list[R]:
        cores = self._remote.cores
        try:
            while True:
                try:
                    with contextlib.nullcontext() if cores is None else cores.job():
                        found = self._remote.engine.map(task, groups)
                    self._progress.moved()
                    return found
                except SourceAway as error:
                    self._registry_wait.note(error)
                    if not self._remote.may_wait():
                        raise ClusterError(str(error)) from None
                    time.sleep(ASK_AGAIN_SECONDS)
        except EngineError as error:
            if self._remote.lost():
                raise EngineLost("the driver of the engine has ended: start again") from None
            raise ClusterError(str(error)) from None
        finally:
            self._registry_wait.end()

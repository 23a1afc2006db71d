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
from ..kafka.configure import connect_registry, registry_options
from ..messages.codecs import Codec, SubjectCodec
from ..messages.fold import MOST_SERIES
from ..messages.gathered import Gathering
from ..messages.recipe import MessageRecipe
from ..protocols import SchemaSource
from ..settings import Settings
from .cores import CoreWatch
from .metrics import Metrics
from .registry_wait import RegistryWait

G = TypeVar("G")
R = TypeVar("R")

#: Pause before a job that needed the registry runs again.
ASK_AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, repr=False)  # the registry may have a password
class CodecRecipe:
    """Makes the codec of a topic where it is needed, and once per process.

    With a Schema Registry, tasks fetch schemas themselves, each process once per schema: the
    schemas are known when messages are read, and the driver reads none. An id that is unknown makes
    its own message a null and is not remembered (`model.registered`), so how a message is read
    depends on no other message, in any process. While the registry is away, tasks fail and are run
    again (`GuardedEngine`).
    """

    messages: MessageRecipe
    registry: tuple[tuple[str, str], ...] | None = None  #: options of its client

    @classmethod
    def of(cls, settings: Settings) -> CodecRecipe:
        """The recipe of the codec of a service with these settings."""
        options = registry_options(settings)
        known = None if options is None else tuple(sorted(options.items()))
        return cls(MessageRecipe.of(settings), known)

    def connect(self) -> SchemaSource | None:
        """The Schema Registry, if the format needs one."""
        if self.registry is None:
            return None
        return connect_registry(self.messages.format, dict(self.registry))

    def __call__(self) -> Codec:
        return _made(self)

    def for_subjects(self) -> SubjectCodec | Gathering:
        """Make the codec for privacy per subject."""
        return _made_for_subjects(self)

    @property
    def rows_per_message(self) -> int:
        """Most rows that one message stands for in the memory of a task, about."""
        if self.messages.grouping is not None:
            return MOST_SERIES
        return min(self.messages.rows_per_message or 1, self.messages.records)


@lru_cache(maxsize=8)
def _made(recipe: CodecRecipe) -> Codec:
    """The codec of a recipe, with the schemas that it has fetched."""
    return recipe.messages.codec(recipe.connect())


@lru_cache(maxsize=8)
def _made_for_subjects(recipe: CodecRecipe) -> SubjectCodec | Gathering:
    return recipe.messages.subject_codec(recipe.connect())


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
    codec: Callable[[], Codec]
    cores: CoreWatch | None = None  #: watches whether the engine has executors
    lost: Callable[[], bool] = lambda: False  #: True if no job can ever run on the engine again
    #: Called again and again while a job waits for the registry; False ends the wait.
    may_wait: Callable[[], bool] = lambda: True
    subjects: CodecRecipe | None = None  #: with privacy per subject


class GuardedEngine:
    """An engine whose failures drop the task: the successor begins at the last state.

    A lost engine ends the process, whose successor has a new engine. A job that needs a schema
    registry that is away is run again, and the plan stays as it is: if the task of the service were
    dropped, a record that names a schema of its own choice would decide when the plan begins anew.
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

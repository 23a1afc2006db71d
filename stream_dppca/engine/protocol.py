"""The interface between a batch and the engine that its tasks run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import DPPCAError
from .groups import Group

G = TypeVar("G")
R = TypeVar("R")


class EngineError(DPPCAError):
    """A task of an engine failed. The text names the group and the kind of error, nothing else."""


class SourceAway(EngineError):
    """Something that a source needs does not answer. The same question can be asked again.

    A source raises it with a text that is about no record. It does not say in which group: which
    records needed what is away is not public.
    """


class Engine(Protocol):
    """Runs one task per group, in other processes or on other machines.

    A task is a module-level function, or a `functools.partial` of one with public parameters, so
    that it can be pickled. It may run more than once: the last result of each group counts, and all
    are equal. Results are as secret as records: an engine keeps them neither in a cache nor, in the
    clear, on a disk or a network.
    """

    def map(self, task: Callable[[G], R], groups: Sequence[G]) -> list[R]:
        """The results of all groups, in the order of the groups; raises `EngineError`."""


class Source(Protocol):
    """The source of the records of a batch: a picklable object of public parameters."""

    def read(self, group: Group) -> NDArray[np.floating[Any]]:
        """The records in these slots of the batch, one row each, float32 or float64.

        A record that cannot be read is a row of NaN. What is read for a slot depends on the slot
        alone, however the batch is split into groups. Raises `SourceAway` if the same records can
        be read later.
        """


class LocalEngine:
    """Runs the tasks in this process, one after the other: for tests and experiments."""

    def map(self, task: Callable[[G], R], groups: Sequence[G]) -> list[R]:
        return [task(group) for group in groups]

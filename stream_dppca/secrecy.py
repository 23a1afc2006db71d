"""Memory that must not be in two places: copies and forked children do not get it.

Raw rows and exact past queries live in a few objects. If a copy, a pickle or the child of `fork`
kept them, both holders would release the same records with independent noise: the budget would be
spent twice.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from typing import Any, ClassVar

_holders: weakref.WeakSet[Forgetful] = weakref.WeakSet()


class Forgetful(ABC):
    """Base of objects that hold records, or exact numbers made of records.

    A subclass names its public attributes in `PUBLIC` and sets up everything else in `_begin`. Its
    `__init__` sets the public ones and calls `forget`. Copies and pickles have only the public
    attributes; in the child of a fork, `forget` is called.
    """

    PUBLIC: ClassVar[tuple[str, ...]]

    @abstractmethod
    def _begin(self) -> None:
        """Set all attributes that are not public, as in a new object."""

    def forget(self) -> None:
        """Drop everything secret and start over."""
        _holders.add(self)
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.PUBLIC}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in self.PUBLIC:
            setattr(self, name, state[name])
        self.forget()


def _after_fork() -> None:
    for holder in list(_holders):
        holder.forget()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)

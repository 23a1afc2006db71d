"""Memory that must not be in two processes: after a fork, the child forgets it.

Raw rows and exact past queries live in a few objects. If a child of `fork` kept them, both
processes would release the same records with noise of their own: the budget would be spent twice.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["forget_in_child"]


class _Forgetful(Protocol):
    def forget(self) -> None:
        """Drop everything secret; go on as if newly made."""


_holders: weakref.WeakSet[_Forgetful] = weakref.WeakSet()


def forget_in_child(holder: _Forgetful) -> None:
    """Have `holder.forget()` called in every child process."""
    _holders.add(holder)


def _after_fork() -> None:
    for holder in list(_holders):
        holder.forget()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)

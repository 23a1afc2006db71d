"""Stores for runs on files: a state file, or none. Releases go to a function, line by line."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from .. import crashpoints
from ..errors import ConfigurationError, Fenced
from ..protocols import Message, Positions

__all__ = ["NoState", "StateFile"]

#: A state is as secret as the input: only its owner may read it.
MODE: Final = 0o600


class NoState:
    """Keeps nothing: a run that is stopped cannot be resumed."""

    def __init__(self, out: Callable[[bytes], None]) -> None:
        self._out = out

    def load(self) -> list[bytes]:
        return []

    def commit(self, state: bytes, positions: Positions, messages: Sequence[Message] = ()) -> None:
        self.publish(messages, {})

    def publish(self, messages: Sequence[Message], positions: Positions) -> None:
        for message in messages:
            self._out(message.value)

    def close(self) -> None:
        pass


class StateFile(NoState):
    """The state on disk: replaced whole, fsynced, and held by one process at a time."""

    def __init__(self, path: Path, out: Callable[[bytes], None]) -> None:
        super().__init__(out)
        # Links are resolved: the file itself is replaced, and its lock has one name for all links.
        self._path = path = path.resolve()
        if path.is_dir():
            raise ConfigurationError(f"--state must be a file: {path} is a folder")
        if not path.parent.is_dir():
            raise ConfigurationError(f"--state must be in a folder: there is no {path.parent}")
        try:
            self._lock = _open_private(path.with_name(path.name + ".lock"), 0)
        except OSError as error:
            raise ConfigurationError(
                f"--state must be a file that can be written: {path} ({error.strerror})"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise Fenced(f"another process is using {path}") from None

    def load(self) -> list[bytes]:
        if not self._path.exists():
            return []
        with os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            with contextlib.suppress(PermissionError):  # not ours: the next commit replaces it
                os.fchmod(file.fileno(), MODE)
            return [file.read()]

    def commit(self, state: bytes, positions: Positions, messages: Sequence[Message] = ()) -> None:
        # The messages are durable already. Were they printed after the new state is in place, a
        # crash in between would lose them.
        self.publish(messages, {})
        part = self._path.with_name(self._path.name + ".part")
        part.unlink(missing_ok=True)  # left by a run that was killed here, or somebody's link
        with os.fdopen(_open_private(part, os.O_EXCL), "wb") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        crashpoints.reach("inside_transaction")
        part.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _open_private(path: Path, flags: int) -> int:
    """Open a file so that only its owner can read it, whatever its mode was; refuse links."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags, MODE)
    os.fchmod(file, MODE)
    return file

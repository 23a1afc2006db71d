"""Stores for runs on files: a state file, or none. Releases go to a function, line by line.

A state file is written as `.part`, fsynced, and renamed. **A state that was fully written is the
state**, also if the process died before it was renamed: its result has reached a disk, and another
one with fresh noise would be a second result of the same records. So a complete `.part` whose
parent is the current state is committed when it is found (`read_history`, as on a topic). One that
is torn is not JSON any more; it is thrown away, and its batch is computed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from .. import crashpoints
from ..errors import ConfigurationError, Fenced
from ..protocols import Message, Positions, Store

#: A state is as secret as a state topic, and its secret as the input: only the owner may read them.
MODE: Final = 0o600


class FileStore(Store, Protocol):
    """Keeps the state of a run on files."""

    def unfinished(self) -> list[bytes]:
        """What was written after the last state and may be the next one, or a part of it."""

    def secret(self) -> bytes | None:
        """What `keep_secret` kept; None if there is nothing."""

    def keep_secret(self, content: bytes) -> None:
        """Keep what is as secret as the input, durably, before the state that needs it."""


class _Printing:
    """Publishes releases by writing them out, as every store of a run on files does."""

    def __init__(self, out: Callable[[bytes], None]) -> None:
        self._out = out

    def publish(self, messages: Sequence[Message], positions: Positions) -> None:
        for message in messages:
            self._out(message.value)


class NoState(_Printing):
    """Keeps nothing: a run that is stopped cannot be resumed."""

    def load(self) -> list[bytes]:
        return []

    def unfinished(self) -> list[bytes]:
        return []

    def secret(self) -> None:
        return None

    def keep_secret(self, content: bytes) -> None:
        pass

    def commit(self, state: bytes, positions: Positions, messages: Sequence[Message] = ()) -> None:
        self.publish(messages, positions)

    def close(self) -> None:
        pass


class StateFile(_Printing):
    """The state on disk: replaced whole, fsynced, and held by one process at a time."""

    def __init__(self, path: Path, out: Callable[[bytes], None]) -> None:
        super().__init__(out)
        # Links are resolved: the file itself is replaced, and its lock has one name for all links.
        self._path = path = path.resolve()
        self._part, self._secret = _beside(path, ".part"), _beside(path, ".secret")
        if path.is_dir():
            raise ConfigurationError(f"--state must be a file: {path} is a folder")
        if not path.parent.is_dir():
            raise ConfigurationError(f"--state must be in a folder: there is no {path.parent}")
        try:
            self._lock = _open_private(_beside(path, ".lock"), 0)
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
        return _found(self._path)

    def unfinished(self) -> list[bytes]:
        try:
            ours = self._part.lstat().st_uid == os.geteuid()  # in a folder that others write to
            return _found(self._part) if ours else []
        except OSError:  # there is none, or it is a link
            return []

    def secret(self) -> bytes | None:
        return next(iter(_found(self._secret)), None)

    def keep_secret(self, content: bytes) -> None:
        part = _beside(self._secret, ".part")
        _write(part, content)
        _rename(part, self._secret)

    def commit(self, state: bytes, positions: Positions, messages: Sequence[Message] = ()) -> None:
        # The messages are durable already. Were they printed after the new state is in place, a
        # crash in between would lose them.
        self.publish(messages, positions)
        if self.unfinished() != [state]:  # which is never written twice
            _write(self._part, state)
        crashpoints.reach("inside_transaction")
        _rename(self._part, self._path)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _found(path: Path) -> list[bytes]:
    """The content of a file, which from now on only its owner can read; nothing without one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    with os.fdopen(file, "rb") as opened:
        with contextlib.suppress(PermissionError):  # not ours: the next commit replaces it
            os.fchmod(file, MODE)
        return [opened.read()]


def _write(path: Path, content: bytes) -> None:
    """Write a new file, durably."""
    path.unlink(missing_ok=True)  # left by a run that was killed here, or somebody's link
    with os.fdopen(_open_private(path, os.O_EXCL), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _rename(path: Path, to: Path) -> None:
    """Replace a file, durably."""
    path.replace(to)
    folder = os.open(to.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _open_private(path: Path, flags: int) -> int:
    """Open a file so that only its owner can read it, whatever its mode was; refuse links."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags, MODE)
    os.fchmod(file, MODE)
    return file

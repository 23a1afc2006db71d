"""Stores for runs on files: a state file, or none. Releases go to a function, line by line.

A state file begins with a line of its own: the length and the checksum of the state, and the
checksum of its parent, the state that it replaces. It is written as `.part`, fsynced, and renamed.
**A state that was fully written is the state**, also if the process died before it was renamed: its
result has reached a disk, and another one with fresh noise would be a second result of the same
records. So a complete `.part` whose parent is the current state is renamed when it is found. One
that is torn is thrown away, and its batch is computed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from .. import crashpoints
from ..errors import ConfigurationError, Fenced
from ..protocols import Message, Positions

#: A state is as secret as a state topic, and its secret as the input: only the owner may read them.
MODE: Final = 0o600


class _Seal(msgspec.Struct, frozen=True):
    """The first line of a state file."""

    bytes: int
    sha256: str
    parent: str  #: that of the state before; empty for the first one


class Sealed(NamedTuple):
    """A state file whose content is complete."""

    state: bytes
    sha256: str
    parent: str


_decode_seal = msgspec.json.Decoder(_Seal).decode


def sealed(state: bytes, parent: str) -> bytes:
    """The content of a state file."""
    seal = _Seal(len(state), hashlib.sha256(state).hexdigest(), parent)
    return msgspec.json.encode(seal) + b"\n" + state


def unsealed(content: bytes) -> Sealed | None:
    """The state in a state file; None if the content is torn, or no state file.

    Examples
    --------
    >>> unsealed(sealed(b"state", ""))[0], unsealed(sealed(b"state", "")[:-1]), unsealed(b"{}")
    (b'state', None, None)
    """
    line, _, state = content.partition(b"\n")
    try:
        seal = _decode_seal(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    whole = len(state) == seal.bytes and hashlib.sha256(state).hexdigest() == seal.sha256
    return Sealed(state, seal.sha256, seal.parent) if whole else None


class NoState:
    """Keeps nothing: a run that is stopped cannot be resumed."""

    def __init__(self, out: Callable[[bytes], None]) -> None:
        self._out = out

    def load(self) -> list[bytes]:
        return []

    def secret(self) -> bytes | None:
        """What `keep_secret` kept; None if there is nothing."""
        return None

    def keep_secret(self, content: bytes) -> None:
        """Keep what is as secret as the input, durably, before the state that needs it."""

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
        """The last state, if there is one. What is no state is left to the reader to refuse."""
        current, part = _content(self._path), self._own_part()
        found = None if current is None else unsealed(current)
        if current is not None and found is None:
            return [current]
        if part is not None and part.parent == _name(found):
            _rename(self._part, self._path)
            found = part
        return [] if found is None else [found.state]

    def _own_part(self) -> Sealed | None:
        """The state that was fully written when a process of this user died, if there is one."""
        try:
            ours = self._part.lstat().st_uid == os.geteuid()  # in a folder that others write to
            content = _content(self._part) if ours else None
        except OSError:  # there is none, or it is a link
            return None
        return None if content is None else unsealed(content)

    def secret(self) -> bytes | None:
        return _content(self._secret)

    def keep_secret(self, content: bytes) -> None:
        part = _beside(self._secret, ".part")
        _write(part, content)
        _rename(part, self._secret)

    def commit(self, state: bytes, positions: Positions, messages: Sequence[Message] = ()) -> None:
        # The messages are durable already. Were they printed after the new state is in place, a
        # crash in between would lose them.
        self.publish(messages, {})
        current = _content(self._path)
        before = None if current is None else unsealed(current)
        _write(self._part, sealed(state, _name(before)))
        crashpoints.reach("inside_transaction")
        _rename(self._part, self._path)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _name(state: Sealed | None) -> str:
    """The name by which its successor knows a state."""
    return "" if state is None else state.sha256


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _content(path: Path) -> bytes | None:
    """The content of a file, which from now on only its owner can read; None if there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as opened:
        with contextlib.suppress(PermissionError):  # not ours: the next commit replaces it
            os.fchmod(file, MODE)
        return opened.read()


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

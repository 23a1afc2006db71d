"""The content of a saved state.

A state is plain JSON in sections:

| section | holds |
|---|---|
| `version` | 1 |
| `config` | the method, and **every** setting: a later default must not change an old model |
| `n_batches` | number of releases |
| `method` | components and running estimates: released values only |
| `release` | the last release, or null |

An unknown section or setting is refused, because a model that ignored it would not be the same
model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .errors import StateError

VERSION = 1
SECTIONS = ("version", "config", "n_batches", "method", "release")


def sections(state: Any) -> dict[str, Any]:
    """The sections of a state."""
    if not isinstance(state, dict) or state.get("version") != VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise StateError("version", f"is {found!r}, expected {VERSION}")
    _same_names("", state, SECTIONS)
    return state


def settings(config: Any, method: str, names: Collection[str]) -> dict[str, Any]:
    """All settings of a saved estimator: those of the state, never the current defaults.

    Parameters
    ----------
    config
        The section of the state.
    method
        The method of the estimator.
    names
        The names of its settings.
    """
    if not isinstance(config, Mapping):
        raise StateError("config", "must be an object")
    compare("config.method", config.get("method"), method)
    _same_names("config.", config, ("method", *names))
    return {name: config[name] for name in names}


def compare(field: str, found: Any, expected: Any) -> None:
    """Raise unless a value is the expected one; of an object, the member that differs is named."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for name in expected:
            compare(f"{field}.{name}", found.get(name), expected[name])
    elif found != expected:
        raise StateError(field, f"is {found!r}, expected {expected!r}")


def _same_names(path: str, found: Collection[Any], known: Collection[str]) -> None:
    for name in known:
        if name not in found:
            raise StateError(f"{path}{name}", "is missing")
    for name in found:
        if name not in known:
            raise StateError(f"{path}{name}", "is not known to this version of stream-dppca")

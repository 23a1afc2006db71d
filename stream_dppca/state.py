"""The content of a saved state, and the reading of states of older versions.

A state is plain JSON in sections:

| section | holds |
|---|---|
| `version` | 2 |
| `unit` | the unit in which neighbours differ: "record" or "subject", as in `config` |
| `config` | **every** setting of the estimator: a later default must not change an old model |
| `n_batches` | number of batches released |
| `learned` | optional: true if components are known; without it, the last release shows that |
| `method` | components and running estimates: released values only |
| `release` | the last release, or null |

**Additions need no new version.** A new setting gets a line in `AS_BEFORE`. A new result of
learning gets a section of its own, listed in `OPTIONAL` and written only by models that use it; a
state without the section belongs to a model that does not use it. An unknown section is refused,
because a model that ignored it would not be the same model.

Version 1 had neither `unit`, which was always a record, nor optional sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .errors import StateError

__all__ = ["AS_BEFORE", "VERSION", "complete", "sections"]

VERSION = 2
REQUIRED = frozenset({"version", "unit", "config", "n_batches", "method", "release"})
OPTIONAL: frozenset[str] = frozenset({"learned"})
UNITS = ("record", "subject")

#: Settings that states may lack, with the value under which the estimator works as it did before it
#: had the setting. That value need not be the current default.
AS_BEFORE: Mapping[str, Any] = MappingProxyType(
    {
        "memory": "auto",
        "missing": "null",
        "unit": "record",
        "subject": None,
        "period": 1,
        "horizon": None,
        "records": 4,
    }
)


def sections(state: Any) -> dict[str, Any]:
    """The sections of a state of any version, as those of version 2."""
    if not isinstance(state, dict) or state.get("version") not in (1, VERSION):
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise StateError("version", f"is {found!r}, expected {VERSION} or 1")
    if state["version"] == 1:
        state = state | {"version": VERSION, "unit": "record"}
    for name in sorted(REQUIRED - set(state)):
        raise StateError(name, "is missing")
    for name in sorted(set(state) - REQUIRED - OPTIONAL, key=str):
        raise StateError(str(name), "is not known to this version of stream-dppca")
    config = state["config"]
    expected = config.get("unit", "record") if isinstance(config, Mapping) else "record"
    if state["unit"] not in UNITS or state["unit"] != expected:
        raise StateError("unit", f"is {state['unit']!r}, expected {expected!r}")
    return dict(state)


def complete(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a saved estimator: those of the state, never the current defaults.

    Parameters
    ----------
    config
        The section of the state.
    settings
        The names that the estimator has now.
    """
    if not isinstance(config, Mapping):
        raise StateError("config", "must be an object")
    for name in sorted(set(config) - set(settings), key=str):
        raise StateError(f"config.{name}", "is not known to this version of stream-dppca")
    for name in sorted(set(settings) - set(config) - set(AS_BEFORE)):
        raise StateError(f"config.{name}", "is missing")
    return {name: config[name] if name in config else AS_BEFORE[name] for name in settings}

"""Loads settings, and explains what is wrong with them."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import SettingsError

from ..errors import ConfigurationError
from .combined import Settings
from .operation import SPARK_CONF_PREFIX
from .part import CONFIG_VARIABLE, PREFIX, Part

SomePart = TypeVar("SomePart", bound=Part)


def load_settings(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Settings:
    """Load all settings; see `load_part`."""
    return load_part(Settings, flags, file)


def load_part(
    kind: type[SomePart], flags: Mapping[str, Any] | None = None, file: Path | None = None
) -> SomePart:
    """Load some of the settings.

    Flags and lines of the file that belong to other parts are ignored, so that the same file and
    the same flags serve every command.

    Parameters
    ----------
    kind
        The settings that are needed.
    flags
        Values that win over the environment.
    file
        A TOML file; by default the one that `DPPCA_CONFIG` names, if it is set.

    Raises
    ------
    ConfigurationError
        If a setting is missing, invalid or unknown; the message names each of them.
    """
    if file is None and os.environ.get(CONFIG_VARIABLE):
        file = Path(os.environ[CONFIG_VARIABLE])
    variables = {name.lower() for name in os.environ}
    given = {
        name: value
        for name, value in ({} if file is None else _read(file)).items()
        if f"{PREFIX}{name}".lower() not in variables
    }
    given |= flags or {}
    others = Settings.model_fields.keys() - kind.model_fields.keys()  # unknown names are refused
    try:
        return kind(**{name: value for name, value in given.items() if name not in others})
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        raise ConfigurationError("\n".join(_explain(problem) for problem in problems)) from None
    except SettingsError as error:
        raise ConfigurationError(str(error)) from None


def _read(file: Path) -> dict[str, Any]:
    """Read a TOML file. Its content is never quoted, because it may hold passwords."""
    if not file.is_file():
        raise ConfigurationError(f"there is no file {file}")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        where = f" at {place[1]}" if place else ""
        raise ConfigurationError(f"{file} is not valid TOML{where}") from None
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{file} cannot be read ({type(error).__name__})") from None


def _explain(problem: Mapping[str, Any]) -> str:
    """Return one line about a problem that pydantic found."""
    text = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:  # a rule between settings, which names them
        return text
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        flag = "--" + name.replace("_", "-")
        text = f"must be set: {PREFIX}{name.upper()}, {flag}, or in the file"
    elif problem["type"] == "extra_forbidden":
        text = f"is not a setting{suggestion(name)}"
    return f"`{name}`: {text}"


def suggestion(name: str) -> str:
    """Return "; did you mean ...?" for a mistyped setting or variable, or nothing.

    Examples
    --------
    >>> suggestion("batchsize"), suggestion("DPPCA_EPSILN"), suggestion("colour")
    ('; did you mean `batch_size`?', '; did you mean `DPPCA_EPSILON`?', '')
    """
    prefix = PREFIX if name.startswith(PREFIX) else ""
    names = [prefix + (known.upper() if prefix else known) for known in Settings.model_fields]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return f"; did you mean `{close[0]}`?" if close else ""


def unmatched_variables() -> list[str]:
    """Return the variables that begin like settings but are not settings."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG_VARIABLE}
    return sorted(
        name
        for name in os.environ
        if name.startswith(PREFIX) and name not in known and not name.startswith(SPARK_CONF_PREFIX)
    )

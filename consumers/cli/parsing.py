"""Parses the arguments of a command: its own options, and the settings that it needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from ..settings import Part
    from .flags import Options

SomePart = TypeVar("SomePart", bound="Part")


@dataclass(frozen=True)
class Given(Generic[SomePart]):
    """The settings that a command needs, as they were given."""

    kind: type[SomePart]
    flags: Mapping[str, Any]
    file: Path | None  #: with others

    def load(self, **defaults: Any) -> SomePart:
        """Load the settings; warn of variables that are not settings."""
        from ..settings import load_part, suggestion, unmatched_variables

        for name in unmatched_variables():
            sys.stderr.write(f"warning: {name} is not a setting{suggestion(name)}\n")
        return load_part(self.kind, {**defaults, **self.flags}, self.file)


def parse(command: str, summary: str, arguments: Sequence[str]) -> tuple[Options, Given[Part]]:
    """Parse the options of a command, and the settings among them.

    Every command takes the flags of every setting, so that the same flags serve all commands; the
    help shows those that the command looks at.
    """
    from ..settings import CONFIG_VARIABLE, PARTS, PREFIX, Settings
    from .flags import add_flag, add_options, read_options
    from .options import OWN, UNUSED

    own, needed = OWN[command]
    input = {"run": " --input FILE", "compare": " A B"}.get(command, "")
    parser = argparse.ArgumentParser(
        f"stream-dppca {command}",
        usage=f"stream-dppca {command}{input} [options] [settings]",
        description=own.about or f"{summary[:1].upper()}{summary[1:]}.",
        allow_abbrev=False,
        epilog=f"Each setting can also be a variable ({PREFIX}MODEL=m) or a line of the file "
        "(model = 'm'). Flags win over variables, variables over the file. Settings that "
        "only other commands need are accepted and ignored.",
    )
    add_options(parser, own)
    about_file = f"TOML file of settings; default: {CONFIG_VARIABLE}"
    parser.add_argument("--config", type=Path, metavar="FILE", help=about_file)
    settings = Settings.model_fields.keys() - own.model_fields.keys()  # `run` has its own --format
    for title, part in PARTS.items():
        group = parser.add_argument_group(f"settings ({title.lower()})")
        for name in (name for name in part.model_fields if name in settings):
            field = needed.model_fields.get(name)
            shown = field is not None and name not in UNUSED.get(needed, ())
            add_flag(group, name, field or Settings.model_fields[name], shown=shown)
    given = vars(parser.parse_args(arguments))
    flags = {name: value for name, value in given.items() if name in settings}
    return read_options(parser, own, given), Given(needed, flags, given["config"])

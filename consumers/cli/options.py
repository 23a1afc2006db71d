"""The options of each command: its own, and the settings that it needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from ..settings import Part
    from .flags import Options

    SomePart = TypeVar("SomePart", bound=Part)

COMMANDS: Final = {
    "serve": "learn from a topic and publish the components",
    "plan": "predict accuracy and delay from the settings, before any data is touched",
    "check-config": "check the settings, the topics and, with --sample, a few messages",
    "show-config": "print the settings, secrets masked",
    "topics": "create the output topic and the state topic if they do not exist",
    "inspect": "print the current component of a model, labelled and sorted",
    "watch": "show a model as it learns, on the terminal or (--web) in a browser",
    "compare": "compare two releases: angles against noise, scales, limits",
    "score": "write the scores of each record to a topic, which is NOT PRIVATE",
    "run": "learn from a file instead of a topic; releases are JSON lines, or a table",
}


@dataclass(frozen=True)
class Given:
    """The settings that were given as flags, and the file with others."""

    flags: Mapping[str, Any]
    file: Path | None

    def load(self, kind: type[SomePart], **defaults: Any) -> SomePart:
        """Load the settings that a command needs; warn of variables that are not settings."""
        from ..settings import load_part, suggestion, unmatched_variables

        for name in unmatched_variables():
            sys.stderr.write(f"warning: {name} is not a setting{suggestion(name)}\n")
        return load_part(kind, {**defaults, **self.flags}, self.file)


def parse(command: str, arguments: Sequence[str]) -> tuple[Options, Given]:
    """Parse the options of a command, and the settings among them.

    Every command takes the flags of every setting, so that the same flags serve all commands; the
    help shows those that the command looks at.
    """
    from ..settings import CONFIG_VARIABLE, PREFIX, Settings, names_by_part
    from .flags import add_flag, add_options, read_options
    from .own import OWN, UNUSED

    own, needed = OWN[command]
    summary = COMMANDS[command]
    input = {"run": " --input FILE", "compare": " A B"}.get(command, "")
    parser = argparse.ArgumentParser(
        f"stream-dppca {command}",
        usage=f"stream-dppca {command}{input} [options] [settings]",
        description=own.about or f"{summary[0].upper()}{summary[1:]}.",
        allow_abbrev=False,
        epilog=f"Each setting can also be a variable ({PREFIX}MODEL=m) or a line of the file "
        "(model = 'm'). Flags win over variables, variables over the file. Settings that "
        "only other commands need are accepted and ignored.",
    )
    add_options(parser, own)
    about_file = f"TOML file of settings; default: {CONFIG_VARIABLE}"
    parser.add_argument("--config", type=Path, metavar="FILE", help=about_file)
    settings = Settings.model_fields.keys() - own.model_fields.keys()  # `run` has its own --format
    for title, names in names_by_part(Settings).items():
        group = parser.add_argument_group(f"settings ({title.lower()})")
        for name in (name for name in names if name in settings):
            field = needed.model_fields.get(name)
            shown = field is not None and name not in UNUSED.get(needed, ())
            add_flag(group, name, field or Settings.model_fields[name], shown=shown)
    given = vars(parser.parse_args(arguments))
    flags = {name: value for name, value in given.items() if name in settings}
    return read_options(parser, own, given), Given(flags, given["config"])

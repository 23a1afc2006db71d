"""The options of each command: its own, and the settings that it needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Union, get_args, get_origin

if TYPE_CHECKING:
    from ..settings import Part

    SomePart = TypeVar("SomePart", bound=Part)

COMMANDS: Final = {
    "serve": "learn from a topic and publish the components",
    "plan": "predict accuracy and delay from the settings, before any data is touched",
    "check-config": "check the settings, the topics and, with --sample, a few messages",
    "show-config": "print the settings, secrets masked",
    "topics": "create the output topic and the state topic if they do not exist",
    "inspect": "print the current component of a model, labelled and sorted",
    "watch": "show a model as it learns, on the terminal or (--web) in a browser",
    "score": "write the scores of each record to a topic, which is NOT PRIVATE",
    "run": "learn from a file instead of a topic; releases are JSON lines, or a table",
}


def parse(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of a command. The settings among them are in `flags`.

    Every command takes the flags of every setting, so that the same flags serve all commands; the
    help shows those that the command looks at.
    """
    from ..settings import CONFIG_VARIABLE, PREFIX, Settings, names_by_part

    summary, own = COMMANDS[command], " --input FILE" if command == "run" else ""
    parser = argparse.ArgumentParser(
        f"stream-dppca {command}", usage=f"stream-dppca {command}{own} [options] [settings]",
        description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False,
        epilog=f"Each setting can also be a variable ({PREFIX}MODEL=m) or a line of the file "
        "(model = 'm'). Flags win over variables, variables over the file. Settings that "
        "only other commands need are accepted and ignored.",
    )  # fmt: skip
    _add_own(parser, command)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"TOML file of settings; default: {CONFIG_VARIABLE}",
    )
    needed = _needed(command)
    # The input of `run` is a file, which gives its name.
    shown = needed.model_fields.keys() - ({"input_topic"} if command == "run" else set())
    for title, part in names_by_part(Settings).items():
        group = parser.add_argument_group(f"settings ({title.lower()})")
        for name in part:
            if command != "run" or name != "format":  # `run` has its own --format
                _add_setting(group, name, needed if name in shown else None)
    options = parser.parse_args(arguments)
    options.flags = {
        name: value
        for name, value in vars(options).items()
        if name in Settings.model_fields and (command != "run" or name != "format")
    }
    return options


def load(options: argparse.Namespace, kind: type[SomePart], **defaults: Any) -> SomePart:
    """Load the settings that a command needs; warn of variables that are not settings."""
    from ..settings import load_part, suggestion, unmatched_variables

    for name in unmatched_variables():
        sys.stderr.write(f"warning: {name} is not a setting{suggestion(name)}\n")
    return load_part(kind, {**defaults, **options.flags}, options.config)


def _needed(command: str) -> type[Part]:
    from ..settings import ClusterSettings, FileSettings, PlanSettings, Settings, ViewSettings

    if command == "plan":
        return PlanSettings
    if command in ("topics", "score"):
        return ClusterSettings
    if command in ("inspect", "watch"):
        return ViewSettings
    return FileSettings if command == "run" else Settings


def _add_own(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options that only this command has."""
    if command == "plan":
        parser.add_argument(
            "--count", type=int, metavar="N", help="number of features, instead of their names"
        )
        parser.add_argument("--rate", type=float, help="expected records per second")
        parser.add_argument(
            "--subjects", type=float, metavar="N",
            help="with unit=subject: number of subjects; default: the places of a round",
        )  # fmt: skip
        parser.add_argument(
            "--presence", type=float, default=1.0, metavar="SHARE",
            help="with unit=subject: share of the subjects that send something in a round [1]",
        )  # fmt: skip
    if command == "check-config":
        parser.add_argument(
            "--offline",
            action="store_true",
            help="check the settings only; do not connect to the brokers",
        )
        parser.add_argument(
            "--sample", type=int, default=0, metavar="N",
            help="read N messages and say, on a terminal only, whether they have the features "
            "(and name their subjects)",
        )  # fmt: skip
    if command in ("inspect", "watch"):
        parser.add_argument("--json", action="store_true", help="print releases as published")
    if command == "watch":
        parser.add_argument("--web", action="store_true", help="serve a page for a browser")
        parser.add_argument(
            "--port", type=int, default=8322, help="port of the page; 0 takes any free port [8322]"
        )
        parser.add_argument(
            "--releases",
            type=int,
            metavar="N",
            help="end after N releases, older ones included; default: never",
        )
    if command == "inspect":
        parser.add_argument(
            "--state", type=Path, metavar="FILE",
            help="print the last release of a state file that `run` wrote; needs no broker",
        )  # fmt: skip
        parser.add_argument(
            "--history", action="store_true", help="print all releases that the topic still holds"
        )
        parser.add_argument(
            "--top", type=int, default=0, metavar="N", help="print only the N largest loadings"
        )
    if command == "score":
        parser.description = (
            "Write the projections and the anomaly score of each record of the input topic to "
            "another topic, with the current release of a model. THE SCORES ARE NOT PRIVATE: each "
            "is about one record, so their topic is as secret as the input topic."
        )
        parser.add_argument(
            "--scores-topic", metavar="TOPIC", help="topic to write to; default: <model>.scores"
        )
        parser.add_argument(
            "--scores-group", metavar="GROUP",
            help="consumer group that remembers what has been scored; default: <group>.scores",
        )  # fmt: skip
        parser.add_argument(
            "--once",
            action="store_true",
            help="end when all records that are in the topic at the start have been scored",
        )
    if command == "run":
        parser.add_argument(
            "--input",
            required=True,
            metavar="FILE",
            help="file to read, also .gz and .zst, or - for standard input; in csv and jsonl each "
            "line is one record, even if a line break is in quotes",
        )
        choices = ("csv", "jsonl", "parquet", "npy")
        parser.add_argument(
            "--format", choices=choices, help="format of the file; default: by its name"
        )
        parser.add_argument(
            "--state", type=Path, metavar="FILE", help="file that keeps the state, to resume later"
        )
        parser.add_argument(
            "--once",
            action="store_true",
            help="learn from the whole file as one batch: one release, the most accurate; the file "
            "is read twice, and all of it must fit into memory",
        )
        parser.add_argument(
            "--time", metavar="COLUMN",
            help="with --subject: column with the time of each row, ISO 8601 or seconds since 1970",
        )  # fmt: skip
        parser.add_argument(
            "--from", dest="begin", metavar="TIME",
            help="with --subject: beginning of the first round, a date or a time in UTC, such as "
            "2026-01-31; not needed with a state, which has the beginning",
        )  # fmt: skip
        parser.add_argument(
            "--until", metavar="TIME",
            help="with --subject: end of the last round; all rounds before it are released, also "
            "empty ones, and rows of other times are ignored",
        )  # fmt: skip
        parser.add_argument(
            "--new-records", action="store_true",
            help="the input holds only records that were not used before, so skip none of them",
        )  # fmt: skip
        parser.add_argument("--quiet", action="store_true", help="do not show a progress bar")
        parser.add_argument(
            "--json", action="store_true", help="print releases as JSON lines even on a terminal"
        )


def _add_setting(group: argparse._ArgumentGroup, name: str, kind: type[Part] | None) -> None:
    """Add the flag of a setting; without a kind of settings that has it, it is not shown."""
    from ..settings import Settings
    from ..settings.table import default_text

    field = (kind or Settings).model_fields[name]
    note = f" [{default}]" if (default := default_text(field)) else ""
    if field.is_required():
        note = " (required)"
    group.add_argument(
        "--" + name.replace("_", "-"), default=argparse.SUPPRESS,
        metavar=_choices(field.annotation),
        help=f"{field.description}{note}".replace("%", "%%") if kind else argparse.SUPPRESS,
    )  # fmt: skip


def _choices(kind: Any) -> str:
    """Return the words that a setting may be, and whether it may be something else."""
    if kind is bool:
        return "{true,false}"
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    if not words:
        return "…"
    other = any(get_origin(part) is not Literal and part is not NoneType for part in parts)
    return "{" + ",".join([*words, "…"] if other else words) + "}"

"""Makes flags of fields: the options of a command are a model, and each of its fields is a flag."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo


class Options(BaseModel):
    """Options of a command. The text below an option is its help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
    about: ClassVar[str] = ""  #: description of the command; default: its summary


SomeOptions = TypeVar("SomeOptions", bound=Options)


def add_options(parser: argparse.ArgumentParser, kind: type[Options]) -> None:
    """Add the flags of a command's own options. One that is True or False is set by its flag."""
    for name, field in kind.model_fields.items():
        if field.annotation is bool:
            flag, text = flag_of(field.alias or name), field.description
            parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
        elif get_origin(field.annotation) is tuple:  # words without a flag
            parser.add_argument(
                name, nargs=len(get_args(field.annotation)), metavar="A", help=field.description
            )
        else:
            add_flag(parser, field.alias or name, field)


def add_flag(
    parser: argparse._ActionsContainer, name: str, field: FieldInfo, *, shown: bool = True
) -> None:
    """Add a flag with a value, which is checked by the model of its field."""
    note = f" [{default}]" if (default := default_text(field)) else ""
    if field.is_required():
        note = " (required)"
    parser.add_argument(
        flag_of(name),
        default=argparse.SUPPRESS,
        metavar=_choices(field.annotation),
        help=f"{field.description}{note}".replace("%", "%%") if shown else argparse.SUPPRESS,
    )


def default_text(field: FieldInfo) -> str:
    """Return the default of a setting as one would write it; empty if there is none to show."""
    default: Any = field.get_default()
    if field.is_required() or default in ("", None, (), {}):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def read_options(
    parser: argparse.ArgumentParser, kind: type[SomeOptions], given: dict[str, Any]
) -> SomeOptions:
    """Return the options among these values; the parser refuses what is not valid."""
    names = {field.alias or name for name, field in kind.model_fields.items()}
    try:
        return kind(**{name: value for name, value in given.items() if name in names})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        text = problem["msg"].removeprefix("Value error, ")
        where = "".join(f"{flag_of(str(part))}: " for part in problem["loc"])
        parser.error(f"{where}must be given" if problem["type"] == "missing" else where + text)


def parse_options(
    program: str, kind: type[SomeOptions], arguments: Sequence[str] | None
) -> SomeOptions:
    """Parse the options of a program that has no settings."""
    parser = argparse.ArgumentParser(program, description=kind.about)
    add_options(parser, kind)
    return read_options(parser, kind, vars(parser.parse_args(arguments)))


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _choices(kind: Any) -> str:
    """Return the words that a value may be, and whether it may be something else."""
    if kind is bool:
        return "{true,false}"
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    if not words:
        return "…"
    other = any(get_origin(part) is not Literal and part is not NoneType for part in parts)
    return "{" + ",".join([*words, "…"] if other else words) + "}"

"""A part of the settings: their prefix, and the strictness of their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

from pydantic import BeforeValidator, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX: Final = "DPPCA_"
#: Names the file with the settings; the only variable with the prefix that is not a setting.
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"


class Part(BaseSettings):
    """Some of the settings. A part reads its own variables and ignores those of other parts.

    The text below a setting is its entry in the help and in the docs.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self.problems()):
            raise ValueError("\n".join(problems))
        return self

    def problems(self) -> Iterator[str]:
        """Yield what is wrong between settings that are valid by themselves; texts name them."""
        return iter(())


@dataclass(frozen=True)
class WordOr:
    """Reads a setting that is one of the words of its type, or something that `read` reads.

    The validators of a union would explain every branch instead.
    """

    read: Callable[[Any], Any]
    rule: str  #: of all values, for the error

    def __get_pydantic_core_schema__(self, kind: Any, _: GetCoreSchemaHandler) -> CoreSchema:
        branches = (part for part in get_args(kind) if get_origin(part) is Literal)
        words = [word for part in branches for word in get_args(part)]

        def validate(value: Any) -> Any:
            try:
                return value if value in words else self.read(value)
            except (TypeError, ValueError):
                raise ValueError(f"must be {self.rule}") from None

        return core_schema.no_info_plain_validator_function(validate)


def split_names(value: Any) -> Any:
    """Return the names in a text, which commas separate, unless these are in braces.

    >>> split_names('a, b{x="1",y="2"}')
    ('a', 'b{x="1",y="2"}')
    """
    if not isinstance(value, str):
        return value
    return tuple(filter(None, map(str.strip, re.split(r",(?![^{}]*\})", value))))


#: Type of a setting that is a list of names.
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_names)]

"""The base class of all settings: sources of values, and the strictness of their checks."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

PREFIX: Final = "DPPCA_"
#: Names the file with the settings; the only variable with the prefix that is not a setting.
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"

#: The contents of the file while settings are loaded; see `load_part`.
file_values: ContextVar[Mapping[str, Any]] = ContextVar("file_values", default=MappingProxyType({}))


class Part(BaseSettings):
    """Some of the settings. A part reads its own variables and ignores those of other parts."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = InitSettingsSource(settings_cls, init_kwargs=dict(file_values.get()))
        return init_settings, env_settings, file

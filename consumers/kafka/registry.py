"""Opens the Schema Registry of a format whose messages need one."""

from __future__ import annotations

from ..errors import ConfigurationError
from ..formats import REGISTERED_FORMATS
from ..messages.recipe import MessageRecipe
from ..protocols import SchemaSource


def open_registry(recipe: MessageRecipe) -> SchemaSource | None:
    """Return the Schema Registry of a recipe; None if its format does not need one."""
    format, options = recipe.format, dict(recipe.registry)
    if format not in REGISTERED_FORMATS:
        return None
    try:
        from .registry_client import RegistryClient
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"`format`: {format} needs {error.name}: pip install 'stream-dppca[{format}]'"
        ) from None
    try:
        return RegistryClient(options, protobuf=format == "protobuf")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "`schema_registry_url` or `schema_registry_cafile` cannot be used "
            f"({type(error).__name__})"
        ) from None

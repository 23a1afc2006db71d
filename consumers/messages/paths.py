"""Names of features as paths into a message."""

from __future__ import annotations

from stream_dppca import paths

from ..errors import ConfigurationError


def path_of(feature: str, nested: bool) -> list[str]:
    """The path of `stream_dppca.paths`, or an error if a part of it is empty."""
    path = paths.path_of(feature, nested)
    if not all(path):
        raise ConfigurationError(f"feature {feature!r} has an empty part between its dots")
    return path

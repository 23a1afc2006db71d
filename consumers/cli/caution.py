"""Warnings about settings that promise little or nothing."""

from __future__ import annotations

import sys

from stream_dppca.checks import loose_budget

from ..settings import ModelSettings


def cautions(settings: ModelSettings) -> list[tuple[str, str]]:
    """Return the name and the text of each warning."""
    # A plan may have no size. Then 1 stands for it, because every delta is below 1/1.
    name = "batch_size" if settings.unit == "record" else "places"
    loose = loose_budget(settings.epsilon, settings.delta, getattr(settings, name) or 1, name)
    seeded = [] if settings.seed is None else [("not_private", "seed is set: nothing is private")]
    return seeded + [("loose_budget", text) for text in loose]


def warn_of(settings: ModelSettings) -> None:
    """Write the warnings to standard error."""
    for _, text in cautions(settings):
        sys.stderr.write(f"warning: {text}\n")

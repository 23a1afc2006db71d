"""Checks of `check-config` that need the brokers: topics, stored state, a sample of messages."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from ..errors import ConfigurationError, Unavailable
from ..kafka.registry import open_registry
from ..messages.recipe import MessageRecipe
from ..messages.sample import describe_sample
from ..protocols import Cluster
from ..service.stored import USED_TWICE, check_complete, other_models
from ..service.topics import ensure_topics
from ..settings import Settings

if TYPE_CHECKING:
    from ..service.config import TaskConfig

SAMPLE_SECONDS: Final = 10.0


def check_cluster(cluster: Cluster, settings: Settings, config: TaskConfig) -> None:
    """Check the topics and the stored state; say what will happen, and warn."""
    missing = ensure_topics(cluster, settings, create=False, rounds=settings.rounds())
    stored = check_complete(cluster, settings, config, missing)
    if missing:
        sys.stdout.write(f"will be created: {', '.join(missing)}\n")
    if stored is not None:
        sys.stdout.write(f"the settings fit the stored model, at batch {stored:,}\n")
    elif others := other_models(cluster, settings):
        read = f"{settings.input_topic!r} has been read by {', '.join(others)}"
        sys.stderr.write(f"warning: {read}: {USED_TWICE}.\n")


def show_sample(cluster: Cluster, settings: Settings, count: int) -> tuple[str, bool]:
    """Read some messages, and describe them to the operator.

    Returns what does not fit, in words, and whether any message fits.

    The description is about single records, and no noise covers it. So the description is written
    to a terminal, for somebody who may read the input anyway, and never to a pipe, a file or a log.
    """
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            "--sample needs a terminal: its output describes single records, so it is not written "
            "to a pipe, a file or a log"
        )
    recipe = MessageRecipe.of(settings)
    keyed = recipe.subject is not None
    values, keys = _read(cluster, settings.input_topic, count, keyed=keyed)
    found = describe_sample(values, recipe, open_registry(recipe), keys)
    end = "(this describes single records: do not pass it on)"
    sys.stdout.write("\n".join(["", *found.lines, end, "", ""]))
    if found.fits:
        return "", True
    which = "not every message fits them" if found.any_fits else "NO MESSAGE FITS THEM"
    return f", but {which}: see the sample above", found.any_fits


def _read(
    cluster: Cluster, topic: str, count: int, *, keyed: bool
) -> tuple[list[bytes | None], list[bytes | None]]:
    """The newest messages of a topic, about as many from each partition, and their keys."""
    reader = cluster.reader(topic, stamped=keyed)
    try:
        bounds = reader.bounds(sorted(reader.partitions()))
        share = -(-count // max(len(bounds), 1))
        reader.assign({p: max(at.first, at.end - share) for p, at in bounds.items()})
        wanted = sum(min(share, at.end - at.first) for at in bounds.values())
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        deadline = time.monotonic() + SAMPLE_SECONDS
        while len(values) < min(wanted, count) and time.monotonic() < deadline:
            for chunk in reader.read(0.2):
                values += chunk.values
                keys += chunk.keys
    finally:
        reader.close()
    if not values and wanted:
        raise Unavailable(f"no message of {topic!r} could be read in {SAMPLE_SECONDS:g} s")
    return values[:count], keys[:count]

"""The command `compare`."""

from __future__ import annotations

import sys
from pathlib import Path

from ..errors import ConfigurationError
from ..model.compare import compare
from ..model.releases import PublishedRelease
from ..protocols import Message
from ..settings import ViewSettings
from . import brokers
from .history import published
from .options import Given
from .own import CompareOptions


def compare_releases(options: CompareOptions, given: Given) -> int:
    """Print what is different between two releases."""
    a, b = (_release(name, given) for name in options.releases)
    sys.stdout.write(f"{compare(a, b)}\n")
    return 0


def _release(name: str, given: Given) -> PublishedRelease:
    """The release that FILE, FILE@BATCH or @BATCH stands for."""
    where, _, batch = name.rpartition("@") if "@" in name else (name, "", "")
    if where:
        try:
            lines = Path(where).read_bytes().splitlines()
        except OSError as error:
            raise ConfigurationError(f"{where} cannot be read ({error.strerror})") from None
        found = published(Message(b"", line) for line in lines)
    else:
        settings = given.load(ViewSettings)
        with brokers.ask_once(settings) as cluster:
            found = published(cluster.scan(settings.output_topic), settings.model)
    for _, release in reversed(found):
        if not batch or str(release.batch) == batch:
            return release
    raise ConfigurationError(
        f"{name!r}: there is no such release. It must be a file of releases, JSON lines, with @ "
        "and the number of a batch unless the last one is meant, or @ and the number for the topic"
    )

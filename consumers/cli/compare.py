"""The command `compare`."""

from __future__ import annotations

import sys
from pathlib import Path

from stream_dppca import Release

from ..errors import ConfigurationError
from ..model.compare import compare
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


def _release(name: str, given: Given) -> Release:
    """The release that a name stands for."""
    where, _, batch = name.rpartition("@")
    if batch and not batch.isdecimal():
        where, batch = name, ""
    if (file := Path(where or batch)).is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
        try:
            found = [Release.model_validate_json(line) for line in lines if line.strip()]
        except ValueError:
            try:
                found = [Release.model_validate_json("\n".join(lines))]  # indented, or none
            except ValueError:
                raise ConfigurationError(f"{where} holds something that is no release") from None
    elif "@" not in name:
        raise ConfigurationError(f"{name} is not a file; a release of a topic is TOPIC@BATCH")
    else:
        settings = given.load(ViewSettings)
        with brokers.ask_once(settings) as cluster:
            records = cluster.scan(where or settings.output_topic)
        found = [release for _, release in published(records, settings.model)]
    for release in reversed(found):
        if not batch or release.batch == int(batch):
            return release
    raise ConfigurationError(
        f"{name!r} must be a file of releases or a topic with them, with @ and the number of a "
        "batch unless the last one is meant; there is no such release"
    )

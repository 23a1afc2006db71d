"""`stream-dppca run`: learns from a file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stream_dppca.errors import NothingLearnedWarning

from ..errors import ConfigurationError
from ..files.blocks import read_blocks
from ..files.rounds import run_rounds
from ..files.run import Run, run_file
from ..files.streams import GZIP
from ..model.describe import CHECK_NAMES
from ..model.states import make_estimator
from ..settings import FileSettings, OnceSettings
from .caution import warn_of
from .exits import fail
from .options import RunOptions
from .output import Output
from .parsing import Given
from .progress import shown_progress


def run(options: RunOptions, given: Given[FileSettings]) -> int:
    """Learn from a file; return the exit code."""
    plain = Path(options.input.removesuffix(GZIP))
    name = "stdin" if options.input == "-" else plain.stem
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in name) or "file"
    if options.once:
        given = replace(given, kind=OnceSettings)
    settings = given.load(input_topic=safe)
    suffix = plain.suffix.lstrip(".")
    format: Any = options.format or {"json": "jsonl", "ndjson": "jsonl"}.get(suffix, suffix)
    for problem in _problems(options, settings, format, given):
        raise ConfigurationError(problem)
    if options.once:
        size = sum(map(len, read_blocks(options.input, format, settings.features)))
        if not size:
            raise ConfigurationError("there were no records in the input")
        settings = settings.model_copy(update={"batch_size": size})
        # Batches of as many rows that the first step would take at once.
        steps = make_estimator(FileSettings.estimator_recipe(settings)).first_batches
        if steps > 2:
            _tell(
                f"warning: {size} rows are few for {len(settings.features)} features at epsilon = "
                f"{settings.epsilon:g}, and what is learned may be noise: {steps * size} are enough"
            )
    warn_of(settings)
    if options.state is None:
        _tell(
            "warning: without --state nothing remembers that these rows were used: another run on "
            "them spends epsilon again"
        )
    warnings.simplefilter("ignore", NothingLearnedWarning)  # the releases say so
    output = Output(as_json=options.as_json or not sys.stdout.isatty())
    with shown_progress(name, lines=output.as_json) as progress:
        this = Run(
            settings,
            source=options.input,
            format=format,
            state=options.state,
            new_records=options.new_records,
            out=output,
            tell=_tell,
            progress=progress,
        )
        if settings.unit == "subject":
            run_rounds(this, options.time or "", options.begin, options.until or "")
        else:
            run_file(this)
    output.end()
    if output.reason:
        where = ", --from and --until" if settings.unit == "subject" else ""
        advice = f"{CHECK_NAMES}{where}, {output.ADVICE}"
        return fail(f"nothing was learned: {output.reason}; {advice}", 1)
    return 0


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _problems(
    options: RunOptions, settings: FileSettings, format: str, given: Given[FileSettings]
) -> Iterator[str]:
    """Yield what is wrong with the options."""
    if format not in ("csv", "jsonl", "parquet", "npy"):
        yield "--format must be given: csv, jsonl, parquet or npy; xlsx and others cannot be read"
    if options.input.endswith(GZIP) and format in ("parquet", "npy"):
        yield f"{format} files must not be compressed again"
    subjects = settings.unit == "subject"
    times = {"--time": options.time, "--from": options.begin, "--until": options.until}
    for name, value in times.items():
        if not subjects and value is not None:
            yield f"{name} is for --subject: rounds are stretches of time. Found {value}."
    if subjects and options.once:
        yield "--once must be left out with --subject: rounds are stretches of time"
    if subjects and options.time is None:
        yield "--time must be given with --subject: the column with the time of each row"
    if subjects and options.until is None:
        yield (
            "--until must be given with --subject: the end of the last round. The last row would "
            "tell when its subject sent it. For example: --from 2026-01-31 --until 2026-02-01"
        )
    if options.once and (size := given.flags.get("batch_size")) is not None:
        yield f"--batch-size must be left out with --once: the file is one batch. Found {size}."
    if options.once and settings.method == "paper":
        yield "--once must be left out with method=paper, which has its own noise for all batches"
    if options.once and options.input == "-":
        yield "--once must be left out with --input -, which cannot be read twice"

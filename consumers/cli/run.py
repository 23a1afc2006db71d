"""`stream-dppca run`: learns from a file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stream_dppca.errors import NothingLearnedWarning

from ..errors import ConfigurationError
from ..files.blocks import MissingColumns, read_blocks
from ..files.rounds import run_rounds
from ..files.run import run_file
from ..files.span import time_text
from ..files.streams import uncompressed_name
from ..model.describe import CHECK_NAMES
from ..settings import FileSettings, OnceSettings
from ..settings.durations import duration_text
from .caution import warn_of
from .exits import EXIT_CONFIGURATION, fail
from .options import Given
from .output import Releases, Watched, json_lines
from .own import RunOptions
from .progress import Shown, shown_progress


def run(options: RunOptions, given: Given) -> int:
    """Learn from a file; return the exit code."""
    plain = uncompressed_name(options.input)
    name = "stdin" if options.input == "-" else Path(plain).stem
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in name) or "file"
    kind = OnceSettings if options.once else FileSettings
    settings: FileSettings = given.load(kind, input_topic=safe)
    suffix = Path(plain).suffix.lstrip(".")
    format: Any = options.format or {"json": "jsonl", "ndjson": "jsonl"}.get(suffix, suffix)
    if format not in ("csv", "jsonl", "parquet", "npy"):
        raise ConfigurationError("--format must be given: csv, jsonl, parquet or npy")
    if plain != options.input and format in ("parquet", "npy"):
        raise ConfigurationError(f"{format} files must not be compressed again")
    for problem in _problems(options, settings, given):
        raise ConfigurationError(problem)
    if options.once:
        size = sum(map(len, read_blocks(options.input, format, settings.features)))
        if not size:
            raise ConfigurationError("there were no records in the input")
        settings = settings.model_copy(update={"batch_size": size})
    warn_of(settings)
    if options.state is None:
        sys.stderr.write(
            "warning: without --state nothing remembers that these rows were used: another run on "
            "them spends epsilon again\n"
        )
    warnings.simplefilter("ignore", NothingLearnedWarning)  # the releases say so
    try:
        with shown_progress(options.input, quiet=options.quiet) as shown:
            on_screen = sys.stdout.isatty() and not options.as_json
            releases = Releases(shown.write) if on_screen else None
            learn = _learn_rounds if settings.unit == "subject" else _learn_batches
            watched = Watched(releases or json_lines)
            said = learn(options, settings, format, watched, shown)
    except MissingColumns as error:
        if not sys.stderr.isatty():
            raise
        return fail(error.on_terminal, EXIT_CONFIGURATION)
    if releases is not None:
        releases.end()
    sys.stderr.write(said)
    if watched.reason:
        where = ", --from and --until" if settings.unit == "subject" else ""
        return fail(f"nothing was learned: {watched.reason}; {CHECK_NAMES}{where}", 1)
    return 0


def _problems(options: RunOptions, settings: FileSettings, given: Given) -> Iterator[str]:
    """Yield what is wrong with --time, --from, --until and --once."""
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
        round = "24h" if settings.round is None else duration_text(settings.round)
        yield (
            "--until must be given with --subject: the end of the last round to release. It is not "
            "read from the file, because the time of the last row would tell when its subject sent "
            f"it. For example: stream-dppca run --input {options.input} --subject "
            f"{settings.subject} --round {round} --time {options.time} --from 2026-01-31 "
            "--until 2026-02-01"
        )
    if options.once and (size := given.flags.get("batch_size")) is not None:
        yield f"--batch-size must be left out with --once: the file is one batch. Found {size}."
    if options.once and settings.method == "paper":
        yield "--once must be left out with method=paper, which has its own noise for all batches"
    if options.once and options.input == "-":
        yield "--once must be left out with --input -, which cannot be read twice"


def _learn_batches(
    options: RunOptions,
    settings: FileSettings,
    format: Any,
    out: Callable[[bytes], None],
    shown: Shown,
) -> str:
    """Learn from a file of records; return the text to print at the end."""
    state, new = options.state, options.new_records
    rows = run_file(
        settings,
        options.input,
        format,
        state=state,
        out=out,
        progress=shown.progress,
        new_records=new,
        share=shown.share,
        resumed=lambda rows: sys.stderr.write(f"resuming after {rows} rows\n"),
    )
    if not rows.read:
        return "there were no records in the input\n"
    if rows.waiting and state and not new:
        return f"{rows.waiting} rows wait for a full step of {rows.step}\n"
    if rows.waiting:
        return f"{rows.waiting} rows were left over: fewer than a step of {rows.step}\n"
    if not rows.used:
        return f"all {rows.read} rows were used before: this is the last release again\n"
    return ""


def _learn_rounds(
    options: RunOptions,
    settings: FileSettings,
    format: Any,
    out: Callable[[bytes], None],
    shown: Shown,
) -> str:
    """Learn from a file, round by round; return the text to print at the end."""
    done = run_rounds(
        settings,
        options.input,
        format,
        options.time or "",
        begin=options.begin,
        until=options.until or "",
        state=options.state,
        out=out,
        progress=shown.progress,
        new_records=options.new_records,
    )
    if done.rounds == 0 and not done.finished:
        return "no round before --until is left to release: this is the last release again\n"
    said = ""
    if done.rounds and done.state_end_ms is not None:
        said = f"began at {time_text(done.state_end_ms)}, where the state ended\n"
    if done.finished:
        said += "the horizon is reached: this model learns nothing more\n"
    return said

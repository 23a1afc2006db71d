"""The functions behind the commands: each takes parsed options and returns an exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from . import brokers
from .exits import EXIT_CONFIGURATION, exit_code, fail
from .options import load

if TYPE_CHECKING:
    from ..service.remote import Remote
    from ..settings import FileSettings, ModelSettings, Settings
    from .progress import Shown


def _private(settings: ModelSettings) -> bool:
    return settings.seed is None


def _warnings(settings: ModelSettings) -> list[str]:
    """Return warnings about a budget that is allowed but seldom intended."""
    from stream_dppca.checks import loose_budget

    # A plan may have no size. Then 1 stands for it, because every delta is below 1/1.
    name = "batch_size" if settings.unit == "record" else "places"
    return loose_budget(settings.epsilon, settings.delta, getattr(settings, name) or 1, name)


def _warn(settings: ModelSettings) -> None:
    """Warn of settings that promise little or nothing."""
    if not _private(settings):
        sys.stderr.write("warning: seed is set: nothing is private\n")
    for warning in _warnings(settings):
        sys.stderr.write(f"warning: {warning}\n")


def _stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stop = threading.Event()
    signalled: list[float] = []

    def on_signal(number: int, frame: object) -> None:
        # A second signal ends the process at once. Some senders signal the process and its group
        # in one go: these count as one.
        if signalled and time.monotonic() - signalled[0] > 0.5:
            os._exit(128 + number)
        signalled.append(time.monotonic())
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _serve(options: argparse.Namespace) -> int:
    from stream_dppca import NothingLearnedWarning

    from ..events import describe_error, log_event, set_up_logs
    from ..service.loop import Service
    from ..settings import Settings

    settings = load(options, Settings)
    cluster = brokers.connect(settings)
    # With privacy per subject offsets are secret, and the client's warnings may hold some.
    set_up_logs(
        sys.stdout, settings.log_format, mask_numbers=settings.unit == "subject",
        model=settings.model, pid=os.getpid(),
    )  # fmt: skip
    # The log says the same with every batch.
    warnings.filterwarnings("ignore", category=NothingLearnedWarning)
    stop = _stop_on_signals()
    log_event("starting", input=settings.input_topic, output=settings.output_topic,
              state=settings.state_topic, group=settings.group,
              epsilon=settings.epsilon, delta=settings.delta, unit=settings.unit,
              private=_private(settings))  # fmt: skip
    if not _private(settings):
        log_event("not_private", level="warning", reason="seed is set: nothing is private")
    for warning in _warnings(settings):
        log_event("loose_budget", level="warning", reason=warning)
    code = 0
    try:
        with _engine(settings) as remote:
            Service(settings, cluster, stop=stop, remote=remote).run()
    except Exception as error:
        log_event("stopped", level="error", **describe_error(error))
        code = exit_code(error)
    # Everything is closed. Threads of the client can hold up the interpreter's end for seconds.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _engine(settings: Settings) -> contextlib.AbstractContextManager[Remote | None]:
    """Start the engine that batches are read on; None stands for this process."""
    if settings.engine == "local":
        return contextlib.nullcontext()
    from ..kafka.configure import task_connection
    from ..service.spark import spark_engine

    return spark_engine(settings, task_connection(settings))


def _plan(options: argparse.Namespace) -> int:
    from ..settings import MESSAGE_KEY, PlanSettings

    if options.count is not None:
        options.flags["features"] = tuple(f"feature {i}" for i in range(options.count))
    if options.subjects is not None:
        options.flags.setdefault("subject", MESSAGE_KEY)  # which one does not matter for a plan
    settings = load(options, PlanSettings)
    _warn(settings)
    if settings.unit == "subject":
        subjects = settings.places if options.subjects is None else options.subjects
        if subjects is None:
            return fail("--subjects must be given: the number of subjects", EXIT_CONFIGURATION)
        text = _planned_rounds(settings, subjects, options.presence)
    else:
        text = _planned(settings, options.rate)
    sys.stdout.write(f"{text}\n")
    return 0


def _planned(settings: ModelSettings, rate: float | None = None) -> str:
    """Return the predictions as text; there are none for the published algorithm."""
    from stream_dppca import plan

    if settings.places is not None:  # all are taken
        return _planned_rounds(settings, settings.places)
    if settings.method == "paper":
        return "method=paper: no predictions; it needs very large batches"
    return str(plan(batch_size=settings.batch_size, rate=rate, **_known(settings)))


def _planned_rounds(settings: ModelSettings, subjects: float, presence: float = 1.0) -> str:
    """Return the predictions for rounds."""
    from stream_dppca import plan_subjects

    from ..messages.fold import MOST_SERIES, STATE_BYTES

    rounds = settings.rounds()
    if rounds is None:
        raise ValueError("there are no rounds with unit=record")
    expected = plan_subjects(
        subjects=subjects,
        presence=presence,
        places=settings.places,
        period=rounds.period,
        horizon=rounds.horizon,
        round_seconds=rounds.length_ms / 1000,
        **_known(settings),
    )
    series_mb = expected.places * len(settings.features) * STATE_BYTES / 1e6
    return (
        f"{expected}\nepsilon is for {rounds.scope()}\n"
        f"memory with otlp, otlp-json or long: {series_mb:,.3g} MB per part of a round and series "
        f"of a feature, at most {MOST_SERIES} series"
    )


def _known(settings: ModelSettings) -> dict[str, Any]:
    """Return the parameters of every plan."""
    return {
        "d": len(settings.features), "epsilon": settings.epsilon, "delta": settings.delta,
        "n_components": settings.n_components, "center": settings.center,
        "scales": None if settings.scales == "none" else settings.scales,
    }  # fmt: skip


#: A typo in the name of a feature can be seen in messages only.
SAMPLE_HINT: Final = (
    "hint: no message was read. `check-config --sample 20`, on a terminal, reads a few and says "
    "whether they have all features\n"
)
#: A row of a shared message is protected in its place only.
GROUPS_HINT: Final = (
    "hint: with unit=record, a host that appears in a message or leaves it moves the rows of other "
    "hosts. Hosts that come and go in shared messages need unit=subject\n"
)


def _check_config(options: argparse.Namespace) -> int:
    from ..formats import POINT_FORMATS
    from ..model.states import make_estimator
    from ..service.loop import task_config
    from ..settings import Settings
    from .check import check_cluster, show_sample

    settings = load(options, Settings)
    config = task_config(settings)
    make_estimator(config.estimator)
    _warn(settings)
    end, fits = "", True
    if not options.offline:
        with brokers.ask_once(settings) as cluster:
            check_cluster(cluster, settings, config)
            if options.sample:
                end, fits = show_sample(cluster, settings, options.sample)
            else:
                sys.stderr.write(SAMPLE_HINT)
    if settings.format in POINT_FORMATS and settings.unit == "record":
        sys.stderr.write(GROUPS_HINT)
    sys.stdout.write(f"{_planned(settings)}\n")
    sys.stdout.write(f"the settings are fine{end}\n")
    return 0 if fits else 1  # for whoever is at the terminal: without one there is no sample


def _show_config(options: argparse.Namespace) -> int:
    from ..settings import Settings

    sys.stdout.write(json.dumps(load(options, Settings).shown(), indent=2) + "\n")
    return 0


def _topics(options: argparse.Namespace) -> int:
    from ..service.topics import ensure_topics, wanted_topics
    from ..settings import ClusterSettings

    settings = load(options, ClusterSettings)
    with brokers.ask_once(settings) as cluster:
        ensure_topics(cluster, settings)
    for name, info in wanted_topics(settings).items():
        sys.stdout.write(f"{name}: {info.partitions} partition(s), compacted\n")
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from ..model.describe import current_release, describe
    from ..settings import ViewSettings
    from .history import history_table, published, stored_release

    if options.state is not None:
        records = [stored_release(options.state)]
        model, where = published(records)[0][1].model, str(options.state)
    else:
        settings = load(options, ViewSettings)
        with brokers.ask_once(settings) as cluster:
            records = cluster.scan(settings.output_topic)
        model, where = settings.model, settings.output_topic
    release = current_release(records, model)
    if release is None:
        return fail(f"no release of {model!r} on {where!r} yet", 1)
    found = published(records, model)
    if not options.history:
        found = [pair for pair in found if pair[1].batch == release.batch]
    if options.json:
        text = "\n".join(message.value.decode() for message, _ in found)
    else:
        text = history_table(found) if options.history else describe(release, options.top)
    sys.stdout.write(text.rstrip() + "\n")
    return 0


def _watch(options: argparse.Namespace) -> int:
    from ..settings import ViewSettings
    from .watch import watch

    settings = load(options, ViewSettings)
    return watch(brokers.connect(settings), settings, options, _stop_on_signals())


def _run(options: argparse.Namespace) -> int:
    from ..files.streams import uncompressed_name
    from ..settings import FileSettings, OnceSettings

    plain = uncompressed_name(options.input)
    name = "stdin" if options.input == "-" else Path(plain).stem
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in name) or "file"
    kind = OnceSettings if options.once else FileSettings
    settings: FileSettings = load(options, kind, input_topic=safe)
    suffix = Path(plain).suffix.lstrip(".")
    format: Any = options.format or {"json": "jsonl", "ndjson": "jsonl"}.get(suffix, suffix)
    if format not in ("csv", "jsonl", "parquet", "npy"):
        return fail("--format must be given: csv, jsonl, parquet or npy", EXIT_CONFIGURATION)
    if plain != options.input and format in ("parquet", "npy"):
        return fail(f"{format} files must not be compressed again", EXIT_CONFIGURATION)
    if wrong := _wrong_times(options, settings) or _wrong_once(options, settings):
        return fail(wrong, EXIT_CONFIGURATION)
    if options.once:
        from ..files.blocks import read_blocks

        size = sum(map(len, read_blocks(options.input, format, settings.features)))
        if not size:
            return fail("there were no records in the input", EXIT_CONFIGURATION)
        settings = settings.model_copy(update={"batch_size": size})
    _warn(settings)

    from ..files.blocks import MissingColumns
    from .output import Releases, json_lines
    from .progress import shown_progress

    try:
        with shown_progress(options.input, quiet=options.quiet) as shown:
            releases = Releases(shown.write) if sys.stdout.isatty() and not options.json else None
            learn = _run_rounds if settings.unit == "subject" else _run_batches
            said = learn(options, settings, format, releases or json_lines, shown)
    except MissingColumns as error:
        if not sys.stderr.isatty():
            raise
        return fail(error.on_terminal, EXIT_CONFIGURATION)
    if releases is not None:
        releases.end()
    sys.stderr.write(said)
    return 0


def _wrong_times(options: argparse.Namespace, settings: FileSettings) -> str | None:
    """Return an error about --time, --from or --until, which belong to --subject, or None."""
    if settings.unit != "subject":
        given = {"--time": options.time, "--from": options.begin, "--until": options.until}
        for name, value in given.items():
            if value is not None:
                return f"{name} is for --subject: rounds are stretches of time. Found {value}."
        return None
    if options.time is None:
        return "--time must be given with --subject: the column with the time of each row"
    if options.until is None:
        from ..settings.durations import duration_text

        round = "24h" if settings.round is None else duration_text(settings.round)
        return (
            "--until must be given with --subject: the end of the last round to release. It is not "
            "read from the file, because the time of the last row would tell when its subject sent "
            f"it. For example: stream-dppca run --input {options.input} --subject "
            f"{settings.subject} --round {round} --time {options.time} --from 2026-01-31 "
            "--until 2026-02-01"
        )
    return None


def _wrong_once(options: argparse.Namespace, settings: FileSettings) -> str | None:
    """Return an error about --once, which is for a file of records, or None."""
    if options.once and settings.unit == "subject":
        return "--once must be left out with --subject: rounds are stretches of time"
    if options.once and settings.method == "paper":
        return "--once must be left out with method=paper, which has its own noise for all batches"
    if options.once and options.input == "-":
        return "--once must be left out with --input -, which cannot be read twice"
    return None


def _run_batches(
    options: argparse.Namespace,
    settings: FileSettings,
    format: Any,
    out: Callable[[bytes], None],
    shown: Shown,
) -> str:
    """Learn from a file of records; return the text to print at the end."""
    from ..files.run import run_file

    rows = run_file(
        settings, options.input, format, state=options.state, out=out, progress=shown.progress,
        share=shown.share, new_records=options.new_records,
    )  # fmt: skip
    if not rows.read:
        return "there were no records in the input\n"
    if rows.waiting and options.state and not options.new_records:
        return f"{rows.waiting} rows wait for a full step of {rows.step}\n"
    if rows.waiting:
        return f"{rows.waiting} rows were left over: fewer than a step of {rows.step}\n"
    if not rows.used:
        return f"all {rows.read} rows were used before: this is the last release again\n"
    return ""


def _run_rounds(
    options: argparse.Namespace,
    settings: FileSettings,
    format: Any,
    out: Callable[[bytes], None],
    shown: Shown,
) -> str:
    """Learn from a file, round by round; return the text to print at the end."""
    from ..files.rounds import run_rounds
    from ..files.span import time_text

    done = run_rounds(
        settings, options.input, format, options.time, begin=options.begin, until=options.until,
        state=options.state, out=out, progress=shown.progress, new_records=options.new_records,
    )  # fmt: skip
    if done.rounds == 0 and not done.finished:
        return "no round before --until is left to release: this is the last release again\n"
    said = ""
    if done.rounds and done.state_end_ms is not None:
        said = f"began at {time_text(done.state_end_ms)}, where the state ended\n"
    if done.finished:
        said += "the horizon is reached: this model learns nothing more\n"
    return said


def _score(options: argparse.Namespace) -> int:
    from ..events import set_up_logs
    from ..kafka.configure import kafka_config, open_registry
    from ..kafka.producer import MessageProducer
    from ..kafka.subscription import Subscription
    from ..model.scores import NOT_PRIVATE, CurrentModel
    from ..service.score import codec_of, ensure_scores_topic, run_scoring
    from ..settings import ClusterSettings

    settings = load(options, ClusterSettings)
    topic = options.scores_topic or f"{settings.model}.scores"
    group = options.scores_group or f"{settings.group}.scores"
    sys.stderr.write(f"warning: {NOT_PRIVATE}\n")
    cluster = brokers.connect(settings)
    config = kafka_config(settings)
    set_up_logs(sys.stdout, model=settings.model, pid=os.getpid())
    stop = _stop_on_signals()
    ensure_scores_topic(cluster, settings, topic)
    registry = open_registry(settings)
    start: Literal["earliest", "latest"] = "latest" if settings.start == "latest" else "earliest"
    written = run_scoring(
        cluster, CurrentModel(settings.model), stop=stop, once=options.once,
        output_topic=settings.output_topic, input_topic=settings.input_topic,
        open_source=lambda: Subscription(config, settings.input_topic, group, start),
        open_target=lambda: MessageProducer(config, topic),
        make_codec=lambda release: codec_of(settings, release, registry),
    )  # fmt: skip
    sys.stderr.write(f"{written} scores written to {topic}\n")
    return 0


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "serve": _serve,
    "plan": _plan,
    "check-config": _check_config,
    "show-config": _show_config,
    "topics": _topics,
    "inspect": _inspect,
    "watch": _watch,
    "score": _score,
    "run": _run,
}

"""What each command does."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import brokers
from .exits import EXIT_CONFIGURATION, exit_code, fail
from .options import load

if TYPE_CHECKING:
    from ..service.spread import Spread
    from ..settings import ModelSettings, Settings, TopicSettings

__all__ = ["COMMANDS"]


def _private(settings: ModelSettings) -> bool:
    return settings.seed is None


def _warn_if_not_private(settings: ModelSettings) -> None:
    if not _private(settings):
        sys.stderr.write("warning: seed is set: nothing is private\n")


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
    from ..events import describe_error, log_event, set_up_logs
    from ..service.loop import Service
    from ..settings import Settings

    settings = load(options, Settings)
    cluster = brokers.connect(settings)
    set_up_logs(sys.stdout, model=settings.model, pid=os.getpid())
    stop = _stop_on_signals()
    log_event("starting", input=settings.input_topic, output=settings.output_topic,
              state=settings.state_topic, group=settings.group, shards=settings.shards,
              epsilon=settings.epsilon, delta=settings.delta,
              private=_private(settings))  # fmt: skip
    if not _private(settings):
        log_event("not_private", level="warning", reason="seed is set: nothing is private")
    code = 0
    try:
        with _engine(settings) as spread:
            Service(settings, cluster, stop=stop, spread=spread).run()
    except Exception as error:
        log_event("stopped", level="error", **describe_error(error))
        code = exit_code(error)
    # Everything is closed. Threads of the client can hold up the interpreter's end for seconds.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _engine(settings: Settings) -> contextlib.AbstractContextManager[Spread | None]:
    """Start the engine that batches are read on; None is this process."""
    if settings.engine == "local":
        return contextlib.nullcontext()
    from ..kafka.configure import librdkafka_connection
    from ..service.spark import spark_engine

    return spark_engine(settings, librdkafka_connection(settings))


def _plan(options: argparse.Namespace) -> int:
    from ..settings import PlanSettings

    if options.count is not None:
        options.flags["features"] = tuple(f"feature {i}" for i in range(options.count))
    settings = load(options, PlanSettings)
    sys.stdout.write(f"{_planned(settings, options.rate)}\n")
    return 0


def _planned(settings: ModelSettings, rate: float | None = None) -> str:
    """Return what to expect; of the published algorithm there are no predictions."""
    from stream_dppca import plan

    if settings.method == "paper":
        return "method=paper: no predictions; it needs very large batches"
    expected = plan(
        d=len(settings.features), epsilon=settings.epsilon, delta=settings.delta,
        batch_size=settings.batch_size, rate=rate, n_components=settings.n_components,
        center=settings.center, scales=None if settings.scales == "none" else settings.scales,
    )  # fmt: skip
    return str(expected)


def _check_config(options: argparse.Namespace) -> int:
    from ..model.states import make_estimator
    from ..service.loop import task_config
    from ..service.topics import ensure_topics
    from ..settings import Settings

    settings = load(options, Settings)
    make_estimator(task_config(settings).estimator)
    _warn_if_not_private(settings)
    if not options.offline:
        with brokers.ask_once(settings) as cluster:
            missing = ensure_topics(cluster, settings, create=False)
        if missing:
            sys.stdout.write(f"will be created: {', '.join(missing)}\n")
    sys.stdout.write(f"{_planned(settings)}\n")
    sys.stdout.write("the settings are fine\n")
    return 0


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


def _merge(options: argparse.Namespace) -> int:
    from ..model.merge import merged_message
    from ..model.releases import parse_release
    from ..settings import ClusterSettings

    settings = load(options, ClusterSettings)
    with brokers.ask_once(settings) as cluster:
        record = merged_message(cluster.scan(settings.output_topic), settings.model)
        if record is None:
            return _no_release(settings)
        if parse_release(record.value).shards == 1:
            text = f"model {settings.model!r} has one shard: nothing to merge; see `inspect`"
            return fail(text, EXIT_CONFIGURATION)
        cluster.publish([record])
    sys.stdout.write(record.value.decode() + "\n")
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from ..model.describe import current_release, describe
    from ..settings import ClusterSettings

    settings = load(options, ClusterSettings)
    with brokers.ask_once(settings) as cluster:
        records = cluster.scan(settings.output_topic)
    release = current_release(records, settings.model, options.task)
    if release is None:
        return _no_release(settings)
    text = release.model_dump_json() if options.json else describe(release, options.top)
    sys.stdout.write(text.rstrip() + "\n")
    return 0


def _no_release(settings: TopicSettings) -> int:
    return fail(f"no release of {settings.model!r} on {settings.output_topic!r} yet", 1)


def _run(options: argparse.Namespace) -> int:
    from ..files.run import run_file
    from ..settings import FileSettings

    name = "stdin" if options.input == "-" else Path(options.input).stem
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in name) or "file"
    settings = load(options, FileSettings, input_topic=safe)
    _warn_if_not_private(settings)
    suffix = Path(options.input).suffix.lstrip(".")
    format: Any = options.format or {"json": "jsonl", "ndjson": "jsonl"}.get(suffix, suffix)
    if format not in ("csv", "jsonl", "parquet", "npy"):
        return fail("--format must be given: csv, jsonl, parquet or npy", EXIT_CONFIGURATION)

    def out(value: bytes) -> None:
        sys.stdout.buffer.write(value + b"\n")
        sys.stdout.buffer.flush()

    from .progress import shown_progress

    with shown_progress(options.input, quiet=options.quiet) as progress:
        rows = run_file(
            settings, options.input, format, state=options.state, out=out, progress=progress,
            new_records=options.new_records,
        )  # fmt: skip
    if not rows.read:
        sys.stderr.write("there were no records in the input\n")
    elif rows.waiting and options.state and not options.new_records:
        sys.stderr.write(f"{rows.waiting} rows wait for a full batch of {settings.batch_size}\n")
    elif rows.waiting:
        size = settings.batch_size
        sys.stderr.write(f"{rows.waiting} rows were left over: fewer than a batch of {size}\n")
    return 0


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "serve": _serve,
    "plan": _plan,
    "check-config": _check_config,
    "show-config": _show_config,
    "topics": _topics,
    "merge": _merge,
    "inspect": _inspect,
    "run": _run,
}

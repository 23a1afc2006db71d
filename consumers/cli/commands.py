"""`stream-dppca`: the service and its tools, as commands.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

if TYPE_CHECKING:
    from ..protocols import Cluster
    from ..settings import Settings

__all__ = ["main"]

EXIT_USAGE: Final = 2
EXIT_CONFIGURATION: Final = 78
EXIT_REFUSED: Final = 65
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_UNREAD: Final = 128 + signal.SIGPIPE
#: How long a command that asks the brokers once waits for them, unless request_timeout_s is set.
PATIENCE_SECONDS: Final = 5.0

DESCRIPTION = """\
Differentially private PCA of a Kafka topic: records go in, private components come out.

A first model on an existing cluster:

  export DPPCA_BOOTSTRAP_SERVERS=kafka:9092 DPPCA_INPUT_TOPIC=telemetry
  export DPPCA_FEATURES=cpu,memory,disk.read DPPCA_EPSILON=1 DPPCA_DELTA=1e-6
  export DPPCA_BATCH_SIZE=10000 DPPCA_CENTER=pairs   # pairs: the data has a mean
  stream-dppca check-config      # are the settings right, and the topics there?
  stream-dppca serve             # learn; a second one is a hot standby
  stream-dppca inspect           # the current component, labelled and sorted

Every setting is a flag (--batch-size), a variable (DPPCA_BATCH_SIZE) or a line of a TOML file
(batch_size = 10000); flags win over variables, variables over the file. See `serve --help`.
"""

COMMANDS: Final = {
    "serve": "learn from a topic and publish the components",
    "check-config": "check the settings, and the topics unless --offline",
    "show-config": "print the settings, secrets masked",
    "topics": "make the output and state topics, or say what is missing",
    "merge": "publish the combined component of all shards, once",
    "inspect": "print the current component of a model, labelled and sorted",
    "run": "learn from a file instead of a topic; releases as JSON lines",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        "stream-dppca", description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="\n".join(
        f"{name:13} {text}" for name, text in COMMANDS.items()
    ))  # fmt: skip
    parser.add_argument("options", nargs=argparse.REMAINDER, help="see `<command> --help`")
    if not given:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    if given[0] == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"stream-dppca {version('stream-dppca')}\n")
        return 0
    if given[0] in COMMANDS:
        command, options = given[0], given[1:]
    else:
        parsed = parser.parse_args(given)
        command, options = parsed.command, parsed.options
    if command == "serve":
        # The imports take seconds. Until they are done nothing has begun: leave at once.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
    try:
        code = _RUN[command](_parse(command, options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stopped:
        return _fail(str(stopped) or "stopped", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Nobody reads any more. Python would try once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNREAD
    except ModuleNotFoundError as error:
        text = f"this command needs {error.name}: pip install '.[service]'"
        return _fail(text, EXIT_CONFIGURATION)
    except Exception as error:
        from ..events import describe_error

        described = describe_error(error)
        # The text of an error that is not ours may quote a record: its type and place must do.
        text = described.get("message") or json.dumps({"event": "crashed", **described})
        return _fail(text, _exit_code(error))


def _exit_code(error: Exception) -> int:
    from stream_dppca import DPPCAError

    from ..errors import ConfigurationError, StateRefused

    if isinstance(error, StateRefused):
        return EXIT_REFUSED
    return EXIT_CONFIGURATION if isinstance(error, ConfigurationError | DPPCAError) else 1


def _fail(text: str, code: int) -> int:
    sys.stderr.write(text.rstrip() + "\n")
    return code


def _parse(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    """A command's options: its own, and every setting."""
    from ..settings import PREFIX, Settings

    text, own = COMMANDS[command], " --input FILE" if command == "run" else ""
    parser = argparse.ArgumentParser(
        f"stream-dppca {command}", usage=f"stream-dppca {command}{own} [options] [settings]",
        description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False,
    )  # fmt: skip
    if command == "check-config":
        parser.add_argument("--offline", action="store_true", help="do not ask the brokers")
    if command == "inspect":
        parser.add_argument("--task", default=None, help="a shard; default: merged if several")
        parser.add_argument("--json", action="store_true", help="the release as published")
        parser.add_argument("--top", type=int, default=0, help="only the largest loadings")
    if command == "run":
        parser.add_argument(
            "--input", required=True, metavar="FILE", help="a file, or - for standard input"
        )
        choices = ("csv", "jsonl", "parquet", "npy")
        parser.add_argument("--format", choices=choices, help="default: by the file's name")
        parser.add_argument("--state", type=Path, help="where to keep the state, to go on later")
        parser.add_argument(
            "--new-records", action="store_true",
            help="the input holds new records only: pass over none that the state has used",
        )  # fmt: skip
        parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--config", type=Path, help=f"a TOML file of settings ({PREFIX}CONFIG)")
    group = parser.add_argument_group(
        "settings", f"each also as a variable ({PREFIX}BATCH_SIZE) or in the file (batch_size)"
    )
    supplied = {"inspect": tuple(_READING), "run": ("input_topic",)}.get(command, ())
    for name, field in Settings.model_fields.items():
        if command == "run" and name == "format":
            continue
        default = field.get_default()
        shown = "" if field.is_required() or default in ("", None, ()) else f" [{default}]"
        if field.is_required() and name not in supplied:
            shown = " (required)"
        group.add_argument(
            "--" + name.replace("_", "-"), default=argparse.SUPPRESS,
            metavar=_choices(field.annotation),
            help=f"{field.description}{shown}".replace("%", "%%"),
        )  # fmt: skip
    options = parser.parse_args(arguments)
    flags = {n: v for n, v in vars(options).items() if n in Settings.model_fields}
    if command == "run":
        flags.pop("format", None)
    options.flags = flags
    return options


def _choices(kind: Any) -> str:
    """What a setting may be, if these are a few words."""
    if kind is bool:
        return "{true,false}"
    for part in (kind, *get_args(kind)):  # of a Literal, or of `Literal[...] | None`
        if get_origin(part) is Literal:
            return "{" + ",".join(get_args(part)) + "}"
    return "…"


def _settings(options: argparse.Namespace, **defaults: Any) -> Settings:
    from ..settings import load_settings, unmatched_variables

    for name in unmatched_variables():
        sys.stderr.write(f"warning: {name} is no setting of this version; is it mistyped?\n")
    return load_settings({**defaults, **options.flags}, options.config)


def _kafka(settings: Settings) -> Cluster:
    from ..events import set_up_logs
    from ..kafka.cluster import KafkaCluster
    from ..kafka.config import KafkaConfig

    set_up_logs(sys.stderr)
    return KafkaCluster(
        KafkaConfig(
            connection=settings.connection(),
            group=settings.group,
            input_topic=settings.input_topic,
            state_topic=settings.state_topic,
            output_topic=settings.output_topic,
            session_timeout_s=settings.session_timeout_s,
            request_timeout_s=settings.request_timeout_s,
            transaction_timeout_s=settings.transaction_timeout_s,
            fetch=settings.fetch(),
            librdkafka=settings.librdkafka(),
        )
    )


@contextlib.contextmanager
def _asked(settings: Settings) -> Iterator[Cluster]:
    """The cluster, for a command that asks it once: little patience, and one line if in vain."""
    from ..errors import Unavailable
    from ..events import LastReason

    if "request_timeout_s" not in settings.model_fields_set:
        settings = settings.model_copy(update={"request_timeout_s": PATIENCE_SECONDS})
    log = _kafka(settings)
    reason = LastReason()
    try:
        yield log
    except Unavailable as error:
        if "Unable to bootstrap" not in str(error):
            raise
        why = reason.text or f"within {settings.request_timeout_s:g} s"
        raise Unavailable(
            f"bootstrap_servers {settings.bootstrap_servers}: no broker answers ({why})"
        ) from None


def _private(settings: Settings) -> bool:
    return settings.seed is None


def _warn_if_not_private(settings: Settings) -> None:
    if not _private(settings):
        sys.stderr.write("warning: seed is set: nothing is private\n")


# Commands


def _stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set from now on."""
    stop = threading.Event()
    signalled: list[float] = []

    def on_signal(number: int, frame: object) -> None:
        # A second signal: at once. Some senders signal the process and its group, in one go.
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

    settings = _settings(options)
    log = _kafka(settings)
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
        Service(settings, log, stop=stop).run()
    except Exception as error:
        log_event("stopped", level="error", **describe_error(error))
        code = _exit_code(error)
    # Everything is closed. Threads of the client can hold up the interpreter's end for seconds.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _check_config(options: argparse.Namespace) -> int:
    from ..model.states import make_estimator
    from ..service.loop import task_config
    from ..service.topics import ensure_topics

    settings = _settings(options)
    make_estimator(task_config(settings).estimator)
    _warn_if_not_private(settings)
    if not options.offline:
        with _asked(settings) as log:
            missing = ensure_topics(log, settings, make=False)
        if missing:
            sys.stdout.write(f"will be made: {', '.join(missing)}\n")
    sys.stdout.write("the settings are fine\n")
    return 0


def _show_config(options: argparse.Namespace) -> int:
    sys.stdout.write(json.dumps(_settings(options).shown(), indent=2) + "\n")
    return 0


def _topics(options: argparse.Namespace) -> int:
    from ..service.topics import ensure_topics, wanted_topics

    settings = _settings(options)
    with _asked(settings) as log:
        ensure_topics(log, settings)
    for name, info in wanted_topics(settings).items():
        sys.stdout.write(f"{name}: {info.partitions} partition(s), compacted\n")
    return 0


def _merge(options: argparse.Namespace) -> int:
    from ..model.merge import merged_message
    from ..model.releases import parse_release

    settings = _settings(options)
    with _asked(settings) as log:
        record = merged_message(log.scan(settings.output_topic), settings.model)
        if record is None:
            return _fail(f"no release of {settings.model!r} on {settings.output_topic!r} yet", 1)
        if parse_release(record.value).shards == 1:
            text = f"shards of {settings.model!r} is 1: there is nothing to merge; see `inspect`"
            return _fail(text, EXIT_CONFIGURATION)
        log.publish([record])
    sys.stdout.write(record.value.decode() + "\n")
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from ..model.describe import current_release, describe

    settings = _settings(options, **_READING)
    with _asked(settings) as log:
        records = log.scan(settings.output_topic)
    release = current_release(records, settings.model, options.task)
    if release is None:
        return _fail(f"no release of {settings.model!r} on {settings.output_topic!r} yet", 1)
    text = release.model_dump_json() if options.json else describe(release, options.top)
    sys.stdout.write(text.rstrip() + "\n")
    return 0


#: To read releases, nothing needs to be known about how they are made.
_READING: Final = {"features": "-", "epsilon": 1, "delta": 1e-6, "batch_size": 2}


def _run(options: argparse.Namespace) -> int:
    from ..files.run import run_file

    name = "stdin" if options.input == "-" else Path(options.input).stem
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in name) or "file"
    settings = _settings(options, input_topic=safe)
    _warn_if_not_private(settings)
    suffix = Path(options.input).suffix.lstrip(".")
    format: Any = options.format or {"json": "jsonl", "ndjson": "jsonl"}.get(suffix, suffix)
    if format not in ("csv", "jsonl", "parquet", "npy"):
        return _fail("--format: say which of csv, jsonl, parquet, npy", EXIT_CONFIGURATION)

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


_RUN: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "serve": _serve,
    "check-config": _check_config,
    "show-config": _show_config,
    "topics": _topics,
    "merge": _merge,
    "inspect": _inspect,
    "run": _run,
}

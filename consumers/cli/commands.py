"""The functions behind the commands: each takes parsed options and returns an exit code.

Their docstrings are the lines of the help.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..formats import POINT_FORMATS
from . import brokers
from .exits import EXIT_CONFIGURATION, exit_code, fail
from .parsing import Given

if TYPE_CHECKING:
    from ..reading.remote import Remote
    from ..settings import (
        ClusterSettings,
        FileSettings,
        ModelSettings,
        PlanSettings,
        ScoreSettings,
        Settings,
        ViewSettings,
    )
    from . import options as own
    from .flags import Options


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


def _serve(options: Options, given: Given[Settings]) -> int:
    """learn from a topic and publish the components"""
    from stream_dppca import NothingLearnedWarning

    from ..events import describe_error, log_event, set_up_logs
    from ..service.loop import Service
    from .caution import cautions

    settings = given.load()
    cluster = brokers.connect(settings)
    # With privacy per subject offsets are secret, and the client's warnings may hold some.
    secret, who = settings.unit == "subject", {"model": settings.model, "pid": os.getpid()}
    set_up_logs(sys.stdout, settings.log_format, mask_numbers=secret, **who)
    # The log says the same with every batch.
    warnings.filterwarnings("ignore", category=NothingLearnedWarning)
    stop = _stop_on_signals()
    shown = settings.model_dump(include={"group", "epsilon", "delta", "unit"})
    names = {n: getattr(settings, f"{n}_topic") for n in ("input", "output", "state")}
    log_event("starting", **names, **shown, private=settings.seed is None)
    for event, text in cautions(settings):
        log_event(event, level="warning", reason=text)
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
    from ..reading.spark import spark_engine

    return spark_engine(settings, task_connection(settings))


def _plan(options: own.PlanOptions, given: Given[PlanSettings]) -> int:
    """predict accuracy and delay from the settings, before any data is touched"""
    from ..settings import MESSAGE_KEY
    from .caution import warn_of

    more: dict[str, Any] = {}
    if options.count is not None:
        more["features"] = tuple(f"feature {i}" for i in range(options.count))
    if options.subjects is not None:
        more["subject"] = MESSAGE_KEY  # which one does not matter for a plan
    settings = given.load(**more)
    warn_of(settings)
    if settings.unit == "subject":
        subjects = settings.places if options.subjects is None else options.subjects
        if subjects is None:
            return fail("--subjects must be given: the number of subjects", EXIT_CONFIGURATION)
        text = _planned_rounds(settings, subjects, options.presence)
    else:
        text = _planned(settings, options.rate)
    sys.stdout.write(f"{text}\n")
    return 0


def _planned(settings: PlanSettings | Settings, rate: float | None = None) -> str:
    """Return the predictions as text; there are none for the published algorithm."""
    from stream_dppca import plan

    if settings.places is not None:  # all are taken
        return _planned_rounds(settings, settings.places)
    if settings.method == "paper":
        return "method=paper: no predictions; it needs very large batches"
    return str(plan(batch_size=settings.batch_size, rate=rate, **_known(settings)))


def _planned_rounds(settings: PlanSettings | Settings, subjects: float, presence: float = 1) -> str:
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
    clock = ", or the time column of a file" if settings.format is None else ""
    text = f"{expected}\nepsilon is for {rounds.scope()}{clock}"
    if settings.format not in POINT_FORMATS:
        return text
    series_mb = expected.places * len(settings.features) * STATE_BYTES / 1e6
    return (
        f"{text}\nmemory with {settings.format}: {series_mb:,.1f} MB per part of a round and "
        f"series of a feature, at most {MOST_SERIES} series"
    )


def _known(settings: ModelSettings) -> dict[str, Any]:
    """Return the parameters of every plan."""
    same = settings.model_dump(include={"epsilon", "delta", "n_components", "center"})
    scales = None if settings.scales == "none" else settings.scales
    return {"d": len(settings.features), "scales": scales, **same}


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


def _check_config(options: own.CheckOptions, given: Given[Settings]) -> int:
    """check the settings, the topics and, with --sample, a few messages"""
    from ..model.states import make_estimator
    from ..service.loop import task_config
    from .caution import warn_of
    from .check import check_cluster, show_sample

    settings = given.load()
    config = task_config(settings)
    make_estimator(config.estimator_recipe)
    warn_of(settings)
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


def _show_config(options: Options, given: Given[Settings]) -> int:
    """print the settings, secrets masked"""
    sys.stdout.write(json.dumps(given.load().shown(), indent=2) + "\n")
    return 0


def _topics(options: Options, given: Given[ClusterSettings]) -> int:
    """create the output topic and the state topic if they do not exist"""
    from ..service.topics import ensure_topics, wanted_topics

    settings = given.load()
    with brokers.ask_once(settings) as cluster:
        ensure_topics(cluster, settings)
    for name, info in wanted_topics(settings).items():
        sys.stdout.write(f"{name}: {info.partitions} partition(s), compacted\n")
    return 0


def _inspect(options: own.InspectOptions, given: Given[ViewSettings]) -> int:
    """print the current component of a model, labelled and sorted"""
    from ..model.describe import describe
    from .history import history_table, on_topic, published, stored_release

    if options.state is not None:
        found = published([stored_release(options.state)])
    else:
        settings = given.load()
        found = on_topic(settings)
        if not found:
            where = f"{settings.model!r} on {settings.output_topic!r}"
            return fail(f"no release of {where} yet", 1)
    if not options.history:
        found = [max(found, key=lambda pair: pair[1].batch)]
    if options.as_json:
        text = "\n".join(message.value.decode() for message, _ in found)
    elif options.history:
        text = history_table(found)
    else:
        text = describe(found[0][1], options.top or 0)
    sys.stdout.write(text.rstrip() + "\n")
    return 0


def _watch(options: own.WatchOptions, given: Given[ViewSettings]) -> int:
    """show a model as it learns, on the terminal or (--web) in a browser"""
    from .watch import watch

    settings = given.load()
    return watch(brokers.connect(settings), settings, options, _stop_on_signals())


def _compare(options: own.CompareOptions, given: Given[ViewSettings]) -> int:
    """compare two releases: angles against noise, scales, limits"""
    from ..model.compare import compare
    from .history import named_release

    a, b = (named_release(name, given) for name in options.releases)
    sys.stdout.write(f"{compare(a, b)}\n")
    return 0


def _score(options: own.ScoreOptions, given: Given[ScoreSettings]) -> int:
    """write the scores of each record to a topic, which is NOT PRIVATE"""
    from .score import score

    return score(options, given, _stop_on_signals())


def _run(options: own.RunOptions, given: Given[FileSettings]) -> int:
    """learn from a file instead of a topic; releases are JSON lines, or a table"""
    from .run import run

    return run(options, given)


COMMANDS: Final[dict[str, Callable[[Any, Any], int]]] = {
    "serve": _serve,
    "plan": _plan,
    "check-config": _check_config,
    "show-config": _show_config,
    "topics": _topics,
    "inspect": _inspect,
    "watch": _watch,
    "compare": _compare,
    "score": _score,
    "run": _run,
}

"""The service: joins the group, runs the tasks that the group assigns to it, and leaves.

It is one loop in one thread. Signals and rebalances only set flags, which the loop checks between
steps.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .. import crashpoints
from ..errors import ClusterError, Fenced
from ..events import describe_error, log_event
from ..kafka.configure import open_registry
from ..messages.codecs import make_codec, make_subject_codec
from ..model.describe import CHECK_NAMES
from ..model.merge import Merger
from ..model.states import make_estimator, warm_up
from ..protocols import Claim, Cluster, Membership, SchemaSource
from ..settings import Settings
from ..settings.connection import reveal
from ..web.follow import Follower
from ..web.page import Page
from ..web.tracker import Tracker
from .http import HttpServer
from .metrics import Metrics
from .round_task import RoundTask
from .stored import check_stored, other_models, reads_old_records
from .task import RoundConfig, Task, TaskConfig
from .topics import ensure_topics
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .spread import Spread

__all__ = ["Service", "task_config"]

#: Longest time from the signal to the end of the process.
LEAVE_SECONDS: Final = 4.0
#: Interval at which a busy loop polls the group.
GROUP_SECONDS: Final = 0.1
#: Longest wait of an idle loop.
IDLE_SECONDS: Final = 0.2
MERGE_SECONDS: Final = 1.0
#: Brokers that have not answered for longer are mentioned in /readyz.
SILENT_SECONDS: Final = 5.0
#: Warning about a new model on a topic that another model has read.
USED_TWICE: Final = (
    "another model has learned from these records: using them again spends their privacy a second "
    "time. To begin with new records only, set start=latest before the first batch"
)
BACKOFF_SECONDS: Final = (0.1, 0.3, 1.0, 3.0, 5.0)


def task_config(settings: Settings) -> TaskConfig:
    """The settings as tasks need them."""
    rows_per_message = (
        settings.rows_per_message if "rows_per_message" in settings.model_fields_set else None
    )
    registry = open_registry(settings)
    return TaskConfig(
        model=settings.model,
        shards=settings.shards,
        input_topic=settings.input_topic,
        output_topic=settings.output_topic,
        features=settings.features,
        estimator=settings.estimator(),
        codec=make_codec(
            settings.format,
            settings.features,
            settings.max_message_bytes,
            settings.nested,
            rows_per_message,
            registry,
        ),
        start="latest" if settings.start == "latest" else "earliest",
        plan_interval_s=settings.plan_interval_ms / 1000,
        refresh_s=settings.partition_refresh_s,
        stall_s=settings.stall_timeout_s,
        rounds=_round_config(settings, rows_per_message, registry),
    )


def _round_config(
    settings: Settings, rows_per_message: int | None, registry: SchemaSource | None
) -> RoundConfig | None:
    rule = settings.rounds()
    if rule is None:
        return None
    codec = make_subject_codec(
        settings.format, settings.features, settings.max_message_bytes, settings.nested,
        rows_per_message, registry, subject=rule.subject,
        records=settings.records,
    )  # fmt: skip
    return RoundConfig(rule, codec, settings.first_round, slack_ms=settings.clock_slack)


class Service:
    """One instance. `run` returns after `stop` is set, or raises an error that is permanent."""

    def __init__(
        self, settings: Settings, cluster: Cluster, *, stop: threading.Event | None = None,
        watched: bool = True, spread: Spread | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.stop = settings, stop or threading.Event()
        self.metrics = Metrics()
        self._cluster = cluster
        if spread is not None:
            spread = replace(spread, may_wait=self._may_wait)
        self._config = replace(task_config(settings), spread=spread)
        # Wrong settings are refused before anything is created on the cluster.
        size = make_estimator(self._config.estimator).capacity
        self._needed: int | None = None  # messages of a batch
        if self._config.rounds is None:
            self._needed = self._config.offsets_per_batch(size)
        self._tasks: dict[int, Task] = {}
        self._membership: Membership | None = None
        self._claim: Claim | None = None
        self._distrusted: tuple[Claim, float] | None = None
        self._group_at = 0.0
        self._failures = 0
        self._retry_at = 0.0
        self._merger: Merger | None = None
        self._merge_at = 0.0
        self._state = "starting"
        self._watchdog = Watchdog(
            stall_s=settings.stall_timeout_s, leave_s=LEAVE_SECONDS, stop=self.stop,
            metrics=self.metrics, excused=self._excused,
        )  # fmt: skip
        self._watched = watched
        self._starved_at = -math.inf  # time when there was no executor
        if spread is not None and spread.cores is not None:
            spread.cores.listener = self._wait_for_executors

    # Pages

    def alive(self) -> bool:
        return self._watchdog.alive()

    def ready(self) -> tuple[bool, str]:
        state, note = self._says()
        return state in ("working", "standing by"), "; ".join(filter(None, (state, note)))

    def _says(self) -> tuple[str, str]:
        """The state of the service, and what an operator should look at."""
        state, age, at = self._state, self.metrics.progress.age(), self.metrics.progress.at
        silent_s, patience_s = self._silent_s(), self._watchdog.patience_s
        if state == "working" and max(age, silent_s) > patience_s:
            where = f" ({at})" if at else ""
            state = f"no progress for {max(age, silent_s):.0f} s{where}"
        if note := self._waits_for(silent_s):
            return state, note
        fruitless = max((task.fruitless for task in self._tasks.copy().values()), default=0)
        if not fruitless or state != "working":
            return state, ""
        which = "batch" if fruitless == 1 else f"{fruitless} batches"
        return state, f"nothing was learned from the last {which}: {CHECK_NAMES}"

    def _silent_s(self) -> float:
        """Time since the brokers last answered a question about the input, as far as we ask."""
        answered = [at for task, at in self.metrics.answered.copy().items() if task in self._tasks]
        return max(0.0, time.monotonic() - min(answered, default=math.inf))

    def _waits_for(self, silent_s: float) -> str:
        """What is outside of this process and keeps its work from going on."""
        if silent_s > SILENT_SECONDS:
            return f"the brokers have not answered for {silent_s:.0f} s"
        if time.monotonic() - self._starved_at < SILENT_SECONDS:
            return "the engine has no executors: do other applications hold all cores?"
        if away := self.metrics.registry_away.copy().values():
            away_s = time.monotonic() - min(away)
            return f"the schema registry has not answered for {away_s:.0f} s"
        return ""

    def _excused(self) -> bool:
        """Tell whether work stands still that another process would not do either."""
        return self._state != "working" or bool(self._waits_for(self._silent_s()))

    def component(self, task: str | None) -> bytes | None:
        merger = self._merger
        if task in (None, "merged") and merger is not None and merger.current is not None:
            return merger.current.value
        for number, running in sorted(self._tasks.copy().items()):
            if task in (None, str(number)) and running.current is not None:
                return running.current.value
        return None

    def _page(self) -> Page:
        """The live page, from the output topic: a standby has it too."""
        tracker = Tracker(self.settings.model)
        follower = Follower(self._cluster, self.settings.output_topic, tracker)
        return Page(follower, tracker, self.facts)

    def facts(self) -> dict[str, Any]:
        """The facts about this process that the page shows.

        With privacy per subject the number of messages is secret, so the lag is not on the page.
        """
        state, note = self._says()
        if self._needed is None:
            return {"state": state, "note": note}
        tasks = [str(number) for number in sorted(self._tasks.copy())]
        lags = {task: self.metrics.lag_of(task) for task in tasks}
        return {"state": state, "note": note, "lag": lags, "needed": self._needed}

    # The loop

    def run(self) -> None:
        if self._watched:
            self._watchdog.start()
        http = HttpServer(
            self.settings.http_host, self.settings.http_port, self, self.metrics, self._page(),
            reveal(self.settings.http_token), self.settings.http_hosts,
        )  # fmt: skip
        host = self.settings.http_host
        shown = f"[{host}]" if ":" in host else host
        log_event("listening", host=host, port=http.port, page=f"http://{shown}:{http.port}/")
        try:
            self._prepare()
            while not self.stop.is_set():
                self._turn()
        finally:
            self._state = "leaving"
            log_event("leaving")
            crashpoints.reach("closing")
            self._drop_tasks()
            if self._membership is not None:
                self._membership.close()
            self._cluster.close()
            http.close()
            self._watchdog.close()
            log_event("left")

    def _prepare(self) -> None:
        """Make sure that the topics exist, and join the group. Waits for brokers."""
        warming = threading.Thread(target=warm_up, name="warm-up", daemon=True)
        warming.start()
        while not self.stop.is_set():
            try:
                ensure_topics(self._cluster, self.settings, rounds=self.settings.rounds())
                self._check_stored()
                while warming.is_alive() and not self.stop.is_set():
                    warming.join(0.1)
                self._membership = self._cluster.join()
                return
            except ClusterError as error:
                self._state = "waiting for the brokers"
                log_event("waiting_for_brokers", level="warning", **describe_error(error))
                self._watchdog.beat()
                self.stop.wait(1.0)

    def _wait_for_executors(self) -> bool:
        """Note that a job waits for cores, which is not a stall; True if it may keep waiting."""
        self._starved_at = time.monotonic()
        return self._may_wait()

    def _may_wait(self) -> bool:
        """A job waits for what will come back: that is no stall, but it ends with the service."""
        self._watchdog.beat()
        return not self.stop.is_set()

    def _check_stored(self) -> None:
        """Refuse settings that do not fit the stored state now, not when a task is taken over."""
        stored = check_stored(self._cluster, self.settings, self._config)
        if stored or not reads_old_records(self.settings):
            return
        if others := other_models(self._cluster, self.settings):
            log_event("records_used_before", level="warning", groups=others, advice=USED_TWICE)

    def _turn(self) -> None:
        """Run the loop once: the group, the tasks, the merged release."""
        self._watchdog.beat()
        claim = self._current_claim()
        if claim is None:
            self._state = "joining"
            return
        wanted = claim.tasks
        missing = [task for task in sorted(wanted) if task not in self._tasks]
        if missing and time.monotonic() >= self._retry_at:
            self._state = "starting"
            self._guarded(missing[0], partial(self._start, missing[0], claim))
        if not wanted:
            self._state = "standing by"
            self.metrics.progress.rest()
        elif len(self._tasks) == len(wanted):
            self._state = "working"
        else:
            self._state = "starting"
        timeout_s = IDLE_SECONDS / len(self._tasks) if self._tasks else 0.0
        for number in list(self._tasks):
            if self.stop.is_set():
                return
            task = self._tasks.get(number)  # another one's failure may have dropped it
            if task is not None:
                self._guarded(number, partial(self._step, task, timeout_s))
        self._merge()

    def _current_claim(self) -> Claim | None:
        """The claim of the group. Any change drops all tasks: they belong to a generation."""
        idle = not self._tasks
        if not idle and time.monotonic() < self._group_at:
            return self._claim
        try:
            if self._membership is None:  # closed in order to join again
                self._membership = self._cluster.join()
            claim = self._membership.poll(IDLE_SECONDS if idle else 0.0)
        except ClusterError as error:
            log_event("group_error", level="warning", **describe_error(error))
            self._drop_tasks()
            self.stop.wait(IDLE_SECONDS)
            claim = None
        self._group_at = time.monotonic() + GROUP_SECONDS
        if claim is not self._claim:
            self._drop_tasks()
            self._claim = claim
            self.metrics.rebalances.inc()
            tasks = None if claim is None else sorted(claim.tasks)
            log_event("group_changed", tasks=tasks)
        return None if self._is_distrusted(claim) else claim

    def _is_distrusted(self, claim: Claim | None) -> bool:
        """Tell whether a claim may be stale: after fencing, wait for a new claim of the group.

        No task may start from a stale claim: it would fence the true owner.
        """
        if self._distrusted is None:
            return False
        stale, since = self._distrusted
        if claim is not stale:
            self._distrusted = None
            return False
        if time.monotonic() - since > self.settings.session_timeout_s and self._membership:
            log_event("rejoining", level="warning")
            self._membership.close()
            self._membership = None
            self._distrusted = None
        return True

    def _guarded(self, number: int, action: Callable[[], None]) -> None:
        """Run an action; after an error that loading the state again may cure, drop the task."""
        try:
            action()
        except ClusterError as error:
            event = "task_dropped"
            log_event(event, level="warning", task=number, **describe_error(error))
            self.metrics.dropped.inc()
            if isinstance(error, Fenced) and self._claim is not None:
                self._drop_tasks()
                self._distrusted = (self._claim, time.monotonic())
            else:
                self._drop(number)
            pause = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
            self._failures += 1
            self._retry_at = time.monotonic() + pause
            self.stop.wait(min(pause, IDLE_SECONDS))

    def _start(self, number: int, claim: Claim) -> None:
        if self._membership is None:
            return
        log_event("task_starting", task=number)
        kind = Task if self._config.rounds is None else RoundTask
        self._tasks[number] = kind(
            number, self._cluster, self._membership, claim, self._config, self.metrics
        )
        self.metrics.tasks.set(len(self._tasks))
        log_event("task_started", task=number)

    def _step(self, task: Task, timeout_s: float) -> None:
        batch = task.current
        task.step(timeout_s)
        if task.current is not batch:
            self._failures = 0

    def _merge(self) -> None:
        task = self._tasks.get(0)
        if self.settings.shards == 1 or task is None or time.monotonic() < self._merge_at:
            return
        self._merge_at = time.monotonic() + MERGE_SECONDS

        def merge() -> None:
            if self._merger is None:
                self._merger = Merger(
                    self._cluster, self.settings.output_topic, self.settings.model
                )
            message = self._merger.poll()
            if message is not None:
                task.publish_merged(message)
                self._merger.published(message)
                log_event("merged")

        self._guarded(0, merge)

    def _drop(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            self.metrics.progress.dropped()
            with suppress(ClusterError):
                task.close()
        if number == 0 and self._merger is not None:
            self._merger.close()
            self._merger = None
        self.metrics.tasks.set(len(self._tasks))

    def _drop_tasks(self) -> None:
        for number in list(self._tasks):
            self._drop(number)

"""The service: joins the group, runs the model's task while the group says so, and leaves.

It is one loop in one thread. Signals and rebalances only set flags, which the loop checks between
turns.
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
from ..kafka.registry import open_registry
from ..messages.recipe import MessageRecipe
from ..model.describe import CHECK_NAMES
from ..model.states import make_estimator, warm_up
from ..monitoring.http import HttpServer
from ..monitoring.metrics import Metrics
from ..monitoring.watchdog import Watchdog
from ..protocols import Claim, Cluster, Membership
from ..settings import Settings
from ..settings.connection import reveal
from ..web.follow import Follower
from ..web.page import Page
from ..web.tracker import Tracker
from .config import RoundConfig, TaskConfig
from .stored import USED_TWICE, check_stored, other_models
from .task import Task
from .topics import ensure_topics

if TYPE_CHECKING:
    from ..reading.remote import Remote

#: Longest time from the signal to the end of the process.
LEAVE_SECONDS: Final = 4.0
#: Interval at which a busy loop polls the group.
GROUP_SECONDS: Final = 0.1
#: Longest wait of an idle loop.
IDLE_SECONDS: Final = 0.2
#: Brokers that have not answered for longer are mentioned in /readyz.
SILENT_SECONDS: Final = 5.0
BACKOFF_SECONDS: Final = (0.1, 0.3, 1.0, 3.0, 5.0)


def task_config(settings: Settings) -> TaskConfig:
    """The settings as a task needs them."""
    recipe, rule = MessageRecipe.of(settings), settings.rounds()
    registry = open_registry(recipe)
    rounds = None
    if rule is not None:
        rounds = RoundConfig(rule, recipe.subject_codec(registry), settings.first_round)
    return TaskConfig(
        model=settings.model,
        input_topic=settings.input_topic,
        output_topic=settings.output_topic,
        features=settings.features,
        estimator_recipe=settings.estimator_recipe(),
        codec=recipe.codec(registry),
        start="latest" if settings.start == "latest" else "earliest",
        plan_interval_s=settings.plan_interval_ms / 1000,
        refresh_s=settings.partition_refresh_s,
        stall_s=settings.stall_timeout_s,
        slack_ms=settings.clock_slack,
        rounds=rounds,
    )


class Service:
    """One instance. `run` returns after `stop` is set, or raises an error that is permanent."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        *,
        stop: threading.Event | None = None,
        watched: bool = True,
        remote: Remote | None = None,
    ) -> None:
        self.settings, self.stop = settings, stop or threading.Event()
        self._cluster = cluster
        if remote is not None:
            remote = replace(remote, may_wait=self._may_wait)
        self._config = replace(task_config(settings), remote=remote)
        # Wrong settings are refused before anything is created on the cluster.
        size = make_estimator(self._config.estimator_recipe).capacity
        self._needed: int | None = None  # messages of a batch
        if self._config.rounds is None:
            self._needed = self._config.offsets_per_batch(size)
        rule = settings.rounds()
        self.metrics = Metrics(
            None if rule is None else rule.length_ms / 1000,
            self._needed or math.nan,
            settings.stall_timeout_s,
        )
        self._task: Task | None = None
        self._membership: Membership | None = None
        self._claim: Claim | None = None
        self._distrusted: tuple[Claim, float] | None = None
        self._group_at = 0.0
        self._failures = 0
        self._retry_at = 0.0
        self._state = "starting"
        self._watchdog = Watchdog(
            stall_s=settings.stall_timeout_s,
            leave_s=LEAVE_SECONDS,
            stop=self.stop,
            metrics=self.metrics,
            excused=self._excused,
        )
        self._watched = watched
        self._starved_at = -math.inf  # time when there was no executor
        if remote is not None and remote.cores is not None:
            remote.cores.listener = self._wait_for_executors

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
        task = self._task
        if task is None or state != "working":
            return state, ""
        if task.fruitless:
            which = "batch" if task.fruitless == 1 else f"{task.fruitless} batches"
            note = f"nothing was learned from the last {which}: {CHECK_NAMES}; `inspect` says why"
            return state, note
        taken, all_of_step = task.step_at()
        if all_of_step > 1:
            return state, f"batch {taken + 1} of {all_of_step} of the first step"
        return state, ""

    def _silent_s(self) -> float:
        """Time since the brokers last answered a question about the input; 0 if none was asked."""
        answered = self.metrics.answered
        return 0.0 if answered is None else max(0.0, time.monotonic() - answered)

    def _waits_for(self, silent_s: float) -> str:
        """What the work waits for outside of this process, in words; empty if for nothing."""
        if silent_s > SILENT_SECONDS:
            return f"the brokers have not answered for {silent_s:.0f} s"
        if time.monotonic() - self._starved_at < SILENT_SECONDS:
            return "the engine has no executors: do other applications hold all cores?"
        if away := self.metrics.registry_away.copy().values():
            away_s = time.monotonic() - min(away)
            return f"the schema registry has not answered for {away_s:.0f} s"
        return ""

    def _excused(self) -> bool:
        """True if the work stands still for a reason that a restart would not cure."""
        return self._state != "working" or bool(self._waits_for(self._silent_s()))

    def component(self) -> bytes | None:
        task = self._task
        return None if task is None or task.current is None else task.current.value

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
        if self._needed is None or self._task is None:
            return {"state": state, "note": note}
        return {
            "state": state,
            "note": note,
            "lag": self.metrics.current_lag(),
            "needed": self._needed,
            "step": self._task.step_at(),
        }

    # The loop

    def run(self) -> None:
        if self._watched:
            self._watchdog.start()
        host, port = self.settings.http_host, self.settings.http_port
        token, hosts = reveal(self.settings.http_token), self.settings.http_hosts
        http = HttpServer(host, port, self, self.metrics, self._page(), token, hosts)
        try:
            self._prepare()
            while not self.stop.is_set():
                self._turn()
        finally:
            self._state = "leaving"
            log_event("leaving")
            crashpoints.reach("closing")
            self._drop()
            if self._membership is not None:
                self._membership.close()
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
        if not stored and (others := other_models(self._cluster, self.settings)):
            log_event("records_used_before", level="warning", groups=others, advice=USED_TWICE)

    def _turn(self) -> None:
        """Run the loop once: the group, and the task if this process is the owner."""
        self._watchdog.beat()
        claim = self._current_claim()
        if claim is None:
            self._state = "joining"
            return
        if not claim.owner:
            self._state = "standing by"
            self.metrics.progress.rest()
            return
        if self._task is None and time.monotonic() >= self._retry_at:
            self._state = "starting"
            self._guarded(partial(self._start, claim))
        self._state = "starting" if self._task is None else "working"
        if self._task is not None and not self.stop.is_set():
            self._guarded(partial(self._turn_task, self._task))

    def _current_claim(self) -> Claim | None:
        """The claim of the group. Any change drops the task: it belongs to a generation."""
        idle = self._task is None
        if not idle and time.monotonic() < self._group_at:
            return self._claim
        try:
            if self._membership is None:  # closed in order to join again
                self._membership = self._cluster.join()
            claim = self._membership.poll(IDLE_SECONDS if idle else 0.0)
        except ClusterError as error:
            log_event("group_error", level="warning", **describe_error(error))
            self._drop()
            self.stop.wait(IDLE_SECONDS)
            claim = None
        self._group_at = time.monotonic() + GROUP_SECONDS
        if claim is not self._claim:
            self._drop()
            self._claim = claim
            self.metrics.rebalances.inc()
            role = None if claim is None else "owner" if claim.owner else "standby"
            log_event("group_changed", role=role)
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

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run an action; after an error that loading the state again may cure, drop the task."""
        try:
            action()
        except ClusterError as error:
            log_event("task_dropped", level="warning", **describe_error(error))
            self.metrics.dropped.inc()
            self._drop()
            if isinstance(error, Fenced) and self._claim is not None:
                self._distrusted = (self._claim, time.monotonic())
            pause = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
            self._failures += 1
            self._retry_at = time.monotonic() + pause
            self.stop.wait(min(pause, IDLE_SECONDS))

    def _start(self, claim: Claim) -> None:
        if self._membership is None:
            return
        log_event("task_starting")
        self._task = Task(self._cluster, self._membership, claim, self._config, self.metrics)
        self.metrics.owner.set(1)
        log_event("task_started")

    def _turn_task(self, task: Task) -> None:
        batch = task.current
        task.turn(IDLE_SECONDS)
        if task.current is not batch:
            self._failures = 0

    def _drop(self) -> None:
        """Drop the task, if there is one, with all that is in memory."""
        task, self._task, self.metrics.answered = self._task, None, None
        if task is not None:
            self.metrics.progress.dropped()
            with suppress(ClusterError):
                task.close()
        self.metrics.owner.set(0)

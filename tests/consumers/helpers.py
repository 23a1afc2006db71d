"""Helpers that the tests of the service share."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from consumers.messages.codecs import Codec
from consumers.messages.recipe import MessageRecipe
from consumers.model.releases import PublishedRelease, parse_release
from consumers.monitoring.metrics import Metrics
from consumers.planning.kept_plan import KeptPlans
from consumers.protocols import Claim, Cluster, Membership, Message, Positions
from consumers.service.config import TaskConfig
from consumers.service.loop import Service
from consumers.service.task import Task
from consumers.settings import EstimatorRecipe
from tests.support.memory import MemoryBroker, MemoryCluster

from ..support.processes import PATIENCE_SECONDS, wait_for

FEATURES = ("cpu", "memory", "disk.read")
BATCH = 300
ESTIMATOR: dict[str, Any] = {
    "features": FEATURES,
    "epsilon": 8.0,
    "delta": 1e-3,
    "batch_size": BATCH,
    "center": "none",
    "scales": None,
}
MODEL, INPUT, STATE, OUTPUT, GROUP = "m", "in", "m.state", "m.out", "g"
PLAN_KEY = b"g.plan"
#: The points that every batch passes, from a topic or a file.
BATCH_POINTS = (
    "polling",
    "batch_full",
    "before_transaction",
    "inside_transaction",
    "after_commit",
    "after_publish",
)


def rows(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3)) * [3.0, 1.0, 0.3]


def as_json(row: Sequence[float]) -> bytes:
    cpu, memory, read = map(float, row)
    return json.dumps({"cpu": cpu, "memory": memory, "disk": {"read": read}, "x": "y"}).encode()


def cluster(partitions: int = 1) -> MemoryBroker:
    made = MemoryBroker()
    made.create(INPUT, partitions)
    made.create(STATE, 1, {"cleanup.policy": "compact"})
    made.create(OUTPUT, 1, {"cleanup.policy": "compact"})
    return made


def memory_log(on: MemoryBroker, max_records: int = 100, max_bytes: int = 1 << 20) -> MemoryCluster:
    return MemoryCluster(
        on,
        group=GROUP,
        state_topic=STATE,
        input_topic=INPUT,
        output_topic=OUTPUT,
        max_records=max_records,
        max_bytes=max_bytes,
    )


def make_codec(
    format: Any, features: Sequence[str], max_bytes: int, registry: Any = None, **more: Any
) -> Codec:
    return MessageRecipe(format, tuple(features), max_bytes, **more).codec(registry)


def make_subject_codec(
    format: Any, features: Sequence[str], max_bytes: int, registry: Any = None, **more: Any
) -> Any:
    return MessageRecipe(format, tuple(features), max_bytes, **more).subject_codec(registry)


def config(
    format: str = "json",
    rows_per_message: int | None = None,
    method: Literal["adaptive", "paper"] = "adaptive",
    **estimator: Any,
) -> TaskConfig:
    """A configuration in which the planner's clock does not tick: `drain` takes its samples."""
    return TaskConfig(
        model=MODEL,
        input_topic=INPUT,
        output_topic=OUTPUT,
        features=FEATURES,
        estimator_recipe=EstimatorRecipe(method, {**ESTIMATOR, **estimator}),
        codec=make_codec(format, FEATURES, 1 << 20, rows_per_message=rows_per_message),
        plan_interval_s=3600.0,
        refresh_s=0.0,
    )


class PlanNotes:
    """Stands in for the ledger of a planner: keeps plans, and knows what was committed."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.committed: dict[int, int] = {}

    def load_plan(self) -> bytes | None:
        return self.values[-1] if self.values else None

    def keep_plan(self, plan: bytes, positions: Positions) -> None:
        self.values.append(plan)

    def plans(self) -> KeptPlans:
        return KeptPlans(self, lambda: self.committed)  # type: ignore[arg-type]


def settled(membership: Membership) -> Claim:
    """Poll until the group gives a claim."""
    return wait_for("the group to settle", lambda: membership.poll(0.1))


@contextmanager
def in_thread(service: Service) -> Iterator[list[BaseException]]:
    """Run a service; its error is put into the list, and raised at the end."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            service.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failed
    finally:
        service.stop.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def start_task(log: Cluster, **options: Any) -> Task:
    membership = log.join()
    claim = settled(membership)
    task = Task(log, membership, claim, config(**options), Metrics())
    task.membership = membership  # type: ignore[attr-defined]
    return task


def drain(task: Task, until: Callable[[], bool] | None = None) -> None:
    """Turn until there is nothing more to do, with a sample whenever nothing is planned."""
    while True:
        if not task.turn(0.0):
            task.input.planner.extend()
            if not task.turn(0.0):
                return
        task.settle()
        if until is not None and until():
            return


def releases(log: Cluster, topic: str = OUTPUT) -> list[PublishedRelease]:
    return [parse_release(record.value) for record in log.scan(topic)]


def check_output(log: Cluster, topic: str = OUTPUT) -> int:
    """Check for numbers without gaps and one payload each; return the last number."""
    payloads: dict[int, set[bytes]] = {}
    for record in log.scan(topic):
        payloads.setdefault(parse_release(record.value).batch, set()).add(record.value)
    assert all(len(distinct) == 1 for distinct in payloads.values())
    assert set(payloads) == set(range(1, len(payloads) + 1))
    return len(payloads)


def publish(log: MemoryCluster, messages: Sequence[Message]) -> None:
    """Put messages on the output topic without a task."""
    for message in messages:
        log.broker.produce(log.output_topic, message.value, 0, message.key, message.headers)

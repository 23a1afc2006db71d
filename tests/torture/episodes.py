"""Attacks on a model, and their counts. Every episode ends with all guarantees checked."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from demo.broker.local import LocalBroker

from ..support.harness import READERS, Model, model
from ..support.processes import Instance, wait_for
from .nodes import Nodes, SmallDisk, behind_a_proxy

SESSION_SECONDS = 2.0
#: Longest time until another instance has taken over.
TAKEOVER_SECONDS = SESSION_SECONDS + 5
#: `libfaketime` of Debian's package `faketime`.
FAKETIME: Final = next(
    iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), Path("/nonexistent")
)


@dataclass
class Deeds:
    """The actions and the results of an episode."""

    counts: dict[str, int] = field(default_factory=dict)
    takeover_s: list[float] = field(default_factory=list)
    batches: int = 0
    slots: int = 0
    late: list[str] = field(default_factory=list)  #: logs of takeovers that took too long

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + times


class Fleet:
    """A model under load, with an owner and a standby that are replaced when they die."""

    def __init__(self, m: Model, rng: random.Random, deeds: Deeds) -> None:
        self.m, self.rng, self.deeds = m, rng, deeds
        self.running: list[Instance] = []

    def start(self, **environment: str) -> Instance:
        instance = self.m.start(**environment)
        self.running.append(instance)
        return instance

    def owner(self) -> Instance:
        """The instance that works, once there is one."""
        found: list[Instance] = wait_for(
            "an owner", lambda: [i for i in self.running if works(i)] or self._dead()
        )
        return found[-1]

    def _dead(self) -> list[Instance]:
        for instance in self.running:
            if (code := instance.process.poll()) is not None:
                raise AssertionError(f"it ended with {code}:\n{instance.text[-20_000:]}")
        return []

    def takeover(self, victim: Instance, since: float) -> None:
        """Wait until another instance works, and note the time."""
        others = [i for i in self.running if i is not victim]
        wait_for("a takeover", lambda: any(works(i) for i in others) or self._dead())
        took = time.monotonic() - since
        self.deeds.takeover_s.append(round(took, 2))
        if took > TAKEOVER_SECONDS:
            self.deeds.late += [f"{took:.1f} s\n{i.text[-50_000:]}" for i in others]

    def end(self) -> None:
        """Wait until everything is released, and check the guarantees."""
        self.m.finish(*self.running)
        last = self.m.check()
        self.deeds.batches += last
        self.deeds.slots += last * self.m.batch


def works(instance: Instance) -> bool:
    """Tell whether the task of an instance works, by its last event about it."""
    working = False
    for event in list(instance.events):
        name = event.get("event")
        if name == "task_started":
            working = True
        elif name == "task_dropped" or (name == "group_changed" and event["role"] != "owner"):
            working = False
    return working


@contextlib.contextmanager
def fleet(servers: str, rng: random.Random, deeds: Deeds, **settings: Any) -> Iterator[Fleet]:
    how = {
        "format": "float32",
        "rows_per_message": 20,
        "partitions": 2,
        "session_timeout_s": SESSION_SECONDS,
        "reader": rng.choice(READERS),
    } | settings
    with model(servers, f"torture-{uuid.uuid4().hex[:10]}", **how) as m:
        yield Fleet(m, rng, deeds)


def loaded(f: Fleet) -> contextlib.AbstractContextManager[None]:
    return f.m.loaded(lambda: f.m.produce_packed(f.m.batch // 2), 0.1)


def kills(broker: LocalBroker, rng: random.Random, deeds: Deeds, times: int) -> None:
    """SIGKILL at any moment; another instance starts."""
    with fleet(broker.bootstrap_servers, rng, deeds) as f:
        f.start()
        with loaded(f):
            for _ in range(times):
                f.start()
                owner = f.owner()
                victim = owner if rng.random() < 0.75 else rng.choice(f.running)
                time.sleep(rng.uniform(0.0, 1.0))  # any moment will do
                since = time.monotonic()
                victim.process.kill()
                victim.wait()
                f.running.remove(victim)
                deeds.count("kills")
                if victim is owner:
                    f.takeover(victim, since)
        f.end()


def zombies(broker: LocalBroker, rng: random.Random, deeds: Deeds, times: int) -> None:
    """SIGSTOP until another one has taken over, then SIGCONT: the zombie stands by."""
    with fleet(broker.bootstrap_servers, rng, deeds) as f:
        f.start(), f.start()
        with loaded(f):
            for _ in range(times):
                owner = f.owner()
                time.sleep(rng.uniform(0.0, 1.0))
                since = time.monotonic()
                owner.signal(signal.SIGSTOP)
                f.takeover(owner, since)
                owner.signal(signal.SIGCONT)
                deeds.count("zombies")
                owner.wait_until("the zombie stands by", lambda o=owner: is_ready(o))
        f.end()


def restarts(broker: LocalBroker, rng: random.Random, deeds: Deeds, times: int) -> None:
    """The broker is killed, or stopped in order, and comes back."""
    with fleet(broker.bootstrap_servers, rng, deeds) as f:
        f.start(), f.start()
        try:
            with loaded(f):
                for _ in range(times):
                    progress(f)
                    rng.choice((broker.kill, broker.stop))()
                    time.sleep(rng.uniform(0.0, 3.0))
                    broker.start()
                    deeds.count("broker restarts")
                progress(f)
        finally:
            broker.start()
        f.end()


def progress(f: Fleet, batches: int = 2) -> None:
    """Wait until this many more batches are published."""

    def released() -> int:
        return sum(e.get("event") == "released" for i in f.m.instances for e in list(i.events))

    before = released()
    wait_for("progress", lambda: released() >= before + batches or f._dead())


def partitions(broker: LocalBroker, rng: random.Random, deeds: Deeds, times: int) -> None:
    """Partitions are added while the model runs, and an owner dies."""
    with fleet(broker.bootstrap_servers, rng, deeds) as f:
        f.start()
        for _ in range(times):
            f.start()
            f.m.produce_packed(3 * f.m.batch)
            f.m.widen(f.m.partitions + rng.randint(1, 3))
            deeds.count("times that partitions were added")
            f.m.produce_packed(3 * f.m.batch)
            victim = f.owner()
            victim.process.kill()
            victim.wait()
            f.running.remove(victim)
            deeds.count("kills")
        f.end()


def leaders(rng: random.Random, deeds: Deeds, times: int) -> None:
    """In a cluster of three nodes, one after the other dies and comes back: leaders move."""
    with (
        Nodes() as nodes,
        fleet(nodes.bootstrap_servers, rng, deeds, replication=3, replication_factor=3) as f,
    ):
        f.start(), f.start()
        with loaded(f):
            for _ in range(times):
                progress(f)
                node = rng.choice(nodes.brokers)
                rng.choice((node.kill, node.stop))()
                deeds.count("nodes of a cluster lost")
                progress(f)
                node.start()
            progress(f)
        f.end()


def cuts(rng: random.Random, deeds: Deeds, times: int) -> None:
    """The network between the owner and the broker is cut until another one has taken over."""
    with (
        behind_a_proxy() as (broker, proxy, far),
        fleet(broker.bootstrap_servers, rng, deeds) as f,
    ):
        for _ in range(times):
            with loaded(f):
                cut_off = f.start(DPPCA_BOOTSTRAP_SERVERS=far)
                wait_for("the owner behind the proxy", lambda o=cut_off: works(o) or f._dead())
                near = f.start()
                wait_for("a standby", lambda n=near: n.saw("group_changed"))
                since = time.monotonic()
                with proxy.cut():
                    f.takeover(cut_off, since)
                deeds.count("network cuts")
                wait_for("it to come back", lambda o=cut_off: _back(o))
            for instance in f.running:
                instance.process.kill()
                instance.wait()
            f.running.clear()
        f.start()
        f.end()


def is_ready(instance: Instance) -> bool:
    try:
        return instance.get("/readyz")[0] == 200
    except ConnectionError:  # it ends while it is asked
        return False


def _back(instance: Instance) -> bool:
    """Tell whether an instance stands by again, or has ended for its supervisor to restart it."""
    return instance.process.poll() is not None or is_ready(instance)


def full_disk(rng: random.Random, deeds: Deeds, times: int) -> None:
    """The broker's disk fills up, it ends, room is made, it comes back."""
    disk = SmallDisk()
    try:
        with disk.broker() as broker, fleet(broker.bootstrap_servers, rng, deeds) as f:
            f.start(), f.start()
            with loaded(f):
                for _ in range(times):
                    progress(f)
                    disk.fill()
                    wait_for("the broker to end", lambda: not broker.running)
                    disk.empty()
                    broker.start()
                    deeds.count("full disks")
                progress(f)
            f.end()
    finally:
        disk.close()


def clocks(broker: LocalBroker, rng: random.Random, deeds: Deeds, times: int) -> None:
    """The clock of the owner jumps by up to a day, forwards and back."""
    folder = Path(tempfile.mkdtemp(prefix="stream-dppca-clock-"))
    at = folder / "faketime"
    at.write_text("+0")
    environment = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(at),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    try:
        with fleet(broker.bootstrap_servers, rng, deeds) as f:
            f.start(**environment)
            f.start()
            with loaded(f):
                for _ in range(times):
                    progress(f)
                    at.write_text(f"{rng.uniform(-86_400, 86_400):+.0f}")
                    deeds.count("jumps of the clock")
                progress(f)
            f.end()
    finally:
        shutil.rmtree(folder)


#: Episodes on the broker of a lane; the others bring their own.
ON_A_BROKER: Final[dict[str, Callable[[LocalBroker, random.Random, Deeds, int], None]]] = {
    "kills": kills,
    "zombies": zombies,
    "restarts": restarts,
    "partitions": partitions,
    "clocks": clocks,
}
ALONE: Final[dict[str, Callable[[random.Random, Deeds, int], None]]] = {
    "leaders": leaders,
    "cuts": cuts,
    "disk": full_disk,
}
#: Number of actions of an episode.
TIMES: Final = {
    "kills": 10,
    "zombies": 5,
    "restarts": 5,
    "partitions": 3,
    "clocks": 10,
    "leaders": 5,
    "cuts": 3,
    "disk": 2,
}


def possible(kind: str) -> str:
    """The reason why an episode cannot run on this machine, or nothing."""
    if kind == "clocks" and not FAKETIME.exists():
        return "libfaketime is not installed (apt-get install faketime)"
    if kind == "disk" and os.geteuid() != 0:
        return "only root can mount a small disk"
    return ""


def run(kind: str, broker: LocalBroker | None, seed: int) -> Deeds:
    """Run one episode; a broken guarantee is an AssertionError."""
    rng, deeds = random.Random(seed), Deeds()
    if kind in ALONE:
        ALONE[kind](rng, deeds, TIMES[kind])
    else:
        assert broker is not None
        ON_A_BROKER[kind](broker, rng, deeds, TIMES[kind])
    return deeds

"""A long topic is read to its end while its owner is killed and partitions are added.

python -m tests.crash.catch_up [--messages 2000000] [--kills 20]

Half of the messages are there before the first owner starts, the rest comes in three parts, each to
a partition more. Each owner that is killed (SIGKILL) is replaced, so there always is a standby. At
the end `Model.check` finds every batch once and in order, on each reader.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Any, Final

from confluent_kafka import Producer

from ..support.harness import READERS, Model, model
from ..support.processes import Instance, wait_for
from ..torture.nodes import single

PARTITIONS: Final = 3
PARTS: Final = 3  #: after the first half, each with a partition more
BATCH: Final = 10_000
#: Makes messages of 311 bytes, as records of twenty features are.
PADDING: Final = "x" * 200


def fill(m: Model, messages: int) -> None:
    """Produce to all partitions in turn."""
    values = [
        json.dumps({"cpu": cpu, "memory": memory, "disk": {"read": read}, "more": PADDING}).encode()
        for cpu, memory, read in m.rows(1000).tolist()
    ]
    producer = Producer({"bootstrap.servers": m.servers, "linger.ms": 20})
    for i in range(messages):
        place = i % m.partitions
        while True:
            try:
                producer.produce(m.name, values[i % len(values)], partition=place)
                break
            except BufferError:
                producer.poll(0.1)
        m.sent[place] += 1
    assert producer.flush(600) == 0


def last_batch(instance: Instance) -> int:
    events = ("released", "published_again")
    return max((e["batch"] for e in list(instance.events) if e.get("event") in events), default=0)


def kill_owner(m: Model, reached: int) -> None:
    """Wait until a batch is released, kill the process that did it, and start another."""
    found: list[Instance] = []

    def released() -> bool:
        found[:] = [i for i in m.instances if i.process.poll() is None and last_batch(i) >= reached]
        return bool(found)

    while not released():  # only standing still for long is a failure
        before = max(map(last_batch, m.instances))
        wait_for(
            f"batch {before + 1}",
            lambda before=before: released() or max(map(last_batch, m.instances)) > before,
        )
    found[-1].signal(signal.SIGKILL)
    found[-1].wait()
    m.start()


def run(servers: str, reader: str, messages: int, kills: int) -> str:
    settings: dict[str, Any] = {
        "batch": BATCH,
        "partitions": PARTITIONS,
        "reader": reader,
        "max_poll_records": None,
        "session_timeout_s": 2,
    }
    began = time.monotonic()
    with model(servers, f"long-{reader}", **settings) as m:
        fill(m, messages // 2)
        m.start()
        m.start()
        parts = {kills * (i + 1) // (PARTS + 1) for i in range(PARTS)}
        for kill in range(kills):
            if kill in parts:
                m.widen(m.partitions + 1)
                fill(m, messages // 2 // PARTS)
            there = sum(m.sent) // BATCH
            kill_owner(m, max(1, there * (kill + 1) // (kills + 1)))
            batch = max(map(last_batch, m.instances))
            sys.stderr.write(f"\r{reader}: {kill + 1} kills, batch {batch}")
        m.finish(*m.instances)
        assert m.partitions == PARTITIONS + PARTS
        last = m.check()
        assert last == m.full_batches(), (last, m.full_batches())
        seconds = time.monotonic() - began
        return f"\n{reader}: {sum(m.sent):,} messages, {last}, {kills} kills, {seconds:.0f} s\n"


def main() -> int:
    parser = argparse.ArgumentParser("catch_up", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--reader", choices=READERS, action="append")
    options = parser.parse_args()
    with single() as broker:
        for reader in options.reader or READERS:
            sys.stdout.write(run(broker.bootstrap_servers, reader, options.messages, options.kills))
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

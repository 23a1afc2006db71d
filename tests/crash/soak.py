"""Minutes at full speed with a standby, then the guarantees, and memory that has not grown.

python -m tests.crash.soak [--seconds 600]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

import numpy as np

from demo.broker.local import LocalBroker

from ..support.harness import Model, model
from ..support.processes import Instance

#: Growth that is allowed in the second half, by the slope of a line through all samples.
MOST_GROWTH_MB = 15.0
#: Largest lead of the producer, in slots: the broker's disk is not under test.
AHEAD = 4_000_000
ROWS = 64  # in a packed message


def resident_mb(instance: Instance) -> float:
    pages = int(Path(f"/proc/{instance.process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def produce(m: Model, enough: threading.Event, used: list[int]) -> None:
    """Produce as fast as the service reads."""
    messages = [m.rows(ROWS).astype("<f4").tobytes() for _ in range(100)]
    while not enough.is_set():
        if sum(m.sent) * ROWS - used[0] > AHEAD:
            enough.wait(0.05)
            continue
        for message in messages:
            m.send(message)


def sample(m: Model, seconds: float, used: list[int]) -> list[tuple[float, list[float]]]:
    samples: list[tuple[float, list[float]]] = []
    started = time.monotonic()
    while (now := time.monotonic() - started) < seconds:
        time.sleep(min(2.0, seconds / 50))
        for instance in m.instances:
            if instance.process.poll() is not None:
                raise SystemExit(f"an instance has ended:\n{instance.text[-5000:]}")
        owner = m.instances[0]
        used[0] = sum(e["event"] == "released" for e in list(owner.events)) * m.batch
        samples.append((now, [resident_mb(instance) for instance in m.instances]))
        sys.stderr.write(
            f"\r{now:5.0f} s  {used[0] / max(now, 1):9,.0f} records/s  "
            + "  ".join(f"{mb:6.1f} MB" for mb in samples[-1][1])
        )
    sys.stderr.write("\n")
    return samples


def growth(samples: list[tuple[float, list[float]]]) -> list[float]:
    """MB that each process gained over the second half."""
    later = samples[len(samples) // 2 :]
    times = np.array([at for at, _ in later])
    gained = []
    for column in np.array([sizes for _, sizes in later]).T:
        slope = np.polyfit(times, column, 1)[0]
        gained.append(float(slope * (times[-1] - times[0])))
    return gained


def main() -> int:
    parser = argparse.ArgumentParser("soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--batch-size", type=int, default=19_200)
    options = parser.parse_args()
    settings = {
        "batch": options.batch_size,
        "format": "float32",
        "partitions": 2,
        "max_poll_records": 5000,
        "rows_per_message": ROWS,
        "session_timeout_s": 10,
        "topic_configs": {"retention.bytes": str(1 << 30)},
    }
    with LocalBroker() as broker, model(broker.bootstrap_servers, "soak", **settings) as m:
        m.start().wait_for("task_started")
        m.start().wait_for("group_changed", role="standby")
        enough, used = threading.Event(), [0]
        load = threading.Thread(target=produce, args=(m, enough, used))
        load.start()
        try:
            samples = sample(m, options.seconds, used)
        finally:
            enough.set()
            load.join()
        m.producer.flush()
        m.finish(m.instances[0])
        assert [instance.leave() for instance in m.instances] == [0, 0]
        assert not m.instances[0].saw("task_dropped") or m.instances[0].saw("group_changed")
        last = m.check()
        gained = growth(samples)
        sys.stdout.write(
            f"{last} batches, {last * m.batch:,} records, all once; memory gained in the "
            f"second half: {', '.join(f'{mb:.1f} MB' for mb in gained)}\n"
        )
        return 0 if max(gained) < MOST_GROWTH_MB else 1


if __name__ == "__main__":
    sys.exit(main())

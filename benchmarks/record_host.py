"""Records telemetry of this machine: 28 counters and gauges, 200 times per second.

    pip install psutil
    python -m benchmarks.record_host --seconds 125 benchmarks/data/host.npz

Every column is a number that the kernel keeps for the machine as a whole (processor time,
interrupts, memory, network and disk traffic, load). No process, user, address or file name is
read. The file holds `levels` (records x metrics, float64) and `names`; `benchmarks.real` makes
rates from the levels.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["NAMES", "record"]

RATE_HZ = 200

_CPU = ("user", "system", "idle", "iowait", "softirq")
_CPU_STATS = ("ctx_switches", "interrupts", "soft_interrupts")
_MEMORY = ("available", "used", "free", "active", "inactive", "buffers", "cached", "slab")
_NETWORK = ("bytes_sent", "bytes_recv", "packets_sent", "packets_recv")
_DISK = ("read_count", "write_count", "read_bytes", "write_bytes", "read_time", "write_time")

NAMES: tuple[str, ...] = (
    *(f"cpu_{name}" for name in _CPU),
    *_CPU_STATS,
    *(f"memory_{name}" for name in _MEMORY),
    *(f"network_{name}" for name in _NETWORK),
    *(f"disk_{name}" for name in _DISK),
    "load_1min",
    "uptime_seconds",
)


def record(seconds: float) -> NDArray[np.float64]:
    """Levels, one row per tick of 5 ms; a metric that this system does not have is 0."""
    import psutil

    def sample() -> list[float]:
        cpu, stats = psutil.cpu_times(), psutil.cpu_stats()
        memory, network, disk = (
            psutil.virtual_memory(),
            psutil.net_io_counters(),
            psutil.disk_io_counters(),
        )
        groups = ((cpu, _CPU), (stats, _CPU_STATS), (memory, _MEMORY))
        groups += ((network, _NETWORK), (disk, _DISK))
        row = [float(getattr(source, name, 0.0)) for source, names in groups for name in names]
        return [*row, psutil.getloadavg()[0], time.clock_gettime(time.CLOCK_BOOTTIME)]

    rows = []
    start = time.monotonic()
    for tick in range(round(seconds * RATE_HZ)):
        time.sleep(max(0.0, start + tick / RATE_HZ - time.monotonic()))
        rows.append(sample())
    return np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    np.savez_compressed(arguments.path, levels=record(arguments.seconds), names=np.array(NAMES))
    print(f"{arguments.path}: {arguments.path.stat().st_size} bytes")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the layout of the module docstring."""


if __name__ == "__main__":
    main()

"""A simulated fleet of machines, for demonstrations: telemetry whose main direction is known.

Values are as a monitoring system sends them: in their own units, around their own typical values.
Two hidden causes drive the features of a machine: the traffic of its users, which follows the time
of day, and a backup that reads and writes disks. At first traffic varies most. After a number of
records the fleet changes: the backup becomes the stronger cause. After as many records again the
fleet changes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:  # the package would take seconds to load
    from stream_dppca.arrays import FloatArray

# name, typical value, typical swing, weight of the traffic, of the backup
_TABLE: tuple[tuple[str, float, float, float, float], ...] = (
    ("cpu_percent", 45.0, 12.0, 0.9, 0.2),
    ("memory_percent", 60.0, 8.0, 0.5, 0.1),
    ("requests_per_s", 900.0, 250.0, 1.0, 0.0),
    ("latency_ms", 40.0, 9.0, 0.7, 0.2),
    ("queue_length", 12.0, 3.5, 0.6, 0.0),
    ("net_in_bytes_per_s", 3.0e7, 8.0e6, 0.8, 0.0),
    ("net_out_bytes_per_s", 4.5e7, 1.2e7, 0.8, 0.4),
    ("disk_read_bytes_per_s", 8.0e7, 2.0e7, 0.1, 1.0),
    ("disk_write_bytes_per_s", 6.0e7, 1.5e7, 0.2, 0.9),
    ("gc_pause_ms", 15.0, 4.0, 0.4, 0.0),
    ("temperature_c", 55.0, 4.0, 0.5, 0.3),
    ("fan_rpm", 4200.0, 500.0, 0.4, 0.3),
)
_TYPICAL, _SWING, _TRAFFIC, _BACKUP = np.array([row[1:] for row in _TABLE]).T
_NOISE: Final = 0.45
#: Traffic at noon above the average, in standard deviations of traffic at any one time.
_RHYTHM: Final = 0.7
#: Strengths of the two causes, at first and after the change.
_STRENGTHS: Final = ((1.0, 0.5), (0.35, 1.4))

#: Records per simulated day: the clock is fast, so that days pass while one watches.
DAY: Final = 20_000
FEATURES: Final[tuple[str, ...]] = tuple(row[0] for row in _TABLE)


def backup_is_stronger(record: int, change_after: int | None) -> bool:
    """Tell whether the fleet has changed by the time of this record, counted from 0."""
    return change_after is not None and (record // change_after) % 2 == 1


def cooling_fails(record: int, fault_after: int | None) -> bool:
    """Tell whether the cooling of a machine fails at the time of this record, counted from 0.

    It works for `fault_after` records, then fails for half as many, and so on.
    """
    return fault_after is not None and record % (fault_after * 3 // 2) >= fault_after


def without_cooling(record: dict[str, float]) -> dict[str, float]:
    """The same record of a machine whose fan stands still and which gets hot."""
    return {**record, "fan_rpm": 0.0, "temperature_c": record["temperature_c"] + 25.0}


def true_direction(changed: bool) -> FloatArray:
    """Return the main direction of the fleet, at first or after the change.

    It is that of standardised features, in which every feature has variance 1: the top eigenvector
    of their correlations.
    """
    traffic, backup = _STRENGTHS[changed]
    T, B = traffic * _TRAFFIC, backup * _BACKUP
    covariance = (1 + _RHYTHM**2 / 2) * np.outer(T, T) + np.outer(B, B)
    covariance += _NOISE**2 * np.eye(len(_TABLE))
    sd = np.sqrt(np.diag(covariance))
    top = np.linalg.eigh(covariance / np.outer(sd, sd))[1][:, -1]
    return np.asarray(top * np.sign(top.sum()))


def telemetry(
    seed: int | None = None, chunk: int = 1000, change_after: int | None = None
) -> Iterator[FloatArray]:
    """Yield blocks of `chunk` records without end, columns in the order of `FEATURES`.

    Parameters
    ----------
    seed
        Seed of the simulation; the same seed gives the same records.
    chunk
        Records per block.
    change_after
        Records after which the fleet changes, and changes back; None if it never does.

    Examples
    --------
    >>> next(telemetry(seed=1, chunk=3)).shape
    (3, 12)
    """
    rng = np.random.default_rng(seed)
    done = 0
    while True:
        at = np.arange(done, done + chunk)[:, np.newaxis]
        changed = backup_is_stronger(done, change_after)
        traffic, backup = rng.standard_normal((2, chunk, 1))
        traffic = traffic + _RHYTHM * np.sin(2 * math.pi * at / DAY)
        strengths = _STRENGTHS[changed]
        # A running backup also moves the typical values.
        backup = strengths[1] * backup + (1.0 if changed else 0.0)
        noise = _NOISE * rng.standard_normal((chunk, len(_TABLE)))
        drive = strengths[0] * traffic * _TRAFFIC + backup * _BACKUP
        yield _TYPICAL + _SWING * (drive + noise)
        done += chunk

"""A simulated fleet of machines, for demonstrations: telemetry whose main direction is known.

One hidden load drives most features of a machine; a second, weaker one (a batch job that reads
disks) drives others. Values are in the units of a monitoring system and far from centred.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .arrays import FloatArray
from .scaling import PublicScaler

__all__ = ["FEATURES", "TRUE_DIRECTION", "public_scaler", "telemetry"]

# name, typical value, public scale (what a typical swing is), weight of the load, of the batch job
_TABLE: tuple[tuple[str, float, float, float, float], ...] = (
    ("cpu_percent", 45.0, 20.0, 0.9, 0.1),
    ("memory_percent", 60.0, 15.0, 0.5, 0.2),
    ("requests_per_s", 900.0, 400.0, 1.0, 0.0),
    ("latency_ms", 40.0, 15.0, 0.7, 0.1),
    ("queue_length", 12.0, 8.0, 0.6, 0.0),
    ("net_in_mbps", 300.0, 120.0, 0.8, 0.0),
    ("net_out_mbps", 450.0, 200.0, 0.8, 0.1),
    ("disk_read_mbps", 80.0, 60.0, 0.1, 0.7),
    ("disk_write_mbps", 60.0, 40.0, 0.2, 0.6),
    ("gc_pause_ms", 15.0, 6.0, 0.4, 0.1),
    ("temperature_c", 55.0, 8.0, 0.5, 0.2),
    ("fan_rpm", 4200.0, 900.0, 0.4, 0.2),
)
_MEAN, _SCALE, _LOAD, _JOB = np.array([row[1:] for row in _TABLE]).T
_NOISE = 0.35

FEATURES: tuple[str, ...] = tuple(row[0] for row in _TABLE)


def _true_direction() -> FloatArray:
    covariance = np.outer(_LOAD, _LOAD) + np.outer(_JOB, _JOB) + _NOISE**2 * np.eye(len(_LOAD))
    top = np.linalg.eigh(covariance)[1][:, -1]
    return np.asarray(top * np.sign(top.sum()))


#: The top eigenvector of the covariance, after `public_scaler`.
TRUE_DIRECTION: FloatArray = _true_direction()


def public_scaler() -> PublicScaler:
    """Divides each feature by its public scale, known from its unit and not from the data."""
    return PublicScaler(scales={name: scale for name, _, scale, *_ in _TABLE})


def telemetry(seed: int | None = None, chunk: int = 1000) -> Iterator[FloatArray]:
    """Endless blocks of `chunk` records, columns in the order of `FEATURES`.

    Examples
    --------
    >>> next(telemetry(seed=1, chunk=3)).shape
    (3, 12)
    """
    rng = np.random.default_rng(seed)
    while True:
        load, job = rng.standard_normal((2, chunk, 1))
        noise = _NOISE * rng.standard_normal((chunk, len(_TABLE)))
        yield _MEAN + _SCALE * (load * _LOAD + job * _JOB + noise)

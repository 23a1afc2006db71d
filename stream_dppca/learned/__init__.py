"""Learned centre and scales: the default on telemetry as it comes.

| module | what |
|---|---|
| `learned.statistics` | **private**: what is summed, and how far one unit moves it |
| `learned.warmup` | **private**: centre, scales and radius from the first batches |
| `learned.method` | **private**: one batch in order: moments of (z, b), a look at scales |
| `learned.standard` | centre, scales and clamps: what a record is to the method |
| `learned.covariance` | post-processing: running moments, mean, correlation, memory, drift |
"""

from .method import WARMING_UP, WARMING_UP_ANEW, LearnedMethod
from .standard import Standard

__all__ = ["WARMING_UP", "WARMING_UP_ANEW", "LearnedMethod", "Standard"]

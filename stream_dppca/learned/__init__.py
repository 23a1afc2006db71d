"""Learned centre and scales: the default, for telemetry in its own units.

| module | content |
|---|---|
| `learned.statistics` | **private**: the sums, and how far one unit moves them |
| `learned.warmup` | **private**: centre, scales and radius from the first batches |
| `learned.looks` | **private**: counts for features whose spread is not known |
| `learned.base` | base of the two forms: parameters, warm-up, running moments, state |
| `learned.method` | **private**: one batch in order: moments of (z, b), a look at scales |
| `learned.gradients` | **private**: gradients of standardised records with a learned centre |
| `learned.wide` | **private**: one batch of many features: means and variances, a gradient |
| `learned.standard` | centre, scales and clamps, by which a record is standardised |
| `learned.covariance` | post-processing: running moments, mean, correlation, memory, drift |
"""

from .base import WARMING_UP, WARMING_UP_ANEW
from .method import MOST_FEATURES, LearnedMethod
from .standard import Standard
from .wide import WideMethod

__all__ = [
    "MOST_FEATURES",
    "WARMING_UP",
    "WARMING_UP_ANEW",
    "LearnedMethod",
    "Standard",
    "WideMethod",
]

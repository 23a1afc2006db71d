"""The method of `DPPCA`, composed of small parts.

    standardise   `first`, `standard`    known, or learned in the first step: z = clamp((x - c)/s)
    ask           `statistics`           moments of (z, b), or gradients
    release       `mechanisms.correlated`  noise that cancels over batches, or independent noise
    remember      `covariance`, `drift`  one running estimate, one alarm
    read          `covariance`           components, spread, explained variance

| module | content |
|---|---|
| `statistics` | **private**: the sums, and how far one unit moves them |
| `first` | **private**: centre, scales and radius, asked in the first step |
| `looks` | **private**: counts for features whose spread is not known |
| `base` | what the two forms share: parameters, first step, running moments, state |
| `method` | **private**: one step in order: moments of (z, b), a look at scales |
| `gradients` | **private**: gradients of standardised records with a learned centre |
| `wide` | **private**: one batch of many features: means and variances, a gradient |
| `standard` | centre, scales and clamps, by which a record is standardised |
| `covariance` | post-processing: running moments, mean, correlation, memory |
"""

from .base import UNREADABLE, Parameters
from .moments import MOST_FEATURES, MomentMethod
from .standard import Standard
from .wide import WideMethod

__all__ = [
    "MOST_FEATURES",
    "UNREADABLE",
    "MomentMethod",
    "Parameters",
    "Standard",
    "WideMethod",
    "compose",
]


def compose(given: Parameters) -> MomentMethod | WideMethod:
    """The method for these public numbers."""
    if len(given.W) > MOST_FEATURES and given.subjects is None:
        return WideMethod(given)
    return MomentMethod(given)

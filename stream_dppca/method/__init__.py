"""The method of `DPPCA`, composed of small parts.

    standardise   `first`, `standard`      known, or learned in the first step: z = clamp((x - c)/s)
    ask           `statistics`, `limits`   moments of (z, b), histograms of scores
    release       `mechanisms.correlated`  noise that cancels over batches, or independent noise
    remember      `memory`, `drift`        one running estimate, one alarm
    read          `components`             components, spread, explained variance

| module | content |
|---|---|
| `parameters` | public numbers: parameters, the budget of each question, the smallest batch |
| `step` | **private**: `AdaptiveMethod`, one step in order |
| `first` | **private**: centre, scales and lengths, asked in the first step |
| `radius` | post-processing: the clip radius, from counts of lengths |
| `statistics` | **private**: the sums, and how far one unit moves them |
| `limits` | **private**: histograms of scores, and the limits that they show |
| `looks` | **private**: counts for features whose spread is not known |
| `standard` | centre, scales and clamps, by which a record is standardised |
| `histograms` | post-processing: what noisy counts say about a feature |
| `memory` | post-processing: running moments, and the noise in them |
| `correction` | post-processing: centre and scales corrected by releases |
| `drift` | post-processing: alarms |
| `components` | post-processing: mean, spread, components and eigenvalues |
"""

from .parameters import Parameters, check_features
from .standard import Standard
from .step import UNREADABLE, AdaptiveMethod

__all__ = ["UNREADABLE", "AdaptiveMethod", "Parameters", "Standard", "check_features"]

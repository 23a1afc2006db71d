"""Privacy per subject (a device, a user): docs/subjects.md.

| module | content |
|---|---|
| `subjects.ids` | **private**: one byte form for every spelling of an id |
| `subjects.table` | **private**: the subjects with a place in a round, and their rows |
| `subjects.units` | **private**: the mean over a subject's rows, clipped; sums over subjects |
| `subjects.planning` | accuracy and number of devices, before any data |
"""

from .table import SubjectTable, first_rows
from .units import SubjectRows

__all__ = ["SubjectRows", "SubjectTable", "first_rows"]

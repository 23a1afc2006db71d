"""Privacy per subject (a device, a user): docs/subjects.md.

| module | content |
|---|---|
| `subjects.ids` | one byte form for every spelling of an id |
| `subjects.first` | **private**: the rows of a part of a round that may count |
| `subjects.table` | **private**: the subjects with a place in a round, and their rows |
| `subjects.units` | **private**: the mean over a subject's rows, clipped; sums over subjects |
"""

from .first import first_rows
from .table import SubjectTable
from .units import SubjectRows

__all__ = ["SubjectRows", "SubjectTable", "first_rows"]

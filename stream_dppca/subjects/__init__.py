"""Privacy per subject (a device, a user): docs/subjects.md.

| module | what |
|---|---|
| `subjects.ids` | one byte form for every spelling of an id |
| `subjects.first` | **private**: which rows of a part of a round may count |
| `subjects.table` | **private**: who has a place in a round, and which rows are kept |
| `subjects.units` | **private**: the mean over a subject's rows, clipped; sums over subjects |
"""

from .first import first_rows
from .table import MOST_RECORDS, SubjectTable
from .units import SubjectRows

__all__ = ["MOST_RECORDS", "SubjectRows", "SubjectTable", "first_rows"]

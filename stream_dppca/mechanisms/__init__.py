"""Private mechanisms that methods share.

| module | content |
|---|---|
| `mechanisms.correlated` | **private**: noise that cancels over batches |
| `mechanisms.independent` | **private**: noise of its own in every round |
| `mechanisms.packing` | **private**: symmetric matrices as vectors of the same length |
| `mechanisms.eigen` | leading eigenvectors of released matrices |
"""

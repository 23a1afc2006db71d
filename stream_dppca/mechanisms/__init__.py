"""Private mechanisms that methods share.

| module | content |
|---|---|
| `mechanisms.radius` | **private**: the clip radius by noisy binary search |
| `mechanisms.queries` | **private**: clipped means of gradients or second moments |
| `mechanisms.correlated` | **private**: noise that cancels over batches |
| `mechanisms.independent` | **private**: noise of its own in every round |
"""

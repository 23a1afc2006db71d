"""Private mechanisms that methods share.

| module | content |
|---|---|
| `adaptive.radius` | **private**: the clip radius by noisy binary search |
| `adaptive.queries` | **private**: clipped means of gradients or second moments |
| `adaptive.correlated` | **private**: noise that cancels over batches |
| `adaptive.independent` | **private**: noise of its own in every round |
"""

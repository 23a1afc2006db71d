"""The default method. `method` describes how the parts work together.

| module | content |
|---|---|
| `adaptive.scout` | second moments or gradients |
| `adaptive.method` | one batch in order: range, mean, step |
| `adaptive.radius` | **private**: the clip radius by noisy binary search |
| `adaptive.queries` | **private**: clipped means of gradients or second moments |
| `adaptive.correlated` | **private**: noise that cancels over batches |
| `adaptive.whitening`, `adaptive.estimate` | post-processing: least squares, forgetting |
"""

from .method import AdaptiveMethod, GradientMethod, MomentMethod
from .scout import ScoutMethod, adaptive_method

__all__ = ["AdaptiveMethod", "GradientMethod", "MomentMethod", "ScoutMethod", "adaptive_method"]

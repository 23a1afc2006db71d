"""DP-PCA as the paper states it, step by step.

| module | in the paper |
|---|---|
| `paper.estimator` | `PaperDPPCA`, the algorithm as a river transformer |
| `paper.dppca` | **private**: Algorithm 3: range on the first half, mean on the second, Oja step |
| `paper.eigenvalue` | **private**: Algorithm 4, private top eigenvalue estimation, with Lemma B.1 |
| `paper.mean` | **private**: Algorithm 5, private mean estimation |
| `paper.oja` | Algorithms 1 and 2, the Oja step and its schedule |

Liu, Kong, Jain, Oh. DP-PCA: Statistically Optimal and Differentially Private PCA. NeurIPS 2022.
Where the paper is loose or silent, docs/privacy.md explains what is done instead, and why.
"""

from .dppca import PaperMethod
from .eigenvalue import private_histogram, private_top_eigenvalue
from .estimator import PaperDPPCA
from .mean import private_mean
from .oja import InverseTime

__all__ = [
    "InverseTime",
    "PaperDPPCA",
    "PaperMethod",
    "private_histogram",
    "private_mean",
    "private_top_eigenvalue",
]
